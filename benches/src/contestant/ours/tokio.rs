//! With tasks of one runtime, and its timers.

use requeue::Queue;

use super::super::{Contestant, fire, several};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// A queue that is made within a runtime.
#[derive(Debug)]
pub(in super::super) struct OnTokio;

impl Contestant for OnTokio {
    const NAME: &'static str = "requeue-tokio";
    const SCENARIOS: &'static [Scenario] =
        &[Scenario::Fire, Scenario::SparseTimers, Scenario::HandOver];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        match request.scenario {
            Scenario::Fire | Scenario::SparseTimers => fire::to_task(Queue::<u64>::new, request),
            Scenario::HandOver => Some(several::hand_over_to_task(Queue::<K>::new, request)),
            _ => None,
        }
    }
}

//! A queue for the tasks of one runtime, with its timers.

use requeue::clock::TokioClock;
use requeue::{Builder, Queue};

use super::super::{Contestant, fire, several};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// A queue with client-go's re-adds and limiter, on the clock of the runtime.
#[derive(Debug)]
pub(in super::super) struct OnTokio;

impl Contestant for OnTokio {
    const NAME: &'static str = "requeue-tokio";
    const SCENARIOS: &'static [Scenario] =
        &[Scenario::Fire, Scenario::SparseTimers, Scenario::HandOver];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        match request.scenario {
            Scenario::Fire | Scenario::SparseTimers => fire::to_task(make::<u64>, request),
            Scenario::HandOver => Some(several::hand_over_to_task(make::<K>, request)),
            _ => None,
        }
    }
}

fn make<K: Key>() -> Queue<K> {
    let builder = Builder::client_go().clock(TokioClock::current());
    builder.build().expect("client-go's settings are valid")
}

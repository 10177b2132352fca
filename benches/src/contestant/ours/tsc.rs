//! A queue whose clock reads the processor's counter.

use prometheus_client::registry::Registry;
use requeue::Queue;
use requeue::clock::TscClock;
use requeue::metrics::Metrics;

use super::super::{Contestant, single};
use super::Worker;
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// A queue with defaults except for the clock.
#[derive(Debug)]
pub(in super::super) struct ByTsc;

impl Contestant for ByTsc {
    const NAME: &'static str = "requeue-tsc";
    const SCENARIOS: &'static [Scenario] = &[Scenario::CycleMetrics];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        if request.scenario != Scenario::CycleMetrics {
            return None;
        }
        let metrics = Metrics::register(&mut Registry::default());
        let builder = Queue::<K>::builder().name("bench").metrics(&metrics).clock(TscClock::new());
        let queue = builder.build().expect("the name is used once");
        Some(single::cycle(Worker::of(&queue), request))
    }
}

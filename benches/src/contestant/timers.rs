//! Timers without a queue, which show the best precision that a wait of their kind can have.

use std::thread;
use std::time::Instant;

use super::Contestant;
use super::fire::{Arrivals, Plan};
use super::several::runtime;
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};
use crate::versions;

const SCENARIOS: &[Scenario] = &[Scenario::Fire, Scenario::SparseTimers];

/// A thread that parks until each time, in order.
#[derive(Debug)]
pub(super) struct ParkedThread;

impl Contestant for ParkedThread {
    const NAME: &'static str = "parked-thread";
    const SCENARIOS: &'static [Scenario] = SCENARIOS;

    fn version() -> String {
        "of std".to_owned()
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        if !SCENARIOS.contains(&request.scenario) {
            return None;
        }
        let plan = Plan::new(request)?;
        let mut arrivals = Arrivals::new(plan);
        let meter = plan.begin();
        for due in plan.times() {
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                thread::park_timeout(left);
            }
            arrivals.note_due(due);
        }
        Some(arrivals.answer(meter))
    }
}

/// A task that sleeps until each time, in order.
#[derive(Debug)]
pub(super) struct TokioSleep;

impl Contestant for TokioSleep {
    const NAME: &'static str = "tokio-sleep";
    const SCENARIOS: &'static [Scenario] = SCENARIOS;

    fn version() -> String {
        versions::of("tokio")
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        if !SCENARIOS.contains(&request.scenario) {
            return None;
        }
        let plan = Plan::new(request)?;
        let meter = plan.begin();
        let arrivals = runtime().block_on(async {
            let task = tokio::spawn(async move {
                let mut arrivals = Arrivals::new(plan);
                for due in plan.times() {
                    if due > Instant::now() {
                        tokio::time::sleep_until(due.into()).await;
                    }
                    arrivals.note_due(due);
                }
                arrivals
            });
            task.await.expect("sleeping does not panic")
        });
        Some(arrivals.answer(meter))
    }
}

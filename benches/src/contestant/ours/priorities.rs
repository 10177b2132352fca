//! A queue with priorities, for the comparison with a peer that always has priorities.

use std::time::Duration;

use requeue::{Add, Order, Queue};

use super::super::several::{self, Shared, SharedDelays};
use super::super::single::{self, Delays, Subject};
use super::super::{Contestant, contended, fire};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// A queue in which each tenth delivery takes the oldest key, regardless of its priority.
#[derive(Debug)]
pub(in super::super) struct WithPriorities;

impl Contestant for WithPriorities {
    const NAME: &'static str = "requeue-priorities";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::AddQueued,
        Scenario::FillDrain,
        Scenario::Threads,
        Scenario::DelayedAdd,
        Scenario::DelayedReadd,
        Scenario::Fire,
        Scenario::SparseTimers,
        Scenario::HandOver,
        Scenario::Memory,
        Scenario::MemoryDelayed,
    ];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Ranked::<K>::new;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::Threads => return contended::threads(&Ranked::<u64>::new(), request),
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::Fire | Scenario::SparseTimers => {
                return fire::to_thread(&Ranked::<u64>::new(), request);
            }
            Scenario::HandOver => several::hand_over(&make(), request),
            Scenario::Memory => single::memory(make, request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            _ => return None,
        })
    }
}

#[derive(Clone)]
struct Ranked<K: Key> {
    queue: Queue<K>,
}

impl<K: Key> Ranked<K> {
    fn new() -> Self {
        let queue = Queue::builder().order(Order::Priority { oldest_every: 10 }).build();
        Self { queue: queue.expect("10 makes sense") }
    }

    fn add_with(&self, key: &K, add: Add) {
        self.queue.add_with(key.clone(), add.priority(key.rank()));
    }
}

impl<K: Key> Subject<K> for Ranked<K> {
    fn add(&mut self, key: &K) {
        self.add_with(key, Add::now());
    }

    fn add_again(&mut self, key: &K) {
        let add = Add::now().priority(key.rank());
        if K::BY_REF {
            self.queue.add_ref_with(key, add, K::clone);
        } else {
            self.queue.add_with(key.clone(), add);
        }
    }

    fn take(&mut self) {
        self.queue.take();
    }
}

impl<K: Key> Delays<K> for Ranked<K> {
    fn add_after(&mut self, key: &K, delay: Duration) {
        self.add_with(key, Add::after(delay));
    }

    fn cancel(&mut self, key: &K) -> bool {
        Delays::cancel(&mut self.queue, key)
    }
}

impl<K: Key> Shared<K> for Ranked<K> {
    fn add(&self, key: &K) {
        self.add_with(key, Add::now());
    }

    fn work(&self, each: impl FnMut(&K)) {
        self.queue.work(each);
    }

    fn close(&self) {
        self.queue.close();
    }
}

impl<K: Key> SharedDelays<K> for Ranked<K> {
    fn add_after(&self, key: &K, delay: Duration) {
        self.add_with(key, Add::after(delay));
    }
}

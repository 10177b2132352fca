//! The minimum of a queue, which delivers each key once, in order.

use std::collections::{HashSet, VecDeque};
use std::hint::black_box;

use foldhash::fast::RandomState;

use super::Contestant;
use super::single::{self, Subject};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// A hash set and a ring.
#[derive(Debug)]
pub(super) struct Bare;

impl Contestant for Bare {
    const NAME: &'static str = "floor";
    const SCENARIOS: &'static [Scenario] =
        &[Scenario::Cycle, Scenario::AddQueued, Scenario::FillDrain, Scenario::Memory];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Floor::<K>::default;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::Memory => single::memory(make, request),
            _ => return None,
        })
    }
}

struct Floor<K> {
    known: HashSet<K, RandomState>,
    order: VecDeque<K>,
}

impl<K> Default for Floor<K> {
    fn default() -> Self {
        Self { known: HashSet::default(), order: VecDeque::new() }
    }
}

impl<K: Key> Subject<K> for Floor<K> {
    #[inline]
    fn add(&mut self, key: &K) {
        if self.known.insert(key.clone()) {
            self.order.push_back(key.clone());
        }
    }

    fn add_again(&mut self, key: &K) {
        black_box(self.known.contains(key));
    }

    #[inline]
    fn take(&mut self) {
        if let Some(key) = self.order.pop_front() {
            black_box(self.known.remove(&key));
        }
    }
}

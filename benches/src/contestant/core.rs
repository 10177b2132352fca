//! requeue's state machine, without a lock.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::time::Duration;

use foldhash::fast::RandomState;
use requeue_core::{Add, Config, Finish, GroupId, Queue, Time};

use super::single::{self, Batches, Delays, Subject};
use super::{Contestant, holds};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// The crate `requeue-core`.
#[derive(Debug)]
pub(super) struct Core;

impl Contestant for Core {
    const NAME: &'static str = "requeue-core";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::Batch,
        Scenario::AddQueued,
        Scenario::FillDrain,
        Scenario::DelayedAdd,
        Scenario::DelayedReadd,
        Scenario::Memory,
        Scenario::MemoryDelayed,
        Scenario::HoldsGrowing,
        Scenario::HoldsDue,
    ];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Bare::<K>::default;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::Batch => single::batch(make(), request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::Memory => single::memory(make, request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            Scenario::HoldsGrowing => holds::growing::<K>(request),
            Scenario::HoldsDue => holds::due::<K>(request),
            _ => return None,
        })
    }
}

struct Bare<K> {
    queue: Queue<K>,
    hasher: RandomState,
}

impl<K> Default for Bare<K>
where
    K: Key,
{
    fn default() -> Self {
        Self { queue: Queue::new(Config::default()), hasher: RandomState::default() }
    }
}

impl<K: Key> Bare<K> {
    #[inline]
    fn add_with(&mut self, key: &K, add: Add) {
        let hash = self.hasher.hash_one(key);
        drop(self.queue.add(key.clone(), hash, add, GroupId::default(), Time::ZERO).1);
    }
}

impl<K: Key> Subject<K> for Bare<K> {
    #[inline]
    fn add(&mut self, key: &K) {
        self.add_with(key, Add::now());
    }

    fn add_again(&mut self, key: &K) {
        if K::BY_REF {
            let hash = self.hasher.hash_one(key);
            black_box(self.queue.add_known(key, hash, &Add::now(), Time::ZERO));
        } else {
            self.add(key);
        }
    }

    #[inline]
    fn take(&mut self) {
        if let Some(out) = self.queue.get(Time::ZERO) {
            black_box(self.queue.finish(&out.ticket, Finish::Succeed, Time::ZERO));
        }
    }
}

/// Without a lock, batches save nothing.
impl<K: Key> Batches<K> for Bare<K> {
    fn add_all(&mut self, keys: &[K]) {
        keys.iter().for_each(|key| self.add(key));
    }

    fn take_many(&mut self, count: usize) {
        (0..count).for_each(|_| self.take());
    }
}

impl<K: Key> Delays<K> for Bare<K> {
    fn add_after(&mut self, key: &K, delay: Duration) {
        self.add_with(key, Add::after(delay));
    }

    fn cancel(&mut self, key: &K) -> bool {
        let hash = self.hasher.hash_one(key);
        self.queue.cancel(key, hash).is_some()
    }
}

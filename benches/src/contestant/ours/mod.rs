//! requeue's queue, used as its documentation describes.

mod groups;
mod idle;
mod priorities;
mod snapshot;
mod tokio;
mod tsc;

use std::hint::black_box;
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::metrics::Metrics;
use requeue::{Item, Queue};

pub(super) use self::groups::WithGroups;
pub(super) use self::priorities::WithPriorities;
pub(super) use self::tokio::OnTokio;
pub(super) use self::tsc::ByTsc;
use super::several::{self, Shared, SharedDelays, Tasks};
use super::single::{self, Batches, Delays, HOUR, Subject};
use super::{Contestant, contended, fire};
use crate::keys::Key;
use crate::meter::Meter;
use crate::protocol::{Answer, Request, Scenario};

/// A queue with client-go's re-adds and limiter, so that it does the same work as client-go's
/// queue.
#[derive(Debug)]
pub(super) struct Requeue;

impl Contestant for Requeue {
    const NAME: &'static str = "requeue";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::Batch,
        Scenario::CycleMetrics,
        Scenario::CycleWaiting,
        Scenario::AddQueued,
        Scenario::FillDrain,
        Scenario::Threads,
        Scenario::Tasks,
        Scenario::DelayedAdd,
        Scenario::DelayedReadd,
        Scenario::Fire,
        Scenario::SparseTimers,
        Scenario::RateLimitedAdd,
        Scenario::Forget,
        Scenario::HandOver,
        Scenario::Snapshot,
        Scenario::Memory,
        Scenario::MemoryDelayed,
        Scenario::MemoryIdle,
        Scenario::IdleCpu,
    ];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Queue::<K>::client_go;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(Worker::of(&make()), request),
            Scenario::Batch => single::batch(make(), request),
            Scenario::CycleMetrics => {
                let mut registry = Registry::default();
                let queue = with_metrics::<K>(&Metrics::register(&mut registry), 0);
                single::cycle(Worker::of(&queue), request)
            }
            Scenario::CycleWaiting => single::cycle(Worker::of(&one_waits::<K>()), request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(Worker::of(&make()), request),
            Scenario::Threads => return contended::threads(&Queue::<u64>::client_go(), request),
            Scenario::Tasks => return contended::tasks(Queue::<u64>::client_go, request),
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::Fire | Scenario::SparseTimers => {
                return fire::to_thread(&Queue::<u64>::client_go(), request);
            }
            Scenario::RateLimitedAdd => rate_limited_add::<K>(request),
            Scenario::Forget => forget::<K>(request),
            Scenario::HandOver => several::hand_over(&make(), request),
            Scenario::Snapshot => snapshot::page::<K>(request),
            Scenario::Memory => single::memory(make, request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            Scenario::MemoryIdle => idle::memory::<K>(request),
            Scenario::IdleCpu => idle::cpu::<K>(request),
            Scenario::HeldBack | Scenario::HoldsGrowing | Scenario::HoldsDue => return None,
        })
    }
}

fn with_metrics<K: Key>(metrics: &Metrics, number: usize) -> Queue<K> {
    let builder = Queue::builder().name(format!("bench-{number}")).metrics(metrics);
    builder.build().expect("each number is used once")
}

/// Creates a queue in which one key, which is never used, waits.
fn one_waits<K: Key>() -> Queue<K> {
    let queue = Queue::client_go();
    queue.add_after(K::other(), HOUR);
    queue
}

fn rate_limited_add<K: Key>(request: &Request) -> Answer {
    let (keys, queue) = (K::some(request.n), Queue::<K>::client_go());
    let meter = Meter::start();
    for key in &*keys {
        queue.add_rate_limited(key.clone());
    }
    meter.stop(request.n)
}

fn forget<K: Key>(request: &Request) -> Answer {
    let (keys, queue) = (K::some(request.n), Queue::<K>::client_go());
    for key in &*keys {
        queue.add_rate_limited(key.clone());
    }
    let meter = Meter::start();
    keys.iter().for_each(|key| queue.forget(key));
    meter.stop(request.n)
}

impl<K: Key> Subject<K> for Queue<K> {
    #[inline]
    fn add(&mut self, key: &K) {
        Self::add(self, key.clone());
    }

    #[inline]
    fn add_again(&mut self, key: &K) {
        if K::BY_REF {
            self.add_ref(key);
        } else {
            Self::add(self, key.clone());
        }
    }

    #[inline]
    fn take(&mut self) {
        if let Some(item) = self.get().blocking() {
            black_box(&*item);
            item.succeed();
        }
    }
}

/// The loop of a worker, which completes a key and takes the next key in one call.
struct Worker<'q, K: Key> {
    queue: &'q Queue<K>,
    item: Option<Item<'q, K>>,
}

impl<'q, K: Key> Worker<'q, K> {
    const fn of(queue: &'q Queue<K>) -> Self {
        Self { queue, item: None }
    }
}

impl<K: Key> Subject<K> for Worker<'_, K> {
    #[inline]
    fn add(&mut self, key: &K) {
        self.queue.add(key.clone());
    }

    #[inline]
    fn take(&mut self) {
        self.item = match self.item.take() {
            Some(item) => {
                self.queue.succeed_and_try_get(item).or_else(|| self.queue.get().blocking())
            }
            None => self.queue.get().blocking(),
        };
        black_box(self.item.as_deref());
    }
}

impl<K: Key> Batches<K> for Queue<K> {
    fn add_all(&mut self, keys: &[K]) {
        Self::add_all(self, keys.iter().cloned());
    }

    fn take_many(&mut self, count: usize) {
        Item::succeed_all(black_box(self.get_many(count).blocking()));
    }
}

impl<K: Key> Delays<K> for Queue<K> {
    fn add_after(&mut self, key: &K, delay: Duration) {
        Self::add_after(self, key.clone(), delay);
    }

    fn cancel(&mut self, key: &K) -> bool {
        Self::cancel(self, key).waiting
    }
}

impl<K: Key> Shared<K> for Queue<K> {
    fn add(&self, key: &K) {
        Self::add(self, key.clone());
    }

    fn work(&self, mut each: impl FnMut(&K)) {
        let mut next = self.get().blocking();
        while let Some(item) = next {
            each(&item);
            next = self.succeed_and_try_get(item).or_else(|| self.get().blocking());
        }
    }

    fn close(&self) {
        Self::close(self);
    }
}

impl<K: Key> Tasks<K> for Queue<K> {
    async fn work_as_task(&self, mut each: impl FnMut(&K) + Send) {
        let mut next = self.get().await;
        while let Some(item) = next {
            each(&item);
            next = self.succeed_and_get(item).await;
        }
    }
}

impl<K: Key> SharedDelays<K> for Queue<K> {
    fn add_after(&self, key: &K, delay: Duration) {
        Self::add_after(self, key.clone(), delay);
    }
}

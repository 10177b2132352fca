//! Hooks that count their calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use requeue::metrics::{MetricsProvider, QueueMetrics};

use crate::model::Model;

/// The number of calls of each hook.
#[derive(Default)]
pub(super) struct Hooks {
    adds: AtomicU64,
    gets: AtomicU64,
    dones: AtomicU64,
    retries: AtomicU64,
    withdrawn: AtomicU64,
}

fn count(events: &AtomicU64) {
    events.fetch_add(1, Ordering::Relaxed);
}

impl<K> QueueMetrics<K> for Hooks {
    fn add(&self) {
        count(&self.adds);
    }

    fn get(&self, _: &K, _: Duration) {
        count(&self.gets);
    }

    fn done(&self, _: &K, _: Duration) {
        count(&self.dones);
    }

    fn retry(&self) {
        count(&self.retries);
    }

    fn withdraw(&self) {
        count(&self.withdrawn);
    }
}

pub(super) struct Provider(pub(super) Arc<Hooks>);

impl<K> MetricsProvider<K> for Provider {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::clone(&self.0) as Arc<dyn QueueMetrics<K>>
    }
}

/// Adds, deliveries, completions, retries, and withdrawn adds.
pub(super) type Events = [u64; 5];

impl Hooks {
    pub(super) fn told(&self) -> Events {
        [&self.adds, &self.gets, &self.dones, &self.retries, &self.withdrawn]
            .map(|events| events.load(Ordering::Relaxed))
    }
}

/// The calls that hooks should have received by now.
pub(super) fn events(model: &Model<u32>) -> Events {
    let tally = model.tally();
    let processing = model.in_flight() as u64;
    // The number of withdrawn keys follows from the other counts, because an added key is still in
    // the queue, was delivered, or was withdrawn.
    let withdrawn = tally.enqueued - tally.deliveries - model.ready_and_dirty() as u64;
    [tally.enqueued, tally.deliveries, tally.deliveries - processing, tally.retries, withdrawn]
}

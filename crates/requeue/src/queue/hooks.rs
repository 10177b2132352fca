//! The events that metrics hooks receive without a key. The events are counted under the lock, and reported after its
//! release.

use requeue_core as core;

use crate::metrics::QueueMetrics;
use crate::sync::quietly;

/// Numbers of events: in total, or since the last report.
#[derive(Clone, Copy, Default)]
pub(super) struct Events {
    /// Keys that became ready or dirty, as `QueueMetrics::add` counts them.
    adds: u64,
    retries: u64,
    withdrawn: u64,
}

impl Events {
    /// Returns the number of all events of a queue so far.
    pub(super) fn read_totals<K: Eq + Clone>(core: &core::Queue<K>) -> Self {
        let counts = core.totals();
        Self {
            adds: counts.enqueued,
            retries: counts.retries,
            // The number of withdrawn keys follows from the other counts, because an added key is
            // still in the queue, was delivered, or was withdrawn.
            withdrawn: counts
                .enqueued
                .saturating_sub(counts.deliveries)
                .saturating_sub(core.ready_and_dirty() as u64),
        }
    }

    /// Returns the number of events since `reported`.
    pub(super) const fn events_since(self, reported: Self) -> Self {
        Self {
            adds: self.adds.saturating_sub(reported.adds),
            retries: self.retries.saturating_sub(reported.retries),
            withdrawn: self.withdrawn.saturating_sub(reported.withdrawn),
        }
    }

    /// Calls the hooks, once for each event. The lock must not be held.
    #[inline(always)]
    pub(super) fn call_hooks<K>(self, hooks: &dyn QueueMetrics<K>) {
        call_times(self.retries, || hooks.retry());
        call_times(self.adds, || hooks.add());
        call_times(self.withdrawn, || hooks.withdraw());
    }
}

fn call_times(events: u64, hook: impl Fn()) {
    for _ in 0..events {
        quietly(&hook);
    }
}

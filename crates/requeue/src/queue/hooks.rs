//! The events that metrics hooks receive without a key. They are counted under the lock, and
//! reported after it is released.

use requeue_core as core;

use crate::metrics::QueueMetrics;
use crate::sync::quietly;

/// The numbers of three kinds of events, since the queue was created or since the last report.
#[derive(Clone, Copy, Default)]
pub(super) struct Events {
    /// How often a key became ready or dirty, for `QueueMetrics::add`.
    adds: u64,
    retries: u64,
    withdrawn: u64,
}

impl Events {
    /// Returns the numbers of events since the queue was created.
    pub(super) fn read_totals<K: Eq + Clone>(core: &core::Queue<K>) -> Self {
        let counts = core.totals();
        Self {
            adds: counts.enqueued,
            retries: counts.retries,
            // A key that became ready or dirty is still so, was delivered, or was withdrawn. The
            // number of withdrawn keys therefore follows from the other numbers.
            withdrawn: counts
                .enqueued
                .saturating_sub(counts.deliveries)
                .saturating_sub(core.ready_and_dirty() as u64),
        }
    }

    /// Returns the numbers of events since the report that `reported` describes.
    pub(super) const fn events_since(self, reported: Self) -> Self {
        Self {
            adds: self.adds.saturating_sub(reported.adds),
            retries: self.retries.saturating_sub(reported.retries),
            withdrawn: self.withdrawn.saturating_sub(reported.withdrawn),
        }
    }

    /// Calls a hook for each event. The caller must not hold the lock.
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

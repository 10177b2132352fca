//! Reports the events of an operation to metrics hooks, after the lock is released.

use super::shared::State;
use crate::metrics::QueueMetrics;
use crate::sync::quietly;

/// Numbers of events: in total, or since the last report.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    adds: u64,
    retries: u64,
    withdrawn: u64,
}

impl<K: Eq + Clone> State<K> {
    /// Returns the events since the last call, whichever operation caused them: an operation on one
    /// key often makes other keys ready.
    pub(super) fn news(&mut self) -> Told {
        let counts = self.core.counts();
        let all = Told {
            adds: counts.adds,
            retries: counts.retries,
            // An added key is still in the queue, was delivered, or was withdrawn.
            withdrawn: counts
                .adds
                .saturating_sub(counts.hand_outs)
                .saturating_sub(self.core.depth() as u64),
        };
        let told = std::mem::replace(&mut **self.told.get_or_insert_default(), all);
        Told {
            adds: all.adds.saturating_sub(told.adds),
            retries: all.retries.saturating_sub(told.retries),
            withdrawn: all.withdrawn.saturating_sub(told.withdrawn),
        }
    }
}

impl Told {
    /// Calls the hooks, once for each event. The lock must not be held.
    pub(super) fn tell<K>(self, hooks: &dyn QueueMetrics<K>) {
        each(self.retries, || hooks.retry());
        each(self.adds, || hooks.add());
        each(self.withdrawn, || hooks.withdraw());
    }
}

fn each(events: u64, hook: impl Fn()) {
    for _ in 0..events {
        quietly(&hook);
    }
}

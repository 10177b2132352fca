//! Telling the hooks of a metrics backend what has happened under the lock.

use super::shared::State;
use crate::metrics::QueueMetrics;
use crate::sync::quietly;

/// Events so far, or since somebody was told.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    adds: u64,
    retries: u64,
    withdrawn: u64,
}

impl<K: Eq + Clone> State<K> {
    /// What has happened since the last time this was asked, whichever operation did it: many a
    /// key becomes ready on the way of an operation on another.
    pub(super) fn news(&mut self) -> Told {
        let counts = self.core.counts();
        let all = Told {
            adds: counts.adds,
            retries: counts.retries,
            // What was added is in the queue still, or was handed out, or was taken back.
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
    /// Calls the hooks, once for each event; outside the lock.
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

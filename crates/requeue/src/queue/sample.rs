//! What metrics show of a queue, as of one moment.

use super::Shared;
use crate::Key;
use crate::metrics::Sample;
use crate::sync::{Ordering, quietly};

impl<K: Key> Shared<K> {
    /// Reads everything under one hold of the lock, in constant time, after what is due has been
    /// made ready in slices: a key is promoted once, so a scrape only does early what the next
    /// operation would have done. `None` where a key's own code scrapes its queue.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let now = self.clock.now();
        // A key whose `clone` panics, for a custom order, is to be nobody's business here.
        let promoted = quietly(|| self.promoted(now)).flatten();
        let state = promoted.or_else(|| self.lock().ok())?;
        let core = &state.core;
        let sample = Sample {
            depth: core.depth(),
            waiting: core.waiting(),
            processing: core.processing(),
            counts: core.counts(),
            given_up: self.given_up.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
            times: state.histograms(),
            unfinished_work: core.unfinished_work(now),
            longest_running: core.longest_running(now),
            oldest_ready: core.oldest_ready(now),
            parked: None,
        };
        self.release(state);
        Some(sample)
    }
}

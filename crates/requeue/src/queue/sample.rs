//! The values that metrics show of a queue, all read at one moment.

use super::Shared;
use crate::Key;
use crate::metrics::Sample;
use crate::sync::{Ordering, quietly};

impl<K: Key> Shared<K> {
    /// Reads all values under one hold of the lock, in constant time, after all due keys were made
    /// ready in slices. A key is made ready once, so a scrape only does earlier what the next
    /// operation would have done. Returns `None` if a key's own code scrapes its queue.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let now = self.clock.now();
        // If a key's `clone` panics, which a custom order calls, the panic must not reach the
        // scrape.
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

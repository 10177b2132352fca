//! The pace: a limit on the starts of one key in every window.

use requeue_core::{Added, Merge, Time};

use super::{Model, later};

impl<K: Ord + Clone> Model<K> {
    /// Returns the time from which the pace permits the next start of `key`.
    pub(super) fn permit(&self, key: &K) -> Time {
        let (Some(pace), Some(starts)) = (self.pace, self.starts.get(key)) else {
            return Time::ZERO;
        };
        let full = starts.len() >= pace.runs() as usize;
        starts.first().filter(|_| full).map_or(Time::ZERO, |&first| later(first, pace.per()))
    }

    /// Returns true if the pace stops `key`, which would become ready now.
    pub(super) fn is_paced(&self, key: &K) -> bool {
        self.permit(key) > self.now
    }

    /// Makes the run of `key` wait until the pace permits it.
    pub(super) fn wait_for_pace(&mut self, key: &K) -> Added {
        self.count_paced(key);
        self.wait(key, self.permit(key), Merge::Earliest)
    }

    /// Makes the due run of `key` wait until the pace permits it. Until then, debounced adds can still postpone the
    /// run.
    pub(super) fn postpone(&mut self, key: &K) {
        self.count_paced(key);
        let bound = self.bounds.get(key).copied();
        self.wait_until(key, self.permit(key));
        self.bounds.extend(bound.map(|bound| (key.clone(), bound)));
    }

    /// Counts the pending run of `key` as paced, but only once.
    pub(super) fn count_paced(&mut self, key: &K) {
        self.tally.paced += u64::from(self.paced.insert(key.clone()));
    }

    /// Retries a run now, although the pace permits no start yet.
    pub(super) fn retry_paced(&mut self, key: &K) {
        if self.dirty.contains(key) {
            self.tally.coalesced += 1;
        } else {
            let _ = self.wait_for_pace(key);
        }
    }

    /// Forgets the starts that no longer count. Returns the number of keys with starts that still
    /// count.
    pub fn sweep(&mut self, now: Time) -> usize {
        let per = self.pace.map(|pace| pace.per()).unwrap_or_default();
        self.starts.retain(|_, starts| starts.last().is_some_and(|&last| later(last, per) > now));
        self.starts.len()
    }

    /// Records a start of `key`.
    pub(super) fn start(&mut self, key: &K) {
        let Some(pace) = self.pace else { return };
        let now = self.now;
        let starts = self.starts.entry(key.clone()).or_default();
        // Only starts within the last window count. The model keeps no more of them than the pace
        // permits.
        starts.push(now);
        while starts.len() > pace.runs() as usize
            || starts.len() > 1 && later(starts[0], pace.per()) <= now
        {
            starts.remove(0);
        }
    }

    /// Removes the last start of `key`, which is in flight, from the count, if that start counts.
    pub(super) fn take_back_start(&mut self, key: &K) {
        let run = self.processing.get_mut(key);
        if run.is_some_and(|run| std::mem::take(&mut run.counts)) {
            self.starts.get_mut(key).map(Vec::pop);
        }
    }

    /// Sets whether a delivery counts toward the pace. A delivery that counts does so from now on.
    pub fn count_start(&mut self, epoch: u64, counts: bool, now: Time) {
        self.now = now;
        let run = self.processing.iter().find(|(_, run)| run.epoch == epoch);
        let Some(key) = run.map(|(key, _)| key.clone()) else { return };
        self.take_back_start(&key);
        if counts {
            self.start(&key);
            self.processing.get_mut(&key).into_iter().for_each(|run| run.counts = true);
        }
    }
}

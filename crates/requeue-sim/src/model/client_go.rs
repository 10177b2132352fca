//! The operations of client-go's `queue.go` and `delaying_queue.go`.

use requeue_core::{Added, Merge, Time};

use super::{Model, Wait};

impl<K: Ord + Clone> Model<K> {
    /// `Add` of `queue.go`.
    pub(super) fn add_now(&mut self, key: &K) -> Added {
        if self.is_idle(key) && self.is_paced(key) {
            return self.wait_for_pace(key);
        }
        // The remaining delay has no bound.
        self.bounds.remove(key);
        if self.dirty.contains(key) {
            self.tally.coalesced += 1;
            if !self.processing.contains_key(key) {
                self.queue.touch(key);
            }
            return Added::Coalesced;
        }
        self.tally.enqueued += 1;
        self.since.insert(key.clone(), self.now);
        self.dirty.insert(key.clone());
        if self.processing.contains_key(key) {
            self.restart(key);
            return Added::Dirty;
        }
        self.push(key);
        Added::New
    }

    /// `Done` of `queue.go`. Returns true if the key is ready now.
    pub(super) fn done_now(&mut self, key: &K) -> bool {
        let Some(_) = self.processing.remove(key) else { return false };
        self.queue.finish(self.teams[key]);
        if self.dirty.contains(key) && self.is_paced(key) {
            self.dirty.remove(key);
            self.wait_for_pace(key);
        } else if self.dirty.contains(key) {
            self.push(key);
            return true;
        }
        false
    }

    /// `insert` of `delaying_queue.go`.
    pub(super) fn wait(&mut self, key: &K, at: Time, merge: Merge) -> Added {
        let Some(Wait { at: was, .. }) = self.waiting.get(key).copied() else {
            if self.is_idle(key) {
                self.since.insert(key.clone(), self.now);
            }
            self.wait_until(key, at);
            return Added::New;
        };
        self.tally.coalesced += 1;
        let bound = self.bounds.get(key).copied();
        match merge {
            Merge::Earliest if was > at => self.wait_until(key, at),
            Merge::Latest if was < at => self.wait_until(key, at),
            _ => {}
        }
        if merge == Merge::Earliest
            && let Some(bound) = bound
        {
            self.bounds.insert(key.clone(), bound.min(at));
        }
        Added::Coalesced
    }

    pub(super) fn wait_until(&mut self, key: &K, at: Time) {
        self.stop_waiting(key);
        self.arrivals += 1;
        self.waiting.insert(key.clone(), Wait { at, arrival: self.arrivals });
        self.deadlines.insert((at, self.arrivals, key.clone()));
    }

    pub(super) fn stop_waiting(&mut self, key: &K) -> bool {
        let wait = self.waiting.remove(key);
        self.bounds.remove(key);
        wait.is_some_and(|wait| self.deadlines.remove(&(wait.at, wait.arrival, key.clone())))
    }
}

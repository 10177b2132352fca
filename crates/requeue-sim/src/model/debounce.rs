//! Debounced adds, which are the same under every policy.

use requeue_core::{Added, Time};

use super::{Model, Wait};

impl<K: Ord + Clone> Model<K> {
    /// Applies a debounced add. The run is due at `due` if no other debounced add follows, and otherwise no later than
    /// `most`.
    pub(super) fn debounce(&mut self, key: &K, due: Time, most: Time, failed: bool) -> Added {
        let now = self.now;
        let is_ready = self.dirty.contains(key) && !self.processing.contains_key(key);
        let wanted = due.min(self.latest(key).unwrap_or(Time::NEVER));
        let at = if is_ready { wanted } else { wanted.max(self.not_before(key)) };
        if failed && !is_ready && at > now {
            self.back_off(key, at);
            self.hold(key, now);
        }
        if self.dirty.contains(key) {
            // The add becomes part of the pending run.
            self.tally.coalesced += 1;
            if !self.processing.contains_key(key) {
                self.queue.touch(key);
            }
            return Added::Coalesced;
        }
        let bound = due.max(most).min(self.latest(key).unwrap_or(Time::NEVER));
        let added = match self.waiting.get(key) {
            None => {
                if !self.processing.contains_key(key) {
                    self.since.insert(key.clone(), now);
                }
                self.wait_until(key, at);
                Added::New
            }
            Some(&Wait { at: was, .. }) => {
                self.tally.coalesced += 1;
                if was != at {
                    self.wait_until(key, at);
                }
                Added::Coalesced
            }
        };
        self.bounds.insert(key.clone(), bound);
        if at > wanted { Added::BackingOff } else { added }
    }

    /// Ends the wait of `key` for debounced adds. Returns false if the key does not wait for debounced adds.
    pub fn flush_debounced(&mut self, key: &K, now: Time) -> bool {
        let Some(was) = self.waiting.get(key).map(|wait| wait.at) else { return false };
        if self.bounds.remove(key).is_none() {
            return false;
        }
        let is_idle = !self.processing.contains_key(key);
        let paced = if is_idle { self.permit(key) } else { Time::ZERO };
        let unpaced = now.max(self.not_before(key));
        if paced > unpaced {
            self.count_paced(key);
        }
        let at = unpaced.max(paced);
        if at < was {
            self.wait_until(key, at);
        }
        true
    }

    /// Returns the latest time to which a debounced add may postpone the run that the key waits
    /// for: the bound of earlier debounced adds, or otherwise the due time itself.
    fn latest(&self, key: &K) -> Option<Time> {
        self.bounds.get(key).copied().or_else(|| self.waiting.get(key).map(|wait| wait.at))
    }
}

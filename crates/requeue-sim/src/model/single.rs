//! `ReaddPolicy::Replace`: at most one run of a key is pending. `ReaddPolicy::Hold`: in addition, no run starts before
//! the backoff of a failure ends, unless the failure is forgotten.

use requeue_core::{Added, Merge, ReaddPolicy, Time};

use super::{AddRequest, Model, later};
use crate::How;

impl<K: Ord + Clone> Model<K> {
    /// Implements `add` (`due` is `None`) and `add_after`.
    pub(super) fn add_single(
        &mut self,
        key: &K,
        due: Option<Time>,
        request: &AddRequest,
        now: Time,
    ) -> Added {
        let is_ready = self.dirty.contains(key) && !self.processing.contains_key(key);
        if request.failed && !is_ready {
            self.back_off(key, due.unwrap_or(now));
            self.hold(key, now);
        }
        // A key that is already ready is not held.
        let wanted = due.unwrap_or(now);
        let at = if is_ready { wanted } else { wanted.max(self.not_before(key)) };
        let added = self.demand(key, at, request.merge, now);
        if at > wanted { Added::BackingOff } else { added }
    }

    /// Requests a run at `at`.
    fn demand(&mut self, key: &K, at: Time, merge: Merge, now: Time) -> Added {
        if at <= now && self.is_idle(key) && self.is_paced(key) {
            self.not_before.remove(key);
            return self.wait_for_pace(key);
        }
        if at <= now {
            // The add replaces a waiting run, and the backoff has ended.
            self.stop_waiting(key);
            self.not_before.remove(key);
            return self.add_now(key);
        }
        if self.dirty.contains(key) {
            // A run is pending that is already due.
            self.tally.coalesced += 1;
            if !self.processing.contains_key(key) {
                self.queue.touch(key);
            }
            return Added::Coalesced;
        }
        self.wait(key, at, merge)
    }

    /// Under `Hold`, makes a failed key back off until the later of `at` and the end of an earlier backoff.
    pub(super) fn back_off(&mut self, key: &K, at: Time) {
        if self.re_add == ReaddPolicy::Hold {
            let not_before = self.not_before(key).max(at);
            self.not_before.insert(key.clone(), not_before);
        }
    }

    /// Under `Hold`, makes every pending run wait until the backoff ends.
    pub(super) fn hold(&mut self, key: &K, now: Time) {
        let not_before = self.not_before(key);
        if not_before <= now {
            return;
        }
        let dirty = self.dirty.remove(key);
        if dirty || self.waiting.get(key).is_some_and(|wait| wait.at < not_before) {
            self.wait_until(key, not_before);
        }
    }

    /// Under `Hold`, removes the bound, because the pending run is a retry from now on.
    fn forget_bound(&mut self, key: &K) {
        if self.re_add == ReaddPolicy::Hold {
            self.bounds.remove(key);
        }
    }

    pub(super) fn not_before(&self, key: &K) -> Time {
        self.not_before.get(key).copied().unwrap_or(Time::ZERO)
    }

    /// Completes a run without a success.
    pub(super) fn end_single(&mut self, key: &K, how: How, now: Time) {
        match how {
            How::RetryAfter(delay) => {
                self.tally.retries += 1;
                self.back_off(key, later(now, delay));
                self.hold(key, now);
                let at = (later(now, delay)).max(self.not_before(key));
                if at <= now && self.is_paced(key) {
                    self.not_before.remove(key);
                    self.retry_paced(key);
                } else {
                    let _ = self.demand(key, at, Merge::Earliest, now);
                    self.forget_bound(key);
                }
            }
            How::ReleaseAfter(delay)
                if later(now, delay) > self.not_before(key).max(now)
                    && !self.dirty.contains(key) =>
            {
                let _ = self.wait(key, later(now, delay), Merge::Earliest);
            }
            How::Release | How::ReleaseAfter(_) if self.not_before(key) > now => {
                let at = self.not_before(key);
                let _ = self.demand(key, at, Merge::Earliest, now);
                self.forget_bound(key);
            }
            How::Release | How::ReleaseAfter(_) => {
                self.stop_waiting(key);
                self.not_before.remove(key);
                self.release(key);
            }
            How::Done | How::Succeed | How::GiveUp | How::RequeueAfter(_) | How::Cancelled => {}
        }
        self.done_now(key);
    }
}

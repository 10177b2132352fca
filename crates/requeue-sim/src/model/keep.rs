//! `ReaddPolicy::KeepBoth`: exactly client-go's behaviour.

use requeue_core::{Merge, Time};

use super::{Model, later};
use crate::How;

impl<K: Ord + Clone> Model<K> {
    /// Completes a run without a success.
    pub(super) fn end_keep(&mut self, key: &K, how: How, now: Time) {
        match how {
            // `AddRateLimited` is `AddAfter`, and comes before `Done`.
            How::RetryAfter(delay) => {
                self.tally.retries += 1;
                if later(now, delay) <= now && self.is_paced(key) {
                    self.retry_paced(key);
                } else if later(now, delay) <= now {
                    self.add_now(key);
                } else {
                    self.wait(key, later(now, delay), Merge::Earliest);
                }
            }
            How::ReleaseAfter(delay) if later(now, delay) > now && !self.dirty.contains(key) => {
                self.wait(key, later(now, delay), Merge::Earliest);
            }
            How::Release | How::ReleaseAfter(_) => self.release(key),
            How::Done | How::Succeed | How::GiveUp | How::RequeueAfter(_) | How::Cancelled => {}
        }
        self.done_now(key);
    }

    /// Makes the key ready, without another add, as if it had not been delivered.
    pub(super) fn release(&mut self, key: &K) {
        if !self.dirty.contains(key) {
            self.add_now(key);
        }
    }
}

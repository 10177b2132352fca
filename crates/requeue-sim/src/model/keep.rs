//! `ReAdd::KeepBoth`: client-go to the letter.

use requeue_core::{Merge, Time};

use super::{Model, later};
use crate::How;

impl<K: Ord + Clone> Model<K> {
    /// A worker finishes without success.
    pub(super) fn end_keep(&mut self, key: &K, how: How, now: Time) {
        match how {
            // `AddRateLimited` is `AddAfter`, and comes before `Done`.
            How::RetryAfter(delay) => {
                self.tally.retries += 1;
                if later(now, delay) <= now {
                    self.add_now(key);
                } else {
                    self.wait(key, later(now, delay), Merge::Earliest);
                }
            }
            How::Release => self.release(key),
            How::Done | How::Succeed | How::RequeueAfter(_) => {}
        }
        self.done_now(key);
    }

    /// As if the key had not been handed out: no add, but ready.
    pub(super) fn release(&mut self, key: &K) {
        if !self.dirty.contains(key) {
            self.add_now(key);
        }
    }
}

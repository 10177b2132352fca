//! Completions, and the end of the queue.

use requeue_core::{Asked, Ending, ReaddPolicy, Time, When};
use std::time::Duration;

use super::{AddRequest, Ended, Model};
use crate::How;

impl<K: Ord + Clone> Model<K> {
    /// Closes the queue or shuts it down. Returns the keys that will not run.
    pub fn end(&mut self, ending: Ending) -> Vec<K> {
        let was = self.ending;
        self.ending = self.ending.max(ending);
        if was == Ending::ShutDown || ending < Ending::ShutDown {
            return Vec::new();
        }
        let mut lost = Vec::new();
        for key in self.waiting.keys().cloned().collect::<Vec<_>>() {
            self.stop_waiting(&key);
            self.not_before.remove(&key);
            if !self.dirty.contains(&key) {
                lost.push(key);
            }
        }
        let stopped = |key: &&K| !self.processing.contains_key(*key) && self.is_stopped(key);
        let stopped: Vec<K> = self.dirty.iter().filter(stopped).cloned().collect();
        for key in stopped {
            self.dirty.remove(&key);
            self.queue.remove(&key);
            lost.push(key);
        }
        for key in &lost {
            if !self.is_in_flight(key) {
                self.failures.remove(key);
            }
            self.let_go(key);
        }
        lost
    }

    /// Counts a failed run of `key`, before the failure is added to the key's failures.
    fn count_failure(&mut self, key: &K) {
        self.tally.failures += 1;
        let number = self.failures(key).saturating_add(1);
        let bounds = [1, 2, 5, 10, 20, 50, 100];
        let above = bounds.into_iter().filter(|&bound| number > bound).count();
        self.tally.consecutive[above] += 1;
    }

    pub(super) fn end_run(&mut self, key: &K, how: How, asked: Asked, now: Time) -> Ended<K> {
        let was_dirty = self.dirty.contains(key);
        let worked = now.since(self.processing[key].since);
        self.tally.worked += worked.as_nanos();
        let is_restarted = self.end_cancelled(key, how, asked);
        let is_undone = matches!(how, How::RetryAfter(_) | How::Release | How::ReleaseAfter(_));
        self.end_reasons(key, is_undone || is_restarted && self.is_pending(key));
        match how {
            How::Done | How::Cancelled => {}
            How::Succeed | How::GiveUp | How::RequeueAfter(_) => {
                if how == How::GiveUp {
                    self.count_failure(key);
                }
                self.failures.remove(key);
                self.not_before.remove(key);
            }
            How::RetryAfter(_) => {
                self.count_failure(key);
                self.fail(key);
                self.note(key, asked);
            }
            How::Release | How::ReleaseAfter(_) => {
                self.take_back_start(key);
                self.note(key, asked);
            }
        }
        let lost = if self.ending == Ending::ShutDown {
            self.end_run_shut_down(key, how)
        } else {
            match (self.re_add, how) {
                (_, How::Done | How::Succeed | How::GiveUp | How::Cancelled) => {
                    self.done_now(key);
                }
                (_, How::RequeueAfter(after)) => {
                    self.done_now(key);
                    self.add_later(key, after, asked, now);
                }
                (ReaddPolicy::KeepBoth, _) => self.end_keep(key, how, now),
                (_, _) => self.end_single(key, how, now),
            }
            false
        };
        let ready = self.dirty.contains(key);
        // A release does not count as a run, so the series of restarts continues.
        let goes_on = is_restarted || matches!(how, How::Release | How::ReleaseAfter(_));
        if !(goes_on && self.is_pending(key)) {
            self.series.remove(key);
        }
        if !ready && self.waiting.contains_key(key) {
            self.since.insert(key.clone(), now);
        }
        Ended { key: self.let_go(key), lost, ready, was_dirty, worked }
    }

    /// Adds the key after a success with `RequeueAfter`, with the priority of the run.
    pub(super) fn add_later(&mut self, key: &K, after: Duration, asked: Asked, now: Time) {
        let request = AddRequest {
            when: When::After(after),
            priority: asked.priority,
            ..AddRequest::default()
        };
        self.tally.adds += 1;
        self.tally.retries += 1;
        self.note(key, Asked { adds: 1, flags: 0, priority: asked.priority });
        let _ = match (self.re_add, request.due(now)) {
            (ReaddPolicy::KeepBoth, None) => self.add_now(key),
            (ReaddPolicy::KeepBoth, Some(due)) => self.wait(key, due, request.merge),
            (_, due) => self.add_single(key, due, &request, now),
        };
    }

    /// Completes a delivery after a shutdown. All adds are then refused, including the adds of a completion. Returns
    /// true if a run that was asked for will not happen.
    pub(super) fn end_run_shut_down(&mut self, key: &K, how: How) -> bool {
        let asks_more = !matches!(how, How::Done | How::Succeed | How::GiveUp | How::Cancelled);
        if self.is_stopped(key) || self.dirty.contains(key) && self.is_paced(key) {
            // The run is lost if no more keys are delivered, or if the run would have to wait.
            let was_dirty = self.dirty.remove(key);
            self.done_now(key);
            let lost = was_dirty || asks_more;
            if lost {
                self.failures.remove(key);
            }
            return lost;
        }
        let ready = self.done_now(key);
        let lost = !ready && asks_more;
        if lost {
            self.failures.remove(key);
        }
        lost
    }
}

//! The comparison of the visible states of the state machine and the model.

use std::collections::BTreeMap;
use std::time::Duration;

use requeue_core::history::Subject;
use requeue_core::{Cursor, Phase};

use super::Lockstep;
use crate::Key;
use crate::model::{Seen, SeenReasons, Tally};

impl Lockstep {
    /// Compares the visible states of both sides.
    ///
    /// # Panics
    ///
    /// Panics if the state machine and the model differ.
    pub fn compare(&self, keys: impl Iterator<Item = u32>) {
        let (core, model) = (&self.queue, &self.model);
        if !(self.dropping && model.pauses_any()) {
            assert_eq!(core.len(), model.len(), "len");
            assert_eq!(core.is_empty(), model.is_empty(), "is_empty");
            assert_eq!(core.ready_and_dirty(), model.ready_and_dirty(), "depth");
        }
        assert_eq!(core.waiting(), model.waiting(), "waiting");
        assert_eq!(core.failing(), model.failing(), "failing");
        let states = core.states();
        let waiting = states.waiting + states.backing_off;
        assert_eq!((waiting, states.backing_off), model.idle_waiting(), "states");
        assert_eq!(states.ready, core.len(), "states");
        assert_eq!(states.ready + states.dirty, core.ready_and_dirty(), "states");
        assert_eq!(states.in_flight, model.in_flight(), "states");
        assert_eq!(core.in_flight(), model.in_flight(), "in flight");
        assert_eq!(core.eligible(), model.eligible(), "eligible");
        assert_eq!(core.next_due(), model.next_due(), "next_due");
        assert_eq!(core.is_paused(), model.is_paused(), "is_paused");
        assert_eq!(core.ending(), model.ending(), "ending");
        assert_eq!(core.is_exhausted(), model.is_exhausted(), "is_exhausted");
        assert_eq!(core.is_finished(), model.is_finished(), "is_finished");
        assert_eq!(core.is_drained(), model.is_drained(), "is_drained");
        let counts = core.totals();
        let histograms = core.histograms();
        let sums = histograms.map(|(queued, worked)| (queued.sum, worked.sum));
        let of_model = (model.tally().queued, model.tally().worked);
        let (queued, worked) = sums.unwrap_or(of_model);
        let consecutive = match sums {
            Some(_) => core.consecutive_failures().counts,
            None => model.tally().consecutive,
        };
        let tally = Tally::of(&counts, consecutive, (queued, worked));
        assert_eq!(tally, model.tally(), "counts");
        self.compare_depths();
        self.compare_ages();
        self.compare_teams();
        if self.dropping {
            return;
        }
        assert_eq!(core.records(), model.known(), "records");
        for key in keys {
            self.compare_key(key);
        }
    }

    /// Compares the counters by priority with a walk through all keys.
    fn compare_depths(&self) {
        let Some(depths) = self.queue.ready_and_dirty_by_priority() else { return };
        let (mut walked, mut cursor) = (BTreeMap::new(), Some(Cursor::default()));
        while let Some(at) = cursor {
            let page = self.queue.page(at, 256);
            for entry in page
                .entries
                .iter()
                .filter(|entry| matches!(entry.phase, Phase::Ready | Phase::InFlightDirty))
            {
                *walked.entry(entry.priority).or_default() += 1;
            }
            cursor = page.next;
        }
        assert_eq!(depths.collect::<BTreeMap<i32, usize>>(), walked, "depth by priority");
    }

    fn compare_ages(&self) {
        let (core, model, now) = (&self.queue, &self.model, self.now);
        let Some((queued, worked)) = core.histograms() else { return };
        let tally = model.tally();
        assert_eq!(queued.count(), tally.deliveries, "deliveries");
        assert_eq!(worked.count() + model.in_flight() as u64, tally.deliveries, "completions");
        if self.went_back {
            return;
        }
        assert_eq!(core.unfinished_work(now), model.unfinished_work(now), "unfinished work");
        assert_eq!(core.longest_running(now), model.longest_running(now), "longest running");
        let running = core.entries_in_flight(0, usize::MAX).expect("times are tracked");
        assert_eq!(running.len(), model.in_flight(), "running");
        assert!(running.is_sorted_by_key(|entry| entry.since), "the oldest delivery first");
        if !self.dropping {
            assert_eq!(core.oldest_ready(now), model.oldest_ready(now), "oldest ready");
            if let Some(keys) = core.at_group_limit() {
                let held = (keys, core.oldest_at_group_limit(now));
                assert_eq!(held, model.at_team_limit(now), "at the limit of their teams");
            }
        }
    }

    pub(super) fn if_tracked(&self, took: Duration) -> Duration {
        if self.setup.track { took } else { Duration::ZERO }
    }

    fn compare_key(&self, key: u32) {
        let hash = self.setup.hash(key);
        let model = self.model.see(&key);
        let reasons = SeenReasons::of_key(&self.queue.reasons(&Key(key), hash));
        assert_eq!(reasons, self.model.see_reasons(&key), "reasons of {key}");
        let entry = self.queue.look_up(&Key(key), hash);
        if self.setup.records() {
            self.told.compare(Subject::key(hash), entry.as_ref());
        }
        let core = entry.map(|entry| Seen::of(&entry, model));
        let (core, model) =
            (core.map(|seen| seen.at(self.now)), model.map(|seen| seen.at(self.now)));
        let model =
            model.map(|model| Seen { since: model.since.filter(|_| self.setup.track), ..model });
        assert_eq!(core, model, "snapshot of {key}");
        assert_eq!(self.queue.failures(&Key(key), hash), self.model.failures(&key), "failures");
    }
}

//! The state of each key, derived from its recorded events.

use std::collections::HashMap;

use requeue_core::history::{Recording, Subject, Transition};
use requeue_core::{Added, Circumstances, Entry, Merge, Phase, Queue, ReaddPolicy, Time};

use crate::Key;

/// The states of all keys, and the number of events that led to them.
#[derive(Default)]
pub(super) struct Told {
    keys: HashMap<Subject, State>,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    /// The number of the delivery.
    in_flight: Option<u64>,
    /// True if the key is ready, or runs once more after the run in flight.
    is_pending: bool,
    is_waiting: bool,
}

impl State {
    fn apply(&mut self, at: Time, event: Transition, policy: ReaddPolicy) {
        match event {
            // The event of the add or the completion, which precedes this event, has already set
            // the state.
            Transition::Paced { .. } | Transition::Held { .. } => {
                (self.is_pending, self.is_waiting) = (false, true);
            }
            Transition::Added { added, due, merge, .. } => {
                if merge == Merge::Exactly && added != Added::Refused {
                    (self.is_pending, self.is_waiting) = (false, false);
                }
                match (added, (due > at).then_some(due)) {
                    (Added::New, Some(_)) | (Added::BackingOff, _) => self.is_waiting = true,
                    (Added::New | Added::Dirty | Added::Coalesced, None) => {
                        self.is_pending = true;
                        self.is_waiting &= policy == ReaddPolicy::KeepBoth;
                    }
                    _ => {}
                }
            }
            Transition::Due => (self.is_pending, self.is_waiting) = (true, false),
            Transition::Delivered { number, .. } => {
                assert_eq!(self.in_flight.replace(number), None, "two deliveries");
                assert!(std::mem::take(&mut self.is_pending), "a delivery without a cause");
            }
            Transition::Completed { number, is_ready, due, .. } => {
                assert_eq!(
                    self.in_flight.take(),
                    Some(number),
                    "the completion of another delivery"
                );
                (self.is_pending, self.is_waiting) = (is_ready, due.is_some());
            }
            Transition::Cancelled { number, .. } => assert_eq!(self.in_flight, Some(number)),
            Transition::Withdrawn => (self.is_pending, self.is_waiting) = (false, false),
            Transition::Dropped if self.is_waiting => self.is_waiting = false,
            Transition::Dropped => self.is_pending = false,
            _ => {}
        }
    }

    /// Returns the state that `entry` shows. The entry does not contain the number of the delivery.
    fn of(entry: &Entry<Key>, number: u64) -> Self {
        Self {
            in_flight: entry.phase.is_in_flight().then_some(number),
            is_pending: matches!(entry.phase, Phase::Ready | Phase::InFlightDirty),
            is_waiting: entry.due.is_some(),
        }
    }
}

impl Told {
    /// Applies the events since the last call.
    pub(super) fn listen(&mut self, queue: &Queue<Key>, policy: ReaddPolicy) {
        let events = queue.events_after(self.count);
        self.count += events.len() as u64;
        assert_eq!(self.count, queue.events_count(), "the recording is long enough");
        for event in &events {
            if let subject @ Subject::Key(_) = event.subject() {
                self.keys.entry(subject).or_default().apply(event.at, event.transition, policy);
            }
        }
    }

    pub(super) fn compare(&self, subject: Subject, entry: Option<&Entry<Key>>) {
        let told = self.keys.get(&subject).copied().unwrap_or_default();
        let shown = |entry| State::of(entry, told.in_flight.unwrap_or_default());
        assert_eq!(told, entry.map(shown).unwrap_or_default(), "events of {entry:?}");
    }
}

/// Saves the recording of `queue`, loads and replays it. The replayed queue must be in the same state as `queue`. If
/// the recording has lost events, only the keys whose state the replay knows are compared.
pub(super) fn replay(queue: &Queue<Key>, keys: impl Iterator<Item = (Key, u64)>, now: Time) {
    let recording = queue.recording().expect("events are recorded");
    let loaded: Recording = recording.to_string().parse().expect("a recording that was saved");
    assert_eq!(loaded, recording, "a recording changes when it is saved and loaded");
    let mut replay = loaded.replay();
    let is_whole = recording.lost_events() == 0;
    for step in &mut replay {
        let step = step.unwrap_or_else(|difference| panic!("{difference}\n{recording}"));
        assert!(!(is_whole && step.is_skipped), "the recording has all events");
    }
    let anonymous = recording.clone().anonymized(None);
    let difference = anonymous.replay().find_map(Result::err);
    assert_eq!(difference, None, "without keys\n{anonymous}");
    let replayed = replay.queue();
    if is_whole {
        assert_eq!(replayed.totals(), queue.totals(), "counts");
        assert_eq!(replayed.consecutive_failures(), queue.consecutive_failures(), "failures");
        assert_eq!(replayed.states(), queue.states(), "states");
        assert_eq!(replayed.next_due(), queue.next_due(), "next due time");
        assert_eq!(replayed.eligible(), queue.eligible(), "eligible keys");
        assert_eq!(replayed.records(), queue.records(), "records");
        assert_eq!(replayed.is_paused(), queue.is_paused(), "paused");
        assert_eq!(replayed.ending(), queue.ending(), "ending");
    }
    for (key, hash) in keys {
        let Subject::Key(name) = Subject::key(hash) else { unreachable!("the subject is a key") };
        if replay.knows(name) {
            let of_queue = queue.look_up(&key, hash).map(|entry| visible(&entry, is_whole, now));
            let of_replay = replay.look_up(name).map(|entry| visible(&entry, is_whole, now));
            assert_eq!(of_queue, of_replay, "state of {key:?}\n{recording}");
        }
    }
}

/// Returns what is visible of a key, except for the key and the queue's pace. If the recording has lost events, the
/// replay does not know the state of the queue and of the group, so that state is left out. A start that no longer
/// counts is also left out, because the queue can have forgotten that start.
fn visible<K>(entry: &Entry<K>, is_whole: bool, now: Time) -> String {
    let around = Circumstances {
        pace: None,
        paced_until: entry.around.paced_until.filter(|&until| until > now),
        ..entry.around
    };
    let run = (entry.phase, entry.since, entry.due, entry.bound, entry.failures, entry.cancelled);
    let asked = (entry.flags, entry.adds, entry.priority);
    let queue = is_whole.then_some((entry.held_back, around));
    format!("{run:?} {asked:?} {:?} {queue:?}", around.paced_until)
}

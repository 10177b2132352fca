//! The state of each key as its recorded events tell it.

use std::collections::HashMap;

use requeue_core::history::{Subject, Transition};
use requeue_core::{Added, Entry, Merge, Phase, Queue, ReaddPolicy, Time};

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
            // The add or the completion precedes its wait.
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

    /// Returns the state that `entry` shows. The entry does not have the number of its delivery.
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

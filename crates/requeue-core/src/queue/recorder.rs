//! Records the last events of keys, so that a caller can explain the past.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::Queue;
use crate::memory::fold;
use crate::order::GroupId;
use crate::rule::How;
use crate::types::{Add, Added, CancelReason, Phase, Slot, Ticket, Time};

/// A transition of a key, of a group or of the queue, as a queue records it.
///
/// [`Display`](fmt::Display) formats it on one line: the time since the origin of the clock, the transition, and times to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The time of the transition.
    pub at: Time,
    /// The hash of the key, or 0 for a transition of a group or of the queue.
    hash: u32,
    /// The transition.
    pub transition: Transition,
}

/// The subject of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The key with this hash. Two given keys share a hash with a probability of one in four billion.
    Key(u32),
    /// The group with this number, and so all its keys.
    Group(u64),
    /// The queue, and so all keys.
    Queue,
}

impl Event {
    /// Returns the subject of the transition.
    #[must_use]
    pub const fn subject(&self) -> Subject {
        match self.transition {
            Transition::GroupFilled(group)
            | Transition::GroupFreed(group)
            | Transition::GroupPaused(group)
            | Transition::GroupResumed(group) => Subject::Group(group),
            Transition::Paused
            | Transition::Resumed
            | Transition::Closed
            | Transition::ShutDown => Subject::Queue,
            _ => Subject::Key(self.hash),
        }
    }
}

/// A transition of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transition {
    /// The key was added.
    Added {
        /// The result of the add.
        added: Added,
        /// The time at which the add asks for the run.
        due: Time,
        /// The reasons of the add.
        reasons: u32,
        /// The priority of the add.
        priority: i32,
    },
    /// The backoff of a failure delays the pending run until this time.
    Held {
        /// The end of the backoff.
        until: Time,
    },
    /// The pace of the key delays the pending run until this time.
    Paced {
        /// The time from which the pace permits the run.
        until: Time,
    },
    /// A due time has come: the key is ready, or runs once more after the run in flight.
    Due,
    /// The key was delivered.
    Delivered {
        /// The number of the delivery.
        number: u64,
        /// The number of adds that the run serves.
        adds: u32,
    },
    /// The delivery was completed.
    Completed {
        /// The number of the delivery.
        number: u64,
        /// The way in which it was completed.
        how: Ended,
        /// The number of consecutive failures after the completion.
        failures: u32,
        /// True if the key is ready again.
        is_ready: bool,
        /// The time at which the key becomes ready, if it waits.
        due: Option<Time>,
    },
    /// The run in flight was cancelled. Its worker completes it later.
    Cancelled {
        /// The number of the delivery.
        number: u64,
        /// The reason.
        reason: CancelReason,
    },
    /// The pending runs of the key were cancelled, and its failures forgotten.
    Withdrawn,
    /// The failures of the key were forgotten, and its backoff has ended.
    Forgotten,
    /// The pending runs of the key were dropped by a shutdown.
    Dropped,
    /// The group with this number has reached its limit of keys in flight. Its ready keys wait.
    GroupFilled(u64),
    /// The group is below its limit again.
    GroupFreed(u64),
    /// The deliveries of the group were paused.
    GroupPaused(u64),
    /// The deliveries of the group were resumed.
    GroupResumed(u64),
    /// The deliveries of the queue were paused.
    Paused,
    /// The deliveries of the queue were resumed.
    Resumed,
    /// The queue was closed.
    Closed,
    /// The queue was shut down.
    ShutDown,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = |until: Time| until.since(self.at);
        write!(f, "{:.3?} ", self.at.since(Time::ZERO))?;
        match self.transition {
            Transition::Added { added, due, .. } => {
                f.write_str(match added {
                    Added::New => "added",
                    Added::Coalesced => "added to the pending run",
                    Added::Dirty => "added in flight, runs once more",
                    Added::BackingOff => "added, held for its backoff",
                    Added::Refused => "add refused",
                    Added::Revived => "added, revived",
                    Added::Parked => "added, stays parked",
                })?;
                match wait(due) {
                    Duration::ZERO => Ok(()),
                    wait if added == Added::New => write!(f, ", to run in {wait:.1?}"),
                    wait => write!(f, ", asked for in {wait:.1?}"),
                }
            }
            Transition::Held { until } => write!(f, "waits {:.1?} for its backoff", wait(until)),
            Transition::Paced { until } => write!(f, "waits {:.1?} for its pace", wait(until)),
            Transition::Due => f.write_str("due"),
            Transition::Delivered { number, adds } => {
                let s = if adds == 1 { "" } else { "s" };
                write!(f, "delivered as run {number}, for {adds} add{s}")
            }
            Transition::Completed { number, how, is_ready, due, .. } => {
                write!(f, "run {number} {}", how.as_str())?;
                match due {
                    Some(due) => write!(f, "; the key waits {:.1?}", wait(due)),
                    None if is_ready => f.write_str("; the key is ready again"),
                    None => Ok(()),
                }
            }
            Transition::Cancelled { number, .. } => write!(f, "run {number} is cancelled"),
            Transition::Withdrawn => f.write_str("pending runs cancelled"),
            Transition::Forgotten => f.write_str("failures forgotten"),
            Transition::Dropped => f.write_str("pending run dropped by the shutdown"),
            Transition::GroupFilled(_) => f.write_str("group at its limit"),
            Transition::GroupFreed(_) => f.write_str("group below its limit"),
            Transition::GroupPaused(_) => f.write_str("group paused"),
            Transition::GroupResumed(_) => f.write_str("group resumed"),
            Transition::Paused => f.write_str("queue paused"),
            Transition::Resumed => f.write_str("queue resumed"),
            Transition::Closed => f.write_str("queue closed"),
            Transition::ShutDown => f.write_str("queue shut down"),
        }
    }
}

/// The way in which a delivery was completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// client-go's `Done`.
    Done,
    /// A success.
    Succeeded,
    /// A success, and an add with a delay.
    Requeued,
    /// A failure, and a retry.
    Retried,
    /// A failure without a retry.
    GivenUp,
    /// A failure without a retry. The store keeps the key.
    Parked,
    /// The delivery was undone.
    Released,
    /// The run was cancelled by name.
    Cancelled,
    /// The run was cancelled because its key was added.
    Restarted,
}

impl Ended {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "is done",
            Self::Succeeded => "succeeded",
            Self::Requeued => "succeeded and is added again",
            Self::Retried => "failed and is retried",
            Self::GivenUp => "failed and is given up",
            Self::Parked => "failed and is parked",
            Self::Released => "was released",
            Self::Cancelled => "stopped after a cancellation",
            Self::Restarted => "stopped for an add",
        }
    }
}

impl<T> From<How<T>> for Ended {
    fn from(how: How<T>) -> Self {
        match how {
            How::Done => Self::Done,
            How::Succeed => Self::Succeeded,
            How::Requeue(_) => Self::Requeued,
            How::Retry(_) => Self::Retried,
            How::GiveUp => Self::GivenUp,
            How::Park => Self::Parked,
            How::Release(_) => Self::Released,
            How::Cancelled => Self::Cancelled,
            How::Restarted => Self::Restarted,
        }
    }
}

/// A bounded list of events, in the order of their occurrence.
pub(super) struct Recorder {
    events: Vec<Event>,
    /// The maximum number of events.
    most: usize,
    /// The place of the oldest event, which the next event takes if the list is full.
    oldest: usize,
    /// The number of events so far, including those that have left the list.
    count: u64,
    /// The time of the next event of an operation that has no time.
    now: Time,
}

impl Recorder {
    /// Creates a recorder that takes up to `bytes` of memory, or `None` if no event fits.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let most = bytes / size_of::<Event>();
        (most > 0).then(|| Self { events: Vec::new(), most, oldest: 0, count: 0, now: Time::ZERO })
    }

    #[inline(always)]
    fn push(&mut self, at: Time, hash: u32, transition: Transition) {
        let event = Event { at, hash, transition };
        self.count += 1;
        let is_full = self.events.len() == self.most;
        match self.events.get_mut(self.oldest) {
            Some(place) if is_full => {
                *place = event;
                self.oldest = if self.oldest + 1 < self.events.len() { self.oldest + 1 } else { 0 };
            }
            _ => self.push_first(event),
        }
    }

    /// Adds an event to a list that is not full.
    #[cold]
    #[inline(never)]
    fn push_first(&mut self, event: Event) {
        if self.events.len() == self.events.capacity() {
            // The list doubles, but takes no more memory than it may.
            let more = self.events.len().max(16).min(self.most - self.events.len());
            self.events.reserve_exact(more);
        }
        self.events.push(event);
    }

    #[cold]
    #[inline(never)]
    fn push_add(&mut self, hash: u32, add: &Add, added: Added, now: Time) {
        let (due, reasons, priority) = (add.due(now).unwrap_or(now), add.reasons, add.priority);
        self.push(now, hash, Transition::Added { added, due, reasons, priority });
    }

    #[cold]
    #[inline(never)]
    fn push_removal(&mut self, ticket: &Ticket, succeeds: bool, now: Time) {
        let how = if succeeds { Ended::Succeeded } else { Ended::Done };
        let (number, failures, is_ready, due) = (ticket.epoch, 0, false, None);
        let transition = Transition::Completed { number, how, failures, is_ready, due };
        self.push(now, ticket.hash, transition);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn push_delivery(&mut self, hash: u32, number: u64, adds: u32, now: Time) {
        self.push(now, hash, Transition::Delivered { number, adds: adds.max(1) });
    }

    pub(super) fn push_filled_group(&mut self, group: GroupId, now: Time) {
        self.push(now, 0, Transition::GroupFilled(group.id()));
    }

    fn iter(&self) -> impl Iterator<Item = &Event> {
        let (newer, older) = self.events.split_at(self.oldest);
        older.iter().chain(newer)
    }
}

impl Subject {
    /// Returns the key with this hash.
    #[doc(hidden)]
    #[must_use]
    pub const fn key(hash: u64) -> Self {
        Self::Key(fold(hash))
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns true if the queue records events. Then every operation needs the time.
    #[inline]
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Sets the time of the events of operations that have no time. A caller calls this first if the queue
    /// [records](Self::is_recording).
    pub fn observe(&mut self, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.now = now;
        }
    }

    /// Returns the number of events so far, including those that are no longer in the recording.
    #[must_use]
    pub fn events_count(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.count)
    }

    /// Returns the events after the first `count` of them, the oldest first. The recording may no longer have all of them.
    #[must_use]
    pub fn events_after(&self, count: u64) -> Vec<Event> {
        let Some(recorder) = &self.recorder else { return Vec::new() };
        let new = usize::try_from(recorder.count.saturating_sub(count)).unwrap_or(usize::MAX);
        let skipped = recorder.events.len().saturating_sub(new);
        recorder.iter().skip(skipped).copied().collect()
    }

    /// Returns the recorded events of the key with this hash, of its group and of the queue, the oldest first.
    #[must_use]
    pub fn events_of(&self, hash: u64, group: Option<GroupId>) -> Vec<Event> {
        let hash = fold(hash);
        let group = group.map(GroupId::id);
        let is_of = |event: &&Event| match event.subject() {
            Subject::Key(key) => key == hash,
            Subject::Group(id) => group == Some(id),
            Subject::Queue => true,
        };
        let events = self.recorder.iter().flat_map(|recorder| recorder.iter());
        events.filter(is_of).copied().collect()
    }

    /// Returns the time of the oldest event in the recording, if older events were dropped.
    #[must_use]
    pub fn events_begin(&self) -> Option<Time> {
        let recorder = self.recorder.as_ref()?;
        let is_whole = recorder.count == recorder.events.len() as u64;
        recorder.iter().next().filter(|_| !is_whole).map(|event| event.at)
    }

    /// Records an add.
    #[inline(always)]
    pub(super) fn record_add(&mut self, hash: u32, add: &Add, added: Added, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_add(hash, add, added, now);
        }
    }

    /// Records the completion of a delivery whose record was removed.
    #[inline(always)]
    pub(super) fn record_removal(&mut self, ticket: &Ticket, succeeds: bool, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_removal(ticket, succeeds, now);
        }
    }

    /// Records a transition of the key in `slot`.
    #[inline(always)]
    pub(super) fn record_slot(&mut self, slot: Slot, now: Time, transition: Transition) {
        if let Some(recorder) = &mut self.recorder {
            let hash = self.records.get(slot).hash;
            recorder.push(now, hash, transition);
        }
    }

    /// Like `record_slot`, for an operation without a time.
    #[inline(always)]
    pub(super) fn record_slot_now(&mut self, slot: Slot, transition: Transition) {
        if let Some(recorder) = &self.recorder {
            self.record_slot(slot, recorder.now, transition);
        }
    }

    /// Records the completion of a delivery of the key in `slot`, whose record is still there.
    #[inline(always)]
    pub(super) fn record_completion(&mut self, slot: Slot, number: u64, how: How<Time>, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            let record = self.records.get(slot);
            let (failures, is_ready) = (record.failures(), record.phase() == Phase::Ready);
            let due = self.timers.due(slot).filter(|_| record.is_waiting());
            let how = how.into();
            let transition = Transition::Completed { number, how, failures, is_ready, due };
            recorder.push(now, record.hash, transition);
        }
    }

    /// Records that the group of the key in `slot`, whose delivery ends, is about to be below its limit again.
    #[inline(always)]
    pub(super) fn record_freed_group(&mut self, slot: Slot, now: Time) {
        if self.recorder.is_some()
            && let Some(group) = self.ready.groups().and_then(|groups| groups.freed_by(slot))
        {
            self.record_all(Some(now), Transition::GroupFreed(group.id()));
        }
    }

    /// Records a transition of a group or of the queue.
    #[inline(always)]
    pub(super) fn record_all(&mut self, now: Option<Time>, transition: Transition) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(now.unwrap_or(recorder.now), 0, transition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Config;
    use crate::types::Add;

    #[test]
    fn a_full_recording_drops_the_oldest_events_and_takes_no_more_memory() {
        assert!(size_of::<Event>() <= 64);
        let bytes = 100 * size_of::<Event>() + 1;
        let mut queue = Queue::new(Config { recording: bytes, ..Config::default() });
        for n in 0..1000_u32 {
            let now = Time::ZERO + core::time::Duration::from_nanos(n.into());
            let _ = queue.add(n, n.into(), Add::now(), GroupId::default(), now);
        }
        let events = queue.events_after(0);
        let times = events.iter().map(|event| event.at.since(Time::ZERO).as_nanos());
        assert!(times.eq(900..1000));
        assert_eq!(queue.events_count(), 1000);
        assert_eq!(queue.events_begin(), Some(events[0].at));
        let recorder = queue.recorder.as_ref().expect("events are recorded");
        assert!(recorder.events.capacity() * size_of::<Event>() <= bytes);
    }

    #[test]
    fn a_recording_without_room_is_none() {
        assert!(Recorder::new(size_of::<Event>() - 1).is_none());
    }
}

//! The replay of a recording. The state machine repeats the recorded operations, and the replay
//! compares the resulting events with the recorded events.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::event::{AddKind, Ended, Event, Subject, Transition};
use super::recording::{Line, Ordering, Recording};
use super::{Entry, MAX_PROMOTIONS, Queue};
use crate::memory::fold;
use crate::order::GroupId;
use crate::types::{Add, Added, Asked, CancelReason, Ending, Finish, Phase, Slot, Ticket, Time};

#[cfg(test)]
mod tests;

/// The memory for the recorder of a replay, in bytes. The recorder only has to hold the events of one
/// operation.
const RECORDING: usize = 4096;

/// The replay of a recording, as an iterator over its steps. After the first difference, the
/// iterator returns `None`.
///
/// The replay performs each recorded operation at its recorded time. It then compares the events
/// that the state machine records with those of the recording.
///
/// If the recording has lost no events, the replay also checks the order of deliveries and the
/// groups. If the queue has a custom order, the replay delivers the keys in the order of the
/// recording.
///
/// If events were lost, the recording begins in the middle. The replay then skips the events of
/// each key until the recording contains an add of the key while it has no state. Such a replay
/// checks neither the order nor the groups, and ends with the shutdown of the queue. If the queue
/// also has a [`Pace`](crate::Pace), and its clock went back, this replay can report a difference
/// although the recording is correct.
pub struct Replay<'r> {
    recording: &'r Recording,
    queue: Queue<u32>,
    /// The number of recorded events that were replayed or skipped.
    position: usize,
    /// The number of events that the replay's own queue has recorded.
    replayed: u64,
    /// The adds, flags and priority of each delivery in flight, by the number of the delivery.
    asked: BTreeMap<u64, Asked>,
    /// The keys whose state is known. It is used only if the recording begins in the middle.
    known: BTreeSet<u32>,
    skipped: BTreeSet<u32>,
    /// The last start of each skipped key, because it may still count toward the pace.
    starts: BTreeMap<u32, Time>,
    /// The number of keys that became due since the last other operation.
    promotions: usize,
    is_over: bool,
}

/// One step of a [`Replay`]: an operation and its events.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The event of the operation, followed by the events that it caused.
    pub events: Vec<Event>,
    /// The state of the key after the operation. `None` if the queue has no record of the key, or
    /// the operation concerns no key.
    pub entry: Option<Entry<u32>>,
    /// True if the replay skipped the operation, because it does not know the state before the
    /// operation.
    pub is_skipped: bool,
}

/// The first difference between a recording and its replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The index of the event in the recording, from 0.
    pub position: usize,
    /// The recorded event. `None` means that the recording has ended, and the replay has another
    /// event.
    pub recorded: Option<Event>,
    /// The replayed event. `None` means that the replay has no event at this position.
    pub replayed: Option<Event>,
    /// The reason why the replay could not perform the operation. `None` if it performed the
    /// operation, and the events differ.
    pub reason: Option<&'static str>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.position + 1;
        match &self.recorded {
            Some(event) => write!(f, "event {number} is recorded as `{}`", Line(event))?,
            None => write!(f, "event {number} is not recorded")?,
        }
        match (&self.replayed, self.reason) {
            (Some(event), _) => write!(f, ", but replayed as `{}`", Line(event)),
            (None, Some(reason)) => write!(f, ", but {reason}"),
            (None, None) => f.write_str(", but the replay has no such event"),
        }
    }
}

impl core::error::Error for Difference {}

impl Recording {
    /// Starts a replay of this recording.
    ///
    /// The keys of the replay are the hashes of the recorded keys, with 32 bits. If two keys have
    /// the same hash, they are one key in the replay, which can then report a difference although
    /// the recording is correct. For 10,000 keys, the probability that two have the same hash is
    /// about 1 %.
    // Users replay a recording with the program, so the items of a replay are hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn replay(&self) -> Replay<'_> {
        Replay {
            recording: self,
            queue: Queue::new(self.rules.config(self.lost == 0, RECORDING)),
            position: 0,
            replayed: 0,
            asked: BTreeMap::new(),
            known: BTreeSet::new(),
            skipped: BTreeSet::new(),
            starts: BTreeMap::new(),
            promotions: 0,
            is_over: false,
        }
    }
}

impl Replay<'_> {
    /// Returns the number of keys of which the replay has skipped at least one event.
    #[must_use]
    pub fn skipped_keys(&self) -> usize {
        self.skipped.len()
    }

    /// Returns true if the replay knows the state of the key with this hash.
    ///
    /// If the recording has lost events, the replay does not know every key. After a shutdown, it
    /// then knows no key.
    #[must_use]
    pub fn knows(&self, key: u32) -> bool {
        self.is_whole() || self.known.contains(&key) && self.queue.ending() != Ending::ShutDown
    }

    /// Returns the queue of the replay. Its keys are the hashes of the recorded keys.
    // This method is for tests, which compare this queue with the recorded queue.
    #[doc(hidden)]
    #[must_use]
    pub const fn queue(&self) -> &Queue<u32> {
        &self.queue
    }

    /// Returns the present state of the key with this hash, if the queue of the replay has a record
    /// of it.
    #[must_use]
    pub fn look_up(&self, key: u32) -> Option<Entry<u32>> {
        self.queue.look_up(&key, key.into())
    }

    const fn is_whole(&self) -> bool {
        self.recording.lost == 0
    }

    /// Returns true if the replay does not know the state before `event`, and must skip it.
    fn skips(&mut self, event: &Event) -> bool {
        if self.is_whole() {
            return false;
        }
        let key = match event.subject() {
            _ if self.queue.ending() == Ending::ShutDown => return true,
            Subject::Queue => return event.transition != Transition::Closed,
            Subject::Group(_) => return true,
            Subject::Key(key) => key,
        };
        if event.transition == Transition::PaceOver {
            return true;
        }
        if let Transition::Added { is_new: true, .. } = event.transition
            && self.is_past_window(key, event.at)
        {
            self.known.insert(key);
        }
        let is_unknown = !self.known.contains(&key);
        if is_unknown {
            self.skipped.insert(key);
            if let Transition::Delivered { .. } | Transition::StartCounted = event.transition {
                self.starts.insert(key, event.at);
            }
        }
        is_unknown
    }

    /// Returns true if none of the starts of `key` that the replay skipped still counts toward the
    /// pace.
    fn is_past_window(&self, key: u32, now: Time) -> bool {
        let begin = self.recording.events.first().map_or(now, |event| event.at);
        let last = self.starts.get(&key).copied().unwrap_or(begin);
        self.recording.rules.pace.is_none_or(|pace| last + pace.per() <= now)
    }

    /// Performs the operation that begins with `event`, and compares its events.
    fn step(&mut self, event: Event) -> Result<Step, Box<Difference>> {
        if self.skips(&event) {
            self.position += 1;
            // After a shutdown, `skips` returns true for all events, so the queue is shut down
            // here.
            if event.transition == Transition::ShutDown {
                self.queue.end(Ending::ShutDown);
                self.replayed = self.queue.events_count();
            }
            return Ok(Step { events: Vec::from([event]), entry: None, is_skipped: true });
        }
        let difference = |position, recorded, replayed, reason| {
            Box::new(Difference { position, recorded, replayed, reason })
        };
        if let Err(reason) = self.perform(&event) {
            return Err(difference(self.position, Some(event), None, Some(reason)));
        }
        let replayed = self.queue.events_after(self.replayed);
        self.replayed = self.queue.events_count();
        if replayed.is_empty() {
            let reason = Some("the operation has no effect in the replay");
            return Err(difference(self.position, Some(event), None, reason));
        }
        let mut events = Vec::new();
        for replayed in replayed {
            let position = self.next_position(events.is_empty());
            let recorded = self.recording.events.get(position).copied();
            let expected = recorded.map(|recorded| self.as_replayed(recorded));
            if expected != Some(replayed) {
                // All events of an operation concern its key or the group of the key.
                let hash = if replayed.hash == 0 { 0 } else { event.hash };
                let replayed = Event { hash, ..replayed };
                return Err(difference(position, recorded, Some(replayed), None));
            }
            events.extend(recorded);
            self.position = position + 1;
        }
        let entry = match event.subject() {
            Subject::Key(key) => self.look_up(key),
            _ => None,
        };
        Ok(Step { events, entry, is_skipped: false })
    }

    /// Returns the index of the next event to compare. If the recording begins in the middle, the
    /// replay has no groups. It then skips the events of groups between an operation and the events
    /// that it caused.
    fn next_position(&self, is_first: bool) -> usize {
        let mut position = self.position;
        if !self.is_whole() && !is_first {
            let is_of_group = |event: &Event| matches!(event.subject(), Subject::Group(_));
            while self.recording.events.get(position).is_some_and(is_of_group) {
                position += 1;
            }
        }
        position
    }

    /// Converts a recorded event into the event that the queue of the replay should record. The
    /// hash of the recorded key is the key in the replay, so it is hashed again.
    fn as_replayed(&self, mut event: Event) -> Event {
        if let Subject::Key(key) = event.subject() {
            event.hash = fold(key.into());
        }
        if let Transition::Added { is_new: true, group, .. } = &mut event.transition
            && !self.is_whole()
        {
            let _ = group.get_or_insert_default();
        }
        event
    }

    /// Performs the operation that `event` records. If that is impossible, returns the reason.
    fn perform(&mut self, event: &Event) -> Result<(), &'static str> {
        let (at, key) = (event.at, event.hash);
        let hash = u64::from(key);
        self.queue.observe(at);
        self.check_promotions(event)?;
        match event.transition {
            Transition::Added { .. } => self.add(event),
            Transition::Delivered { number, .. } => self.deliver(key, number, at)?,
            Transition::Completed { number, how, delay, .. } => {
                self.complete(key, number, how, delay, at)?;
            }
            Transition::Due | Transition::Paced { .. } => {
                let slot = self.slot(key)?;
                let is_next = self.queue.timers.first_due(at) == Some(slot);
                if !is_next && self.is_whole()
                    || self.queue.timers.due(slot).is_none_or(|due| due > at)
                {
                    return Err("the key is not due");
                }
                self.queue.promote_slot(slot, at);
            }
            Transition::Cancelled { reason: CancelReason::Cancelled, .. } => {
                let _ = self.queue.cancel_running(&key, hash);
            }
            Transition::Withdrawn => _ = self.queue.cancel(&key, hash),
            Transition::Forgotten => _ = self.queue.forget(&key, hash),
            Transition::Dropped => {
                let slot = self.slot(key)?;
                let record = self.queue.records.get(slot);
                let is_stopped = || self.queue.is_paused() || self.queue.is_in_paused_group(slot);
                let is_dropped =
                    record.is_waiting() || record.phase() == Phase::Ready && is_stopped();
                if self.queue.ending() != Ending::ShutDown || !is_dropped {
                    return Err("the key has no run to drop");
                }
                self.queue.drop_slot(slot, &mut Vec::new());
            }
            Transition::Flushed { .. } => {
                let slot = self.slot(key)?;
                if self.queue.timers.bound(slot).is_none() {
                    return Err("the key waits for no debounced add");
                }
                self.queue.flush_wait(slot, at);
            }
            Transition::Sealed => {
                let ticket = self.ticket(key, None)?;
                let _ = self.queue.seal(&ticket);
            }
            Transition::StartCounted => {
                let ticket = self.ticket(key, None)?;
                self.queue.count_start(&ticket, at);
            }
            Transition::StartUncounted => {
                let ticket = self.ticket(key, None)?;
                self.queue.uncount_start(&ticket);
            }
            Transition::PaceOver => self.queue.forget_starts(&key, fold(hash), at),
            Transition::Paused => self.queue.pause(),
            Transition::Resumed => self.queue.resume(),
            Transition::Closed => self.queue.end(Ending::Closed),
            Transition::ShutDown => self.queue.end(Ending::ShutDown),
            Transition::GroupPaused(group) => {
                self.queue.pause_group(GroupId::new(group));
            }
            Transition::GroupResumed(group) => {
                self.queue.resume_group(GroupId::new(group));
            }
            Transition::Held { .. }
            | Transition::Cancelled { .. }
            | Transition::GroupFilled(_)
            | Transition::GroupFreed(_) => return Err("it does not follow from the event before"),
        }
        Ok(())
    }

    /// If the operation of `event` first makes due keys ready, checks that all due keys became
    /// ready before `event`.
    fn check_promotions(&mut self, event: &Event) -> Result<(), &'static str> {
        let before = core::mem::take(&mut self.promotions);
        let promotes = match event.transition {
            Transition::Due | Transition::Paced { .. } => {
                self.promotions = before + 1;
                false
            }
            // A caller can refuse an add itself. The queue has then made no due keys ready.
            Transition::Added { added, .. } => added != Added::Refused,
            Transition::Delivered { .. } => true,
            // With a custom order, a completion may be one that copied no keys, because the `clone`
            // of a key had panicked. Such a completion makes no due keys ready.
            Transition::Completed { .. } => self.recording.rules.order != Ordering::Custom,
            _ => false,
        };
        let is_late = || self.queue.timers.first_due(event.at).is_some();
        if promotes
            && before < MAX_PROMOTIONS
            && self.is_whole()
            && self.queue.ending() != Ending::ShutDown
            && is_late()
        {
            return Err("another key is due and did not become ready before");
        }
        Ok(())
    }

    fn add(&mut self, event: &Event) {
        let Transition::Added { due, flags, reason, priority, kind, merge, failed, group, .. } =
            event.transition
        else {
            return;
        };
        let add = match kind {
            AddKind::Now => Add::now(),
            AddKind::Delayed => Add::at(due),
            AddKind::Debounced { at_most } => Add::debounce(due.since(event.at)).at_most(at_most),
        };
        let add = add.merge(merge).priority(priority).flags(flags);
        let add = if failed { add.failed() } else { add };
        let add = reason.map_or(add, |reason| add.reason(reason));
        let (key, group) = (event.hash, group.unwrap_or_default());
        let _ = self.queue.add_settled(key, key.into(), &add, None, group, event.at);
    }

    fn deliver(&mut self, key: u32, number: u64, at: Time) -> Result<(), &'static str> {
        let slot = self.slot(key)?;
        if self.queue.records.get(slot).phase() != Phase::Ready {
            return Err("the key is not ready");
        }
        if number == 0 {
            return Err("no delivery has the number 0");
        }
        if !self.is_whole() {
            self.queue.number_deliveries_from(number);
        } else if self.queue.is_paused() {
            return Err("the queue is paused");
        } else if self.queue.ready.groups().is_some_and(|groups| !groups.is_eligible(slot)) {
            return Err("the group of the key is paused or at its limit");
        } else if self.recording.rules.order != Ordering::Custom
            && self.queue.ready.next_ready() != Some(slot)
        {
            return Err("another key is next");
        }
        let delivery = self.queue.deliver(slot, None, at);
        self.asked.insert(number, delivery.asked);
        Ok(())
    }

    fn complete(
        &mut self,
        key: u32,
        number: u64,
        how: Ended,
        delay: Option<Duration>,
        at: Time,
    ) -> Result<(), &'static str> {
        let ticket = self.ticket(key, Some(number))?;
        let asked = self.asked.remove(&number).unwrap_or_default();
        let finish = match (how, delay) {
            (Ended::Done, _) => Finish::Done,
            (Ended::Succeeded, _) => Finish::Succeed,
            (Ended::GivenUp, _) => Finish::GiveUp,
            (Ended::Requeued, Some(delay)) => Finish::RequeueAfter { delay, asked },
            (Ended::Retried, Some(delay)) => Finish::RetryAfter { delay, asked },
            (Ended::Released, None) => Finish::Release { asked },
            (Ended::Released, Some(delay)) => Finish::ReleaseAfter { delay, asked },
            (Ended::Cancelled | Ended::Restarted, _) => Finish::Cancelled { asked },
            (Ended::Requeued | Ended::Retried, None) => return Err("its delay is missing"),
            (Ended::Parked, _) => return Err("only stores park keys"),
        };
        let _ = self.queue.finish_settled(&ticket, finish, at);
        Ok(())
    }

    fn slot(&self, key: u32) -> Result<Slot, &'static str> {
        self.queue.find_slot(&key, key.into()).ok_or("the key has no state")
    }

    /// Returns the ticket of the delivery of `key` that is in flight. If `number` is given, the
    /// delivery must have this number.
    fn ticket(&self, key: u32, number: Option<u64>) -> Result<Ticket, &'static str> {
        let slot = self.slot(key)?;
        let record = self.queue.records.get(slot);
        if !record.phase().is_in_flight() {
            return Err("the key is not in flight");
        }
        let epoch = record.epoch();
        if number.is_some_and(|number| number != epoch) {
            return Err("the key is in flight with another number");
        }
        Ok(Ticket { slot, hash: record.hash, epoch })
    }
}

impl Iterator for Replay<'_> {
    type Item = Result<Step, Box<Difference>>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = *self.recording.events.get(self.position).filter(|_| !self.is_over)?;
        let step = self.step(event);
        self.is_over = step.is_err();
        Some(step)
    }
}

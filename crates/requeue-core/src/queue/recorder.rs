//! The recorder of the last events, from which a caller can explain why a key ran or waited.

mod blocked;
mod event_walk;

use alloc::vec::Vec;
use core::num::NonZero;
use core::time::Duration;

pub use self::blocked::Blocked;
pub use self::event_walk::EventWalk;
use super::event::{AddKind, Ended, Event, Transition};
use super::recording::{ADDS, BARE_EVENTS, ENDS, MERGES, Rules};
use super::{Queue, Record};
use crate::memory::fold;
use crate::order::{GroupId, Ready};
use crate::rule::How;
use crate::types::{
    Add, Added, CancelReason, Finish, Merge, Phase, Reason, Slot, Ticket, Time, When,
};

/// The minimum number of places of a recorder. One operation fills fewer places than this, so its
/// last event never overwrites its first event.
const MIN_PLACES: usize = 8;

/// A place in the memory of a recorder. It contains an event, or the rest of the event in the
/// previous place.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The time of the event. If the place contains the rest of an event: the longest wait of a
    /// debounced add, or the delay of a completion.
    first: u64,
    /// The hash of the key. If the place contains the rest of an event: the weight of the group of an
    /// add, or the number of failures of a completion.
    low: u32,
    /// The kind of the event, its result and its flags. If the place contains the rest of an event,
    /// it is [`REST`].
    code: u32,
    /// Depending on the kind: a time, the number of a delivery, or the number of a group.
    third: u64,
    /// The flags and the priority of an add, the due time of a completion, or the number of adds that a
    /// delivery serves.
    fourth: u64,
}

/// The bits that contain the result of an add, or the kind of a completion.
const RESULT: u32 = 0xF;
/// The lowest bit of the kind of an event. The kind [`REST`] marks a place that contains the rest
/// of an event.
const KIND: u32 = 4;
const KINDS: u32 = 0x1F;
const REST: u32 = 0;
const ADDED: u32 = 1;
const COMPLETED: u32 = 2;
const DELIVERED: u32 = 3;
const CANCELLED: u32 = 4;
const HELD: u32 = 5;
const PACED: u32 = 6;
const FLUSHED: u32 = 7;
/// The lowest kind of an event without values. The kinds from this one up to [`GROUP`] have no
/// values.
const BARE: u32 = 8;
/// The lowest kind of an event with the number of a group. All higher kinds also have such a
/// number.
const GROUP: u32 = 24;

/// The flag of an event whose rest is in the next place.
const HAS_REST: u32 = 1 << 9;
// The following constants are the other flags of an add.
const MERGE: u32 = 12;
const FAILED: u32 = 1 << 14;
const DELAYED: u32 = 1 << 15;
const DEBOUNCED: u32 = 1 << 16;
const IS_NEW: u32 = 1 << 17;
const HAS_GROUP: u32 = 1 << 18;
/// The lowest of the 13 bits that contain the reason of an add.
const REASON: u32 = 19;
// The following constants are the other flags of a completion.
const IS_READY: u32 = 1 << 12;
const IS_WAITING: u32 = 1 << 13;
const HAS_DELAY: u32 = 1 << 14;

/// The last events, in the order in which they occurred.
pub(super) struct Recorder {
    places: Vec<Place>,
    /// The maximum number of places.
    most: usize,
    /// The index of the place for the next event. If it equals the number of places, the next event
    /// goes into the first place.
    next: usize,
    /// How often the recorder has started again at its first place.
    laps: u64,
    /// The number of places filled so far that contained the rest of an event.
    rests: u64,
    /// The number of places filled so far when the last event of a group or of the queue was
    /// recorded.
    shared: u64,
    /// The time that the recorder uses for the events of operations without a time.
    now: Time,
    rules: Rules,
}

impl Recorder {
    /// Creates a recorder that uses up to `bytes` bytes of memory. Returns `None` if `bytes` is too
    /// small for the minimum number of places.
    pub(super) fn new(bytes: usize, rules: Rules) -> Option<Self> {
        let most = bytes / size_of::<Place>();
        // The operating system provides memory only for the places that are filled.
        (most >= MIN_PLACES).then(|| Self {
            places: Vec::with_capacity(most),
            most,
            next: 0,
            laps: 0,
            rests: 0,
            shared: 0,
            now: Time::ZERO,
            rules,
        })
    }

    /// Returns the next place, which the caller fills.
    #[inline(always)]
    fn next_place(&mut self) -> &mut Place {
        let next = self.next;
        self.next = next + 1;
        if next < self.places.len() { &mut self.places[next] } else { self.place_at_end() }
    }

    #[cold]
    #[inline(never)]
    fn place_at_end(&mut self) -> &mut Place {
        if self.places.len() < self.most {
            self.places.push(Place::default());
        } else {
            (self.next, self.laps) = (1, self.laps + 1);
        }
        &mut self.places[self.next - 1]
    }

    /// Returns the number of places that were filled since the recorder was created.
    const fn filled(&self) -> u64 {
        self.laps * self.most as u64 + self.next as u64
    }

    fn place(&mut self, number: u64) -> Option<&mut Place> {
        let index = number % self.most as u64;
        self.places.get_mut(index as usize)
    }

    #[inline(always)]
    fn push(&mut self, at: Time, hash: u32, code: u32, third: u64, fourth: u64) {
        *self.next_place() = Place { first: at.as_nanos(), low: hash, code, third, fourth };
    }

    #[cold]
    fn push_rest(&mut self, first: u64, low: u32, third: u64) {
        self.rests += 1;
        *self.next_place() = Place { first, low, code: REST, third, fourth: 0 };
    }

    /// Records an event without values.
    fn push_bare(&mut self, at: Time, hash: u32, transition: Transition) {
        let kind = BARE_EVENTS.iter().position(|&(_, event)| event == transition);
        debug_assert!(kind.is_some(), "{transition:?} has values");
        self.push(at, hash, (BARE + kind.unwrap_or_default() as u32) << KIND, 0, 0);
    }

    /// Records an event of a group or of the queue.
    fn push_group(&mut self, at: Time, transition: Transition) {
        self.shared = self.filled() + 1;
        let (kind, group) = match transition {
            Transition::GroupFilled(group) => (0, group),
            Transition::GroupFreed(group) => (1, group),
            Transition::GroupPaused(group) => (2, group),
            Transition::GroupResumed(group) => (3, group),
            _ => return self.push_bare(at, 0, transition),
        };
        self.push(at, 0, (GROUP + kind) << KIND, group, 0);
    }

    /// Records an event of a key that is not an add, a delivery or a completion.
    fn push_key(&mut self, at: Time, hash: u32, transition: Transition) {
        match transition {
            Transition::Held { until } => self.push(at, hash, HELD << KIND, until.as_nanos(), 0),
            Transition::Paced { until } => self.push(at, hash, PACED << KIND, until.as_nanos(), 0),
            Transition::Flushed { due } => self.push(at, hash, FLUSHED << KIND, due.as_nanos(), 0),
            Transition::Cancelled { number, reason } => {
                let restarts = u32::from(reason == CancelReason::Restarted);
                self.push(at, hash, CANCELLED << KIND | restarts, number, 0);
            }
            _ => self.push_bare(at, hash, transition),
        }
    }

    /// Records an add. `group` is the group of the key if the key is new.
    #[inline(always)]
    fn push_add(&mut self, hash: u32, add: &Add, code: u32, group: Option<GroupId>, now: Time) {
        let is_plain = matches!(add.when, When::Now)
            && matches!(add.merge, Merge::Earliest)
            && !add.failed
            && group.is_none();
        if is_plain {
            let place = self.next_place();
            place.first = now.as_nanos();
            place.low = hash;
            place.code = ADDED << KIND | code | reason_code(add);
            place.fourth = asked(add);
        } else {
            self.push_long_add(hash, add, code, group, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_long_add(
        &mut self,
        hash: u32,
        add: &Add,
        mut code: u32,
        group: Option<GroupId>,
        now: Time,
    ) {
        code |= ADDED << KIND | (add.merge as u32) << MERGE | reason_code(add);
        code |= if add.failed { FAILED } else { 0 };
        code |= match add.when {
            _ if add.is_debounced() => DEBOUNCED | HAS_REST,
            When::Now => 0,
            When::After(_) | When::At(_) => DELAYED,
        };
        code |= if group.is_some() { HAS_GROUP | HAS_REST } else { 0 };
        let due = add.due(now).unwrap_or(now);
        self.push(now, hash, code, due.as_nanos(), asked(add));
        if code & HAS_REST != 0 {
            let group = group.unwrap_or_default();
            self.push_rest(add.at_most.map_or(0, NonZero::get), group.weight, group.id);
        }
    }

    #[inline(always)]
    pub(super) fn push_delivery<K>(&mut self, record: &Record<K>, number: u64, now: Time) {
        // The values are read after the call of `next_place`. Otherwise, the compiled code would
        // have to save them across the call.
        let place = self.next_place();
        place.first = now.as_nanos();
        place.low = record.hash;
        place.code = DELIVERED << KIND;
        place.third = number;
        place.fourth = record.adds.into();
    }

    #[cold]
    #[inline(never)]
    pub(super) fn push_filled_group(&mut self, group: GroupId, now: Time) {
        self.push_group(now, Transition::GroupFilled(group.id()));
    }

    #[inline(always)]
    pub(super) fn push_removal(&mut self, ticket: &Ticket, succeeds: bool, now: Time) {
        let place = self.next_place();
        place.first = now.as_nanos();
        place.low = ticket.hash;
        let how = if succeeds { Ended::Succeeded } else { Ended::Done };
        place.code = COMPLETED << KIND | how as u32;
        place.third = ticket.epoch;
    }

    #[cold]
    #[inline(never)]
    pub(super) fn push_freed_group(&mut self, group: GroupId, now: Time) {
        self.push_group(now, Transition::GroupFreed(group.id()));
    }

    /// Returns the event in place `number`. Returns `None` if the place contains the rest of an
    /// event.
    fn decode(&self, number: u64) -> Option<Event> {
        let place = |number: u64| {
            let index = (number % self.most as u64) as usize;
            self.places.get(index).copied().unwrap_or_default()
        };
        let Place { first, low: hash, code, third, fourth } = place(number);
        let rest = if code & HAS_REST != 0 { place(number + 1) } else { Place::default() };
        let (time, result) = (Time::from_nanos(third), code & RESULT);
        let transition = match code >> KIND & KINDS {
            REST => return None,
            ADDED => Transition::Added {
                added: nth(&ADDS, result)?,
                due: if code & (DELAYED | DEBOUNCED) == 0 { Time::from_nanos(first) } else { time },
                flags: (fourth >> 32) as u32,
                reason: Reason::new((code >> REASON) as u16),
                priority: fourth as i32,
                kind: match code & (DELAYED | DEBOUNCED) {
                    0 => AddKind::Now,
                    DELAYED => AddKind::Delayed,
                    _ => AddKind::Debounced { at_most: Duration::from_nanos(rest.first) },
                },
                merge: nth(&MERGES, code >> MERGE & 3)?,
                failed: code & FAILED != 0,
                is_new: code & IS_NEW != 0,
                group: (code & HAS_GROUP != 0)
                    .then_some(GroupId { id: rest.third, weight: rest.low }),
            },
            COMPLETED => Transition::Completed {
                number: third,
                how: nth(&ENDS, result)?,
                failures: rest.low,
                is_ready: code & IS_READY != 0,
                due: (code & IS_WAITING != 0).then(|| Time::from_nanos(fourth)),
                delay: (code & HAS_DELAY != 0).then(|| Duration::from_nanos(rest.first)),
            },
            DELIVERED => Transition::Delivered { number: third, adds: (fourth as u32).max(1) },
            CANCELLED if result == 1 => {
                Transition::Cancelled { number: third, reason: CancelReason::Restarted }
            }
            CANCELLED => Transition::Cancelled { number: third, reason: CancelReason::Cancelled },
            HELD => Transition::Held { until: time },
            PACED => Transition::Paced { until: time },
            FLUSHED => Transition::Flushed { due: time },
            kind if kind < GROUP => nth(&BARE_EVENTS, kind - BARE)?,
            kind => match kind - GROUP {
                0 => Transition::GroupFilled(third),
                1 => Transition::GroupFreed(third),
                2 => Transition::GroupPaused(third),
                _ => Transition::GroupResumed(third),
            },
        };
        Some(Event { at: Time::from_nanos(first), hash, transition })
    }
}

fn nth<T: Copy>(values: &[(&str, T)], index: u32) -> Option<T> {
    values.get(index as usize).map(|&(_, value)| value)
}

/// Packs the flags and the priority of an add into 64 bits.
#[inline(always)]
const fn asked(add: &Add) -> u64 {
    (add.flags as u64) << 32 | add.priority as u32 as u64
}

/// Returns the reason of an add as the bits of `Place::code`.
#[inline(always)]
const fn reason_code(add: &Add) -> u32 {
    match add.reason {
        Some(reason) => (reason.number() as u32) << REASON,
        None => 0,
    }
}

/// The place of an event whose result is not known yet.
#[derive(Clone, Copy)]
#[must_use = "the event needs its result"]
pub(super) struct Unfinished(u64);

impl<K: Eq + Clone> Queue<K> {
    /// Returns true if the queue records events. The caller must then pass the time to every
    /// operation.
    #[inline]
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Sets the time for the events of operations that have no parameter `now`. If the queue
    /// [records events](Self::is_recording), the caller calls this method before each such
    /// operation.
    pub fn observe(&mut self, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.now = now;
        }
    }

    /// Records an add of a key that already has a record, or an add that the queue refuses.
    #[inline(always)]
    pub(super) fn record_add(&mut self, hash: u32, add: &Add, added: Added, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_add(hash, add, added as u32, None, now);
        }
    }

    /// Records an add that the caller has refused itself, because [`refuses`](Self::refuses)
    /// returned true.
    pub fn record_refusal(&mut self, hash: u64, add: &Add) {
        if let Some(now) = self.recorder.as_ref().map(|recorder| recorder.now) {
            self.record_add(fold(hash), add, Added::Refused, now);
        }
    }

    /// Records the add of a new key.
    #[inline(always)]
    pub(super) fn record_new(&mut self, hash: u32, add: &Add, group: GroupId, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            let has_groups = !matches!(self.ready, Ready::Fifo(_) | Ready::Priority(_));
            let group = if has_groups { Some(group) } else { None };
            recorder.push_add(hash, add, IS_NEW | Added::New as u32, group, now);
        }
    }

    /// Records an add before its result is known, so that its event comes before the events that it
    /// causes.
    pub(super) fn begin_add(&mut self, slot: Slot, add: &Add, now: Time) -> Option<Unfinished> {
        let recorder = self.recorder.as_mut()?;
        let place = Unfinished(recorder.filled());
        recorder.push_add(self.records.get(slot).hash, add, 0, None, now);
        Some(place)
    }

    /// Records the result of an add.
    pub(super) fn end_add(&mut self, place: Option<Unfinished>, added: Added) {
        if let (Some(recorder), Some(Unfinished(place))) = (&mut self.recorder, place)
            && let Some(place) = recorder.place(place)
        {
            place.code |= added as u32;
        }
    }

    /// Records the completion of the delivery of the key in `slot`. At this point, the failures of
    /// the key are known, and its next run is not.
    pub(super) fn begin_completion(
        &mut self,
        slot: Slot,
        finish: Finish,
        how: How<Time>,
        now: Time,
    ) -> Option<Unfinished> {
        let recorder = self.recorder.as_mut()?;
        let place = Unfinished(recorder.filled());
        let record = self.records.get(slot);
        let (failures, delay) = (record.failures(), finish.delay());
        let mut code = COMPLETED << KIND | Ended::from(how) as u32;
        code |= if delay.is_some() { HAS_DELAY } else { 0 };
        code |= if delay.is_some() || failures > 0 { HAS_REST } else { 0 };
        recorder.push(now, record.hash, code, record.epoch(), 0);
        if code & HAS_REST != 0 {
            let delay = (Time::ZERO + delay.unwrap_or_default()).as_nanos();
            recorder.push_rest(delay, failures, 0);
        }
        Some(place)
    }

    /// Adds the state of the key in `slot` to the event of its completion, before the record can be
    /// removed.
    pub(super) fn end_completion(&mut self, place: Option<Unfinished>, slot: Slot) {
        let (Some(recorder), Some(Unfinished(place))) = (&mut self.recorder, place) else { return };
        let record = self.records.get(slot);
        let is_ready = record.phase() == Phase::Ready;
        let due = self.timers.due(slot).filter(|_| record.is_waiting());
        let failures = record.failures();
        let Some(completion) = recorder.place(place) else { return };
        completion.code |= if is_ready { IS_READY } else { 0 };
        completion.code |= if due.is_some() { IS_WAITING } else { 0 };
        completion.fourth = due.map_or(0, Time::as_nanos);
        if completion.code & HAS_REST != 0
            && let Some(rest) = recorder.place(place + 1)
        {
            rest.low = failures;
        }
    }

    /// Records a change of the key in `slot`.
    #[inline(always)]
    pub(super) fn record_slot(&mut self, slot: Slot, now: Time, transition: Transition) {
        if let Some(recorder) = &mut self.recorder {
            let hash = self.records.get(slot).hash;
            recorder.push_key(now, hash, transition);
        }
    }

    /// Like `record_slot`, for an operation that has no parameter `now`.
    #[inline(always)]
    pub(super) fn record_slot_now(&mut self, slot: Slot, transition: Transition) {
        if let Some(recorder) = &self.recorder {
            self.record_slot(slot, recorder.now, transition);
        }
    }

    /// Records a change of the key with this hash, which need not have a record.
    pub(super) fn record_hash(&mut self, hash: u32, now: Time, transition: Transition) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_key(now, hash, transition);
        }
    }

    /// Records that the group of the key in `slot` falls below its limit, if the completion of this
    /// key has this effect.
    #[inline(always)]
    pub(super) fn record_freed_group(&mut self, slot: Slot, now: Time) {
        if self.recorder.is_some()
            && let Some(group) = self.ready.groups().and_then(|groups| groups.freed_by(slot))
        {
            self.record_all(Some(now), Transition::GroupFreed(group.id()));
        }
    }

    /// Records a change of a group or of the queue.
    #[inline(always)]
    pub(super) fn record_all(&mut self, now: Option<Time>, transition: Transition) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_group(now.unwrap_or(recorder.now), transition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Config;

    #[test]
    fn a_full_recording_drops_the_oldest_events_and_takes_no_more_memory() {
        let bytes = 128 * size_of::<Place>() + 1;
        let mut queue = Queue::new(Config { recording: bytes, ..Config::default() });
        for n in 0..1000_u32 {
            let now = Time::ZERO + Duration::from_nanos(n.into());
            let _ = queue.add(n, n.into(), Add::now(), GroupId::default(), now);
        }
        let events = queue.events_after(0);
        let times = events.iter().map(|event| event.at.since(Time::ZERO).as_nanos());
        assert!(times.eq(872..1000));
        assert_eq!(queue.events_count(), 1000);
        assert_eq!(queue.recording().map(|it| it.lost_events()), Some(872));
        let recorder = queue.recorder.as_ref().expect("events are recorded");
        assert!(recorder.places.capacity() * size_of::<Place>() <= bytes);
    }

    #[test]
    fn an_event_takes_up_to_64_bytes() {
        let mut queue = Queue::new(Config { recording: 32 * 8, groups: true, ..Config::default() });
        let add = Add::debounce(Duration::from_secs(1)).at_most(Duration::from_secs(9));
        for n in 0..5_u8 {
            let _ = queue.add(n, n.into(), add, GroupId::new(7).weight(2), Time::ZERO);
        }
        let events = queue.events_after(0);
        assert_eq!((events.len(), queue.events_count()), (4, 5));
        let Transition::Added { kind, group, .. } = events[3].transition else { panic!("an add") };
        assert_eq!(kind, AddKind::Debounced { at_most: Duration::from_secs(9) });
        assert_eq!(group, Some(GroupId::new(7).weight(2)));
        // If the first place of an event was overwritten, its rest is not returned as an event.
        let _ = queue.cancel(&0, 0);
        assert_eq!(queue.events_after(0).len(), 4);
    }

    #[test]
    fn the_code_of_a_value_is_its_place_in_the_table() {
        for (code, &(word, value)) in ADDS.iter().enumerate() {
            assert_eq!(value as usize, code, "{word}");
        }
        for (code, &(word, value)) in MERGES.iter().enumerate() {
            assert_eq!(value as usize, code, "{word}");
        }
        for (code, &(word, value)) in ENDS.iter().enumerate() {
            assert_eq!(value as usize, code, "{word}");
        }
        assert!(BARE as usize + BARE_EVENTS.len() <= GROUP as usize);
    }

    #[test]
    fn a_recording_without_room_is_none() {
        let rules = Rules::of(&Config::<u8>::default());
        assert!(Recorder::new(MIN_PLACES * size_of::<Place>() - 1, rules).is_none());
        assert!(Recorder::new(0, rules).is_none());
    }
}

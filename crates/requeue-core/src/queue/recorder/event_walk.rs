//! Reads the recorded events in steps, so that a caller can release its lock between two steps.

use alloc::vec::Vec;

use super::super::Queue;
use super::super::event::{Event, Subject};
use super::super::recording::{Recording, Rules};
use super::Recorder;
use crate::memory::fold;
use crate::order::GroupId;
use crate::types::Time;

/// The number of places of the recorder that one step reads. A step takes some microseconds.
pub(super) const STEP: u64 = 1024;

/// A reading of the recorded events, the oldest first, for [`Queue::read_events`].
///
/// The reading ends with the last event that was recorded before it began. If new events replace old events that were
/// not read, the reading begins again with the oldest event that is left. It therefore has no gaps.
#[derive(Clone, Debug)]
pub struct EventWalk {
    rules: Rules,
    /// The hash of a key and its group. `None` selects all events.
    of: Option<(u32, Option<u64>)>,
    /// The place that is read next.
    next: u64,
    /// The first place that is not read, and the number of events before this place.
    end: (u64, u64),
    /// The number of places that the next step reads.
    step: u64,
    /// The number of events that were read, and the time of the first, since the reading began or began again.
    read: u64,
    begin: Option<Time>,
    events: Vec<Event>,
}

impl EventWalk {
    /// Returns true if all events were read.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.next >= self.end.0
    }

    /// Provides the memory for the next step. A caller with a lock calls this method first, without the lock.
    pub fn reserve(&mut self) {
        let step = if self.of.is_some() { 64 } else { self.step };
        self.events.reserve(usize::try_from(step).unwrap_or_default());
    }

    /// Returns the number of events that happened before the first event that was read.
    const fn lost(&self) -> u64 {
        self.end.1.saturating_sub(self.read)
    }

    /// Returns the events, and the time of the oldest recorded event of any key if older events were dropped.
    #[must_use]
    pub fn into_events(self) -> (Vec<Event>, Option<Time>) {
        let begin = self.begin.filter(|_| self.lost() > 0);
        (self.events, begin)
    }

    /// Returns the events as a recording. The reading must include the events of all keys.
    #[must_use]
    pub fn into_recording(self) -> Recording {
        Recording::new(self.rules, self.lost(), self.events)
    }

    fn selects(&self, event: &Event) -> bool {
        let Some((hash, group)) = self.of else { return true };
        match event.subject() {
            Subject::Key(key) => key == hash,
            Subject::Group(id) => group == Some(id),
            Subject::Queue => true,
        }
    }

    /// Begins again, with the oldest event that is left.
    fn restart(&mut self, recorder: &Recorder) {
        (self.next, self.read, self.begin) = (recorder.oldest(), 0, None);
        self.events.clear();
        // The steps double, so that even a reader that is slower than the writers reaches the end.
        self.step = self.step.saturating_mul(2);
        if self.is_over() {
            self.end = (recorder.filled(), recorder.count());
        }
    }

    fn read(&mut self, recorder: &Recorder) {
        if self.next < recorder.oldest() {
            self.restart(recorder);
        }
        let until = self.end.0.min(self.next.saturating_add(self.step));
        for event in (self.next..until).filter_map(|number| recorder.decode(number)) {
            self.begin.get_or_insert(event.at);
            self.read += 1;
            if self.selects(&event) {
                self.events.push(event);
            }
        }
        self.next = until;
    }
}

impl Recorder {
    /// Returns the number of the oldest place.
    pub(super) const fn oldest(&self) -> u64 {
        self.filled() - self.places.len() as u64
    }

    /// Returns the number of events so far.
    const fn count(&self) -> u64 {
        self.filled() - self.rests
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the number of events so far, including those that are no longer in the recording.
    #[must_use]
    pub fn events_count(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.count())
    }

    /// Returns the events after the first `count` of them, the oldest first. The recording may no longer have all of them.
    #[must_use]
    pub fn events_after(&self, count: u64) -> Vec<Event> {
        let Some(recorder) = &self.recorder else { return Vec::new() };
        let new = usize::try_from(recorder.count().saturating_sub(count)).unwrap_or(usize::MAX);
        let numbers = (recorder.oldest()..recorder.filled()).rev();
        let mut events: Vec<_> =
            numbers.filter_map(|number| recorder.decode(number)).take(new).collect();
        events.reverse();
        events
    }

    /// Begins a reading of all recorded events. Returns `None` if the queue records nothing.
    #[must_use]
    pub fn walk_events(&self) -> Option<EventWalk> {
        let recorder = self.recorder.as_ref()?;
        Some(EventWalk {
            rules: recorder.rules,
            of: None,
            next: recorder.oldest(),
            end: (recorder.filled(), recorder.count()),
            step: STEP,
            read: 0,
            begin: None,
            events: Vec::new(),
        })
    }

    /// Begins a reading of the recorded events of the key with this hash, of its group and of the queue. Returns `None` if
    /// the queue records nothing.
    #[must_use]
    pub fn walk_events_of(&self, hash: u64, group: Option<GroupId>) -> Option<EventWalk> {
        let of = Some((fold(hash), group.map(GroupId::id)));
        self.walk_events().map(|walk| EventWalk { of, ..walk })
    }

    /// Reads the next events of `walk`.
    pub fn read_events(&self, walk: &mut EventWalk) {
        if let Some(recorder) = &self.recorder {
            walk.read(recorder);
        }
    }

    /// Returns the recorded events with the settings of the queue, or `None` if the queue records nothing.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        let mut walk = self.walk_events()?;
        while !walk.is_over() {
            self.read_events(&mut walk);
        }
        Some(walk.into_recording())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::queue::Config;
    use crate::types::Add;

    const PLACES: u64 = 4 * STEP;

    fn add(queue: &mut Queue<u64>, keys: core::ops::Range<u64>) {
        for key in keys {
            let now = Time::ZERO + Duration::from_nanos(key);
            let _ = queue.add(key, key, Add::now(), GroupId::default(), now);
        }
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.at.as_nanos()).collect()
    }

    #[test]
    fn a_reading_that_events_overtake_begins_again_and_has_no_gaps() {
        let recording = 32 * PLACES as usize;
        let mut queue = Queue::new(Config { recording, ..Config::default() });
        add(&mut queue, 0..PLACES + 10);
        let mut walk = queue.walk_events().expect("events are recorded");
        let mut of_key = queue.walk_events_of(PLACES, None).expect("events are recorded");
        queue.read_events(&mut walk);
        queue.read_events(&mut of_key);
        assert!(!walk.is_over(), "a step does not read all");
        // These events overwrite all events that were read, and some events that were not read.
        add(&mut queue, PLACES + 10..PLACES + 20 + STEP);
        for walk in [&mut walk, &mut of_key] {
            while !walk.is_over() {
                queue.read_events(walk);
            }
        }
        let first = STEP + 20;
        assert_eq!(numbers(&of_key.into_events().0), [PLACES]);
        let recording = walk.clone().into_recording();
        assert_eq!(recording.lost_events(), first);
        let (events, begin) = walk.into_events();
        assert_eq!(begin.map(Time::as_nanos), Some(first));
        assert_eq!(numbers(&events), (first..PLACES + 10).collect::<Vec<_>>());
        // If all events that a walk would read are overwritten, the walk continues with the newer events.
        let mut walk = queue.walk_events().expect("events are recorded");
        add(&mut queue, 2 * PLACES..4 * PLACES);
        while !walk.is_over() {
            queue.read_events(&mut walk);
        }
        assert_eq!(numbers(&walk.into_events().0), (3 * PLACES..4 * PLACES).collect::<Vec<_>>());
    }
}

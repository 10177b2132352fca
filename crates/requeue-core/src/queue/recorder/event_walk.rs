//! A walk through the recorded events in steps, so that the caller can release its lock between two
//! steps.

use alloc::vec::Vec;

use super::super::Queue;
use super::super::event::{Event, Subject};
use super::super::recording::{Recording, Rules};
use super::Recorder;
use crate::memory::fold;
use crate::order::GroupId;
use crate::types::Time;

/// The number of places of the recorder that one step reads. A step takes a few microseconds.
pub(super) const STEP: u64 = 1024;

/// A walk through the recorded events, the oldest first, for [`Queue::read_events`].
///
/// The walk ends with the last event that was recorded before the walk began. If new events
/// overwrite old events that the walk has not read, the walk starts again at the oldest remaining
/// event. The result therefore has no gaps.
#[derive(Clone, Debug)]
pub struct EventWalk {
    rules: Rules,
    /// The hash of a key, and its group. `None` selects the events of all keys.
    of: Option<(u32, Option<u64>)>,
    /// The number of the place that the next step reads first.
    next: u64,
    /// The number of the first place that the walk does not read, and the number of events before
    /// it.
    end: (u64, u64),
    /// The number of places that the next step reads.
    step: u64,
    /// The number of events that were read since the walk last started.
    read: u64,
    begin: Option<Time>,
    events: Vec<Event>,
}

impl EventWalk {
    /// Returns true if the walk has read all its events.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.next >= self.end.0
    }

    /// Allocates the memory for the next step. A caller with a lock calls this method before it
    /// acquires the lock.
    pub fn reserve(&mut self) {
        let step = if self.of.is_some() { 64 } else { self.step };
        self.events.reserve(usize::try_from(step).unwrap_or_default());
    }

    /// Returns the number of events that were recorded before the first event that the walk has
    /// read.
    const fn lost(&self) -> u64 {
        self.end.1.saturating_sub(self.read)
    }

    /// Returns the events. If older events were overwritten, also returns the time of the oldest
    /// event that the walk has read, of any key.
    #[must_use]
    pub fn into_events(self) -> (Vec<Event>, Option<Time>) {
        let begin = self.begin.filter(|_| self.lost() > 0);
        (self.events, begin)
    }

    /// Returns the events as a recording. The walk must have been created by
    /// [`Queue::walk_events`].
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

    /// Starts the walk again, at the oldest remaining event.
    fn restart(&mut self, recorder: &Recorder) {
        (self.next, self.read, self.begin) = (recorder.oldest(), 0, None);
        self.events.clear();
        // The length of a step doubles, so that a reader that is slower than the writers reaches
        // the end eventually.
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
    /// Returns the number of the oldest place that is not overwritten.
    pub(super) const fn oldest(&self) -> u64 {
        self.filled() - self.places.len() as u64
    }

    /// Returns the number of events that were recorded so far.
    const fn count(&self) -> u64 {
        self.filled() - self.rests
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the number of events that were recorded so far, including those that were
    /// overwritten.
    #[must_use]
    pub fn events_count(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.count())
    }

    /// Returns the events after the first `count` events, the oldest first. Overwritten events are
    /// missing from the result.
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

    /// Starts a walk through all recorded events. Returns `None` if the queue records no events.
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

    /// Starts a walk through the recorded events of the key with this hash, of its group and of the
    /// queue. Returns `None` if the queue records no events.
    #[must_use]
    pub fn walk_events_of(&self, hash: u64, group: Option<GroupId>) -> Option<EventWalk> {
        let of = Some((fold(hash), group.map(GroupId::id)));
        self.walk_events().map(|walk| EventWalk { of, ..walk })
    }

    /// Reads the next step of `walk`.
    pub fn read_events(&self, walk: &mut EventWalk) {
        if let Some(recorder) = &self.recorder {
            walk.read(recorder);
        }
    }

    /// Returns the recorded events and the settings of the queue, or `None` if the queue records no
    /// events.
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
        // These events overwrite all events that the walks have read, and some that they have not
        // read.
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
        // If all events that a walk would read are overwritten, it continues with newer events.
        let mut walk = queue.walk_events().expect("events are recorded");
        add(&mut queue, 2 * PLACES..4 * PLACES);
        while !walk.is_over() {
            queue.read_events(&mut walk);
        }
        assert_eq!(numbers(&walk.into_events().0), (3 * PLACES..4 * PLACES).collect::<Vec<_>>());
    }
}

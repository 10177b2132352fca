//! Reading the state of a queue: numbers of keys, ages, snapshots and single keys.
//!
//! Each method first makes due keys ready, so that it never reports a due key as waiting.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash};

use requeue_core::history::{Event, Recording, Subject};
use requeue_core::{
    self as core, Cursor, Entry, EventWalk, Operation, Page, Reasons, StateCounts, Time, Totals,
    Walk,
};

use super::Queue;
use super::shared::{LOCK_BATCH, Shared, State};
use crate::Key;
use crate::metrics::{AtGroupLimit, Sample, Times};
use crate::ranked_mutex::RankedGuard;
use crate::reasons::reason_text;
use crate::sync::{Ordering, drop_quietly, quietly};

#[expect(clippy::len_without_is_empty, reason = "a queue without ready keys may have others")]
impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Returns the number of ready keys, like client-go's `Len`.
    ///
    /// Throttled keys are included. Waiting keys and keys in flight are not, even if they are
    /// dirty: see [`states`](Self::states).
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.read_settled(core::Queue::len)
    }

    /// Returns the number of ready and dirty keys of each priority, in ascending order of priority.
    ///
    /// Priorities without such keys are omitted, and the result has at most `limit` entries. The
    /// time of the call depends only on the number of priorities. The result is empty unless the
    /// queue [tracks times](super::Builder::track_times).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue};
    ///
    /// let queue = Queue::builder().track_times().build()?;
    /// queue.add_all(["a", "b"]);
    /// queue.add_with("c", Add::now().priority(-100));
    /// assert_eq!(queue.ready_and_dirty_by_priority(10), [(-100, 1), (0, 2)]);
    /// assert_eq!(queue.ready_and_dirty_by_priority(1), [(-100, 1)]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    // Only the metrics of requeue-kube need this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn ready_and_dirty_by_priority(&self, limit: usize) -> Vec<(i32, usize)> {
        self.shared.read_settled(|core| {
            core.ready_and_dirty_by_priority().into_iter().flatten().take(limit).collect()
        })
    }

    /// Returns the number of keys with a due time, including keys that are also ready or in flight.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.read_settled(core::Queue::waiting)
    }

    /// Returns the time at which the next waiting key becomes ready, by the
    /// [clock](super::Builder::clock) of the queue.
    ///
    /// Returns `None` if no key waits, or if no waiting key will ever be due. A key whose due time
    /// has come is ready, and no longer waits.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder().clock(FakeClock::new()).build()?;
    /// assert_eq!(queue.next_due(), None);
    /// queue.add_after("b", Duration::from_secs(60));
    /// queue.add_after("a", Duration::from_secs(5));
    /// assert_eq!(queue.next_due(), Some(queue.now() + Duration::from_secs(5)));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.shared.read_settled(core::Queue::next_due)
    }

    /// Returns the number of keys in each state, all read at the same moment.
    ///
    /// Unlike the results of the other methods, these numbers do not overlap. If a key is ready or
    /// in flight and also has a due time, it is not included in the waiting keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder().clock(FakeClock::new()).build()?;
    /// queue.add("a");
    /// queue.add("b");
    /// queue.try_get().expect("one is ready").retry();
    /// let item = queue.try_get().expect("one is ready");
    /// queue.add_after("b", Duration::from_secs(60));
    /// let states = queue.states();
    /// assert_eq!((states.backing_off, states.in_flight, states.total()), (1, 1, 2));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn states(&self) -> StateCounts {
        self.shared.read_settled(core::Queue::states)
    }

    /// Returns the number of keys with a record. These keys are ready, waiting or in flight, or
    /// have failures that the queue remembers.
    ///
    /// A walk with [`snapshot`](Self::snapshot) returns this number of entries.
    // Only tests and the program need this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn records(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.core.records())
    }

    /// Returns the values that metrics show, all read at the same moment.
    ///
    /// The [times](Sample::times) are zero unless the queue [tracks
    /// times](super::Builder::track_times).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).track_times().build()?;
    /// queue.add("a");
    /// clock.advance(Duration::from_millis(3));
    /// let item = queue.try_get().unwrap();
    /// clock.advance(Duration::from_millis(50));
    /// assert_eq!(queue.sample().times.longest_running, Duration::from_millis(50));
    /// item.succeed();
    ///
    /// let times = queue.sample().times;
    /// assert_eq!((times.queued.count(), times.queued.sum), (1, 3_000_000));
    /// assert_eq!((times.worked.count(), times.worked.sum), (1, 50_000_000));
    ///
    /// queue.add("old");
    /// clock.advance(Duration::from_secs(2));
    /// queue.add("new");
    /// let sample = queue.sample();
    /// assert_eq!((sample.depth, sample.times.oldest_ready), (2, Duration::from_secs(2)));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn sample(&self) -> Sample {
        self.shared.read_sample().unwrap_or_default()
    }

    /// Returns the counters of the queue since it was built.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.lock().map_or_else(|_| Totals::default(), |state| state.core.totals())
    }

    /// Returns the number of consecutive failures of `key`. The next item of the key has the
    /// attempt number that is one higher.
    #[must_use]
    pub fn failures<Q>(&self, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_key(key);
        self.shared.lock().map_or(0, |state| state.core.failures(key, hash))
    }

    /// Returns a page with keys of the queue, from `cursor` on.
    ///
    /// The page has about `limit` keys, and at least one if any is left. The call acquires the lock
    /// once per 256 keys. If a key has a state during a whole walk, it is on exactly one page, even
    /// if the queue changes. The order of the keys has no meaning.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Phase, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add_all(0..1000);
    /// let (mut found, mut cursor) = (0, Some(Default::default()));
    /// while let Some(at) = cursor {
    ///     let page = queue.snapshot(at, 100);
    ///     found += page.entries.iter().filter(|entry| entry.phase == Phase::Ready).count();
    ///     cursor = page.next;
    /// }
    /// assert_eq!(found, 1000);
    /// ```
    pub fn snapshot(&self, cursor: Cursor, limit: usize) -> Page<K> {
        let mut entries = Vec::new();
        let mut next = Some(cursor);
        let mut left = limit.max(1);
        while let Some(at) = next
            && left > 0
        {
            let read_page = |core: &core::Queue<K>| Some(core.page(at, left.min(LOCK_BATCH)));
            let Some(page) = self.shared.read_settled(read_page) else {
                return Page { entries, next: None };
            };
            left = left.saturating_sub(page.entries.len().max(1));
            next = page.next;
            entries.extend(page.entries);
        }
        Page { entries, next }
    }

    /// Returns the keys in flight, in the order of their deliveries.
    ///
    /// The call skips the first `skip` keys, and returns at most `limit` keys, but never more than
    /// 256. Returns `None` unless the queue [tracks times](super::Builder::track_times).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).track_times().build()?;
    /// queue.add_all(["a", "b", "c"]);
    /// let first = queue.try_get();
    /// clock.advance(Duration::from_secs(5));
    /// let second = queue.try_get();
    ///
    /// let running = queue.entries_in_flight(0, 10).expect("times are kept");
    /// assert_eq!(running.iter().map(|entry| entry.key).collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    // Only the dashboard of requeue-http needs this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn entries_in_flight(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        self.shared.read_settled(|core| core.entries_in_flight(skip, limit.min(LOCK_BATCH)))
    }

    /// Returns the state of `key`, or `None` if the queue has no record of it.
    pub fn look_up<Q>(&self, key: &Q) -> Option<Entry<K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_key(key);
        self.shared.read_settled(|core| core.look_up(key, hash))
    }

    /// If `key` is in flight, returns the reasons of this run. Otherwise, returns the reasons of
    /// its pending run.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue, describe_reasons, intern_reason};
    ///
    /// let queue = Queue::new();
    /// queue.add_with("web", Add::now().reason(intern_reason("resync")));
    /// assert_eq!(describe_reasons(&queue.reasons(&"web")).to_string(), "resync");
    /// ```
    pub fn reasons<Q>(&self, key: &Q) -> Reasons
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_key(key);
        self.shared.read_settled(|core| {
            let reasons = core.reasons(key, hash);
            let is_in_flight = core.phase(key, hash).is_some_and(core::Phase::is_in_flight);
            if is_in_flight { reasons.running } else { reasons.pending }
        })
    }

    /// Returns the recorded events of `key`, of its group and of the queue, the oldest first.
    ///
    /// The result is empty unless the queue [records events](super::Builder::record_events). When
    /// the memory for events is full, the oldest events are missing. All events of one operation
    /// have the same time. The event of the operation comes first, followed by the events that it
    /// caused. If the hashes of two keys are equal in 32 bits, the result contains the events of
    /// both. The call reads the recording in steps, and releases the lock between them.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Completion, Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).record_events(64 * 1024).build()?;
    /// queue.add("a");
    /// let second = Duration::from_secs(1);
    /// queue.try_get().expect("it is ready").complete(Completion::RetryAfter(second));
    /// clock.advance(second);
    /// queue.try_get().expect("the backoff is over").succeed();
    ///
    /// let history: Vec<_> = queue.history(&"a").iter().map(ToString::to_string).collect();
    /// assert_eq!(history, [
    ///     "1.000s added",
    ///     "1.000s delivery 1, for 1 add",
    ///     "1.000s delivery 1 failed and is retried; the key waits 1.0s",
    ///     "2.000s due",
    ///     "2.000s delivery 2, for 1 add",
    ///     "2.000s delivery 2 succeeded",
    /// ]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn history(&self, key: &K) -> Vec<Event> {
        self.recorded_history(key).map_or_else(Vec::new, |(events, _)| events)
    }

    /// Returns the [`history`](Self::history). If older events were overwritten, also returns the
    /// time of the oldest recorded event of any key. Returns `None` if the queue records no events.
    // Only the dashboard of requeue-http needs this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn recorded_history(&self, key: &K) -> Option<(Vec<Event>, Option<Time>)> {
        let (hash, group) = (self.hash_key(key), self.group_of_key(key));
        let group = self.group_of.is_some().then_some(group);
        Some(self.shared.read_events(|core| core.walk_events_of(hash, group))?.into_events())
    }

    /// Returns the recorded events of all keys and the settings of the queue. A program saves them
    /// as text for `requeue replay`. Returns `None` unless the queue [records
    /// events](super::Builder::record_events).
    ///
    /// A recording contains the hashes of keys instead of the keys. The seed of the hashes is
    /// random, unless the queue has another [hasher](super::Builder::hasher). The numbers of groups
    /// are unchanged: see [`Recording::anonymized`]. The call copies the events in steps, and
    /// releases the lock between them.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, history::Recording};
    ///
    /// let queue = Queue::builder().record_events(64 * 1024).build()?;
    /// queue.add("a");
    /// let saved = queue.recording().expect("events are recorded").to_string();
    ///
    /// let recording: Recording = saved.parse()?;
    /// for event in recording.events() {
    ///     println!("{event}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        let mut recording = self.shared.read_events(core::Queue::walk_events)?.into_recording();
        let reasons: BTreeSet<_> = recording.events().iter().filter_map(Event::reason).collect();
        for reason in reasons {
            recording.insert_reason(reason, reason_text(reason));
        }
        Some(recording)
    }

    /// Like [`recording`](Self::recording), and also contains the names of the keys that the queue
    /// still has. `name` returns the name of a key. Keys that the queue no longer has get no names.
    // Only tests of the program need this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn recording_with_names(&self, name: impl FnMut(&K) -> String) -> Option<Recording> {
        self.recording_with_names_of([], name)
    }

    /// Like [`recording_with_names`](Self::recording_with_names), and also contains the names of
    /// the keys `others`, which the queue may no longer have.
    // Only requeue-http needs this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn recording_with_names_of(
        &self,
        others: impl IntoIterator<Item = K>,
        mut name: impl FnMut(&K) -> String,
    ) -> Option<Recording> {
        let mut recording = self.recording()?;
        let subjects: HashSet<_> = recording.events().iter().map(|event| event.subject()).collect();
        let mut insert_name = |key: &K| {
            let hash = self.hash_key(key);
            // Only keys of the recording get names, because a queue can have many more keys.
            if subjects.contains(&Subject::key(hash)) {
                recording.insert_name(hash, &name(key));
            }
        };
        others.into_iter().for_each(|key| insert_name(&key));
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.snapshot(from, LOCK_BATCH);
            page.entries.iter().for_each(|entry| insert_name(&entry.key));
            cursor = page.next;
        }
        Some(recording)
    }

    /// Returns the subject that the recorded events of `key` have.
    #[doc(hidden)]
    #[must_use]
    pub fn subject_of(&self, key: &K) -> Subject {
        Subject::key(self.hash_key(key))
    }

    /// Explains the state of `key` in one sentence.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder().clock(FakeClock::new()).build()?;
    /// queue.add_after("a", Duration::from_secs(90));
    /// assert_eq!(queue.explain(&"a"), "waiting; ready in 90.0s");
    /// assert_eq!(queue.explain(&"b"), "not in the queue");
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn explain<Q>(&self, key: &Q) -> String
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.look_up(key) {
            Some(entry) => {
                let why = entry.explain(self.now()).to_string();
                drop_quietly(entry);
                why
            }
            None => "not in the queue".to_owned(),
        }
    }

    /// Makes the due keys ready, and walks through all records. The due keys are first, because
    /// they may restart runs, and no longer wait for debounced adds. `step` performs one step of
    /// the walk, releases the lock, and returns the number of keys that it has changed. Returns the
    /// sum of these numbers.
    pub(super) fn walk_records(
        &self,
        mut step: impl FnMut(RankedGuard<'_, State<K>>, &mut Walk) -> usize,
    ) -> usize {
        let Some((state, _)) = self.shared.lock_settled() else { return 0 };
        let mut walk = state.core.walk();
        let mut count = step(state, &mut walk);
        while !walk.is_over()
            && let Ok(state) = self.shared.lock_to_change()
        {
            count += step(state, &mut walk);
        }
        count
    }
}

impl<K: Key> Shared<K> {
    /// Makes all due keys ready, in batches, and releases the lock between two batches. Returns the
    /// lock guard after the last batch, and the time of that batch.
    pub(super) fn lock_settled(&self) -> Option<(RankedGuard<'_, State<K>>, Time)> {
        loop {
            let (mut state, now) = self.lock_for(Operation::Promote, None).ok()?;
            let is_full = state.core.promote(now, LOCK_BATCH) == LOCK_BATCH;
            if !is_full {
                return Some((state, now));
            }
            self.release_lock(state);
        }
    }

    /// Makes all due keys ready, and calls `read`. If the code of a key calls this method under the
    /// lock, returns the default value.
    pub(super) fn read_settled<R: Default>(&self, read: impl FnOnce(&core::Queue<K>) -> R) -> R {
        self.lock_settled().map_or_else(R::default, |(state, _)| {
            let result = read(&state.core);
            self.release_lock(state);
            result
        })
    }

    /// Reads the recorded events in steps, and releases the lock between them. Returns `None` if
    /// the queue records no events.
    fn read_events(
        &self,
        begin: impl FnOnce(&core::Queue<K>) -> Option<EventWalk>,
    ) -> Option<EventWalk> {
        let mut walk = self.read_settled(begin)?;
        while !walk.is_over() {
            walk.reserve();
            self.lock().ok()?.core.read_events(&mut walk);
        }
        Some(walk)
    }

    /// Reads all values under one acquisition of the lock, in constant time. Before that, makes all
    /// due keys ready in batches. This is no additional work, because the next operation would
    /// otherwise do it. Returns `None` if the code of a key calls this method under the lock.
    pub(crate) fn read_sample(&self) -> Option<Sample> {
        // With a custom order, making keys ready clones them. If a `clone` panics, the panic must
        // not reach the scrape, and the due keys are not made ready.
        let settled = quietly(|| self.lock_settled()).flatten();
        let (state, now) = settled.or_else(|| {
            let now = self.clock.now();
            Some((self.lock().ok()?, now))
        })?;
        let core = &state.core;
        let states = core.states();
        let (queued, worked) = core.histograms().map_or_else(Default::default, |(q, w)| (*q, *w));
        let sample = Sample {
            depth: states.ready + states.dirty,
            waiting: states.waiting + states.backing_off,
            backing_off: Some(states.backing_off),
            in_flight: states.in_flight,
            totals: core.totals(),
            consecutive: core.consecutive_failures(),
            given_up: self.tally.given_up.load(Ordering::Relaxed),
            panics: self.tally.panics.load(Ordering::Relaxed),
            times: Times {
                queued,
                worked,
                unfinished_work: core.unfinished_work(now),
                longest_running: core.longest_running(now),
                oldest_ready: core.oldest_ready(now),
            },
            paused: Some(core.is_paused()),
            at_group_limit: core
                .at_group_limit()
                .map(|keys| AtGroupLimit { keys, oldest: core.oldest_at_group_limit(now) }),
            parked: None,
            counts_age: None,
            fleet: None,
        };
        self.release_lock(state);
        Some(sample)
    }
}

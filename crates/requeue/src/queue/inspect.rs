//! Reading the state of a queue: counts, ages, snapshots and single keys.
//!
//! A reader first makes due keys ready, so that it never shows a due key as waiting.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use requeue_core::{
    Cursor, Entry, Histogram, Operation, Page, Phase, StateCounts, Time, Totals, Walk,
};

use super::Queue;
use super::shared::{LOCK_BATCH, Shared, State};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Ordering, drop_quietly};

/// Selects the keys that a [`snapshot`](Queue::snapshot) returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Filter {
    /// All keys that have a state.
    #[default]
    All,
    /// Keys in this phase.
    Phase(Phase),
    /// Keys in flight, dirty or not.
    Running,
    /// Keys with a delayed add.
    Waiting,
    /// Keys with a delayed add that have failed.
    Failing,
}

impl Filter {
    fn takes<K>(self, entry: &Entry<K>) -> bool {
        match self {
            Self::All => true,
            Self::Phase(phase) => entry.phase == phase,
            Self::Running => entry.phase.is_in_flight(),
            Self::Waiting => entry.due.is_some(),
            Self::Failing => entry.due.is_some() && entry.failures > 0,
        }
    }
}

/// Durations since the queue was built: see [`Queue::histograms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Histograms {
    /// The time from becoming ready to the delivery (`workqueue_queue_duration_seconds`). For a key
    /// that was added while in flight, it counts from that add.
    pub queued: Histogram,
    /// The time in flight (`workqueue_work_duration_seconds`).
    pub worked: Histogram,
}

impl<K: Eq + Clone> State<K> {
    pub(crate) fn histograms(&self) -> Histograms {
        self.core.histograms().map_or_else(Histograms::default, |(queued, worked)| Histograms {
            queued: *queued,
            worked: *worked,
        })
    }
}

#[expect(clippy::len_without_is_empty, reason = "a queue without ready keys may have others")]
impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Returns the number of ready keys, as client-go's `Len` does.
    ///
    /// Throttled keys count; dirty keys in flight do not. Due keys are made ready first. Waiting
    /// keys and keys in flight do not count: see [`is_idle`](Self::is_idle).
    #[must_use]
    pub fn len(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let len = state.core.len();
            self.shared.release(state);
            len
        })
    }

    /// Returns true if no key is ready, waiting or in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add("a");
    /// let item = queue.try_get().unwrap();
    /// assert!(queue.len() == 0 && !queue.is_idle());
    /// item.succeed();
    /// assert!(queue.is_idle());
    /// ```
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.settled().is_some_and(|(state, _)| {
            let core = &state.core;
            let is_idle = core.len() + core.in_flight() + core.waiting() == 0;
            self.shared.release(state);
            is_idle
        })
    }

    /// Returns the number of ready and dirty keys (`workqueue_depth`).
    #[must_use]
    pub fn ready_and_dirty(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let depth = state.core.ready_and_dirty();
            self.shared.release(state);
            depth
        })
    }

    /// Returns the [`ready_and_dirty`](Self::ready_and_dirty) by priority, in ascending order.
    ///
    /// Priorities without keys are left out, and at most `limit` entries are returned. The cost
    /// grows with the number of priorities, not with the number of keys. The result is empty unless
    /// [times are kept](super::Builder::track_times).
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
    #[must_use]
    pub fn ready_and_dirty_by_priority(&self, limit: usize) -> Vec<(i32, usize)> {
        self.settled().map_or_else(Vec::new, |(state, _)| {
            let depths = state
                .core
                .ready_and_dirty_by_priority()
                .into_iter()
                .flatten()
                .take(limit)
                .collect();
            self.shared.release(state);
            depths
        })
    }

    /// Returns the number of keys with a delayed add.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let waiting = state.core.waiting();
            self.shared.release(state);
            waiting
        })
    }

    /// Returns the number of keys with a delayed add that have failed, which [`Filter::Failing`]
    /// selects.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder().clock(FakeClock::new()).build()?;
    /// queue.add("a");
    /// queue.add_after("b", Duration::from_secs(60));
    /// queue.try_get().expect("one is ready").retry();
    /// assert_eq!((queue.waiting(), queue.failing()), (2, 1));
    /// queue.forget(&"a");
    /// assert_eq!((queue.waiting(), queue.failing()), (2, 0));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn failing(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let failing = state.core.failing();
            self.shared.release(state);
            failing
        })
    }

    /// Returns the time at which the next waiting key becomes ready, by the queue's
    /// [clock](Self::clock).
    ///
    /// Returns `None` if no key waits, or if none of them will ever be due. A key that is already
    /// due is ready, and does not count.
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
        let (state, _) = self.settled()?;
        let due = state.core.next_due();
        self.shared.release(state);
        due
    }

    /// Returns the number of keys in each state, all read at the same time.
    ///
    /// Unlike the other counts, these do not overlap: a key that is ready or in flight and also has
    /// a due time counts once.
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
        self.settled().map_or_else(StateCounts::default, |(state, _)| {
            let states = state.core.states();
            self.shared.release(state);
            states
        })
    }

    /// Returns the number of keys in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.core.in_flight())
    }

    /// Returns the number of keys with a record: keys that are ready, waiting or in flight, and
    /// those whose failures are remembered.
    ///
    /// A walk through [all keys](Filter::All) returns this number of entries.
    #[must_use]
    pub fn records(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.core.records())
    }

    /// Returns the queue's counters since it was built.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.lock().map_or_else(|_| Totals::default(), |state| state.core.totals())
    }

    /// Returns the sum of the times for which the keys in flight have been in flight.
    ///
    /// It is zero unless [times are kept](super::Builder::track_times).
    #[must_use]
    pub fn unfinished_work(&self) -> Duration {
        let now = self.now();
        self.shared.lock().map_or(Duration::ZERO, |state| state.core.unfinished_work(now))
    }

    /// Returns the longest time for which a key has been in flight.
    ///
    /// It is zero if no key is in flight, or if [times are not kept](super::Builder::track_times).
    #[must_use]
    pub fn longest_running(&self) -> Duration {
        let now = self.now();
        self.shared.lock().map_or(Duration::ZERO, |state| state.core.longest_running(now))
    }

    /// Returns the longest time for which a key has been ready.
    ///
    /// It is zero if no key is ready, or if [times are not kept](super::Builder::track_times).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).track_times().build()?;
    /// queue.add("old");
    /// clock.advance(Duration::from_secs(2));
    /// queue.add("new");
    /// assert_eq!(queue.oldest_ready(), Duration::from_secs(2));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn oldest_ready(&self) -> Duration {
        let now = self.now();
        let Some(state) = self.shared.promoted(now) else { return Duration::ZERO };
        let oldest = state.core.oldest_ready(now);
        self.shared.release(state);
        oldest
    }

    /// Returns histograms of the times from becoming ready to the delivery, and of the times in
    /// flight.
    ///
    /// They are empty unless [times are kept](super::Builder::track_times).
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
    /// item.succeed();
    ///
    /// let times = queue.histograms();
    /// assert_eq!((times.queued.count(), times.queued.sum), (1, 3_000_000));
    /// assert_eq!((times.worked.count(), times.worked.sum), (1, 50_000_000));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn histograms(&self) -> Histograms {
        self.shared.lock().map_or_else(|_| Histograms::default(), |state| state.histograms())
    }

    /// Returns the number of keys that were given up, for example after too many failures.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.shared.given_up.load(Ordering::Relaxed)
    }

    /// Returns the number of runs that panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Returns the number of failures of `key` in a row. The attempt of its next item is one more.
    #[must_use]
    pub fn failures<Q>(&self, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shared.lock().map_or(0, |state| state.core.failures(key, hash))
    }

    /// Returns a page of the queue's keys from `cursor` on.
    ///
    /// It reads about `limit` keys (at least one, and at most 256 under one hold of the lock), and
    /// returns those that `filter` selects. A key that has a state during the whole walk is on
    /// exactly one of its pages, even if the queue changes meanwhile. The order of the keys has no
    /// meaning.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Filter, Phase, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add_all(0..1000);
    /// let (mut found, mut cursor) = (0, Some(Default::default()));
    /// while let Some(at) = cursor {
    ///     let page = queue.snapshot(Filter::Phase(Phase::Ready), at, 100);
    ///     found += page.entries.len();
    ///     cursor = page.next;
    /// }
    /// assert_eq!(found, 1000);
    /// ```
    pub fn snapshot(&self, filter: Filter, cursor: Cursor, limit: usize) -> Page<K> {
        let mut shown = Vec::new();
        let mut next = Some(cursor);
        let mut left = limit.max(1);
        while let Some(at) = next
            && left > 0
        {
            let Some((state, _)) = self.settled() else {
                return Page { entries: shown, next: None };
            };
            let page = state.core.page(at, left.min(LOCK_BATCH));
            self.shared.release(state);
            left = left.saturating_sub(page.entries.len().max(1));
            next = page.next;
            let (takes, leaves) = page.entries.into_iter().partition(|entry| filter.takes(entry));
            shown.extend::<Vec<_>>(takes);
            Vec::into_iter(leaves).for_each(drop_quietly);
        }
        Page { entries: shown, next }
    }

    /// Returns the keys in flight, starting with the oldest delivery.
    ///
    /// It skips the first `skip` keys and returns at most `limit`, and at most 256 at a time. Returns
    /// `None` unless [times are kept](super::Builder::track_times).
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
    #[must_use]
    pub fn entries_in_flight(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        let state = self.shared.lock().ok()?;
        let running = state.core.entries_in_flight(skip, limit.min(LOCK_BATCH));
        self.shared.release(state);
        running
    }

    /// Returns the state of `key`, or `None` if the queue has no record of it.
    pub fn look_up<Q>(&self, key: &Q) -> Option<Entry<K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let (state, _) = self.settled()?;
        let entry = state.core.look_up(key, hash);
        self.shared.release(state);
        entry
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

    /// Makes all due keys ready, in slices, and keeps the lock.
    pub(super) fn settled(&self) -> Option<(RankedGuard<'_, State<K>>, Time)> {
        loop {
            let (mut state, now) = self.shared.lock_for(Operation::Promote, None).ok()?;
            let full = state.core.promote(now, LOCK_BATCH) == LOCK_BATCH;
            if !full {
                return Some((state, now));
            }
            self.shared.release(state);
        }
    }

    /// Makes the due keys ready, which may restart runs and no longer wait for debounced adds, and
    /// walks through all records. `step` takes one step of the walk, releases the lock, and returns
    /// the number of keys that it has changed. Returns the sum.
    pub(super) fn walk(
        &self,
        mut step: impl FnMut(RankedGuard<'_, State<K>>, &mut Walk) -> usize,
    ) -> usize {
        let Some((state, _)) = self.settled() else { return 0 };
        let mut walk = state.core.walk();
        let mut count = step(state, &mut walk);
        while !walk.is_over()
            && let Ok(state) = self.shared.lock()
        {
            count += step(state, &mut walk);
        }
        count
    }
}

impl<K: Key> Shared<K> {
    /// Makes all keys ready that are due at `now`, in slices, and keeps the lock.
    pub(crate) fn promoted(&self, now: Time) -> Option<RankedGuard<'_, State<K>>> {
        loop {
            let mut state = self.lock().ok()?;
            if state.core.promote(now, LOCK_BATCH) < LOCK_BATCH {
                return Some(state);
            }
            self.release(state);
        }
    }
}

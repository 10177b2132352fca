//! What is in the queue.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use requeue_core::{Counts, Cursor, Entry, Histogram, Operation, Page, Phase, Time};

use super::shared::{SLICE, State};
use super::{Queue, Shared};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Ordering, drop_quietly};

/// Which keys a [`snapshot`](Queue::snapshot) shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Filter {
    /// All that have a state.
    #[default]
    All,
    /// Those in this phase.
    Phase(Phase),
    /// Those with a worker, dirty or not.
    Running,
    /// Those with a delayed add.
    Waiting,
    /// Those with a delayed add that have failed.
    Failing,
}

impl Filter {
    fn takes<K>(self, entry: &Entry<K>) -> bool {
        match self {
            Self::All => true,
            Self::Phase(phase) => entry.phase == phase,
            Self::Running => entry.phase.is_processing(),
            Self::Waiting => entry.due.is_some(),
            Self::Failing => entry.due.is_some() && entry.failures > 0,
        }
    }
}

/// How long things took, since the queue was made: see [`Queue::histograms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Histograms {
    /// How long keys were ready before they were handed out (`workqueue_queue_duration_seconds`).
    /// A key that was added while with a worker counts from that add.
    pub queued: Histogram,
    /// How long workers had keys (`workqueue_work_duration_seconds`).
    pub worked: Histogram,
}

impl<K: Eq + Clone> State<K> {
    pub(super) fn histograms(&self) -> Histograms {
        self.core.histograms().map_or_else(Histograms::default, |(queued, worked)| Histograms {
            queued: *queued,
            worked: *worked,
        })
    }
}

#[expect(clippy::len_without_is_empty, reason = "a queue without ready keys may have others")]
impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Returns the number of ready keys, as client-go's `Len`. Throttled keys count, dirty ones in
    /// flight do not. Keys whose time has come are made ready first.
    ///
    /// Waiting keys and keys in flight do not count: see [`is_idle`](Self::is_idle).
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
            let is_idle = core.len() + core.processing() + core.waiting() == 0;
            self.shared.release(state);
            is_idle
        })
    }

    /// Ready keys, and those to be ready once their worker is done (`workqueue_depth`).
    #[must_use]
    pub fn depth(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let depth = state.core.depth();
            self.shared.release(state);
            depth
        })
    }

    /// The [`depth`](Self::depth) by priority, in ascending order. Priorities without keys are left
    /// out, and at most `limit` entries are returned. The cost grows with the number of priorities, not
    /// with the number of keys. Empty unless [times are kept](super::Builder::track_times).
    ///
    /// ```
    /// use requeue::{Add, Queue};
    ///
    /// let queue = Queue::builder().track_times().build()?;
    /// queue.add_all(["a", "b"]);
    /// queue.add_with("c", Add::now().priority(-100));
    /// assert_eq!(queue.depths(10), [(-100, 1), (0, 2)]);
    /// assert_eq!(queue.depths(1), [(-100, 1)]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn depths(&self, limit: usize) -> Vec<(i32, usize)> {
        self.settled().map_or_else(Vec::new, |(state, _)| {
            let depths = state.core.depths().into_iter().flatten().take(limit).collect();
            self.shared.release(state);
            depths
        })
    }

    /// Keys with a delayed add.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.settled().map_or(0, |(state, _)| {
            let waiting = state.core.waiting();
            self.shared.release(state);
            waiting
        })
    }

    /// Keys with a delayed add that have failed: those that [`Filter::Failing`] takes.
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

    /// The time at which the next waiting key becomes ready, by the queue's [clock](Self::clock).
    /// `None` if no key waits, or none that will ever be due. A key that is due already is ready, and
    /// does not count.
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

    /// Keys with a worker.
    #[must_use]
    pub fn processing(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.core.processing())
    }

    /// Keys of which the queue knows anything: ready, waiting, with a worker, or remembered for
    /// their failures. So many there are in a walk through [all of them](Filter::All).
    #[must_use]
    pub fn known(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.core.records())
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().map_or_else(|_| Counts::default(), |state| state.core.counts())
    }

    /// How long all keys with a worker have been with it, added up; zero unless
    /// [times are kept](super::Builder::track_times).
    #[must_use]
    pub fn unfinished_work(&self) -> Duration {
        let now = self.now();
        self.shared.lock().map_or(Duration::ZERO, |state| state.core.unfinished_work(now))
    }

    /// How long the key that has been with its worker longest has been so; zero unless
    /// [times are kept](super::Builder::track_times).
    #[must_use]
    pub fn longest_running(&self) -> Duration {
        let now = self.now();
        self.shared.lock().map_or(Duration::ZERO, |state| state.core.longest_running(now))
    }

    /// How long the key that has been ready longest has been so; zero unless
    /// [times are kept](super::Builder::track_times).
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

    /// How long keys were ready before they were handed out, and how long workers had them; empty
    /// unless [times are kept](super::Builder::track_times).
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

    /// How many keys were given up after too many failures.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.shared.given_up.load(Ordering::Relaxed)
    }

    /// How many attempts ended in a panic.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Failures in a row of `key`, as its next item's `attempt` counts them.
    #[must_use]
    pub fn failures<Q>(&self, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shared.lock().map_or(0, |state| state.core.failures(key, hash))
    }

    /// A page of what is in the queue, from `cursor` on: looks at about `limit` keys (at least one,
    /// at most 256 under one hold of the lock) and shows those that `filter` takes.
    ///
    /// A key that has a state all along is on exactly one page of a walk, whatever happens
    /// meanwhile. Keys come in no order of use.
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
            let page = state.core.page(at, left.min(SLICE));
            self.shared.release(state);
            left = left.saturating_sub(page.entries.len().max(1));
            next = page.next;
            let (takes, leaves) = page.entries.into_iter().partition(|entry| filter.takes(entry));
            shown.extend::<Vec<_>>(takes);
            Vec::into_iter(leaves).for_each(drop_quietly);
        }
        Page { entries: shown, next }
    }

    /// Keys with a worker, the one that has been with it longest first: `limit` of them, after the
    /// first `skip`, and at most 256 at once. `None` unless
    /// [times are kept](super::Builder::track_times).
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
    /// let running = queue.running(0, 10).expect("times are kept");
    /// assert_eq!(running.iter().map(|entry| entry.key).collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn running(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        let state = self.shared.lock().ok()?;
        let running = state.core.running(skip, limit.min(SLICE));
        self.shared.release(state);
        running
    }

    /// What the queue knows of `key`.
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

    /// Why `key` is where it is, in one sentence.
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder().clock(FakeClock::new()).build()?;
    /// queue.add_after("a", Duration::from_secs(90));
    /// assert_eq!(queue.explain(&"a"), "waiting for its time; ready in 90.0s");
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

    /// Makes everything ready that is due, in slices, and keeps the lock.
    pub(super) fn settled(&self) -> Option<(RankedGuard<'_, State<K>>, Time)> {
        loop {
            let (mut state, now) = self.shared.lock_for(Operation::Promote, None).ok()?;
            let full = state.core.promote(now, SLICE) == SLICE;
            if !full {
                return Some((state, now));
            }
            self.shared.release(state);
        }
    }
}

impl<K: Key> Shared<K> {
    /// Makes everything ready that is due at `now`, in slices, and keeps the lock.
    pub(super) fn promoted(&self, now: Time) -> Option<RankedGuard<'_, State<K>>> {
        loop {
            let mut state = self.lock().ok()?;
            if state.core.promote(now, SLICE) < SLICE {
                return Some(state);
            }
            self.release(state);
        }
    }
}

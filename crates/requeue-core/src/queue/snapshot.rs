//! Snapshots: the state of one key, pages of all keys, and an explanation why a key waits.

use core::borrow::Borrow;
use core::fmt;
use core::time::Duration;

use alloc::vec::Vec;

use super::{ConsecutiveFailures, Histogram, Queue};
use crate::order::Fair;
use crate::types::{CancelReason, Ending, Pace, Phase, Shown, Slot, Time};

/// The state of one key at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry<K> {
    /// The key.
    pub key: K,
    /// The phase of the key.
    pub phase: Phase,
    /// The time at which the key was delivered, if it is in flight. Otherwise, the time at which it
    /// became ready or began to wait. `None` if the queue does not track times.
    pub since: Option<Time>,
    /// The due time, if the key waits.
    pub due: Option<Time>,
    /// The latest time to which further debounced adds can postpone the due time, if the key waits
    /// for them. Without [`at_most`](crate::Add::at_most), it is [`Time::NEVER`]. If the pace
    /// delays the run, the bound may be before the due time.
    pub bound: Option<Time>,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The priority of the pending run. If no run is pending, the priority of the last run.
    pub priority: i32,
    /// The flags of all adds of the pending run, or-ed.
    pub flags: u32,
    /// The number of adds that the next run serves.
    pub adds: u32,
    /// True if the key is throttled: it is ready, but its group is at its limit or paused.
    pub held_back: bool,
    /// The reason for the cancellation of the run in flight, if the run was cancelled.
    pub cancelled: Option<CancelReason>,
    /// The state of the queue and of the key's group, which [`explain`](Self::explain) needs.
    // The field is hidden, because users get the same information from the queue, its groups and
    // `explain`. It is public for tests, which compare it with a model.
    #[doc(hidden)]
    pub around: Circumstances,
}

/// The state of the queue and of a key's group that influences when the key runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circumstances {
    /// The queue's pace, if any.
    pub pace: Option<Pace>,
    /// The time from which the pace permits the next start of the key. `Time::ZERO` means that a
    /// start is permitted at any time. `None` means that the queue has no pace.
    pub paced_until: Option<Time>,
    /// True if the queue is paused.
    pub paused: bool,
    /// True if the group of the key is paused.
    pub group_paused: bool,
    /// The lifecycle state of the queue: open, closed or shut down.
    pub ending: Ending,
}

/// A position in a walk through all keys. A caller may store it. Every number is a valid cursor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Cursor(pub u32);

/// The keys of one step of a walk through the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<K> {
    /// The keys of the page.
    pub entries: Vec<Entry<K>>,
    /// The cursor of the next page. `None` means that this is the last page.
    pub next: Option<Cursor>,
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the keys from `cursor` on, up to `limit` of them. A `limit` of 0 is treated as 1.
    ///
    /// A page has more than `limit` keys only if more than `limit` keys have the same hash. The
    /// keys are in the order of their hashes. A key that has a record during the whole walk is
    /// therefore on exactly one page.
    #[must_use]
    pub fn page(&self, cursor: Cursor, limit: usize) -> Page<K> {
        let (limit, from) = (limit.max(1), cursor.0);
        let mut slots = Vec::new();
        let mut next = self.index.visit_segments(from, limit, |slot| {
            slots.push((self.records.get(slot).hash.reverse_bits(), slot));
        });
        // The first segment also contains keys of earlier pages, which are removed here.
        slots.retain(|&(rank, _)| rank >= from);
        slots.sort_unstable();
        if slots.len() > limit {
            // The first key that does not fit goes to the next page, together with all keys that
            // have the same hash.
            let mut end = slots.partition_point(|&(rank, _)| rank < slots[limit].0);
            if end == 0 {
                // More than `limit` keys have this hash, so the page contains all of them.
                end = slots.partition_point(|&(rank, _)| rank == slots[0].0);
            }
            if let Some(&(rank, _)) = slots.get(end) {
                next = Some(rank);
            }
            slots.truncate(end);
        }
        let entries = slots.into_iter().map(|(_, slot)| self.snapshot_of(slot)).collect();
        Page { entries, next: next.map(Cursor) }
    }

    /// Returns up to `limit` keys in flight, in the order of their deliveries, after the first
    /// `skip` of them. Returns `None` if the queue does not track times.
    #[must_use]
    pub fn entries_in_flight(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        let tracker = self.tracker.as_ref();
        self.settings.tracks.then(|| {
            let running = tracker.into_iter().flat_map(|tracker| tracker.running());
            running.skip(skip).take(limit).map(|slot| self.snapshot_of(slot)).collect()
        })
    }

    /// Returns the state of `key`, if the queue has a record of it.
    pub fn look_up<Q>(&self, key: &Q, hash: u64) -> Option<Entry<K>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find_slot(key, hash).map(|slot| self.snapshot_of(slot))
    }

    /// Returns the phase of `key`, if the queue has a record of it.
    pub fn phase<Q>(&self, key: &Q, hash: u64) -> Option<Phase>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find_slot(key, hash).map(|slot| self.records.get(slot).phase())
    }

    /// Returns the number of consecutive failures of `key`, or 0 if the queue has no record of it.
    pub fn failures<Q>(&self, key: &Q, hash: u64) -> u32
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find_slot(key, hash).map_or(0, |slot| self.records.get(slot).failures())
    }

    fn snapshot_of(&self, slot: Slot) -> Entry<K> {
        let record = self.records.get(slot);
        let phase = record.phase();
        Entry {
            key: record.key.clone(),
            phase,
            since: self.tracker.as_ref().map(|tracker| match phase.is_in_flight() {
                true => tracker.stamp(slot).started,
                false => tracker.stamp(slot).added,
            }),
            due: if record.is_waiting() { self.timers.due(slot) } else { None },
            bound: self.timers.bound(slot),
            failures: record.failures(),
            priority: record.priority,
            flags: record.add_flags,
            adds: record.adds,
            held_back: phase == Phase::Ready
                && self.ready.groups().is_some_and(|groups| !groups.is_eligible(slot)),
            cancelled: if phase.is_in_flight() { record.cancel_reason() } else { None },
            around: Circumstances {
                pace: self.pace(),
                paced_until: self.paced_until(slot),
                paused: self.paused,
                group_paused: self.is_in_paused_group(slot),
                ending: self.ending,
            },
        }
    }

    /// Returns two histograms: of the times for which keys were ready before their delivery, and of
    /// the times for which they were in flight. Returns `None` if the queue does not track times.
    #[must_use]
    pub fn histograms(&self) -> Option<(&Histogram, &Histogram)> {
        match &self.tracker {
            Some(tracker) => Some((&tracker.queued, &tracker.worked)),
            None => self.settings.tracks.then_some((&Histogram::EMPTY, &Histogram::EMPTY)),
        }
    }

    /// Returns the numbers of failed deliveries, by the number of consecutive failures that the key
    /// then had. All numbers are zero if the queue does not track times.
    #[must_use]
    pub fn consecutive_failures(&self) -> ConsecutiveFailures {
        self.tracker.as_ref().map(|tracker| tracker.consecutive).unwrap_or_default()
    }

    /// Returns the number of ready and dirty keys of each priority that has such keys, in ascending
    /// order of priority (`workqueue_depth`). Returns `None` if the queue does not track times.
    pub fn ready_and_dirty_by_priority(&self) -> Option<impl Iterator<Item = (i32, usize)>> {
        let tracker = self.tracker.as_ref();
        self.settings.tracks.then(|| tracker.into_iter().flat_map(|tracker| tracker.depths.iter()))
    }

    /// Returns the sum of the times for which the present keys in flight have been in flight
    /// (`workqueue_unfinished_work_seconds`). Returns zero if the queue does not track times.
    #[must_use]
    pub fn unfinished_work(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.unfinished_work(now))
    }

    /// Returns the time for which the oldest delivery has been in flight
    /// (`workqueue_longest_running_processor_seconds`). Returns zero if the queue does not track
    /// times.
    #[must_use]
    pub fn longest_running(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.longest_running(now))
    }

    /// Returns the time for which the oldest eligible key has been ready. Returns zero if no key is
    /// eligible, or if the queue does not track times.
    #[must_use]
    pub fn oldest_ready(&self, now: Time) -> Duration {
        self.ready_for(self.ready.oldest_eligible(), now)
    }

    /// Returns the time for which the oldest ready key of the groups at their limit has been ready.
    /// Returns zero if there is no such key, or if the queue does not track times.
    #[must_use]
    pub fn oldest_at_group_limit(&self, now: Time) -> Duration {
        self.ready_for(self.ready.groups().and_then(Fair::oldest_held), now)
    }

    fn ready_for(&self, slot: Option<Slot>, now: Time) -> Duration {
        match (&self.tracker, slot) {
            (Some(tracker), Some(slot)) => now.since(tracker.stamp(slot).added),
            _ => Duration::ZERO,
        }
    }
}

impl<K> Entry<K> {
    /// If the key waits for its pace, returns the pace, and the time from which the pace permits
    /// the run.
    ///
    /// A key waits for its pace if it would be ready at `now` without the pace, or if it becomes
    /// due before the pace permits its run.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    /// use requeue_core::{Add, Config, Finish, GroupId, Pace, Queue, Time};
    ///
    /// let pace = Pace::min_interval(Duration::from_secs(5));
    /// let mut queue = Queue::new(Config { pace: Some(pace), ..Config::default() });
    /// let now = Time::ZERO;
    /// let _ = queue.add("a", 1, Add::now(), GroupId::default(), now);
    /// let out = queue.get(now).unwrap();
    /// let _ = queue.finish(&out.ticket, Finish::Succeed, now);
    /// let _ = queue.add("a", 1, Add::now(), GroupId::default(), now);
    /// let entry = queue.look_up("a", 1).unwrap();
    /// assert_eq!(entry.waits_for_pace(now), Some((pace, now + Duration::from_secs(5))));
    /// ```
    // Only the dashboard of requeue-http needs this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn waits_for_pace(&self, now: Time) -> Option<(Pace, Time)> {
        let until = self.around.paced_until.filter(|&until| until > now)?;
        let waits = self.phase == Phase::Idle && self.due.is_some_and(|due| due <= until);
        waits.then_some((self.around.pace?, until))
    }

    /// Returns one sentence that explains the state of the key at the time `now`.
    pub fn explain(&self, now: Time) -> impl fmt::Display {
        Explanation { entry: self, now }
    }
}

struct Explanation<'e, K> {
    entry: &'e Entry<K>,
    now: Time,
}

/// Formats a duration of the settings. Durations under two minutes are shown exactly.
struct Period(Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0..120 => write!(f, "{:?}", self.0),
            _ => Shown(self.0).fmt(f),
        }
    }
}

impl<K> fmt::Display for Explanation<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, now } = *self;
        let paced = entry.waits_for_pace(now);
        let due = paced.map_or(entry.due, |(_, until)| Some(until));
        f.write_str(match entry.phase {
            Phase::Idle if paced.is_some() => "waiting for its pace",
            Phase::Idle if due.is_some() && entry.failures > 0 => "backing off",
            Phase::Idle if due.is_some() => "waiting",
            Phase::Idle => "not pending, its failures are kept",
            Phase::Ready if entry.around.paused => "ready, but the queue is paused",
            Phase::Ready if entry.around.group_paused => "ready, but its group is paused",
            Phase::Ready if entry.held_back => "ready, but its group has reached its limit",
            Phase::Ready => "ready, waiting for a worker",
            Phase::InFlight | Phase::InFlightDirty => "in flight",
        })?;
        if let Some(since) = entry.since.filter(|_| entry.phase != Phase::Idle) {
            write!(f, ", for {}", Shown(now.since(since)))?;
        }
        if entry.phase == Phase::InFlightDirty {
            f.write_str("; added again, so it runs once more after this run")?;
        }
        match due {
            Some(Time::NEVER) => f.write_str("; never due: its delay is infinite")?,
            Some(due) if entry.phase == Phase::Idle => {
                write!(f, "; ready in {}", Shown(due.since(now)))?;
            }
            Some(due) => write!(f, "; also due in {}", Shown(due.since(now)))?,
            None => {}
        }
        match paced.map(|(pace, _)| (pace.runs(), pace.per())) {
            None => {}
            Some((1, per)) => write!(f, "; it ran within the last {}", Period(per))?,
            Some((runs, per)) => write!(f, "; it ran {runs} times in {}", Period(per))?,
        }
        match entry.failures {
            0 => {}
            1 => f.write_str("; failed once")?,
            n => write!(f, "; failed {n} times in a row")?,
        }
        f.write_str(match entry.around.ending {
            Ending::Open => "",
            Ending::Closed => "; the queue is closed",
            Ending::ShutDown => "; the queue is shut down",
        })
    }
}

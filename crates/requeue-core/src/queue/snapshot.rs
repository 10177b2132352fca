//! Snapshots: the keys of a queue, a page at a time, and why a key waits.

use core::borrow::Borrow;
use core::fmt;
use core::time::Duration;

use alloc::vec::Vec;

use super::Queue;
use super::stats::{Counts, Histogram};
use crate::types::lifecycle::{Ending, Phase};
use crate::types::slot::Slot;
use crate::types::time::Time;

/// A snapshot of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry<K> {
    /// The key.
    pub key: K,
    /// Its phase.
    pub phase: Phase,
    /// When it became ready, was delivered, or began to wait, if times are tracked.
    pub since: Option<Time>,
    /// Its deadline, if it waits.
    pub due: Option<Time>,
    /// Failures in a row.
    pub failures: u32,
    /// The priority of the pending run, or else of the last one.
    pub priority: i32,
    /// The reasons of the pending run, or-ed.
    pub reasons: u32,
    /// How many adds the next run stands for.
    pub adds: u32,
    /// Whether it is ready, but its group is at its limit.
    pub held_back: bool,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Whether the queue is open, closed or shut down.
    pub ending: Ending,
}

/// A position in a walk through the keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Cursor(u32);

impl Cursor {
    /// The cursor as a number, for storage.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The cursor with this number. Any number is a cursor.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// A page of a walk through the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<K> {
    /// The keys of the page.
    pub entries: Vec<Entry<K>>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<Cursor>,
}

impl<K: Eq + Clone> Queue<K> {
    /// The page of up to `limit` keys from `cursor` on, at least one. Only keys with equal hashes make a
    /// page longer. A key that has a record during the whole walk is on exactly one page, because keys
    /// come in the order of their hashes.
    #[must_use]
    pub fn page(&self, cursor: Cursor, limit: usize) -> Page<K> {
        let (limit, from) = (limit.max(1), cursor.0);
        let mut slots = Vec::new();
        let mut next = self.index.visit(from, limit, |slot| {
            slots.push((self.records.get(slot).hash.reverse_bits(), slot));
        });
        slots.retain(|&(rank, _)| rank >= from);
        slots.sort_unstable();
        if slots.len() > limit {
            // Keys with the hash of the first that does not fit go to the next page with it.
            let mut end = slots.partition_point(|&(rank, _)| rank < slots[limit].0);
            if end == 0 {
                // Unless they are too many for any page.
                end = slots.partition_point(|&(rank, _)| rank == slots[0].0);
            }
            if let Some(&(rank, _)) = slots.get(end) {
                next = Some(rank);
            }
            slots.truncate(end);
        }
        let entries = slots.into_iter().map(|(_, slot)| self.entry(slot)).collect();
        Page { entries, next: next.map(Cursor) }
    }

    /// Up to `limit` keys in flight, after the first `skip`, the oldest delivery first. `None` if times
    /// are not tracked.
    #[must_use]
    pub fn running(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        let tracker = self.tracker.as_ref();
        self.tracks.then(|| {
            let running = tracker.into_iter().flat_map(|tracker| tracker.running());
            running.skip(skip).take(limit).map(|slot| self.entry(slot)).collect()
        })
    }

    /// A snapshot of `key`, if the queue has a record of it.
    pub fn look_up<Q>(&self, key: &Q, hash: u64) -> Option<Entry<K>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(key, hash).map(|slot| self.entry(slot))
    }

    /// Failures in a row of `key`.
    pub fn failures<Q>(&self, key: &Q, hash: u64) -> u32
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(key, hash).map_or(0, |slot| self.records.get(slot).failures())
    }

    fn entry(&self, slot: Slot) -> Entry<K> {
        let record = self.records.get(slot);
        let phase = record.phase();
        Entry {
            key: record.key.clone(),
            phase,
            since: self.tracker.as_ref().map(|tracker| match phase.is_processing() {
                true => tracker.started_at(slot),
                false => tracker.added_at(slot),
            }),
            due: if record.is_waiting() { self.timers.due(slot) } else { None },
            failures: record.failures(),
            priority: record.priority,
            reasons: record.reasons,
            adds: record.adds,
            held_back: phase == Phase::Ready
                && self.ready.groups().is_some_and(|groups| !groups.is_eligible(slot)),
            paused: self.paused,
            ending: self.ending,
        }
    }

    /// The counts since the queue was made.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// How long keys were ready before they were delivered, and how long they were in flight; if times
    /// are tracked.
    #[must_use]
    pub fn histograms(&self) -> Option<(&Histogram, &Histogram)> {
        match &self.tracker {
            Some(tracker) => Some((&tracker.queued, &tracker.worked)),
            None => self.tracks.then_some((&Histogram::EMPTY, &Histogram::EMPTY)),
        }
    }

    /// The [`depth`](Self::depth) by priority, in ascending order, without the priorities that have
    /// none (`workqueue_depth`). `None` if times are not tracked.
    pub fn depths(&self) -> Option<impl Iterator<Item = (i32, usize)>> {
        let tracker = self.tracker.as_ref();
        self.tracks.then(|| tracker.into_iter().flat_map(|tracker| tracker.depths.iter()))
    }

    /// The sum of the times that all keys in flight have been so
    /// (`workqueue_unfinished_work_seconds`); zero if times are not tracked.
    #[must_use]
    pub fn unfinished_work(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.unfinished(now))
    }

    /// How long the oldest delivery has been in flight
    /// (`workqueue_longest_running_processor_seconds`); zero if times are not tracked.
    #[must_use]
    pub fn longest_running(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.longest(now))
    }

    /// How long the oldest ready key whose group is below its limit has been ready; zero if times are
    /// not tracked.
    #[must_use]
    pub fn oldest_ready(&self, now: Time) -> Duration {
        match (&self.tracker, self.ready.oldest()) {
            (Some(tracker), Some(slot)) => now.since(tracker.added_at(slot)),
            _ => Duration::ZERO,
        }
    }
}

impl<K> Entry<K> {
    /// Why the key is where it is, in one sentence, as of `now`.
    pub fn explain(&self, now: Time) -> impl fmt::Display {
        let (phase, failures) = (self.phase, self.failures);
        let ago = self.since.map(|since| now.since(since));
        let due = self.due;
        let (held_back, paused, ending) = (self.held_back, self.paused, self.ending);
        Explanation(move |f: &mut fmt::Formatter<'_>| {
            match phase {
                Phase::Idle if due.is_some() && failures > 0 => f.write_str("backing off")?,
                Phase::Idle if due.is_some() => f.write_str("waiting")?,
                Phase::Idle => f.write_str("not pending, its failures are kept")?,
                Phase::Ready if paused => f.write_str("ready, but the queue is paused")?,
                Phase::Ready if held_back => {
                    f.write_str("ready, but its group has reached its limit")?;
                }
                Phase::Ready => f.write_str("ready, waiting for a worker")?,
                Phase::Processing => f.write_str("in flight")?,
                Phase::ProcessingDirty => {
                    f.write_str("in flight, and added again: it runs once more afterwards")?;
                }
            }
            if let (Some(ago), true) = (ago, phase != Phase::Idle) {
                write!(f, ", for {ago:.1?}")?;
            }
            match due {
                Some(Time::NEVER) => f.write_str("; never due: its delay is infinite")?,
                Some(due) if phase == Phase::Idle => {
                    write!(f, "; ready in {:.1?}", due.since(now))?
                }
                Some(due) => write!(f, "; also due in {:.1?}", due.since(now))?,
                None => {}
            }
            match failures {
                0 => {}
                1 => f.write_str("; failed once")?,
                n => write!(f, "; failed {n} times in a row")?,
            }
            match ending {
                Ending::Open => Ok(()),
                Ending::Closed => f.write_str("; the queue is closed"),
                Ending::ShutDown => f.write_str("; the queue is shut down"),
            }
        })
    }
}

/// `core::fmt::FromFn`, which needs Rust 1.93.
struct Explanation<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Explanation<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

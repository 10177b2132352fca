//! What is in the queue, a page at a time, and why a key waits.

use core::borrow::Borrow;
use core::fmt;
use core::time::Duration;

use alloc::vec::Vec;

use crate::record::Phase;
use crate::stats::{Counts, Histogram};
use crate::{Ending, Queue, Time};

/// What the queue knows of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry<K> {
    /// The key.
    pub key: K,
    /// Where it is.
    pub phase: Phase,
    /// Since when it is ready or with its worker, or waits, if times are kept.
    pub since: Option<Time>,
    /// When its delayed add is due.
    pub due: Option<Time>,
    /// Failures in a row.
    pub failures: u32,
    /// The priority of what is pending, or was taken last.
    pub priority: i32,
    /// Reasons of what is pending, or-ed.
    pub reasons: u32,
    /// Adds that the next run stands for.
    pub adds: u32,
    /// Whether it is ready, and held back because its group is at its limit.
    pub held_back: bool,
    /// Whether the queue is paused.
    pub paused: bool,
    /// How far the queue has ended.
    pub ending: Ending,
}

/// Where a walk through the queue goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Cursor(u32);

impl Cursor {
    /// As a number, to be carried elsewhere.
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
    /// What was found.
    pub entries: Vec<Entry<K>>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

impl<K: Eq + Clone> Queue<K> {
    /// Looks at about `limit` keys, from `cursor` on: never more, but for keys whose hashes are
    /// alike, and at least one. A key that has a record all along is on exactly one page of a walk,
    /// whatever happens meanwhile: keys come in the order of their hashes, which don't change.
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

    /// Keys with a worker, the one longest with it first: up to `limit` of them, after the first
    /// `skip`. `None` if times are not kept.
    #[must_use]
    pub fn running(&self, skip: usize, limit: usize) -> Option<Vec<Entry<K>>> {
        let tracker = self.tracker.as_ref();
        self.tracks.then(|| {
            let running = tracker.into_iter().flat_map(|tracker| tracker.running());
            running.skip(skip).take(limit).map(|slot| self.entry(slot)).collect()
        })
    }

    /// What the queue knows of `key`.
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
        self.find(key, hash).map_or(0, |slot| self.records.get(slot).failures)
    }

    fn entry(&self, slot: u32) -> Entry<K> {
        let record = self.records.get(slot);
        let phase = record.phase;
        Entry {
            key: record.key.clone(),
            phase,
            since: self.tracker.as_ref().map(|tracker| match phase.is_processing() {
                true => tracker.started_at(slot),
                false => tracker.added_at(slot),
            }),
            due: if record.waiting { self.timers.due(slot) } else { None },
            failures: record.failures,
            priority: record.priority,
            reasons: record.reasons,
            adds: record.adds,
            held_back: phase == Phase::Ready
                && self.ready.lanes().is_some_and(|lanes| !lanes.is_eligible(slot)),
            paused: self.paused,
            ending: self.ending,
        }
    }

    /// What was counted so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How long keys were ready before they were handed out, and how long workers had them; if
    /// times are kept.
    #[must_use]
    pub fn histograms(&self) -> Option<(&Histogram, &Histogram)> {
        match &self.tracker {
            Some(tracker) => Some((&tracker.queued, &tracker.worked)),
            None => self.tracks.then_some((&Histogram::EMPTY, &Histogram::EMPTY)),
        }
    }

    /// The [`depth`](Self::depth) by priority, in ascending order, without the priorities that have
    /// none (`workqueue_depth`). `None` if times are not kept.
    pub fn depths(&self) -> Option<impl Iterator<Item = (i32, usize)>> {
        let tracker = self.tracker.as_ref();
        self.tracks.then(|| tracker.into_iter().flat_map(|tracker| tracker.depths.iter()))
    }

    /// How long all keys with a worker have been with it, added up
    /// (`workqueue_unfinished_work_seconds`); zero if times are not kept.
    #[must_use]
    pub fn unfinished_work(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.unfinished(now))
    }

    /// How long the key that has been with its worker longest has been so
    /// (`workqueue_longest_running_processor_seconds`); zero if times are not kept.
    #[must_use]
    pub fn longest_running(&self, now: Time) -> Duration {
        self.tracker.as_ref().map_or(Duration::ZERO, |tracker| tracker.longest(now))
    }

    /// How long the oldest ready key that its group does not hold back has been ready; zero if times
    /// are not kept.
    #[must_use]
    pub fn oldest_ready(&self, now: Time) -> Duration {
        let oldest = match self.ready.lanes() {
            None => self.any_ready(),
            Some(lanes) => lanes.oldest(),
        };
        match (&self.tracker, oldest) {
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
        fmt::from_fn(move |f| {
            match phase {
                Phase::Idle if due.is_some() && failures > 0 => f.write_str("backing off")?,
                Phase::Idle if due.is_some() => f.write_str("waiting for its time")?,
                Phase::Idle => f.write_str("not pending, remembered for its failures")?,
                Phase::Ready if paused => f.write_str("ready, but the queue is paused")?,
                Phase::Ready if held_back => {
                    f.write_str("ready, but its group has as many keys in work as it may")?;
                }
                Phase::Ready => f.write_str("ready, waiting for a worker")?,
                Phase::Processing => f.write_str("with a worker")?,
                Phase::ProcessingDirty => {
                    f.write_str("with a worker, and added again since: runs once more afterwards")?;
                }
            }
            if let (Some(ago), true) = (ago, phase != Phase::Idle) {
                write!(f, ", for {ago:.1?}")?;
            }
            match due {
                Some(Time::NEVER) => f.write_str("; its delay never ends")?,
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

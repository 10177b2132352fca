//! Reads the contents of a queue: the numbers of its keys, and pages of keys.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::Value;

use super::names::Shard;
use super::values::{self, Stored, Values};
use super::{Redis, epoch_of};
use crate::engine::time::Micros;
use crate::engine::{Cursor, Place, Scanned, Walked};
use crate::types::error::Answer;
use crate::types::inspect::{Entry, State, StateCounts};
use crate::types::key::Key;

/// The maximum number of parked keys that one request reads.
const STEP: usize = 500;
/// The band from which `counts.lua` reads no group. The last band is 3.
const AFTER_LAST_BAND: i64 = 4;

impl Redis {
    pub(super) async fn count_all(&self, queue: &Place) -> Answer<StateCounts> {
        let shards = self.shards_of(queue)?;
        join_all(shards.iter().map(|shard| self.count_shard(shard)))
            .await
            .into_iter()
            .try_fold(StateCounts::default(), |all, counts| Ok(sum_counts(all, counts?)))
    }

    /// Returns true if no key of a shard is ready, waiting or in flight. Reads no group, because only the age of the
    /// oldest ready key depends on the groups.
    pub(super) async fn has_no_work(&self, queue: &Place) -> Answer<bool> {
        let shards = self.shards_of(queue)?;
        for shard in &*shards {
            let mut command = self.nodes.scripts.counts.on(shard);
            command.arg(AFTER_LAST_BAND);
            let mut answer = Values::from_array(self.run_script(shard, &command).await?)?;
            let StateCounts { ready, waiting, in_flight, .. } = values::read_counts(&mut answer)?;
            if ready + waiting + in_flight > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn count_shard(&self, shard: &Shard) -> Answer<StateCounts> {
        let (mut command, mut counted) = (self.nodes.scripts.counts.on(shard), None);
        loop {
            let answer = self.run_script(shard, &command).await?;
            let mut answer = Values::from_array(answer)?;
            let part = values::read_counts(&mut answer)?;
            let all: StateCounts = counted.unwrap_or(part);
            let all = StateCounts { oldest_ready: all.oldest_ready.max(part.oldest_ready), ..all };
            if answer.is_empty() {
                return Ok(all);
            }
            // A script reads a part of the groups only, so that other clients do not wait for long.
            let (band, group): (i64, _) = (answer.number()?, answer.bytes()?);
            command = self.nodes.scripts.counts.on(shard);
            command.arg(band).arg(group);
            counted = Some(all);
        }
    }

    pub(super) async fn read_pages(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        let shards = self.shards_of(queue)?;
        let mut found = BTreeMap::new();
        for number in 0..shards.len() {
            if state == Some(State::Parked) {
                self.collect_parked(&shards, number, after, limit, &mut found).await?;
            } else {
                self.collect_scan(&shards, number, state, after, limit, &mut found).await?;
            }
        }
        Ok(found.into_values().collect())
    }

    /// Takes one step of a walk over one shard after another. Parked keys are in sorted order, and a step returns up to
    /// `limit` of them. In other states, a step is one step of a scan, which may return more or fewer keys than
    /// `limit`.
    pub(super) async fn walk_step(
        &self,
        queue: &Place,
        state: Option<State>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Answer<Walked> {
        if state != Some(State::Parked) {
            let (entries, next) = self.scan_step(queue, state, from).await?;
            return Ok(Walked { keys: entries.into_iter().map(|entry| entry.key).collect(), next });
        }
        let shards = self.shards_of(queue)?;
        let (number, at) = from.map_or_else(|| (0, b"-".to_vec()), |from| (from.shard, from.at));
        let Some(shard) = shards.get(number) else { return Ok(Walked::default()) };
        let (_, parked) = self.scan_parked(shard, &at, limit).await?;
        let keys: Vec<Key> = parked.into_iter().map(|(key, _)| key).collect();
        let last = keys.last().filter(|_| keys.len() >= limit).map(|last| position_after(last));
        let next = next_position(number, shards.len(), last, b"-");
        Ok(Walked { keys, next })
    }

    /// Takes one step of a scan of one shard after another. The entries of the step are sorted.
    pub(super) async fn scan_step(
        &self,
        queue: &Place,
        state: Option<State>,
        from: Option<Cursor>,
    ) -> Answer<Scanned> {
        let shards = self.shards_of(queue)?;
        let (number, at) = from.map_or_else(|| (0, b"0".to_vec()), |from| (from.shard, from.at));
        let Some(shard) = shards.get(number) else { return Ok(Scanned::default()) };
        let (at, now, found) = self.scan_shard(shard, state, &at).await?;
        // A scan may return a key twice.
        let mut entries = BTreeMap::new();
        for (key, stored) in found {
            let epoch = |epoch| epoch_of(epoch, number, shards.len());
            let entry = stored.to_entry(key.clone(), epoch, now);
            if state.is_none_or(|state| entry.state == state) {
                entries.insert(key, entry);
            }
        }
        let next = next_position(number, shards.len(), Some(at).filter(|at| at != b"0"), b"0");
        Ok((entries.into_values().collect(), next))
    }

    /// Takes one step of a scan of a shard, from `cursor`. Returns the next cursor, the time, and keys with their rows.
    pub(super) async fn scan_shard(
        &self,
        shard: &Shard,
        state: Option<State>,
        cursor: &[u8],
    ) -> Answer<(Vec<u8>, Micros, Vec<(Key, Stored)>)> {
        let which = if state == Some(State::InFlight) { "leases" } else { "all" };
        let mut command = self.nodes.scripts.walk.on(shard);
        command.arg(which).arg(cursor);
        let walked = self.run_script(shard, &command).await?;
        let mut walked = Values::from_array(walked)?;
        let (cursor, now) = (walked.bytes()?, walked.number()?);
        let has_groups = shard.queue.grouping.is_some();
        let mut found = Vec::new();
        while !walked.is_empty() {
            let key = walked.bytes()?.into();
            found.push((key, Stored::next(&mut walked, has_groups)?));
        }
        Ok((cursor, now, found))
    }

    /// Reads up to `limit` parked keys in sorted order, from a position in the format of ZRANGEBYLEX. Returns the time,
    /// and the keys. A key has no row if another client has removed it.
    async fn scan_parked(
        &self,
        shard: &Shard,
        from: &[u8],
        limit: usize,
    ) -> Answer<(Micros, Vec<(Key, Option<Stored>)>)> {
        let mut command = self.nodes.scripts.parked.on(shard);
        command.arg(from).arg(limit);
        let parked = self.run_script(shard, &command).await?;
        let mut parked = Values::from_array(parked)?;
        let has_groups = shard.queue.grouping.is_some();
        let (now, mut found) = (parked.number()?, Vec::new());
        while !parked.is_empty() {
            let (key, row) = (parked.bytes()?.into(), parked.next_value()?);
            // Another client may have removed the row.
            let stored = match row {
                Value::BulkString(packed) => Some(Stored::without_run(packed, has_groups)),
                _ => None,
            };
            found.push((key, stored));
        }
        Ok((now, found))
    }

    /// Collects up to `limit` keys of a shard that follow `after` and are in `state`, or in any state if it is `None`.
    /// The shard does not store these keys in order, so the function reads all of them.
    async fn collect_scan(
        &self,
        shards: &[Shard],
        number: usize,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
        found: &mut BTreeMap<Key, Entry>,
    ) -> Answer<()> {
        let mut cursor = b"0".to_vec();
        loop {
            let (next, now, keys) = self.scan_shard(&shards[number], state, &cursor).await?;
            cursor = next;
            for (key, stored) in keys {
                // A row that cannot be on this page is not decoded.
                if after.is_some_and(|after| key <= *after) || is_beyond(found, &key, limit) {
                    continue;
                }
                let epoch = |epoch| epoch_of(epoch, number, shards.len());
                let entry = stored.to_entry(key, epoch, now);
                if state.is_none_or(|state| entry.state == state) {
                    put_entry(found, entry, limit);
                }
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Collects up to `limit` parked keys of a shard that follow `after`. The shard stores parked keys in sorted order.
    async fn collect_parked(
        &self,
        shards: &[Shard],
        number: usize,
        after: Option<&Key>,
        limit: usize,
        found: &mut BTreeMap<Key, Entry>,
    ) -> Answer<()> {
        let mut from = after.map_or_else(|| b"-".to_vec(), |key| position_after(key));
        let mut left = limit;
        loop {
            let step = left.min(STEP);
            let (now, parked) = self.scan_parked(&shards[number], &from, step).await?;
            let met = parked.len();
            for (key, stored) in parked {
                from = position_after(&key);
                if let Some(stored) = stored {
                    let epoch = |epoch| epoch_of(epoch, number, shards.len());
                    let entry = stored.to_entry(key, epoch, now);
                    if entry.state != State::Parked {
                        continue;
                    }
                    if !is_beyond(found, &entry.key, limit) {
                        put_entry(found, entry, limit);
                    }
                    left -= 1;
                }
            }
            if met < step || left == 0 {
                return Ok(());
            }
        }
    }
}

pub(super) fn sum_counts(one: StateCounts, other: StateCounts) -> StateCounts {
    StateCounts {
        ready: one.ready + other.ready,
        waiting: one.waiting + other.waiting,
        in_flight: one.in_flight + other.in_flight,
        dirty: one.dirty + other.dirty,
        parked: one.parked + other.parked,
        damaged: one.damaged + other.damaged,
        oldest_ready: one.oldest_ready.max(other.oldest_ready),
    }
}

/// Returns the position after a step in a shard: `at` if there is one, and otherwise the beginning of the next shard.
/// Returns `None` after the last shard.
fn next_position(number: usize, count: usize, at: Option<Vec<u8>>, begin: &[u8]) -> Option<Cursor> {
    match at {
        Some(at) => Some(Cursor { shard: number, at }),
        None if number + 1 < count => Some(Cursor { shard: number + 1, at: begin.to_vec() }),
        None => None,
    }
}

/// Returns the position after `key`, in the format of ZRANGEBYLEX.
fn position_after(key: &[u8]) -> Vec<u8> {
    [b"(", key].concat()
}

/// Returns true if `found` already has `limit` keys before `key`.
fn is_beyond(found: &BTreeMap<Key, Entry>, key: &Key, limit: usize) -> bool {
    found.len() >= limit && found.last_key_value().is_none_or(|(last, _)| *key > *last)
}

/// Inserts an entry, and keeps only the first `limit` entries.
fn put_entry(found: &mut BTreeMap<Key, Entry>, entry: Entry, limit: usize) {
    found.insert(entry.key.clone(), entry);
    if found.len() > limit {
        found.pop_last();
    }
}

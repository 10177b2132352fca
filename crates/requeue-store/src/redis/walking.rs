//! What is in a queue: counts, and pages of its keys.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::Value;

use super::names::Shard;
use super::values::{self, Values};
use super::{Redis, epoch_of};
use crate::engine::Place;
use crate::error::Fault;
use crate::inspect::{Counts, Entry, State};
use crate::key::Key;
use crate::row::Row;
use crate::time::Micros;

/// How many parked keys are asked for at once.
const STEP: usize = 500;

impl Redis {
    pub(super) async fn counted(&self, queue: &Place) -> Result<Counts, Fault> {
        let shards = self.shards_of(queue)?;
        let commands: Vec<_> = shards.iter().map(|shard| self.scripts.counts.on(shard)).collect();
        let ran = shards.iter().zip(&commands).map(async |(shard, command)| {
            let answer = self.run(shard, &self.scripts.counts, command).await?;
            values::counts(answer)
        });
        join_all(ran).await.into_iter().try_fold(Counts::default(), |all, counts| {
            let counts = counts?;
            Ok(Counts {
                ready: all.ready + counts.ready,
                waiting: all.waiting + counts.waiting,
                processing: all.processing + counts.processing,
                dirty: all.dirty + counts.dirty,
                parked: all.parked + counts.parked,
                oldest_ready: all.oldest_ready.max(counts.oldest_ready),
            })
        })
    }

    pub(super) async fn paged(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Entry>, Fault> {
        let shards = self.shards_of(queue)?;
        let mut found = BTreeMap::new();
        for number in 0..shards.len() {
            if state == Some(State::Parked) {
                self.parked(&shards, number, after, limit, &mut found).await?;
            } else {
                self.walk(&shards, number, state, after, limit, &mut found).await?;
            }
        }
        Ok(found.into_values().collect())
    }

    /// Up to `limit` keys of a shard in this state, or any, those after `after`: in no order, so that
    /// it goes through all of them.
    async fn walk(
        &self,
        shards: &[Shard],
        number: usize,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
        found: &mut BTreeMap<Key, Entry>,
    ) -> Result<(), Fault> {
        let which = if state == Some(State::Processing) { "leases" } else { "all" };
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = self.scripts.walk.on(&shards[number]);
            command.arg(which).arg(&cursor);
            let walked = self.run(&shards[number], &self.scripts.walk, &command).await?;
            let mut walked = Values::of(walked)?;
            cursor = walked.bytes()?;
            let now: Micros = walked.number()?;
            while !walked.is_empty() {
                let (key, packed) = (walked.bytes()?.into(), walked.bytes()?);
                let row = values::row(&packed, |epoch| epoch_of(epoch, number, shards.len()))?;
                let wanted = state.is_none_or(|state| row.state(now) == state);
                if wanted && after.is_none_or(|after| key > *after) {
                    put(found, key, &row, now, limit);
                }
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Up to `limit` parked keys of a shard, those after `after`, which it has in order.
    async fn parked(
        &self,
        shards: &[Shard],
        number: usize,
        after: Option<&Key>,
        limit: usize,
        found: &mut BTreeMap<Key, Entry>,
    ) -> Result<(), Fault> {
        let behind = |key: &[u8]| [b"(", key].concat();
        let mut from = after.map_or_else(|| b"-".to_vec(), |key| behind(key));
        let mut left = limit;
        loop {
            let step = left.min(STEP);
            let mut command = self.scripts.parked.on(&shards[number]);
            command.arg(&from).arg(step);
            let parked = self.run(&shards[number], &self.scripts.parked, &command).await?;
            let mut parked = Values::of(parked)?;
            let now: Micros = parked.number()?;
            let mut met = 0;
            while !parked.is_empty() {
                let key: Key = parked.bytes()?.into();
                from = behind(&key);
                met += 1;
                // Somebody may have removed the rows.
                if let Value::BulkString(packed) = parked.value()? {
                    let row = values::row(&packed, |epoch| epoch_of(epoch, number, shards.len()))?;
                    put(found, key, &row, now, limit);
                    left -= 1;
                }
            }
            if met < step || left == 0 {
                return Ok(());
            }
        }
    }
}

/// Of more than `limit`, the first stay.
fn put(found: &mut BTreeMap<Key, Entry>, key: Key, row: &Row, now: Micros, limit: usize) {
    if found.len() >= limit && found.last_key_value().is_none_or(|(last, _)| key > *last) {
        return;
    }
    found.insert(key.clone(), row.seen(key, now));
    if found.len() > limit {
        found.pop_last();
    }
}

//! Walks over the keys of a shard.

use std::collections::BTreeMap;

use super::names::Shard;
use super::values::{self, Values};
use super::{Redis, epoch_of};
use crate::error::Fault;
use crate::inspect::{Entry, State};
use crate::key::Key;
use crate::time::Micros;

impl Redis {
    /// Up to `limit` keys of a shard in this state, or any, those after `after`.
    pub(super) async fn walk(
        &self,
        shards: &[Shard],
        number: usize,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
        found: &mut BTreeMap<Key, Entry>,
    ) -> Result<(), Fault> {
        let which = match state {
            None | Some(State::Ready | State::Waiting) => "all",
            Some(State::Processing) => "leases",
            Some(State::Parked) => "parked",
        };
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = self.scripts.walk.on(&shards[number]);
            command.arg(which).arg(&cursor);
            let walked = self.run(&shards[number], &self.scripts.walk, &command).await?;
            let mut walked = Values::of(walked)?;
            cursor = walked.bytes()?;
            let now: Micros = walked.number()?;
            while !walked.is_empty() {
                let epoch = |epoch| epoch_of(epoch, number, shards.len());
                let (key, row) = values::entry(&mut walked, epoch)?;
                let wanted = state.is_none_or(|state| row.state(now) == state);
                if wanted && after.is_none_or(|after| key > *after) {
                    found.insert(key.clone(), row.seen(key, now));
                }
                if found.len() > limit {
                    found.pop_last();
                }
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }
}

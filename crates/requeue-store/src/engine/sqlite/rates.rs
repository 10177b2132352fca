//! Applies the rates of a queue and of its groups: see [`Gate`].
//!
//! Only one claim runs at a time, so each claim reads the times that the previous claim has written. A claim from a
//! queue without rates needs no additional statement.

use std::time::Duration;

use rusqlite::{OptionalExtension, Result, params};

use super::thread::Work;
use crate::engine::gate::Gate;
use crate::engine::time::{Micros, until};
use crate::engine::{Claim, Delivery, Place};
use crate::types::rate::Rate;

impl Work<'_> {
    /// Reads a rate from the column `first`, and its time from the next column.
    pub(super) fn read_gate(&self, row: &rusqlite::Row<'_>, first: usize) -> Result<Option<Gate>> {
        let Some(rate) = read_rate(row, first)? else { return Ok(None) };
        Ok(Some(Gate::new(rate, row.get(first + 1)?, self.now)))
    }

    /// Claims up to as many keys as the rate of the queue permits. `claim_keys` claims them, and also returns the time
    /// until another key may become ready.
    pub(super) fn claim_at_rate(
        &self,
        queue: &Place,
        mut gate: Gate,
        claim: &Claim,
        claim_keys: impl FnOnce(&Claim) -> Result<(Vec<Delivery>, Option<Duration>)>,
    ) -> Result<(Vec<Delivery>, Option<Duration>)> {
        let max = gate.permitted(self.now, claim.max);
        let (items, mut next) = match max {
            0 => (Vec::new(), None),
            _ => claim_keys(&Claim { max, ..*claim })?,
        };
        gate.use_up(self.now, items.len());
        // The stored time also changes if the gate has corrected it after the clock was set back.
        let sql = "update queues set next_at = ?2 where id = ?1 and next_at <> ?2";
        self.connection.prepare_cached(sql)?.execute(params![queue.id, gate.next_at])?;
        if items.len() == max && max < claim.max {
            // If no work is left, the result contains no time. Otherwise, `work --until-empty` would wait for the rate.
            next = (!self.is_idle(queue)?).then(|| until(self.now, gate.next_at));
        }
        Ok((items, next))
    }

    fn group_gate(&self, queue: &Place, group: &str) -> Result<Option<Gate>> {
        let sql = "select rate, next_at from groups where queue = ?1 and name = ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        let gate = |row: &rusqlite::Row<'_>| self.read_gate(row, 0);
        Ok(statement.query_row(params![queue.id, group], gate).optional()?.flatten())
    }

    /// Returns how many keys the rate of the group permits to start now, up to `wanted`.
    pub(super) fn permitted_by_rate(
        &self,
        queue: &Place,
        group: &str,
        wanted: usize,
    ) -> Result<usize> {
        let Some(gate) = self.group_gate(queue, group)? else { return Ok(wanted) };
        let permitted = gate.permitted(self.now, wanted);
        if permitted == 0 {
            // The time of the gate may have been corrected, because the clock was set back.
            self.keep_group_gate(queue, group, gate)?;
        }
        Ok(permitted)
    }

    /// Records that `starts` keys of the group have started.
    pub(super) fn use_up_rate(&self, queue: &Place, group: &str, starts: usize) -> Result<()> {
        let Some(mut gate) = self.group_gate(queue, group)? else { return Ok(()) };
        gate.use_up(self.now, starts);
        self.keep_group_gate(queue, group, gate)
    }

    fn keep_group_gate(&self, queue: &Place, group: &str, gate: Gate) -> Result<()> {
        let sql = "update groups set next_at = ?3 where queue = ?1 and name = ?2 and next_at <> ?3";
        self.connection
            .prepare_cached(sql)?
            .execute(params![queue.id, group, gate.next_at])
            .map(drop)
    }

    /// Returns the next time at which a rate permits the start of a ready key of its group. Returns `None` if no rate
    /// holds back a ready key.
    pub(super) fn next_by_rate(&self, queue: &Place) -> Result<Option<Micros>> {
        let sql = "select next_at from groups indexed by groups_rated \
                   where queue = ?1 and rate is not null and next_at > ?2 and exists ( \
                       select 1 from keys indexed by keys_turns where keys.queue = ?1 and state = 0 \
                       and is_due = 1 and priority in (-1, 0, 1) and grp = name) \
                   order by next_at limit 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_row(params![queue.id, self.now], |row| row.get(0)).optional()
    }

    pub(super) fn set_rate(&self, queue: &Place, rate: Option<Rate>) -> Result<()> {
        let sql =
            "update queues set rate = ?2, next_at = iif(?2 is null, 0, next_at) where id = ?1";
        self.connection.execute(sql, params![queue.id, rate.map(Rate::to_stored)]).map(drop)
    }

    /// Sets the rate of a queue that has none. Returns the rate that the queue has afterwards.
    pub(super) fn set_first_rate(&self, queue: &Place, rate: Rate) -> Result<Rate> {
        let gate = self.read_standing(queue)?.and_then(|standing| standing.gate);
        match gate {
            Some(gate) => Ok(gate.rate),
            None => self.set_rate(queue, Some(rate)).map(|()| rate),
        }
    }

    pub(super) fn set_group_rate(
        &self,
        queue: &Place,
        group: &str,
        rate: Option<Rate>,
    ) -> Result<()> {
        let sql = "insert into groups (queue, name, rate) values (?1, ?2, ?3) \
                   on conflict do update set rate = ?3, next_at = iif(?3 is null, 0, next_at)";
        let rate = rate.map(Rate::to_stored);
        self.connection.execute(sql, params![queue.id, group, rate])?;
        let sql = "update queues set has_group_rates = 1 where id = ?1 and not has_group_rates";
        self.connection.execute(sql, [queue.id]).map(drop)
    }
}

/// Reads a rate. Returns `None` if another program has damaged the stored rate.
pub(super) fn read_rate(row: &rusqlite::Row<'_>, column: usize) -> Result<Option<Rate>> {
    let stored: Option<String> = row.get(column)?;
    Ok(stored.as_deref().and_then(Rate::from_stored))
}

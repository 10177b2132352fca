//! The operations on queues and keys. Each of them runs within a transaction.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use requeue::CancelledRun;
use rusqlite::{OptionalExtension, Result, named_params, params};

use super::rates::read_rate;
use super::rows::{COLUMNS, keep_row, load_row, read_row};
use super::thread::Work;
use crate::engine::gate::Gate;
use crate::engine::row::Row;
use crate::engine::time::{Micros, after, until};
use crate::engine::{Ask, Claim, Claimed, Delivery, Dropped, End, Place, Renewed, Settings, lock};
use crate::types::add::{Added, ParkedAdd, Priority, ReaddPolicy};
use crate::types::inspect::{Entry, ParkedKey, QueueInfo, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::Rate;

/// The maximum number of expired leases that one claim handles.
const EXPIRED: usize = 256;

/// The query for the ready keys of a priority, the oldest first.
pub(super) static READY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {} from keys where queue = :queue and state = 0 \
         and grp is null and priority = :priority and at <= :now order by at limit :limit",
        *COLUMNS
    )
});

/// The groups whose keys an operation has changed.
pub(super) type Groups = BTreeSet<Arc<str>>;
/// The part of a queue's row that each operation reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) is_paused: bool,
    /// The time at which the next schedule is due.
    pub(super) schedule_at: Option<Micros>,
    /// The rate of the queue.
    pub(super) gate: Option<Gate>,
    /// True if a group has a rate, or once had one.
    pub(super) has_group_rates: bool,
}

impl Work<'_> {
    pub(super) fn open_queue(&self, name: &str, settings: &Settings) -> Result<Place> {
        let holds = settings.readd_policy == ReaddPolicy::Hold;
        let keeps = settings.parked_add == ParkedAdd::Keep;
        let sql = "insert into queues (name, readd_policy, parked_add, group_by, group_limit, rate) \
                   values (?1, ?2, ?3, ?4, ?5, ?6) on conflict do nothing";
        let Settings { group_by, group_limit, rate, .. } = settings;
        let rate = rate.map(Rate::to_stored);
        self.connection.execute(sql, params![name, holds, keeps, group_by, group_limit, rate])?;
        self.find_queue(name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    pub(super) fn find_queue(&self, name: &str) -> Result<Option<Place>> {
        let sql = "select id, readd_policy, parked_add, group_by, group_limit, rate from queues where name = ?1";
        let place = |row: &rusqlite::Row<'_>| Ok(Place::new(row.get(0)?, name, settings(row)?));
        self.connection.query_row(sql, [name], place).optional()
    }

    pub(super) fn list_queues(&self) -> Result<Vec<QueueInfo>> {
        let sql = "select name, readd_policy, parked_add, group_by, group_limit, rate, \
                   not exists (select 1 from keys where keys.queue = queues.id), paused from queues";
        let mut statement = self.connection.prepare_cached(sql)?;
        let queues = statement.query_map([], |row| {
            Ok(settings(row)?.into_info(row.get(0)?, row.get(6)?, row.get(7)?))
        })?;
        queues.collect()
    }

    /// Reads the state of the queue. Returns `None` if the queue was dropped.
    pub(super) fn read_standing(&self, queue: &Place) -> Result<Option<Standing>> {
        let sql =
            "select paused, schedule_at, rate, next_at, has_group_rates from queues where id = ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let standing = |row: &rusqlite::Row<'_>| {
            Ok(Standing {
                is_paused: row.get(0)?,
                schedule_at: row.get(1)?,
                gate: self.read_gate(row, 2)?,
                has_group_rates: row.get(4)?,
            })
        };
        statement.query_row([queue.id], standing).optional()
    }

    pub(super) fn set_paused(&self, queue: &Place, paused: bool) -> Result<()> {
        let sql = "update queues set paused = ?2 where id = ?1";
        self.connection.execute(sql, params![queue.id, paused]).map(drop)
    }

    /// Drops the queue, and returns its id. The keys remain in the file, but no operation finds them.
    pub(super) fn drop_queue(&self, name: &str, keys_too: bool) -> Result<(Dropped, i64)> {
        let Some(queue) = self.find_queue(name)? else { return Ok((Dropped::Missing, 0)) };
        let counts = self.count_keys(&queue)?;
        let schedules = self.count_schedules(&queue)?;
        if Dropped::keeps(&counts, schedules, keys_too) {
            return Ok((Dropped::Kept(counts, schedules), queue.id));
        }
        // The row of the queue is removed in this short transaction, and the keys later. If the process crashes before
        // that, `migrate` removes the keys.
        self.connection.execute("delete from queues where id = ?1", [queue.id])?;
        self.connection.execute("delete from schedules where queue = ?1", [queue.id])?;
        self.connection.execute("delete from groups where queue = ?1", [queue.id])?;
        self.connection.execute("delete from activity where queue = ?1", [queue.id])?;
        self.connection.execute("delete from actions where queue = ?1", [queue.id])?;
        Ok((Dropped::Yes(counts), queue.id))
    }

    /// Returns the id of a dropped queue of which keys or failed runs remain.
    pub(super) fn left_over(&self) -> Result<Option<i64>> {
        // The query searches the index once for each queue, and does not read all keys.
        let sql = "with recursive found (queue) as ( \
                       select min(queue) from keys \
                       union all \
                       select (select min(queue) from keys where keys.queue > found.queue) \
                       from found where found.queue is not null \
                   ) select queue from found \
                   where queue is not null and queue not in (select id from queues) limit 1";
        self.connection.query_row(sql, [], |row| row.get(0)).optional()
    }

    /// Removes up to `most` keys of a dropped queue. Returns the number of removed keys.
    pub(super) fn sweep_keys(&self, queue: i64, most: usize) -> Result<usize> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let sweep = |table| {
            let sql = format!(
                "delete from {table} where queue = ?1 and key in \
                 (select key from keys where queue = ?1 order by key limit ?2)"
            );
            self.connection.execute(&sql, params![queue, most])
        };
        sweep("attempts")?;
        sweep("keys")
    }

    /// Adds keys. Also returns the groups in which keys became ready.
    pub(super) fn add_keys(
        &self,
        queue: &Place,
        asks: &[Ask],
    ) -> Result<(Vec<Option<Added>>, Groups)> {
        let mut ready = BTreeSet::new();
        let mut add = |ask: &Ask| {
            let was = load_row(self.connection, queue.id, &ask.key)?;
            let was_failing = was.as_ref().is_some_and(|row| row.failures > 0);
            let (row, added) = Row::add(was, ask, queue, self.now);
            if added != Added::Parked {
                keep_row(self.connection, queue.id, &ask.key, Some(&row), self.now)?;
                self.forget_attempts(queue, &ask.key, was_failing, Some(&row))?;
                if row.is_ready(self.now) {
                    ready.extend(row.group);
                }
            }
            Ok(Some(added))
        };
        let added = asks.iter().map(&mut add).collect::<Result<_>>()?;
        Ok((added, ready))
    }

    pub(super) fn claim_keys(
        &self,
        queue: &Place,
        claim: &Claim,
        standing: &Standing,
    ) -> Result<Claimed> {
        let &Standing { is_paused, schedule_at, gate, has_group_rates } = standing;
        let schedule_in = schedule_at.map(|at| until(self.now, at));
        // Expired leases are handled before the search for keys. If the backoff is zero, this claim can deliver their
        // keys.
        let (parked, freed) = self.expire_leases(queue, claim)?;
        if is_paused {
            let next = self.next_lease(queue)?.map(|at| until(self.now, at));
            return Ok(Claimed { next, parked, is_paused, schedule_in, ..Claimed::default() });
        }
        if queue.group_by.is_some() {
            lock(&queue.turns).name_groups(&freed);
        }
        let claim_keys = |claim: &Claim| match queue.group_by {
            Some(_) => self.claim_turns(queue, claim, has_group_rates),
            None => self.claim_in_order(queue, claim),
        };
        let (items, next) = match gate {
            Some(gate) => self.claim_at_rate(queue, gate, claim, claim_keys)?,
            None => claim_keys(claim)?,
        };
        let is_rated = gate.is_some() || has_group_rates;
        Ok(Claimed { items, next, parked, is_rated, schedule_in, ..Claimed::default() })
    }

    /// Claims keys of a queue without groups. Also returns the time until another key may become ready.
    fn claim_in_order(
        &self,
        queue: &Place,
        claim: &Claim,
    ) -> Result<(Vec<Delivery>, Option<Duration>)> {
        let mut items = Vec::new();
        for (key, row) in self.oldest_ready(queue, claim.oldest.min(claim.max))? {
            items.push(self.deliver_key(queue, &key, row, claim.lease)?);
        }
        for priority in Priority::ALL.into_iter().rev() {
            for (key, row) in self.first_ready(queue, priority, claim.max - items.len())? {
                items.push(self.deliver_key(queue, &key, row, claim.lease)?);
            }
        }
        let next = if items.len() < claim.max { self.next_due(queue)? } else { None };
        Ok((items, next))
    }

    pub(super) fn deliver_key(
        &self,
        queue: &Place,
        key: &Key,
        mut row: Row,
        lease: Duration,
    ) -> Result<Delivery> {
        // The token follows the clock of the machine, not the time of the file. After a copy of the file is restored,
        // possibly on another machine, only the machine's clock is later than all tokens of the original.
        let sql = "update epochs set last = max(last + 1, ?1) returning last";
        let mut statement = self.connection.prepare_cached(sql)?;
        let epoch = statement.query_row([self.clock], |row| row.get(0))?;
        let out = row.claim(key, epoch, &queue.worker, lease, self.now);
        keep_row(self.connection, queue.id, key, Some(&row), self.now)?;
        Ok(out)
    }

    /// Returns the ready keys of a priority, the oldest first.
    fn first_ready(
        &self,
        queue: &Place,
        priority: Priority,
        limit: usize,
    ) -> Result<Vec<(Key, Row)>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut statement = self.connection.prepare_cached(&READY)?;
        let found = statement.query_map(
            named_params! {
                ":queue": queue.id,
                ":priority": priority.number(),
                ":now": self.now,
                ":limit": i64::try_from(limit).unwrap_or(i64::MAX),
            },
            read_row,
        )?;
        found.collect()
    }

    /// Returns the ready keys of all priorities, the oldest first.
    fn oldest_ready(&self, queue: &Place, limit: usize) -> Result<Vec<(Key, Row)>> {
        let mut found = Vec::new();
        for priority in Priority::ALL {
            found.extend(self.first_ready(queue, priority, limit)?);
        }
        found.sort_by_key(|(_, row)| row.at);
        found.truncate(limit);
        Ok(found)
    }

    /// Counts a failure for each key whose lease has expired. Returns the keys that this failure parks, and the groups
    /// of all keys whose leases have expired.
    fn expire_leases(&self, queue: &Place, claim: &Claim) -> Result<(Vec<ParkedKey>, Groups)> {
        let sql = format!(
            "select {} from keys where queue = ?1 and state = 1 and lease_until <= ?2 \
             order by lease_until limit {EXPIRED}",
            *COLUMNS
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let found: Vec<_> =
            statement.query_map(params![queue.id, self.now], read_row)?.collect::<Result<_>>()?;
        let (mut parked, mut freed) = (Vec::new(), BTreeSet::new());
        for (n, (key, row)) in (1..).zip(found) {
            freed.extend(row.group.clone());
            let how = row.lease_expiry(claim.expired.nth(n));
            let row = self.finish_row(queue, &key, row, how)?;
            if let Some(row) = row.filter(|row| row.parked) {
                parked.push(ParkedKey::from_expired_lease(key, row.failures));
            }
        }
        Ok((parked, freed))
    }

    /// Returns the time until the next key is due or the next lease expires.
    fn next_due(&self, queue: &Place) -> Result<Option<Duration>> {
        let mut next: Option<Micros> = None;
        let mut sooner = |at: Option<Micros>| next = next.into_iter().chain(at).min();
        let sql = "select min(at) from keys \
                   where queue = ?1 and state = 0 and grp is null and priority = ?2";
        let mut due = self.connection.prepare_cached(sql)?;
        for priority in Priority::ALL {
            sooner(due.query_row(params![queue.id, priority.number()], |row| row.get(0))?);
        }
        sooner(self.next_lease(queue)?);
        Ok(next.map(|at| until(self.now, at)))
    }

    pub(super) fn next_lease(&self, queue: &Place) -> Result<Option<Micros>> {
        let sql = "select min(lease_until) from keys where queue = ?1 and state = 1";
        self.connection.prepare_cached(sql)?.query_row([queue.id], |row| row.get(0))
    }

    /// Completes deliveries. Also returns the groups that may now deliver another key.
    pub(super) fn finish_deliveries(
        &self,
        queue: &Place,
        ends: Vec<End>,
    ) -> Result<(Vec<Option<bool>>, Groups)> {
        let mut freed = BTreeSet::new();
        let mut finish = |End { key, epoch, how }: End| {
            let row = load_row(self.connection, queue.id, &key)?;
            let Some(row) = row.filter(|row| row.is_held(epoch, self.now)) else {
                return Ok(Some(false));
            };
            freed.extend(row.group.clone());
            self.finish_row(queue, &key, row, how)?;
            Ok(Some(true))
        };
        let held = ends.into_iter().map(&mut finish).collect::<Result<_>>()?;
        Ok((held, freed))
    }

    pub(super) fn renew_leases(
        &self,
        queue: &Place,
        held: &[(Key, i64)],
        lease: Duration,
    ) -> Result<Vec<Renewed>> {
        let renew = |(key, epoch): &(Key, i64)| {
            let row = load_row(self.connection, queue.id, key)?;
            let Some(mut row) = row.filter(|row| row.is_held(*epoch, self.now)) else {
                return Ok(Renewed::Lost);
            };
            row.run.iter_mut().for_each(|run| run.lease_until = after(self.now, lease));
            keep_row(self.connection, queue.id, key, Some(&row), self.now)?;
            let is_cancelled = row.run.is_some_and(|run| run.is_cancelled);
            Ok(if is_cancelled { Renewed::Cancelled } else { Renewed::Yes })
        };
        held.iter().map(renew).collect()
    }

    pub(super) fn cancel_keys(
        &self,
        queue: &Place,
        keys: &[Key],
        only: Option<State>,
    ) -> Result<Vec<Option<bool>>> {
        let cancel = |key: &Key| {
            let row = load_row(self.connection, queue.id, key)?;
            let fits = |row: &Row| only.is_none_or(|only| row.state(self.now) == only);
            let Some(row) = row.filter(fits) else {
                return Ok(Some(false));
            };
            let was_failing = row.failures > 0;
            let (row, was_any) = row.cancel();
            keep_row(self.connection, queue.id, key, row.as_ref(), self.now)?;
            self.forget_attempts(queue, key, was_failing, row.as_ref())?;
            Ok(Some(was_any))
        };
        keys.iter().map(cancel).collect()
    }

    pub(super) fn cancel_running(&self, queue: &Place, key: &Key) -> Result<CancelledRun> {
        let Some(mut row) = load_row(self.connection, queue.id, key)? else {
            return Ok(CancelledRun::NotInFlight);
        };
        let cancelled = row.cancel_run();
        if cancelled == CancelledRun::Cancelled {
            keep_row(self.connection, queue.id, key, Some(&row), self.now)?;
        }
        Ok(cancelled)
    }

    /// Returns a number that changes when a run is cancelled: the sum of the tokens of the cancelled runs in flight.
    pub(super) fn cancel_sum(&self, queue: &Place) -> Result<u64> {
        let sql = "select epoch from keys indexed by keys_leases \
                   where queue = ?1 and state = 1 and cancel_epoch = epoch";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut epochs = statement.query_map([queue.id], |row| row.get::<_, i64>(0))?;
        epochs.try_fold(0, |sum: u64, epoch| Ok(sum.wrapping_add(epoch?.unsigned_abs())))
    }

    pub(super) fn make_ready(
        &self,
        queue: &Place,
        keys: &[Key],
        from: State,
    ) -> Result<Vec<Option<bool>>> {
        let make_ready = |key: &Key| {
            let Some(mut row) = load_row(self.connection, queue.id, key)? else {
                return Ok(Some(false));
            };
            let was_failing = row.failures > 0;
            let is_changed = row.make_ready(from, self.now);
            if is_changed {
                keep_row(self.connection, queue.id, key, Some(&row), self.now)?;
                self.forget_attempts(queue, key, was_failing, Some(&row))?;
            }
            Ok(Some(is_changed))
        };
        keys.iter().map(make_ready).collect()
    }

    pub(super) fn look_up(&self, queue: &Place, key: Key) -> Result<Option<Entry>> {
        let row = load_row(self.connection, queue.id, &key)?;
        Ok(row.map(|row| row.to_entry(key, self.now)))
    }

    pub(super) fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        let sql = page_sql(state, after.is_some());
        let mut statement = self.connection.prepare_cached(&sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found =
            statement.query_map(params![queue.id, limit, self.now, after.as_deref()], read_row)?;
        found.map(|found| found.map(|(key, row)| row.to_entry(key, self.now))).collect()
    }

    pub(super) fn count_keys(&self, queue: &Place) -> Result<StateCounts> {
        let sql = format!(
            "select {}, min(since) filter (where state = 0 and at <= :now) \
             from keys where queue = :queue",
            StateCounts::columns(":now")
        );
        let counts = |row: &rusqlite::Row<'_>| {
            let oldest: Option<Micros> = row.get(5)?;
            let oldest_ready = oldest.map_or(Duration::ZERO, |at| until(at, self.now));
            Ok(StateCounts { oldest_ready, ..StateCounts::read(row)? })
        };
        let params = named_params! { ":queue": queue.id, ":now": self.now };
        self.connection.prepare_cached(&sql)?.query_row(params, counts)
    }

    pub(super) fn is_idle(&self, queue: &Place) -> Result<bool> {
        let sql = "select not exists (select 1 from keys indexed by keys_ready \
                       where queue = ?1 and state = 0 and grp is null) \
                   and not exists (select 1 from keys indexed by keys_turns \
                       where queue = ?1 and state = 0 and is_due = 1) \
                   and not exists (select 1 from keys indexed by keys_delayed \
                       where queue = ?1 and state = 0 and is_due = 0 and grp is not null) \
                   and not exists (select 1 from keys indexed by keys_leases \
                       where queue = ?1 and state = 1)";
        self.connection.prepare_cached(sql)?.query_row([queue.id], |row| row.get(0))
    }
}

/// Reads the settings of a queue. They begin at the second column of the row.
fn settings(row: &rusqlite::Row<'_>) -> Result<Settings> {
    let keeps: bool = row.get(2)?;
    let (group_by, group_limit, rate) = (row.get(3)?, row.get(4)?, read_rate(row, 5)?);
    Ok(Settings { group_by, group_limit, rate, ..Settings::from_flags(row.get(1)?, !keeps) })
}

/// Returns the query of a page. Its parameters `?1` to `?4` are the queue, the limit, the time, and the key before the
/// page.
pub(super) fn page_sql(state: Option<State>, is_next: bool) -> String {
    // Few keys are in flight, and the index of parked keys contains only parked keys, so these states use an index.
    // Keys in the other states are common, so a scan in the order of keys soon finds enough of them.
    let (index, which) = match state {
        None => ("", ""),
        Some(State::Ready) => ("not indexed", "and state = 0 and at <= ?3"),
        Some(State::Waiting) => ("not indexed", "and state = 0 and at > ?3"),
        Some(State::InFlight) => ("indexed by keys_leases", "and state = 1"),
        Some(State::Parked) => ("indexed by keys_parked", "and state = 2"),
        // The table has no damaged rows, because its constraints refuse them.
        Some(State::Damaged) => ("", "and false"),
    };
    let after = if is_next { "and key > ?4" } else { "and ?4 is null" };
    format!(
        "select {} from keys {index} where queue = ?1 {which} {after} and ?3 is not null \
         order by key limit ?2",
        *COLUMNS
    )
}

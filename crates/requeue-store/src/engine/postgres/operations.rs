//! Implements the operations of the engine. Each of them calls a function of the schema with a batch.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use requeue::CancelledRun;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_postgres::Row as SqlRow;

use super::adding::Batch;
use super::params::{Param, Params};
use super::schedules::Order;
use super::sessions::Sessions;
use super::values::{
    Rest, clean_text, count, entry_columns, failing_params, from_count, how_to_end, is_hold,
    number, number_of, rate_parts, read_entry, read_failed, read_indexes, read_place, read_rate,
    read_settings,
};
use super::watermark::{LOWEST, Lows, Snapshot};
use super::{Postgres, faults, schema};
use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::attempts::last_attempts;
use crate::engine::receipts::Attempts;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::{Micros, micros, until};
use crate::engine::turns::{Bands, Round, Turn, Visited};
use crate::engine::{
    Answers, Ask, Asked, Claim, Claimed, Delivery, Dropped, End, Engine, Finish, GroupChange,
    Place, Renewed, Settings, Tried, lock,
};
use crate::types::action::ActionRecord;
use crate::types::add::{Added, ParkedAdd};
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::inspect::GroupInfo;
use crate::types::inspect::{Attempt, Entry, ParkedKey, QueueInfo, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// If another transaction has locked keys in flight, the first limit of a queue is set again after this delay. The
/// attempts end after `PATIENCE`.
const PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(5);

/// The parameters of completions, as a row of SQL.
macro_rules! ends {
    () => {
        "row($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)::requeue.ends"
    };
}

#[async_trait]
impl Engine for Postgres {
    async fn migrate_schema(&self) -> Answer<()> {
        schema::migrate_schema(&self.sessions, schema::STEPS).await
    }

    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place> {
        // Most queues exist, so the queue is searched first. In addition, a role that may not create queues can call
        // only `find`.
        if let Some(place) = self.find_queue(name).await? {
            return Ok(place);
        }
        let sql = "select has_function_privilege('requeue.open(text, boolean, boolean, text, integer, bigint[])', 'execute')";
        if !self.sessions.query_row(sql, &[]).await?.get::<_, bool>(0) {
            return Err(EngineError::refused(
                "the queue does not exist, and this role may not create it; use \
                     another role, or grant it requeue.open",
            ));
        }
        let sql = "select id, holds, revives, group_by, group_limit, rate \
                   from requeue.open($1, $2, $3, $4, $5, nullif($6::bigint[], '{}'))";
        let revives = settings.parked_add == ParkedAdd::Revive;
        let hold = is_hold(settings.readd_policy);
        let (by, limit) = (settings.group_by.as_deref(), settings.group_limit.map(count));
        let rate = rate_parts(settings.rate);
        let params: [&dyn Param; 6] = [&name, &hold, &revives, &by, &limit, &rate];
        Ok(read_place(name, &self.sessions.query_row(sql, &params).await?))
    }

    async fn find_queue(&self, name: &str) -> Answer<Option<Place>> {
        schema::check_version(&self.sessions, schema::STEPS).await?;
        let sql = "select id, holds, revives, group_by, group_limit, rate from requeue.find($1)";
        let rows = self.sessions.query_rows(sql, &[&name]).await?;
        Ok(rows.first().map(|row| read_place(name, row)))
    }

    async fn drop_queue(&self, name: &str, keys_too: bool) -> Answer<Dropped> {
        schema::check_version(&self.sessions, schema::STEPS).await?;
        let sql = "select ready, waiting, in_flight, dirty, parked, dropped, schedules \
                       from requeue.drop_queue($1, $2)";
        let row = self.sessions.query_row(sql, &[&name, &keys_too]).await;
        let row = row.map_err(name_open_adds)?;
        Ok(match row.get::<_, Option<bool>>(5) {
            None => Dropped::Missing,
            Some(true) => Dropped::Yes(read_counts(&row)?),
            Some(false) => Dropped::Kept(read_counts(&row)?, row.get::<_, i64>(6).unsigned_abs()),
        })
    }

    async fn list_queues(&self) -> Answer<Vec<QueueInfo>> {
        schema::check_version(&self.sessions, schema::STEPS).await?;
        let sql = "select q.id, q.hold, q.revive, q.group_by, q.group_limit, q.rate, q.name, \
                       not exists (select from requeue.keys k where k.queue = q.id), q.paused \
                       from requeue.queues q";
        let info = |row: &SqlRow| read_settings(row).into_info(row.get(6), row.get(7), row.get(8));
        Ok(self.sessions.query_rows(sql, &[]).await?.iter().map(info).collect())
    }

    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        _: &mut Attempts,
        tried: Tried,
    ) -> Answers<Added> {
        let sql = match tried {
            Tried::No => "select requeue.add_all_soon($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            Tried::InVain => "select requeue.add_free($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        };
        let batch = Batch::new(asks.iter().map(|ask| (&*ask.key, ask.add)));
        let order = batch.order.iter();
        let adds: Vec<i32> = order.clone().map(|&n| count(asks[n].adds)).collect();
        let groups: Vec<Option<&str>> = if queue.group_by.is_some() {
            order.clone().map(|&n| asks[n].group.as_deref()).collect()
        } else {
            Vec::new()
        };
        let traces: Vec<Option<Cow<'_, str>>> = if asks.iter().any(|ask| ask.trace.is_some()) {
            order.map(|&n| asks[n].trace.as_deref().map(clean_text)).collect()
        } else {
            Vec::new()
        };
        let Batch { keys, afters, hows, priorities, flags, mosts, .. } = &batch;
        let id = number(queue);
        let params: [&dyn Param; 10] =
            [&id, keys, afters, hows, priorities, flags, &adds, mosts, &groups, &traces];
        let row = self.query_row(queue, sql, &params).await?;
        let added = batch.read_answers(&row).map_err(|error| faults::of_statement(&error))?;
        if tried == Tried::No && added.contains(&None) {
            return Err(EngineError::refused("the server returned no row"));
        }
        Ok(added)
    }

    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        name_dropped(queue, self.claims.claim(queue, &claim).await)
    }

    async fn set_paused(&self, queue: &Place, paused: bool) -> Answer<()> {
        let sql = "select requeue.set_paused($1, $2)";
        self.query_row(queue, sql, &[&number(queue), &paused]).await.map(drop)
    }

    async fn change_group(&self, queue: &Place, group: &str, change: GroupChange) -> Answer<()> {
        let (setting, value) = match change {
            GroupChange::Limit(limit) => (0, limit.map(count)),
            GroupChange::Weight(weight) => (1, Some(count(weight))),
            GroupChange::Paused(paused) => (2, Some(paused.into())),
            GroupChange::Rate(rate) => {
                let sql = "select requeue.set_group_rate($1, $2, nullif($3::bigint[], '{}'))";
                let rate = rate_parts(rate);
                let set = self.query_row(queue, sql, &[&number(queue), &group, &rate]).await;
                return set.map(drop);
            }
        };
        let sql = "select requeue.change_group($1, $2, $3, $4)";
        self.set_limit(queue, sql, &[&number(queue), &group, &setting, &value]).await
    }

    async fn set_group_limit(&self, queue: &Place, limit: Option<u32>) -> Answer<()> {
        let sql = "select requeue.set_group_limit($1, $2)";
        self.set_limit(queue, sql, &[&number(queue), &limit.map(count)]).await
    }

    async fn list_groups(
        &self,
        queue: &Place,
        after: Option<&str>,
        limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        let _turn = self.looks.acquire().await;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [&dyn Param; 3] = [&number(queue), &limit, &after];
        let rows = self.query_rows(queue, &groups_sql(after.is_some()), &params).await?;
        if rows.is_empty() {
            self.check_queue(queue).await?;
        }
        rows.iter().map(read_group).collect()
    }

    async fn put_schedule(&self, queue: &Place, schedule: Scheduled) -> Answer<Agenda> {
        self.store_schedule(queue, schedule).await
    }

    async fn remove_schedule(&self, queue: &Place, key: &Key) -> Answer<bool> {
        let sql = "select requeue.remove_schedule($1, $2)";
        Ok(self.query_row(queue, sql, &[&number(queue), &&**key]).await?.get(0))
    }

    async fn pause_schedule(&self, queue: &Place, key: &Key, paused: bool) -> Answer<bool> {
        let sql = "select requeue.set_schedule_paused($1, $2, $3)";
        Ok(self.query_row(queue, sql, &[&number(queue), &&**key, &paused]).await?.get(0))
    }

    async fn look_up_schedule(&self, queue: &Place, key: &Key) -> Answer<Agenda> {
        self.read_schedules(queue, Order::Only(key), 1).await
    }

    async fn list_schedules(
        &self,
        queue: &Place,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Agenda>> {
        Ok(vec![self.read_schedules(queue, Order::Key(after), limit).await?])
    }

    async fn next_schedules(&self, queue: &Place, _: usize, limit: usize) -> Answer<Agenda> {
        self.read_schedules(queue, Order::Due, limit).await
    }

    async fn record_activity(&self, queue: &Place, record: Record) -> Answer<Recorded> {
        self.store_activity(queue, record).await
    }

    async fn read_activity(&self, queue: &Place, which: Which) -> Answer<Parts> {
        self.read_parts(queue, which).await
    }

    async fn merge_activity(&self, queue: &Place, merging: Merging) -> Answer<bool> {
        self.merge_parts(queue, merging).await
    }

    async fn record_action(&self, queue: &Place, action: ActionRecord) -> Answer<()> {
        self.store_action(queue, action).await
    }

    async fn last_actions(&self, queue: &Place) -> Answer<Vec<ActionRecord>> {
        self.read_actions(queue).await
    }

    async fn fire_schedule(&self, queue: &Place, was: &Scheduled, firing: Firing) -> Answer<bool> {
        self.fire_stored(queue, was, firing).await
    }

    async fn is_paused(&self, queue: &Place) -> Answer<bool> {
        let sql = "select q.paused from requeue.queues q where q.id = $1";
        match self.query_rows(queue, sql, &[&number(queue)]).await?.first() {
            Some(row) => Ok(row.get(0)),
            None => Err(EngineError::dropped(&queue.name)),
        }
    }

    async fn read_rate(&self, queue: &Place) -> Answer<Option<Throttle>> {
        let sql = "select q.rate, requeue.next_start(q.rate, r.next_at, n.t) - n.t \
                   from requeue.queues q cross join (select requeue.now() as t) n \
                   left join requeue.rates r on r.queue = q.id and r.name = e'\\u0001' where q.id = $1";
        match self.query_rows(queue, sql, &[&number(queue)]).await?.first() {
            Some(row) => Ok(read_throttle(row, 0)),
            None => Err(EngineError::dropped(&queue.name)),
        }
    }

    async fn set_rate(&self, queue: &Place, rate: Option<Rate>) -> Answer<()> {
        let sql = "select requeue.set_rate($1, nullif($2::bigint[], '{}'))";
        let rate = rate_parts(rate);
        self.query_row(queue, sql, &[&number(queue), &rate]).await.map(drop)
    }

    async fn set_first_rate(&self, queue: &Place, rate: Rate) -> Answer<Rate> {
        let sql = "select requeue.set_first_rate($1, $2)";
        let parts = rate_parts(Some(rate));
        let row = self.query_row(queue, sql, &[&number(queue), &parts]).await?;
        Ok(read_rate(&row, 0).unwrap_or(rate))
    }

    async fn send_completions(&self, queue: &Place, ends: Vec<End>, tried: Tried) -> Answers<bool> {
        let sql = match tried {
            Tried::No => {
                concat!("select requeue.finish_soon($1, $2, ", ends!(), ", $18), '{}'::integer[]")
            }
            Tried::InVain => {
                concat!("select held, locked from requeue.finish_free($1, $2, ", ends!(), ", $18)")
            }
        };
        let keys: Vec<&[u8]> = ends.iter().map(|end| &*end.key).collect();
        let epochs: Vec<i64> = ends.iter().map(|end| end.epoch).collect();
        let hows: Vec<i16> = ends.iter().map(|end| how_to_end(&end.how)).collect();
        let mut rest = Rest::default();
        // If all runs have succeeded, the statement has no further parameters.
        if hows.iter().any(|&how| how != 0) {
            ends.iter().for_each(|end| rest.push(&end.how));
        }
        let (id, hold) = (number(queue), is_hold(queue.readd_policy));
        let Rest { delays, priorities, adds, flags, errors, bases, caps, shares, mosts, .. } =
            &rest;
        let Rest { tooks, statuses, outputs, .. } = &rest;
        let of_all: [&dyn Param; 5] = [&id, &hold, &keys, &epochs, &hows];
        let of_others: [&dyn Param; 9] =
            [delays, priorities, adds, flags, errors, bases, caps, shares, mosts];
        let of_failures: [&dyn Param; 4] = [tooks, statuses, outputs, &queue.keeps_past];
        let params = [&of_all[..], &of_others[..], &of_failures[..]].concat();
        let row = self.query_row(queue, sql, &params).await;
        if ends.iter().any(|end| matches!(end.how, Finish::Unclaim(..))) {
            // Unclaimed keys return to their places in the order, which may be before the start of the next claim.
            // Therefore, a scan is needed, even if the answer was lost, because the keys may have returned.
            self.claims.scan_soon(queue);
        }
        Ok(changed(&row?, ends.len()))
    }

    async fn renew_leases(
        &self,
        queue: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>> {
        let sql = "select renewed, busy, rest, cancelled from requeue.renew($1, $2, $3, $4)";
        let (id, lease) = (number(queue), micros(lease));
        let mut renewed = vec![Renewed::Lost; held.len()];
        let mut left: Vec<usize> = (0..held.len()).collect();
        while !left.is_empty() {
            let keys: Vec<&[u8]> = left.iter().map(|&n| &*held[n].0).collect();
            let epochs: Vec<i64> = left.iter().map(|&n| held[n].1).collect();
            // Renewals have separate connections, because all other connections may be waiting for locks.
            let row = self.renewals.query_row(sql, &[&id, &keys, &epochs, &lease]).await;
            let row = name_dropped(queue, row)?;
            read_indexes(&row, 0).into_iter().for_each(|n| renewed[left[n]] = Renewed::Yes);
            read_indexes(&row, 1).into_iter().for_each(|n| renewed[left[n]] = Renewed::Busy);
            read_indexes(&row, 3).into_iter().for_each(|n| renewed[left[n]] = Renewed::Cancelled);
            left = read_indexes(&row, 2).into_iter().map(|n| left[n]).collect();
        }
        Ok(renewed)
    }

    async fn cancel_keys(
        &self,
        queue: &Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answers<bool> {
        let sql = "select cancelled, locked from requeue.cancel($1, $2, $3)";
        self.changed(sql, queue, keys, only).await
    }

    async fn cancel_running(&self, queue: &Place, key: &Key) -> Answer<CancelledRun> {
        let sql = "select requeue.cancel_running($1, $2)";
        let row = self.query_row(queue, sql, &[&number(queue), &&**key]).await?;
        Ok(match row.get::<_, i32>(0) {
            0 => CancelledRun::NotInFlight,
            1 => CancelledRun::Cancelled,
            _ => CancelledRun::AlreadyCancelled,
        })
    }

    /// Returns the number of notifications that a run was cancelled. Behind a pooler, without `listen`, the number
    /// never changes.
    async fn cancel_signal(&self, queue: &Place) -> Answer<u64> {
        Ok(self.listener.cancel_count(queue.id))
    }

    async fn make_ready(&self, queue: &Place, keys: Vec<Key>, from: State) -> Answers<bool> {
        let sql = "select revived, locked from requeue.revive($1, $2, $3)";
        self.changed(sql, queue, keys, Some(from)).await
    }

    async fn look_up(&self, queue: &Place, key: &Key) -> Answer<Option<Entry>> {
        let sql = format!(
            "select {} from requeue.keys k cross join (select requeue.now() as t) n \
                 where k.queue = $1 and k.key = $2",
            entry_columns()
        );
        let rows = self.query_rows(queue, &sql, &[&number(queue), &&**key]).await?;
        if rows.is_empty() {
            self.check_queue(queue).await?;
        }
        rows.first().map(read_entry).transpose()
    }

    async fn read_attempts(&self, queue: &Place, key: &Key) -> Answer<Vec<Attempt>> {
        // The query cuts the texts, because another program may have written longer texts.
        let sql = "select k.failures, requeue.now(), a.number, a.at, a.took, a.worker, a.exit_status, \
                       left(a.error, 4096), left(a.output, 4096) \
                   from requeue.keys k join requeue.attempts a using (queue, key) \
                   where queue = $1 and key = $2";
        let rows = self.query_rows(queue, sql, &[&number(queue), &&**key]).await?;
        let Some(first) = rows.first() else {
            self.check_queue(queue).await?;
            return Ok(Vec::new());
        };
        let (failures, now) = (from_count(first.get(0)), first.get(1));
        Ok(last_attempts(rows.iter().map(read_failed).collect(), failures, now))
    }

    async fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        // These reads may take minutes. Their number is limited, so that connections remain for claims and completions.
        let _turn = self.looks.acquire().await;
        let sql = page_sql(state, after.is_some());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let after = after.map(|after| &**after);
        let rows = self.query_rows(queue, &sql, &[&number(queue), &limit, &after]).await?;
        if rows.is_empty() {
            self.check_queue(queue).await?;
        }
        rows.iter().map(read_entry).collect()
    }

    async fn count_keys(&self, queue: &Place) -> Answer<StateCounts> {
        let _turn = self.looks.acquire().await;
        let sql = format!(
            "select {}, max(n.t - k.since) filter (where k.state = 0 and k.at <= n.t) \
             from requeue.keys k cross join (select requeue.now() as t) n where k.queue = $1",
            StateCounts::columns("n.t")
        );
        let row = self.query_row(queue, &sql, &[&number(queue)]).await?;
        let oldest_ready = until(0, row.get::<_, Option<i64>>(5).unwrap_or(0));
        let counts = StateCounts { oldest_ready, ..read_counts(&row)? };
        // If all counts are zero, the queue may have been dropped. Any other counts show that it exists.
        if counts == StateCounts::default() {
            self.check_queue(queue).await?;
        }
        Ok(counts)
    }

    async fn is_idle(&self, queue: &Place) -> Answer<bool> {
        Ok(self.query_row(queue, "select requeue.is_idle($1)", &[&number(queue)]).await?.get(0))
    }

    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        self.listener.subscribe_wakes(queue, &self.address, &self.connector)
    }

    fn max_batches(&self) -> usize {
        // With more concurrent batches, each batch would be smaller, and the server would need more time per key.
        2
    }
}

/// Adds the name of the queue to the error about a dropped queue, because the server knows only its id.
fn name_dropped<T>(queue: &Place, answer: Answer<T>) -> Answer<T> {
    answer.map_err(|fault| match fault.kind {
        Kind::Dropped => EngineError::dropped(&queue.name),
        _ => fault,
    })
}

fn read_counts(row: &SqlRow) -> Answer<StateCounts> {
    StateCounts::read(row).map_err(|error| faults::of_statement(&error))
}

/// Reads a row that has the positions of the changed keys and of the locked keys. For each of `count` keys, the result
/// is `Some(true)` if it was changed, `None` if it is locked, and `Some(false)` otherwise.
fn changed(row: &SqlRow, count: usize) -> Vec<Option<bool>> {
    let mut changed = vec![Some(false); count];
    read_indexes(row, 0).into_iter().for_each(|n| changed[n] = Some(true));
    read_indexes(row, 1).into_iter().for_each(|n| changed[n] = None);
    changed
}

/// Replaces the server's message about a lock by a message about the most frequent cause.
fn name_open_adds(fault: EngineError) -> EngineError {
    match fault.kind {
        Kind::Locked => EngineError {
            source:
                "a transaction that has added keys to it is still open; commit it or roll it back"
                    .into(),
            ..fault
        },
        _ => fault,
    }
}

impl Postgres {
    pub(super) async fn query_rows(
        &self,
        queue: &Place,
        sql: &str,
        params: &Params<'_>,
    ) -> Answer<Vec<SqlRow>> {
        name_dropped(queue, self.sessions.query_rows(sql, params).await)
    }

    pub(super) async fn query_row(
        &self,
        queue: &Place,
        sql: &str,
        params: &Params<'_>,
    ) -> Answer<SqlRow> {
        name_dropped(queue, self.sessions.query_row(sql, params).await)
    }

    /// Sets a limit of groups. The first limit of a queue locks the keys in flight. If other transactions have locked
    /// some of them, the call tries again.
    async fn set_limit(&self, queue: &Place, sql: &str, params: &Params<'_>) -> Answer<()> {
        let since = Instant::now();
        loop {
            match self.query_row(queue, sql, params).await {
                Err(fault) if fault.kind == Kind::Locked && since.elapsed() < PATIENCE => {
                    sleep(PAUSE).await;
                }
                done => return done.map(drop).map_err(name_open_adds),
            }
        }
    }

    /// Returns an error if the queue was dropped.
    pub(super) async fn check_queue(&self, queue: &Place) -> Answer<()> {
        self.query_row(queue, "select requeue.check_queue($1)", &[&number(queue)]).await.map(drop)
    }

    /// Calls a function that changes keys in a state. The answer for a key is true if the function has changed the key.
    async fn changed(
        &self,
        sql: &str,
        queue: &Place,
        keys: Vec<Key>,
        state: Option<State>,
    ) -> Answers<bool> {
        let bytes: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let state = state.map(number_of);
        Ok(changed(
            &self.query_row(queue, sql, &[&number(queue), &bytes, &state]).await?,
            keys.len(),
        ))
    }
}

impl Sessions {
    /// Claims keys. Also returns the lower bounds for the next claim, and the transactions that were in progress during
    /// this claim. The newest transactions are included only if `names_newest` is true.
    pub(super) async fn claim(
        &self,
        queue: &Place,
        claim: &Claim,
        lows: &Lows,
        names_newest: bool,
    ) -> Answer<(Claimed, Lows, Snapshot)> {
        // The same statement also reads the time of the next schedule, with one search in an index.
        let plain = "select keys, epochs, priorities, adds, flags, failures, queued, parked, \
                     parked_failures, next_due, lows, snapshot, is_paused, is_rated, traces, failed, \
                     (select s.due_at - requeue.now() from requeue.schedules s \
                      where s.queue = $1 and s.due_at is not null order by s.due_at limit 1) as schedule_in \
                     from requeue.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
        let by_turns = "select keys, epochs, priorities, adds, flags, failures, queued, parked, \
                     parked_failures, next_due, lows, snapshot, is_paused, is_rated, traces, failed, groups, bands, \
                     ring, used, is_next, cursors, is_complete, \
                     (select s.due_at - requeue.now() from requeue.schedules s \
                      where s.queue = $1 and s.due_at is not null order by s.due_at limit 1) as schedule_in \
                     from requeue.claim_turns($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
                     $13, $14, $15, $16, $17, $18)";
        let max = i32::try_from(claim.max).unwrap_or(i32::MAX);
        let oldest = i32::try_from(claim.oldest).unwrap_or(i32::MAX).min(max);
        let (base, cap, share, most) = failing_params(&claim.expired);
        let (id, hold, lease) = (number(queue), is_hold(queue.readd_policy), micros(claim.lease));
        let lows = &lows[..];
        let worker = &*queue.worker;
        let params: [&dyn Param; 12] = [
            &id,
            &hold,
            &max,
            &oldest,
            &lease,
            &base,
            &cap,
            &share,
            &most,
            &lows,
            &names_newest,
            &worker,
        ];
        let past: [&dyn Param; 1] = [&queue.keeps_past];
        if queue.group_by.is_none() {
            let params = [&params[..], &past].concat();
            return self.query_row(plain, &params).await.map(|row| read_claimed(&row));
        }
        let rounds = lock(&queue.turns).next_rounds();
        let visits = Visits::new(&rounds);
        let Visits { bands, ring, used, after, more } = &visits;
        let of_turns: [&dyn Param; 5] = [bands, ring, used, after, more];
        let row = self.query_row(by_turns, &[&params[..], &of_turns, &past].concat()).await?;
        let (mut claimed, lows, snapshot) = read_claimed(&row);
        let groups: Vec<&str> = row.get("groups");
        for (out, group) in claimed.items.iter_mut().zip(groups) {
            out.group = Some(group.into());
        }
        let mut turns = lock(&queue.turns);
        if claimed.is_rated {
            turns.note_rate();
        }
        let is_searching = match row.get("is_complete") {
            Some(is_complete) => {
                let visited = read_visited(&row, is_complete);
                turns.note_visited(visited, claimed.items.len(), claim.max)
            }
            None => {
                turns.return_rounds(rounds);
                false
            }
        };
        drop(turns);
        if is_searching {
            claimed.next = Some(Duration::ZERO);
        }
        Ok((claimed, lows, snapshot))
    }

    /// Returns the earliest ready key of each priority, and the earliest expired lease, among the keys that claims have
    /// skipped. Also returns the time until the next lease expires if the scan covers all keys below `lows`.
    pub(super) async fn passed_over(
        &self,
        queue: i64,
        floors: &Lows,
        lows: &Lows,
    ) -> Answer<([Option<Micros>; 4], Option<Duration>)> {
        let sql = "select passed, next_lease from requeue.passed_over($1, $2, $3)";
        let queue = i32::try_from(queue).unwrap_or(0);
        let row = self.query_row(sql, &[&queue, &&floors[..], &&lows[..]]).await?;
        let found: Vec<Option<Micros>> = row.get(0);
        let lease: Option<Micros> = row.get(1);
        Ok((found.try_into().unwrap_or([None; 4]), lease.map(|lease| until(0, lease))))
    }

    /// Requests notifications of adds to the queue. The request is valid for `time`.
    pub(super) async fn announce_wait(&self, queue: &Place, time: Duration) -> Answer<()> {
        self.query_row("select requeue.wait($1, $2)", &[&number(queue), &micros(time)])
            .await
            .map(drop)
    }
}

/// The groups that a claim visits, as arguments of `requeue.claim_turns`.
struct Visits<'a> {
    bands: Vec<i32>,
    ring: Vec<&'a str>,
    used: Vec<i32>,
    after: Vec<Option<&'a str>>,
    more: Vec<i32>,
}

impl<'a> Visits<'a> {
    fn new(rounds: &'a Bands<Round>) -> Self {
        let turns = || {
            (1..)
                .zip(rounds)
                .flat_map(|(band, round)| round.first.iter().map(move |turn| (band, turn)))
        };
        let more = |round: &Round| i32::try_from(round.more).unwrap_or(i32::MAX);
        Self {
            bands: turns().map(|(band, _)| band).collect(),
            ring: turns().map(|(_, turn)| &*turn.group).collect(),
            used: turns().map(|(_, turn)| count(turn.used)).collect(),
            after: rounds.iter().map(|round| round.after.as_deref()).collect(),
            more: rounds.iter().map(more).collect(),
        }
    }
}

/// Reads the groups that later claims visit. `row` is the result of `requeue.claim_turns`.
fn read_visited(row: &SqlRow, is_complete: Vec<bool>) -> Bands<Visited> {
    let bands: Vec<i32> = row.get("bands");
    let ring: Vec<&str> = row.get("ring");
    let used: Vec<i32> = row.get("used");
    let is_next: Vec<bool> = row.get("is_next");
    let cursors: Vec<Option<&str>> = row.get("cursors");
    let mut visited: Bands<Visited> = Bands::default();
    for (band, visited) in visited.iter_mut().enumerate() {
        visited.cursor = cursors.get(band).copied().flatten().map(Arc::from);
        visited.is_complete = is_complete.get(band).copied().unwrap_or_default();
    }
    let turns = bands.into_iter().zip(ring).zip(used).zip(is_next);
    for (((band, group), used), is_next) in turns {
        let band = usize::try_from(band).ok().and_then(|band| band.checked_sub(1));
        let Some(visited) = band.and_then(|band| visited.get_mut(band)) else { continue };
        match is_next {
            true => visited.next.push(Turn { group: group.into(), used: from_count(used) }),
            false => visited.last.push(group.into()),
        }
    }
    visited
}

/// Reads the result of `requeue.claim`. Arrays about the same keys have the same length.
fn read_claimed(row: &SqlRow) -> (Claimed, Lows, Snapshot) {
    let keys: Vec<&[u8]> = row.get("keys");
    let epochs: Vec<i64> = row.get("epochs");
    let priorities: Vec<i16> = row.get("priorities");
    let adds: Vec<i32> = row.get("adds");
    let flags: Vec<i32> = row.get("flags");
    let failures: Vec<i32> = row.get("failures");
    let queued: Vec<i64> = row.get("queued");
    let traces: Option<Vec<Option<&str>>> = row.get("traces");
    let failed: Option<Vec<Option<i64>>> = row.get("failed");
    let delivery = |(n, key): (usize, &&[u8])| Delivery {
        key: Key::from(*key),
        epoch: epochs[n],
        asked: Asked {
            adds: from_count(adds[n]),
            flags: flags[n].cast_unsigned(),
            priority: i32::from(priorities[n]).into(),
        },
        failures: from_count(failures[n]),
        queued: until(0, queued[n]),
        group: None,
        trace: traces.as_ref().and_then(|traces| traces[n]).map(Arc::from),
        failed: failed.as_ref().and_then(|failed| failed[n]).map(|time| until(0, time)),
    };
    let parked: Vec<&[u8]> = row.get("parked");
    let last_failures: Vec<i32> = row.get("parked_failures");
    let parked = parked.into_iter().zip(last_failures);
    let next_due: Option<i64> = row.get("next_due");
    let schedule_in: Option<i64> = row.get("schedule_in");
    let claimed = Claimed {
        schedule_in: schedule_in.map(|time| until(0, time)),
        items: keys.iter().enumerate().map(delivery).collect(),
        next: next_due.map(|time| until(0, time)),
        parked: parked
            .map(|(key, n)| ParkedKey::from_expired_lease(key.into(), from_count(n)))
            .collect(),
        is_paused: row.get("is_paused"),
        is_rated: row.get("is_rated"),
        ..Claimed::default()
    };
    let lows: Vec<i64> = row.get("lows");
    let snapshot = Snapshot::parse(row.get("snapshot")).unwrap_or_default();
    (claimed, lows.try_into().unwrap_or(LOWEST), snapshot)
}

/// Returns the query of a page of groups. Its parameters `$1` to `$3` are the queue, the limit, and the group before
/// the page.
fn groups_sql(is_next: bool) -> String {
    let after_this = if is_next { "name > $3 collate \"C\"" } else { "$3::text is null" };
    format!(
        "select {}, max(n.t - k.since) filter (where k.state = 0 and k.at <= n.t), \
             g.name, coalesce(g.most, q.group_limit), g.weight, g.paused, g.rate, \
             max(requeue.next_start(g.rate, r.next_at, n.t) - n.t) \
         from ( \
             select * from ( \
                 select name, most, weight, paused, rate from requeue.groups where queue = $1 \
                 union all \
                 select distinct grp, null::integer, 1, false, null::bigint[] from requeue.keys k \
                 where k.queue = $1 and grp is not null and not exists ( \
                     select from requeue.groups s where s.queue = $1 and s.name = grp) \
             ) a where {after_this} order by name limit $2 \
         ) g cross join (select requeue.now() as t) n join requeue.queues q on q.id = $1 \
         left join requeue.rates r on r.queue = $1 and r.name = g.name \
         left join requeue.keys k on k.queue = $1 and k.grp = g.name \
         group by g.name, g.most, g.weight, g.paused, g.rate, q.group_limit order by g.name",
        StateCounts::columns("n.t")
    )
}

fn read_group(row: &SqlRow) -> Answer<GroupInfo> {
    let oldest_ready = until(0, row.get::<_, Option<i64>>(5).unwrap_or(0));
    let throttle = read_throttle(row, 10);
    Ok(GroupInfo {
        counts: StateCounts { oldest_ready, ..read_counts(row)? },
        name: row.get(6),
        limit: row.get::<_, Option<i32>>(7).map(from_count),
        weight: from_count(row.get(8)),
        is_paused: row.get(9),
        rate: throttle.map(|throttle| throttle.rate),
        next_start: throttle.map(|throttle| throttle.next_start),
    })
}

/// Reads a rate from a column, and the time until its next start from the next column.
fn read_throttle(row: &SqlRow, column: usize) -> Option<Throttle> {
    let rate = read_rate(row, column)?;
    Some(Throttle { rate, next_start: until(0, row.get(column + 1)) })
}

/// Returns the query of a page of keys. Its parameters `$1` to `$3` are the queue, the limit, and the key before the
/// page.
pub(super) fn page_sql(state: Option<State>, is_next: bool) -> String {
    let which = match state {
        None => "",
        Some(State::Ready) => "and k.state = 0 and k.at <= n.t",
        Some(State::Waiting) => "and k.state = 0 and k.at > n.t",
        Some(State::InFlight) => "and k.state = 1",
        Some(State::Parked) => "and k.state = 2",
        // The table has no damaged rows, because its constraints refuse them.
        Some(State::Damaged) => "and false",
    };
    let after_this = if is_next { "k.key > $3" } else { "$3::bytea is null" };
    format!(
        "select {} from requeue.keys k cross join (select requeue.now() as t) n \
         where k.queue = $1 and {after_this} {which} order by k.key limit $2",
        entry_columns()
    )
}

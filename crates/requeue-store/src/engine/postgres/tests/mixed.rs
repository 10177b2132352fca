//! An engine whose claims, completions and renewals alternate: one is made by the engine, and the next by the SQL
//! functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use requeue::CancelledRun;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::changing::other;
use super::*;
use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::receipts::Attempts;
use crate::engine::{
    Answers, Asked, Backoff, Claimed, Delivery, Dropped, Failing, Finish, GroupChange, Tried,
};
use crate::types::add::Priority;
use crate::types::error::Answer;
use crate::types::inspect::{Attempt, Entry, GroupInfo, QueueInfo};
use crate::types::rate::{Rate, Throttle};

/// The conformance tests need backoffs that are not random, and leases that are shorter than those that SQL permits.
const EXACT: &str = "create or replace function requeue.jitter() returns double precision \
         language sql volatile return 1; \
     create or replace function requeue.checked_duration(name text, value interval, shortest bigint) \
         returns bigint language sql return requeue.delay(value)";
/// A poll interval that is longer than all delays.
const NEVER: &str = "10000 days";

#[derive(Debug)]
pub(super) struct Mixed {
    rust: Arc<Postgres>,
    sql: Client,
    count: AtomicUsize,
}

impl Mixed {
    /// Creates the engine. The clock of `rust` must be stopped.
    pub(super) async fn new(rust: Arc<Postgres>, url: &str) -> Self {
        let sql = other(url).await;
        sql.batch_execute(EXACT).await.expect("the functions are replaced");
        Self { rust, sql, count: AtomicUsize::new(0) }
    }

    /// Returns true if the next operation is made in SQL. SQL names the queue, so it cannot use a queue that was
    /// dropped.
    async fn is_sql(&self, queue: &Place) -> bool {
        let sql = "select exists (select from requeue.queues where name = $1 and id::bigint = $2)";
        let rows = self.call(sql, &[&queue.name, &queue.id]).await.expect("answered");
        rows[0].get(0) && self.count.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    async fn call(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Answer<Vec<Row>> {
        self.sql.query(sql, params).await.map_err(|error| faults::of_statement(&error))
    }

    /// Returns the time until the next claim, or `None` if no claim is needed.
    async fn listen(&self, queue: &Place) -> Answer<Option<Duration>> {
        let sql =
            "select (extract(epoch from requeue.listen($1, $2::text::interval)) * 1000000)::bigint";
        let next: i64 = self.call(sql, &[&queue.name, &NEVER]).await?[0].get(0);
        let next = Duration::from_micros(next.unsigned_abs());
        Ok((next < Duration::from_secs(10_000 * 24 * 3600)).then_some(next))
    }

    async fn claim_by_sql(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        // The first call in a session returns 0, because the session must claim first.
        self.listen(queue).await?;
        let sql = "select key, token, attempt, adds, flags, priority, \"group\", \
                 (extract(epoch from queued) * 1000000)::bigint \
             from requeue.claim($1, $2, $3, $4::text::interval, $5::text::interval, $6::text::interval, $7)";
        let Failing { backoff: Backoff { base, cap, .. }, max_failures } = claim.expired;
        let max = i32::try_from(claim.max).expect("a few keys");
        let most = max_failures.map(|most| i32::try_from(most).expect("a small limit"));
        let [lease, base, cap] = [claim.lease, base, cap].map(interval);
        let worker = if queue.worker.is_empty() { "w" } else { &*queue.worker };
        let params: [&(dyn ToSql + Sync); 7] =
            [&queue.name, &worker, &max, &lease, &base, &cap, &most];
        let rows = self.call(sql, &params).await?;
        let is_paused = self.rust.is_paused(queue).await?;
        let (items, next) = (rows.iter().map(read_delivery).collect(), self.listen(queue).await?);
        Ok(Claimed { items, next, is_paused, is_rated: true, ..Claimed::default() })
    }

    async fn end_by_sql(&self, queue: &Place, end: &End) -> Answer<bool> {
        let mut arguments = String::new();
        let mut argue = |name: &str, value: String| arguments += &format!(", {name} => {value}");
        let time = |time: Duration| format!("'{}'", interval(time));
        let most = |most: Option<u32>| most.map_or("null".to_owned(), |most| most.to_string());
        let function = match &end.how {
            Finish::Succeed => "complete",
            Finish::RequeueAfter(delay, _) => {
                argue("after", time(*delay));
                "complete"
            }
            Finish::Retry(Failing { backoff, max_failures }, _) => {
                argue("backoff", time(backoff.base));
                argue("max_backoff", time(backoff.cap));
                argue("max_failures", most(*max_failures));
                "fail"
            }
            Finish::RetryAfter(delay, max_failures, _) => {
                argue("after", time(*delay));
                argue("max_failures", most(*max_failures));
                "fail"
            }
            Finish::GiveUp(_) => {
                argue("park", "true".to_owned());
                "fail"
            }
            Finish::Release(_) => "release",
            Finish::Cancelled => "cancelled",
            Finish::Unclaim(..) => unreachable!("only Rust claims ahead"),
        };
        if let Some(failure) = end.how.failure() {
            argue("error", format!("'{}'", failure.error));
        }
        let sql = format!("select requeue.{function}($1, $2, $3{arguments})");
        Ok(self.call(&sql, &[&queue.name, &&*end.key, &end.epoch]).await?[0].get(0))
    }
}

fn interval(time: Duration) -> String {
    format!("{} us", crate::engine::time::micros(time))
}

fn read_delivery(row: &Row) -> Delivery {
    let [attempt, adds, flags]: [i32; 3] = [2, 3, 4].map(|column| row.get(column));
    let priority = match row.get(5) {
        "low" => Priority::Low,
        "normal" => Priority::Normal,
        "high" => Priority::High,
        other => panic!("no priority: {other}"),
    };
    let asked = Asked { adds: adds.unsigned_abs(), flags: flags.cast_unsigned(), priority };
    Delivery {
        key: row.get::<_, &[u8]>(0).into(),
        epoch: row.get(1),
        asked,
        failures: attempt.unsigned_abs() - 1,
        queued: Duration::from_micros(row.get::<_, i64>(7).unsigned_abs()),
        group: row.get::<_, Option<&str>>(6).map(Arc::from),
        trace: None,
        failed: None,
    }
}

/// Implements [`Engine`] with the methods in braces, and otherwise with the methods of `rust`.
macro_rules! delegate {
    ($self:ident { $($own:tt)* } $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Engine for Mixed {
            $($own)*
            $(async fn $name(&$self, $($arg: $type),*) -> Answer<$answer> {
                $self.rust.$name($($arg),*).await
            })*
        }
    };
}

delegate! {
    self {
        async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
            match self.is_sql(queue).await {
                true => self.claim_by_sql(queue, claim).await,
                false => self.rust.claim_keys(queue, claim).await,
            }
        }

        async fn send_completions(&self, queue: &Place, ends: Vec<End>, tried: Tried) -> Answers<bool> {
            let mut held = Vec::new();
            for end in ends {
                let is_possible = tried == Tried::No && !matches!(end.how, Finish::Unclaim(..));
                if is_possible && self.is_sql(queue).await {
                    held.push(Some(self.end_by_sql(queue, &end).await?));
                } else {
                    held.extend(self.rust.send_completions(queue, vec![end], tried).await?);
                }
            }
            Ok(held)
        }

        async fn renew_leases(
            &self,
            queue: &Place,
            held: Vec<(Key, i64)>,
            lease: Duration,
        ) -> Answer<Vec<Renewed>> {
            if !self.is_sql(queue).await {
                return self.rust.renew_leases(queue, held, lease).await;
            }
            let mut renewed = Vec::new();
            for (key, epoch) in &held {
                let sql = "select requeue.renew_lease($1, $2, $3, $4::text::interval)";
                let rows = self.call(sql, &[&queue.name, &&**key, epoch, &interval(lease)]).await?;
                renewed.push(match rows[0].get(0) {
                    "renewed" => Renewed::Yes,
                    "cancelled" => Renewed::Cancelled,
                    "lost" => Renewed::Lost,
                    other => panic!("no other transaction holds the key: {other}"),
                });
            }
            Ok(renewed)
        }

        fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64> {
            self.rust.subscribe_wakes(queue)
        }

        fn max_batches(&self) -> usize {
            self.rust.max_batches()
        }
    }
    fn migrate_schema() -> ();
    fn open_queue(name: &str, settings: Settings) -> Place;
    fn find_queue(name: &str) -> Option<Place>;
    fn drop_queue(name: &str, keys_too: bool) -> Dropped;
    fn list_queues() -> Vec<QueueInfo>;
    fn send_adds(queue: &Place, asks: Vec<Ask>, attempts: &mut Attempts, tried: Tried) -> Vec<Option<Added>>;
    fn set_paused(queue: &Place, paused: bool) -> ();
    fn is_paused(queue: &Place) -> bool;
    fn read_rate(queue: &Place) -> Option<Throttle>;
    fn set_rate(queue: &Place, rate: Option<Rate>) -> ();
    fn change_group(queue: &Place, group: &str, change: GroupChange) -> ();
    fn set_group_limit(queue: &Place, limit: Option<u32>) -> ();
    fn list_groups(queue: &Place, after: Option<&str>, limit: usize) -> Vec<GroupInfo>;
    fn record_activity(queue: &Place, record: Record) -> Recorded;
    fn read_activity(queue: &Place, which: Which) -> Parts;
    fn merge_activity(queue: &Place, merging: Merging) -> bool;
    fn cancel_keys(queue: &Place, keys: Vec<Key>, only: Option<State>) -> Vec<Option<bool>>;
    fn cancel_running(queue: &Place, key: &Key) -> CancelledRun;
    fn make_ready(queue: &Place, keys: Vec<Key>, from: State) -> Vec<Option<bool>>;
    fn look_up(queue: &Place, key: &Key) -> Option<Entry>;
    fn read_attempts(queue: &Place, key: &Key) -> Vec<Attempt>;
    fn read_page(queue: &Place, state: Option<State>, after: Option<&Key>, limit: usize) -> Vec<Entry>;
    fn count_keys(queue: &Place) -> StateCounts;
    fn is_idle(queue: &Place) -> bool;
}

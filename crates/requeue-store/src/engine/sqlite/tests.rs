//! Tests the file and the operations on it.

mod damaged;
mod file;
mod upgrading;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rusqlite::StatementStatus;
use tempfile::TempDir;

use super::clock::Reading;
use super::operations::READY;
use super::thread::MAX_LOG;
use super::*;
use crate::tests::Batches as _;
use crate::tests::BoxFuture;
use crate::tests::conformance::past::check_past;
use crate::tests::conformance::{
    Rig, actions, activity, attempts, cases, check, check_bulk, check_grouped, check_jitter,
    check_queues, check_traces, grouped_steps, groupings, groups, rates, runtime, schedules, steps,
    unclaimed_and_cancelled,
};
use crate::tests::dropping::check_drops;
use crate::tests::parking::check_expired;
use crate::tests::pausing::check_pauses;
use crate::tests::scheduling::check_schedules;
use crate::tests::{get, polled};
use crate::types::add::{ParkedAdd, ReaddPolicy};
use crate::types::error::{ErrorKind, chain};

struct Fixture {
    engine: Arc<Sqlite>,
    now: Arc<AtomicI64>,
    _dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let now = Arc::new(AtomicI64::new(0));
        let reading = Arc::clone(&now);
        let clock: Clock = Arc::new(move || {
            let now = reading.load(Ordering::SeqCst);
            Reading { start: "the first".into(), running: now, clock: now }
        });
        let engine = Sqlite::open_with(&dir.path().join("q"), Synchronous::Normal, clock);
        let engine = Arc::new(engine.expect("the file opens"));
        engine.migrate_schema().await.expect("the schema is created");
        Self { engine, now, _dir: dir }
    }
}

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as _
    }

    fn set_time(&self, now: i64) -> BoxFuture<'_, ()> {
        self.now.store(now, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }

    fn goes_back(&self) -> bool {
        false
    }
}

fn conforms(readd_policy: ReaddPolicy) {
    let runtime = runtime();
    let check = |steps: &[_]| {
        runtime.block_on(async {
            let rig = Fixture::new().await;
            check(&rig, "q", readd_policy, steps).await;
        });
    };
    check(&unclaimed_and_cancelled());
    proptest!(cases(60), |(steps in steps(80))| check(&steps));
}

#[test]
fn schedules_fire_once_for_each_time() {
    let runtime = runtime();
    proptest!(cases(60), |(steps in schedules::steps(80), has_groups: bool)| {
        let group_by = has_groups.then_some("");
        runtime.block_on(async { schedules::check(&Fixture::new().await, "q", group_by, &steps).await });
    });
    runtime.block_on(async { schedules::check_missed(&Fixture::new().await, "q").await });
}

#[test]
fn the_numbers_per_minute_are_those_of_a_map() {
    let runtime = runtime();
    proptest!(cases(60), |(steps in activity::steps(80))| {
        runtime.block_on(async { activity::check(&Fixture::new().await, "q", &steps).await });
    });
}

#[test]
fn the_last_actions_are_those_of_a_list() {
    let runtime = runtime();
    proptest!(cases(20), |(steps in actions::steps(20))| {
        runtime.block_on(async { actions::check(&Fixture::new().await, "q", &steps).await });
    });
}

#[test]
fn replaces_as_the_model_does() {
    conforms(ReaddPolicy::Replace);
}

#[test]
fn holds_as_the_model_does() {
    conforms(ReaddPolicy::Hold);
}

#[test]
fn groups_keep_their_limits_and_lose_no_key() {
    let runtime = runtime();
    proptest!(cases(150), |(steps in grouped_steps(80), grouping in groupings())| {
        runtime.block_on(async { check_grouped(&Fixture::new().await, "q", grouping, &steps).await });
    });
}

#[test]
fn rates_are_kept_and_reached() {
    let runtime = runtime();
    let run = (rates::rates(), any::<bool>(), rates::steps(80));
    proptest!(cases(30), |((rates, grouped, steps) in run)| {
        let by = grouped.then_some("");
        runtime.block_on(async { rates::check(&Fixture::new().await, "q", by, rates, &steps).await });
    });
}

#[tokio::test]
async fn claims_of_different_sizes_share_a_prepared_statement() {
    let engine = Fixture::new().await.engine;
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let asks = (0..9).map(|n: u32| Ask::new(n.to_string(), crate::Add::now()));
    engine.add_keys(&place, asks.collect()).await.expect("added");
    let backoff = crate::engine::Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = crate::engine::Failing { backoff, max_failures: None };
    for max in 1..4 {
        let claim = Claim { max, oldest: 0, lease: LEASE, expired, poll: LEASE };
        let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
        assert_eq!(claimed.items.len(), max);
    }
    let counted = |at: &Work<'_>| {
        let ready = at.connection.prepare_cached(&READY)?;
        let count = |status| ready.get_status(status);
        Ok((count(StatementStatus::Run), count(StatementStatus::RePrepare)))
    };
    // Each claim searches two priorities.
    assert_eq!(engine.thread.call(counted).await.expect("counted"), (6, 0));
}

#[tokio::test]
async fn slow_claims_reach_a_rate() {
    rates::check_share(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn the_first_rate_is_kept() {
    rates::check_first(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn a_rate_changes() {
    rates::check_changes(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn groups_take_turns_by_weight() {
    groups::check_turns(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn no_group_gets_two_turns_in_a_row() {
    groups::check_second_visit(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn a_claim_ends_a_priority_before_it_begins_the_next() {
    groups::check_priorities(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn the_oldest_ready_key_is_found_in_each_group() {
    groups::check_oldest_ready(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn a_freed_group_is_found_without_a_search() {
    groups::check_freed_groups(&Fixture::new().await, "q").await;
}

/// With a single worker, a claim ahead shares the sync of a completion. Otherwise, each claim would need a separate
/// sync.
#[tokio::test]
async fn a_claim_that_nobody_waits_for_shares_the_commit_of_a_completion() {
    use crate::engine::{Backoff, Failing, Finish};

    let dir = tempfile::tempdir().expect("a temporary directory");
    let commits = Arc::new(AtomicI64::new(0));
    let counted = Arc::clone(&commits);
    // The writing thread reads the clock once for each transaction.
    let clock: Clock = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Reading { start: "the first".into(), running: 1, clock: 1 }
    });
    let engine = Sqlite::open_with(&at(&dir), Synchronous::Full, clock).expect("the file opens");
    engine.migrate_schema().await.expect("the schema is created");
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let asks = ["a", "b"].map(|key| Ask::new(key, crate::Add::now()));
    engine.add_keys(&queue, asks.to_vec()).await.expect("added");
    let backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = Failing { backoff, max_failures: None };
    let lease = Duration::from_secs(30);
    let claim = Claim { max: 1, oldest: 0, lease, expired, poll: lease };
    let out = engine.claim_keys(&queue, claim).await.expect("claimed").items.remove(0);
    let ahead = Claim { poll: Duration::ZERO, ..claim };
    let before = commits.load(Ordering::SeqCst);
    let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
    let (next, held) =
        tokio::join!(engine.claim_keys(&queue, ahead), engine.finish_deliveries(&queue, vec![end]));
    assert_eq!(next.expect("claimed").items.len(), 1);
    assert_eq!(held.expect("finished"), [true]);
    assert_eq!(commits.load(Ordering::SeqCst) - before, 1);
    // The claim is answered, even if no other operation follows.
    assert_eq!(engine.claim_keys(&queue, ahead).await.expect("claimed").items, []);
}

#[tokio::test]
async fn trace_contexts_stay_with_a_run_until_it_succeeds() {
    check_traces(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn the_last_runs_are_kept_with_the_key() {
    check_past(&Fixture::new().await, "q", Settings::default()).await;
}

#[tokio::test]
async fn the_last_runs_take_at_most_a_tenth_of_the_log() {
    use crate::engine::{Backoff, Delivery, Failing, Failure, Finish};

    const KEYS: usize = 100;
    let backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = Failing { backoff, max_failures: None };
    let lease = Duration::from_secs(30);
    let claim = Claim { max: KEYS, oldest: 0, lease, expired, poll: lease };
    let log = async |failures: i64, keeps_past: bool| {
        let fixture = Fixture::new().await;
        let engine = &fixture.engine;
        let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
        let queue = Place { keeps_past, ..queue };
        let size = || fixture._dir.path().join("q-wal").metadata().expect("the log").len();
        let before = size();
        let asks = (0..KEYS).map(|n| Ask::new(format!("key {n}"), crate::Add::now()));
        engine.add_keys(&queue, asks.collect()).await.expect("added");
        for n in 0..=failures {
            fixture.set_time(1_000_000_000_000_000 + 10_000_000 * n).await;
            let claimed = engine.claim_keys(&queue, claim).await.expect("claimed").items;
            assert_eq!(claimed.len(), KEYS);
            let end = |out: Delivery| {
                let failure = Failure::new(out.asked, "exit status: 3");
                let how =
                    if n < failures { Finish::Retry(expired, failure) } else { Finish::Succeed };
                End { key: out.key, epoch: out.epoch, how }
            };
            let ends = claimed.into_iter().map(end).collect();
            let held = engine.finish_deliveries(&queue, ends).await.expect("finished");
            assert_eq!(held, [true; KEYS]);
        }
        size() - before
    };
    // (If the log became longer, a checkpoint would begin it again.)
    for failures in [0, 1] {
        let (without, with) = (log(failures, false).await, log(failures, true).await);
        println!("{failures} failures: {without} bytes without the past, {with} with it");
        let is_small = if failures == 0 { with == without } else { with <= without * 11 / 10 };
        assert!(is_small, "{failures} failures: {with} bytes instead of {without}");
    }
}

#[tokio::test]
async fn claims_name_the_keys_that_they_park() {
    check_expired(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn the_last_failures_are_kept() {
    let fixture = Fixture::new().await;
    let file = rusqlite::Connection::open(fixture._dir.path().join("q")).expect("the file opens");
    let count = || file.query_row("select count(*) from attempts", [], |row| row.get::<_, i64>(0));
    attempts::check_attempts(&fixture, "q").await;
    assert_eq!(count(), Ok(0));
    attempts::check_drop(&fixture, "dropped").await;
    assert_eq!(count(), Ok(0));
    attempts::check_bound(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn keys_that_fail_at_once_do_not_come_back_at_once() {
    check_jitter(&Fixture::new().await, "q").await;
}

#[tokio::test]
async fn a_store_lists_its_queues() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    check_queues(&store(&at(&dir)).await, "q").await;
}

#[tokio::test]
async fn many_keys_are_changed_at_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    check_bulk(&store(&at(&dir)).await, "q").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_queue_is_gone_for_all_who_have_it_open() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (one, other) = (store(&at(&dir)).await, store(&at(&dir)).await);
    check_drops(&one, &other, "drop").await;
    // The file has no rows of the dropped queues or of any other queue.
    let connection = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    let left = "select (select count(*) from keys), (select count(*) from queues)";
    let left = connection.query_row(left, [], |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!(left.expect("counted"), (0, 0));
}

#[tokio::test]
async fn what_an_interrupted_drop_has_left_is_removed_later() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let opened = store(&at(&dir)).await;
    for name in ["a", "b", "c", "d"] {
        let queue = opened.queue(name).open().await.expect("the queue opens");
        queue.add_all((0..3).map(|n| n.to_string())).await.expect("added");
    }
    let connection = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    connection.execute("delete from queues where name in ('a', 'c')", []).expect("deleted");
    let left = || {
        let sql = "select group_concat(queue || ':' || n) from \
                   (select queue, count(*) as n from keys group by queue)";
        connection.query_row(sql, [], |row| row.get::<_, String>(0)).expect("counted")
    };
    assert_eq!(left(), "1:3,2:3,3:3,4:3");
    opened.migrate().await.expect("there is nothing else to do");
    assert_eq!(left(), "2:3,4:3");
}

fn at(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("q")
}

async fn store(path: &std::path::Path) -> crate::Store {
    let url = format!("sqlite:{}", path.display());
    let store = crate::Store::connect(&url).await.expect("the store connects");
    store.migrate().await.expect("the schema exists");
    store
}

#[tokio::test]
async fn what_was_acknowledged_is_there_the_next_time() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    {
        let queue = store(&at(&dir)).await.queue("q").open().await.expect("the queue opens");
        queue.add_all(["a", "b"]).await.expect("added");
        queue.add_with("c", crate::Add::now().flags(5)).await.expect("added");
        get(&queue).await.give_up("no").await.expect("the lease is valid");
    }
    let queue = store(&at(&dir)).await.queue("q").open().await.expect("the queue opens");
    let parked = queue.snapshot(State::Parked, None, 10).await.expect("the page is read");
    assert_eq!(parked.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(), ["a"]);
    let items = queue.get_many(10).await;
    assert_eq!(items.iter().map(|item| item.to_string()).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(items[1].flags(), 5);
    // Fencing tokens continue to grow.
    assert!(items.iter().all(|item| item.fencing_token() > 1));
}

#[tokio::test]
async fn queues_of_one_file_know_nothing_of_each_other() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let [one, other] = ["one", "o'ther {x}"].map(|name| store.queue(name).open());
    let (one, other) = (one.await.expect("the queue opens"), other.await.expect("the queue opens"));
    one.add("a").await.expect("added");
    assert_eq!(other.counts().await.expect("counted"), StateCounts::default());
    assert_eq!(one.counts().await.expect("counted").ready, 1);
}

#[tokio::test]
async fn two_processes_have_no_key_at_once_and_lose_none() {
    const KEYS: usize = 40;
    const ROUNDS: usize = 25;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let held = Arc::new(Mutex::new(std::collections::HashSet::new()));
    let mut tasks = tokio::task::JoinSet::new();
    // Each task has a separate connection, as a process has.
    for process in 0..4 {
        let queue = store(&at(&dir)).await.queue("q").open().await.expect("the queue opens");
        let held = Arc::clone(&held);
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let keys = (0..KEYS).filter(|n| (n + round + process) % 3 == 0);
                queue.add_all(keys.map(|n| n.to_string())).await.expect("added");
                for item in queue.get_many(5).await {
                    let key = item.key().clone();
                    assert!(
                        held.lock().expect("no thread has panicked").insert(key.clone()),
                        "{key}"
                    );
                    tokio::task::yield_now().await;
                    assert!(held.lock().expect("no thread has panicked").remove(&key));
                    item.succeed().await.expect("the lease is valid");
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no key is delivered twice at once");
    }
    let queue = store(&at(&dir)).await.queue("q").open().await.expect("the queue opens");
    while queue.counts().await.expect("counted").ready > 0 {
        for item in queue.get_many(100).await {
            item.succeed().await.expect("the lease is valid");
        }
    }
    assert_eq!(queue.counts().await.expect("counted"), StateCounts::default(), "keys are left");
}

#[tokio::test]
async fn a_disk_that_is_full_loses_nothing_that_was_acknowledged() {
    let fixture = Fixture::new().await;
    let place = fixture.engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let limit = async |pages: i64| {
        let set = move |at: &Work<'_>| at.connection.pragma_update(None, "max_page_count", pages);
        fixture.engine.thread.call(set).await.expect("the setting is changed");
    };
    limit(1).await; // SQLite uses the current number of pages instead.
    let ask = |n: u32| Ask::new(Key::from(vec![n as u8; 1000]), crate::Add::now());
    let mut added = 0;
    let fault = loop {
        match fixture.engine.add_keys(&place, vec![ask(added)]).await {
            Ok(_) => added += 1,
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.kind, crate::types::error::Kind::Unable, "{}", fault.source);
    let counted = fixture.engine.count_keys(&place).await.expect("counted");
    assert_eq!(counted.ready, u64::from(added));
    limit(1_000_000).await;
    fixture.engine.add_keys(&place, vec![ask(added)]).await.expect("there is space again");
    assert_eq!(
        fixture.engine.count_keys(&place).await.expect("counted").ready,
        u64::from(added) + 1
    );
}

#[tokio::test]
async fn a_file_of_another_program_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let other = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    other.execute_batch("create table keys (a)").expect("the table is created");
    let url = format!("sqlite:{}", at(&dir).display());
    let error = crate::Store::connect(&url).await.expect_err("the file belongs to another program");
    assert_eq!(error.kind(), ErrorKind::WrongServer);
    assert!(chain(&error).ends_with("q: the file belongs to another program"), "{error}");
    let tables = "select count(*) from sqlite_schema";
    let tables: i64 = other.query_row(tables, [], |row| row.get(0)).expect("counted");
    let journal: String = other
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .expect("the pragma is read");
    assert_eq!((tables, &*journal), (1, "delete"));

    std::fs::write(at(&dir).with_extension("txt"), "no database at all, but text")
        .expect("the file is written");
    let url = format!("sqlite:{}", at(&dir).with_extension("txt").display());
    let error = crate::Store::connect(&url).await.expect_err("the file is not a database");
    assert_eq!(error.kind(), ErrorKind::WrongServer);
    assert!(chain(&error).contains("q.txt: file is not a database"), "{error}");
}

#[tokio::test]
async fn a_queue_says_why_it_does_not_open() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("sqlite:{}", at(&dir).display());
    let bare = crate::Store::connect(&url).await.expect("the store connects");
    let error = chain(&bare.queue("q").open().await.expect_err("the queue does not exist"));
    assert!(error.contains("q: the store has no schema yet; run `requeue store init`"), "{error}");
    let store = store(&at(&dir)).await;
    store.queue("q").readd_policy(ReaddPolicy::Hold).open().await.expect("the queue opens");
    let opened = store.queue("q").open().await.expect("any setting is accepted");
    assert_eq!(opened.shared.place.readd_policy, ReaddPolicy::Hold);
    let error = store
        .queue("q")
        .readd_policy(ReaddPolicy::Replace)
        .open()
        .await
        .expect_err("the queue has another policy");
    assert_eq!(
        error.to_string(),
        "queue \"q\": its re-add policy is hold, not replace; omit the option, or use another queue"
    );
    let error = store
        .queue("two runs")
        .readd_policy(ReaddPolicy::KeepBoth)
        .open()
        .await
        .expect_err("stores do not support the policy");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "queue \"two runs\": stores do not support the re-add policy keep-both; use hold or replace"
    );
    assert_eq!(opened.shared.place.parked_add, ParkedAdd::Revive);
    let keeping = store.queue("q").parked_add(ParkedAdd::Keep).open().await;
    let error = keeping.expect_err("the queue revives parked keys").to_string();
    assert_eq!(
        error,
        "queue \"q\": its adds revive parked keys, and the option says keep; omit the option, or use another queue"
    );
    let keeping = store.queue("keeps").parked_add(ParkedAdd::Keep).open().await;
    assert_eq!(keeping.expect("the queue opens").shared.place.parked_add, ParkedAdd::Keep);
    let opened = store.queue("keeps").open().await.expect("any setting is accepted");
    assert_eq!(opened.shared.place.parked_add, ParkedAdd::Keep);
    let error = store.queue("r").must_exist().open().await.expect_err("the queue does not exist");
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    assert_eq!(error.to_string(), "no such queue: \"r\"");
    for name in ["mail", "mails", "invoices"] {
        store.queue(name).open().await.expect("the queue opens");
    }
    for (typed, said) in [
        ("mial", " (did you mean \"mail\"?)"),
        ("mailss", " (did you mean \"mails\" or \"mail\"?)"),
        ("invoces", " (did you mean \"invoices\"?)"),
        ("orders", ""),
    ] {
        let error =
            store.queue(typed).must_exist().open().await.expect_err("the queue does not exist");
        assert_eq!(error.to_string(), format!("no such queue: {typed:?}{said}"));
    }
    let opened = store.queue("q").must_exist().open().await.expect("the queue exists");
    assert_eq!(opened.shared.place.readd_policy, ReaddPolicy::Hold);
    for name in ["", "a\0b", &"x".repeat(201)] {
        let error = chain(&store.queue(name).open().await.expect_err("the name is invalid"));
        assert!(error.ends_with("invalid name: use 1 to 200 bytes without NUL"), "{error}");
    }
    for name in [".", ".."] {
        let create = || store.queue(name).open();
        let error = chain(&create().await.expect_err("the name is invalid"));
        assert!(error.ends_with("no URL can contain it; use another name"), "{error}");
        // Another program has created a queue with this name.
        let connection = rusqlite::Connection::open(at(&dir)).expect("the file opens");
        let sql = "insert into queues (name, readd_policy, parked_add) values (?1, 1, 0)";
        connection.execute(sql, [name]).expect("the queue is created");
        create().await.expect("the queue exists");
    }
    for (url, said) in [
        ("nowhere", "\"nowhere\" is not the address of a store; use one such as sqlite:FILE"),
        (
            "mysql://me:secret@host/db",
            "unknown kind of store \"mysql\"; use sqlite, postgres or redis",
        ),
        ("sqlite:", "sqlite: the file name is missing, as in sqlite:jobs.db"),
        ("sqlite://q.db", "sqlite://q.db: use a path after sqlite:, as in sqlite:jobs.db"),
        ("sqlite:file:q", "sqlite:file:q: use a path after sqlite:, as in sqlite:jobs.db"),
        ("sqlite:x?sync=no", "sqlite: unknown option \"sync\"; the options are synchronous"),
    ] {
        let error = crate::Store::connect(url).await.expect_err("the address is invalid");
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Invalid, said));
    }
}

#[tokio::test]
async fn while_another_has_the_file_nothing_happens_and_for_who_has_gone_nothing_ever() {
    let fixture = Fixture::new().await;
    let place = fixture.engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let ask = |key: &str| Ask::new(key, crate::Add::now());
    let busy = |at: &Work<'_>| at.connection.busy_timeout(Duration::ZERO);
    fixture.engine.thread.call(busy).await.expect("the setting is changed");
    let other = rusqlite::Connection::open(fixture._dir.path().join("q")).expect("the file opens");
    other.execute_batch("begin immediate").expect("the file is not locked");
    let fault =
        fixture.engine.add_keys(&place, vec![ask("a")]).await.expect_err("the file is locked");
    assert_eq!(fault.kind, crate::types::error::Kind::Unable, "{}", fault.source);
    let said = fault.source.to_string();
    assert!(said.ends_with("q: another process holds the lock on the file"), "{said}");
    other.execute_batch("rollback").expect("the lock is held");

    fixture.engine.add_keys(&place, vec![ask("b")]).await.expect("added");
    let (go, gone) = std::sync::mpsc::channel::<()>();
    // The thread is busy until the test sends on `go`.
    let mut blocked = Box::pin(fixture.engine.thread.call(move |_| Ok(gone.recv().is_ok())));
    assert!(polled(&mut blocked).await.is_pending());
    let failing = crate::engine::Failing {
        backoff: crate::engine::Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 },
        max_failures: None,
    };
    let lease = Duration::from_secs(30);
    let claim = Claim { max: 10, oldest: 0, lease, expired: failing, poll: lease };
    assert!(polled(&mut fixture.engine.claim_keys(&place, claim)).await.is_pending());
    go.send(()).expect("the thread waits");
    assert!(blocked.await.expect("the thread was released"));
    assert_eq!(fixture.engine.count_keys(&place).await.expect("counted").ready, 1);
}

#[tokio::test]
async fn what_prevents_a_file_from_being_opened_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path().display();
    std::fs::write(dir.path().join("file"), "").expect("the file is written");
    #[cfg(unix)]
    std::os::unix::fs::symlink(".", dir.path().join("self")).expect("the link is created");
    let names_none = |path: &str, file: &str| {
        let said = format!("it is a directory; name a file, as in sqlite:{file}");
        (path.to_owned(), ErrorKind::Refused, said)
    };
    for (path, kind, said) in [
        names_none(".", "./jobs.db"),
        names_none("./", "./jobs.db"),
        names_none("./.", "././jobs.db"),
        names_none("src/..", "src/../jobs.db"),
        #[cfg(unix)]
        names_none(&format!("{at}/self"), &format!("{at}/self/jobs.db")),
        (
            format!("{at}"),
            ErrorKind::Refused,
            format!("it is a directory; name a file, as in sqlite:{at}/jobs.db"),
        ),
        (format!("{at}/file/q"), ErrorKind::Refused, format!("{at}/file is not a directory")),
        // A file system that contains the directory may be mounted later.
        (
            format!("{at}/no/q"),
            ErrorKind::Unreachable,
            format!("there is no directory {at}/no; create it"),
        ),
    ] {
        let error = crate::Store::connect(&format!("sqlite:{path}")).await;
        let error = error.expect_err("the file cannot be opened");
        let text = chain(&error);
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.ends_with(&format!("{path}: {said}")), "{text}");
    }
    let store = crate::Store::connect(&format!("sqlite:{at}/q")).await.expect("the file opens");
    store.migrate().await.expect("the schema is created");
}

#[tokio::test]
async fn a_start_of_the_machine_that_no_clock_explains_does_not_stop_time() {
    for value in [i64::MIN, -HOUR, 0, 8 * HOUR] {
        let machine = Machine::new();
        let process = machine.process().await;
        process.0.add_keys(&process.1, ask("held", crate::Add::now())).await.expect("added");
        assert_eq!(claimed(&process).await.len(), 1);
        let file = rusqlite::Connection::open(at(&machine.dir)).expect("the file opens");
        file.execute("update clock set began = ?1", [value]).expect("updated");
        // The lease is still valid after a read and after a write.
        let counts = process.0.count_keys(&process.1).await.expect("counted");
        assert_eq!(counts.in_flight, 1, "{value}");
        assert_eq!(claimed(&process).await, [], "{value}");
        let later = crate::Add::after(LEASE);
        process.0.add_keys(&process.1, ask("later", later)).await.expect("added");
        // From now on, a change of the machine's clock has no effect.
        machine.set_clock(-HOUR);
        machine.pass(29 * SECOND);
        assert_eq!(claimed(&process).await, [], "{value}");
        machine.pass(2 * SECOND);
        assert_eq!(claimed(&process).await.len(), 2, "{value}");
        let began: i64 =
            file.query_row("select began from clock", [], |row| row.get(0)).expect("it has a row");
        assert_eq!(began, 9 * HOUR - 500 * SECOND, "{value}: it is the clock's again");
    }
}

/// A machine whose clock can be set, and a directory for files.
struct Machine {
    now: Arc<Mutex<Reading>>,
    dir: TempDir,
}

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const LEASE: Duration = Duration::from_secs(30);

impl Machine {
    fn new() -> Self {
        let now = Reading { start: "the first".into(), running: 500 * SECOND, clock: 9 * HOUR };
        Self {
            now: Arc::new(Mutex::new(now)),
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    async fn process(&self) -> (Sqlite, Place) {
        self.process_with(&at(&self.dir)).await
    }

    async fn process_with(&self, file: &std::path::Path) -> (Sqlite, Place) {
        let now = Arc::clone(&self.now);
        let clock: Clock = Arc::new(move || now.lock().expect("no thread has panicked").clone());
        let engine = Sqlite::open_with(file, Synchronous::Normal, clock);
        let engine = engine.expect("the file opens");
        engine.migrate_schema().await.expect("the schema is created");
        let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
        (engine, place)
    }

    fn pass(&self, time: i64) {
        let mut now = self.now.lock().expect("no thread has panicked");
        now.running += time;
        now.clock += time;
    }

    fn set_clock(&self, by: i64) {
        self.now.lock().expect("no thread has panicked").clock += by;
    }

    fn start_again(&self) {
        let mut now = self.now.lock().expect("no thread has panicked");
        (now.start, now.running) = ("the second".into(), SECOND);
    }
}

fn ask(key: &str, add: crate::Add) -> Vec<Ask> {
    vec![Ask::new(key, add)]
}

async fn claimed((engine, place): &(Sqlite, Place)) -> Vec<(String, i64)> {
    let backoff = crate::engine::Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = crate::engine::Failing { backoff, max_failures: None };
    let claim = Claim { max: 9, oldest: 0, lease: LEASE, expired, poll: LEASE };
    let claimed = engine.claim_keys(place, claim).await.expect("claimed");
    claimed.items.into_iter().map(|out| (out.key.to_string(), out.epoch)).collect()
}

#[tokio::test]
async fn a_time_that_no_clock_explains_is_ignored() {
    let huge = ["9223372036854775807", "9000000000000000"];
    for (value, column) in huge.into_iter().flat_map(|it| [(it, "latest"), (it, "began")]) {
        let machine = Machine::new();
        let process = machine.process().await;
        for key in ["held", "next"] {
            process.0.add_keys(&process.1, ask(key, crate::Add::now())).await.expect("added");
        }
        let later = crate::Add::after(LEASE);
        process.0.add_keys(&process.1, ask("later", later)).await.expect("added");
        assert_eq!(claimed(&process).await.len(), 2);
        let file = rusqlite::Connection::open(at(&machine.dir)).expect("the file opens");
        file.execute_batch(&format!("update clock set {column} = {value}")).expect("updated");
        // No lease has expired, and no key has become due too early.
        assert_eq!(claimed(&process).await, [], "{column} = {value}");
        let counts = process.0.count_keys(&process.1).await.expect("counted");
        assert_eq!((counts.in_flight, counts.waiting), (2, 1), "{column} = {value}");
        // The next write replaces the implausible value.
        process.0.add_keys(&process.1, ask("new", crate::Add::now())).await.expect("added");
        let sql = format!("select {column} < 1000000000000 from clock");
        let is_mended: bool = file.query_row(&sql, [], |row| row.get(0)).expect("it has a row");
        assert!(is_mended, "{column} = {value}");
        machine.pass(31 * SECOND);
        assert_eq!(claimed(&process).await.len(), 4, "{column} = {value}");
    }
}

#[tokio::test]
async fn who_sets_the_clock_neither_ends_a_lease_nor_makes_one_longer() {
    for by in [&[-HOUR][..], &[HOUR], &[HOUR, -HOUR], &[-HOUR, 3 * HOUR]] {
        let machine = Machine::new();
        let a = machine.process().await;
        a.0.add_keys(&a.1, ask("k", crate::Add::now())).await.expect("added");
        let later = crate::Add::after(Duration::from_secs(60));
        a.0.add_keys(&a.1, ask("later", later)).await.expect("added");
        let first = 9 * HOUR;
        assert_eq!(claimed(&a).await, [("k".to_owned(), first)]);
        let mut processes = vec![a];
        for &by in by {
            machine.set_clock(by);
            machine.pass(5 * SECOND);
            let b = machine.process().await;
            assert_eq!(claimed(&b).await, [], "{by}");
            processes.push(b);
        }
        let left =
            LEASE - Duration::from_secs(5) * u32::try_from(by.len()).expect("the number is small");
        for (engine, place) in &processes {
            let k = engine.look_up(place, &"k".into()).await.expect("looked up");
            assert_eq!(k.expect("the key exists").lease, Some(left), "{by:?}");
        }
        let (a, place) = &processes[0];
        let renewed =
            a.renew_leases(place, vec![("k".into(), first)], LEASE).await.expect("renewed");
        assert_eq!(renewed, [Renewed::Yes]);
        machine.pass(LEASE.as_micros() as i64);
        let b = processes.last().expect("the list is not empty");
        let (key, epoch) = claimed(b).await.remove(0);
        assert!(key == "k" && epoch > first, "{key} {epoch}");
        machine.pass(30 * SECOND);
        assert!(claimed(b).await.iter().any(|(key, _)| key == "later"));
    }
}

/// Delivers three keys once each, and returns their fencing tokens.
async fn epochs(process: &(Sqlite, Place)) -> Vec<i64> {
    let (engine, place) = process;
    for key in ["a", "b", "c"] {
        engine.add_keys(place, ask(key, crate::Add::now())).await.expect("added");
    }
    let claimed = claimed(process).await;
    let end = |(key, epoch): &(String, i64)| {
        let how = crate::engine::Finish::Succeed;
        End { key: key.as_str().into(), epoch: *epoch, how }
    };
    let ended = engine.finish_deliveries(place, claimed.iter().map(end).collect()).await;
    assert_eq!(ended.expect("ended"), [true; 3]);
    claimed.into_iter().map(|(_, epoch)| epoch).collect()
}

#[tokio::test]
async fn epochs_rise_after_a_backup_was_restored_and_after_the_clock_was_set() {
    for is_another_start in [false, true] {
        let machine = Machine::new();
        let original = machine.process().await;
        let mut all = vec![epochs(&original).await];
        let backup = machine.dir.path().join("backup");
        let connection = rusqlite::Connection::open(at(&machine.dir)).expect("the file opens");
        let sql = "vacuum into ?1";
        connection.execute(sql, [backup.to_string_lossy()]).expect("the copy is created");
        for by in [0, HOUR, -HOUR, 0] {
            machine.pass(SECOND);
            machine.set_clock(by);
            all.push(epochs(&original).await);
        }
        // The backup does not contain these deliveries.
        if is_another_start {
            machine.start_again();
        }
        machine.pass(HOUR);
        let restored = machine.process_with(&backup).await;
        for by in [0, -HOUR] {
            machine.set_clock(by);
            all.push(epochs(&restored).await);
        }
        let all = all.concat();
        assert!(all.windows(2).all(|two| two[0] < two[1]), "{is_another_start}: {all:?}");
    }
}

#[tokio::test]
async fn after_a_start_of_the_machine_it_is_as_late_as_its_clock_says_and_no_earlier_than_before() {
    for (off, lease_left, is_later_due) in [(-HOUR, 20, false), (0, 20, false), (HOUR, 0, true)] {
        let machine = Machine::new();
        {
            let a = machine.process().await;
            a.0.add_keys(&a.1, ask("k", crate::Add::now())).await.expect("added");
            assert_eq!(claimed(&a).await.len(), 1);
            machine.pass(10 * SECOND);
            let later = crate::Add::after(Duration::from_secs(1800));
            a.0.add_keys(&a.1, ask("later", later)).await.expect("added");
        }
        machine.start_again();
        machine.set_clock(off);
        let (engine, place) = machine.process().await;
        let k = engine.look_up(&place, &"k".into()).await.expect("looked up");
        let lease = k.expect("the key exists").lease;
        assert_eq!(lease, Some(Duration::from_secs(lease_left)), "{off}");
        let later = engine.look_up(&place, &"later".into()).await.expect("looked up");
        let is_due = later.expect("the key exists").state == State::Ready;
        assert_eq!(is_due, is_later_due, "{off}");
        machine.pass(30 * SECOND);
        assert!(claimed(&(engine, place)).await.iter().any(|(key, _)| key == "k"));
    }
}

#[tokio::test]
async fn who_finds_nothing_writes_nothing() {
    let machine = Machine::new();
    let a = machine.process().await;
    let other = rusqlite::Connection::open(at(&machine.dir)).expect("the file opens");
    let version = || -> i64 {
        let found = other.pragma_query_value(None, "data_version", |row| row.get(0));
        found.expect("the query succeeds")
    };
    let before = version();
    for _ in 0..3 {
        machine.pass(HOUR);
        assert_eq!(claimed(&a).await, []);
        assert_eq!(a.0.count_keys(&a.1).await.expect("counted"), StateCounts::default());
    }
    assert_eq!(version(), before);
    a.0.add_keys(&a.1, ask("k", crate::Add::now())).await.expect("added");
    assert_ne!(version(), before);
}

/// While at least one reader is active, new pages are written only to the log, which grows.
#[tokio::test]
async fn a_log_that_readers_have_kept_is_begun_anew() {
    let machine = Machine::new();
    let (engine, place) = machine.process().await;
    let other = rusqlite::Connection::open(at(&machine.dir)).expect("the file opens");
    let log = || std::fs::metadata(machine.dir.path().join("q-wal")).expect("the log exists").len();
    let read = |operation: &str| other.execute_batch(operation).expect("the statement succeeds");
    read("begin; select count(*) from keys");
    let long = "k".repeat(Key::MAX_LENGTH - 10);
    let add = async |n: u32| {
        engine
            .add_keys(&place, ask(&format!("{n} {long}"), crate::Add::now()))
            .await
            .expect("added")
    };
    let mut added = 0;
    while log() <= MAX_LOG {
        add(added).await;
        added += 1;
    }
    add(added).await;
    assert!(log() > MAX_LOG, "the log was truncated despite a reader");
    read("end");
    // The first process has just failed to restart the log, and waits before its next attempt. Therefore, a second
    // process restarts it.
    let (engine, place) = machine.process().await;
    engine.add_keys(&place, ask("k", crate::Add::now())).await.expect("added");
    assert!(log() < MAX_LOG);
    let counts = engine.count_keys(&place).await.expect("counted");
    assert_eq!(counts.ready, u64::from(added) + 2);
}

#[test]
fn the_machine_says_how_long_it_has_been_running() {
    let clock = clock::of_machine();
    let (first, second) = (clock(), clock());
    assert!(first.running <= second.running && first.start == second.start);
    // Only Linux has an identifier of the machine's start.
    assert_eq!(first.start.is_empty(), !cfg!(target_os = "linux"));
}

#[tokio::test]
async fn a_page_begins_where_the_last_one_ended() {
    let fixture = Fixture::new().await;
    for state in [None, Some(State::Ready), Some(State::Waiting), Some(State::Parked)] {
        let sql = format!("explain query plan {}", operations::page_sql(state, true));
        let plan = move |at: &Work<'_>| {
            let mut statement = at.connection.prepare(&sql)?;
            let steps = statement.query_map((1, 2, 3, b""), |row| row.get::<_, String>(3))?;
            steps.collect::<rusqlite::Result<Vec<_>>>()
        };
        let plan =
            fixture.engine.slow_reader().call(plan).await.expect("the query succeeds").join("; ");
        let begins = plan.starts_with("SEARCH keys") && plan.ends_with("(queue=? AND key>?)");
        assert!(begins, "{state:?}: {plan}");
    }
    // Pages contain each key exactly once.
    let place = fixture.engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let keys: Vec<Key> = [&b""[..], b"\0", b"a", b"a\0", b"b", b"\xff"].map(Key::from).into();
    for key in &keys {
        let add = Ask::new(key.clone(), crate::Add::now());
        fixture.engine.add_keys(&place, vec![add]).await.expect("added");
    }
    for state in [None, Some(State::Ready)] {
        let (mut met, mut after) = (Vec::new(), None);
        loop {
            let page = fixture.engine.read_page(&place, state, after.as_ref(), 2).await;
            let page = page.expect("the page is read");
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            met.extend(page.into_iter().map(|entry| entry.key));
        }
        assert_eq!(met, keys);
    }
}

#[tokio::test]
async fn who_looks_and_who_writes_are_in_nobodys_way() {
    let fixture = Fixture::new().await;
    let place = fixture.engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    fixture.engine.add_keys(&place, ask("a", crate::Add::now())).await.expect("added");
    let other = rusqlite::Connection::open(fixture._dir.path().join("q")).expect("the file opens");
    other.execute_batch("begin immediate").expect("the file is not locked");
    assert_eq!(fixture.engine.count_keys(&place).await.expect("counted").ready, 1);
    assert_eq!(
        fixture.engine.read_page(&place, None, None, 9).await.expect("the page is read").len(),
        1
    );
    let found = fixture
        .engine
        .find_queue("q")
        .await
        .expect("the query succeeds")
        .expect("the queue exists");
    assert!(fixture.engine.look_up(&found, &"a".into()).await.expect("looked up").is_some());
    other.execute_batch("rollback").expect("the lock is held");

    let (go, gone) = std::sync::mpsc::channel::<()>();
    let look = fixture.engine.slow_reader().call(move |at| {
        at.connection.query_row("select count(*) from keys", [], |_| Ok(gone.recv().is_ok()))
    });
    let mut looking = Box::pin(look);
    assert!(polled(&mut looking).await.is_pending());
    fixture.engine.add_keys(&place, ask("b", crate::Add::now())).await.expect("added");
    // A long count or search does not delay a read of a few rows.
    assert!(!fixture.engine.is_paused(&place).await.expect("the state is read"));
    assert!(fixture.engine.look_up(&place, &"b".into()).await.expect("looked up").is_some());
    assert_eq!(fixture.engine.cancel_signal(&place).await.expect("the requests are read"), 0);
    go.send(()).expect("the thread reads");
    assert!(looking.await.expect("the thread was released"));
    // When an add has returned, the reading thread finds its key.
    assert_eq!(fixture.engine.count_keys(&place).await.expect("counted").ready, 2);
    let write = |at: &Work<'_>| at.connection.execute("delete from keys", []);
    fixture.engine.slow_reader().call(write).await.expect_err("the connection is read-only");
}

#[test]
fn all_who_open_a_new_file_at_once_have_it() {
    const MANY: usize = 6;

    for _ in 0..30 {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("q");
        let start = std::sync::Barrier::new(MANY);
        std::thread::scope(|scope| {
            let open = || {
                start.wait();
                let engine = Sqlite::open(&path, Synchronous::Normal)?;
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                runtime.expect("the runtime is built").block_on(engine.migrate_schema())
            };
            let all: Vec<_> = (0..MANY).map(|_| scope.spawn(open)).collect();
            for one in all {
                one.join().expect("the thread does not panic").expect("the schema exists");
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_reaches_its_process() {
    use crate::tests::cancelling::{check_cancels, check_workers};

    let dir = tempfile::tempdir().expect("a temporary directory");
    let (one, other) = (store(&at(&dir)).await, store(&at(&dir)).await);
    check_cancels(&one, &other, "q").await;
    check_workers(&one, &other, "r").await;
}

/// Other processes find out about a resume when they poll.
#[tokio::test]
async fn a_pause_applies_to_all_workers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    check_pauses(&store, &store, "q").await;
}

#[tokio::test]
async fn a_worker_fires_schedules() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    check_schedules(&store, &store, "q").await;
}

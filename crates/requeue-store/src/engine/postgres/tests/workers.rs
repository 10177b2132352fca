//! Tests the SQL functions with which programs claim and complete keys.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tokio_util::sync::CancellationToken;

use super::changing::{MINUTE, claim, end, one, other};
use super::sql::store;
use super::*;
use crate::engine::{Finish, lock};
use crate::tests::get;
use crate::types::error::Kind as FaultKind;
use crate::{ActionRecord, OpenOptions};

const SECOND: i64 = 1_000_000;

/// The key and the fencing token of a delivery that was claimed in SQL.
type Held = (Vec<u8>, i64);

async fn claim_keys(client: &Client, queue: &str, rest: &str) -> Vec<Held> {
    let sql = format!("select key, token from requeue.claim('{queue}', 'sql', {rest})");
    let rows = client.query(&sql, &[]).await.expect(&sql);
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Calls a function with the queue `q`, a delivery, and further arguments.
async fn call<T>(client: &Client, function: &str, (key, token): &Held, rest: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    let sql = format!("select requeue.{function}('q', $1, $2{rest})");
    client.query_one(&sql, &[key, token]).await.expect(&sql).get(0)
}

async fn complete(client: &Client, held: &Held) -> bool {
    call(client, "complete", held, "").await
}

/// Returns a client, and a channel that receives its notifications.
async fn listening(url: &str) -> (Client, mpsc::UnboundedReceiver<String>) {
    let config: tokio_postgres::Config = url.parse().expect("the address is valid");
    let (client, mut connection) = config.connect(NoTls).await.expect("the server is reachable");
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let Ok(AsyncMessage::Notification(note)) = message {
                _ = sender.send(note.payload().to_owned());
            }
        }
    });
    (client, receiver)
}

/// Returns the result of `requeue.listen`, in microseconds.
async fn listen(client: &Client, rest: &str) -> i64 {
    let sql = format!("select (extract(epoch from requeue.listen('q'{rest})) * 1000000)::bigint");
    client.query_one(&sql, &[]).await.expect(&sql).get(0)
}

/// The keys that workers hold, with their groups. A worker removes the key from this map before it completes the key.
#[derive(Default)]
struct Watch(Mutex<HashMap<Vec<u8>, u8>>);

const LIMIT: usize = 2;

impl Watch {
    /// Checks the limit while a worker runs. The first byte of a key is its group.
    async fn run(&self, key: &[u8]) {
        {
            let mut held = lock(&self.0);
            assert_eq!(held.insert(key.to_vec(), key[0]), None, "{key:?} is held twice");
            let of_group = held.values().filter(|&&group| group == key[0]).count();
            assert!(of_group <= LIMIT, "{of_group} keys of the group of {key:?} are in flight");
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        lock(&self.0).remove(key);
    }
}

/// Each run except the last one adds its key again, so that each key has the same number of runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_in_sql_and_in_rust_never_hold_a_key_together() {
    const RUNS: usize = 6;
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let options = |options: OpenOptions| options.lease(60 * MINUTE);
    let queue = options(store.queue("q")).group_by("^.").group_limit(2).open().await;
    let queue = queue.expect("the queue opens");
    let keys: Vec<String> =
        (0..32).map(|n| format!("{}{n}", ["a", "b", "c", "d"][n % 4])).collect();
    let (watch, done) = (Arc::new(Watch::default()), CancellationToken::new());
    let runs: Arc<Vec<AtomicUsize>> = Arc::new(keys.iter().map(|_| 0.into()).collect());
    let left = Arc::new(AtomicUsize::new(RUNS * keys.len()));
    // The closure returns true if the key must run again.
    let counted = {
        let (runs, left, done) = (Arc::clone(&runs), Arc::clone(&left), done.clone());
        move |key: &[u8]| {
            let number: usize =
                std::str::from_utf8(&key[1..]).expect("text").parse().expect("a number");
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                done.cancel();
            }
            runs[number].fetch_add(1, Ordering::Relaxed) + 1 < RUNS
        }
    };
    let group = |key: &[u8]| std::str::from_utf8(&key[..1]).expect("text").to_owned();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (queue, watch, done) = (
            options(store.queue("q")).open().await.expect("opens"),
            Arc::clone(&watch),
            done.clone(),
        );
        let counted = counted.clone();
        workers.spawn(async move {
            while let Some(Some(item)) = done.run_until_cancelled(queue.get()).await {
                watch.run(item.key()).await;
                if counted(item.key()) {
                    queue.add(item.key().clone()).await.expect("added");
                }
                item.succeed().await.expect("the lease is held");
            }
        });
    }
    for worker in 0..3 {
        let (client, mut notes) = listening(&url).await;
        let (watch, done, counted) = (Arc::clone(&watch), done.clone(), counted.clone());
        workers.spawn(async move {
            while !done.is_cancelled() {
                let held = claim_keys(&client, "q", &format!("{}, '1 hour'", worker + 1)).await;
                if held.is_empty() {
                    let pause = Duration::from_micros(listen(&client, "").await.unsigned_abs());
                    _ = done.run_until_cancelled(timeout(pause, notes.recv())).await;
                }
                for held in held {
                    watch.run(&held.0).await;
                    if counted(&held.0) {
                        let sql = "select requeue.add('q', $1::bytea, \"group\" => $2)";
                        client.execute(sql, &[&held.0, &group(&held.0)]).await.expect("added");
                    }
                    assert!(complete(&client, &held).await, "the lease is held");
                }
            }
        });
    }
    queue.add_all(keys).await.expect("added");
    timeout(60 * MINUTE, workers.join_all()).await.expect("all keys run");
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == RUNS), "{runs:?}");
    assert_eq!(queue.counts().await.expect("counted"), StateCounts::default());
}

#[tokio::test]
async fn an_expired_lease_is_taken_over_and_its_token_is_refused() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    stop_time(&engine).await;
    set_time(&engine, 10 * SECOND).await;
    let queue = engine.open_queue("q", ReaddPolicy::Hold.into()).await.expect("the queue opens");
    engine.add_keys(&queue, changing::asks(["a"])).await.expect("added");
    let client = other(&url).await;
    let old = claim_keys(&client, "q", "lease => '1 s'").await.pop().expect("claimed");
    assert_eq!(call::<String>(&client, "renew_lease", &old, ", '2 s'").await, "renewed");

    set_time(&engine, 12 * SECOND).await;
    assert_eq!(call::<String>(&client, "renew_lease", &old, "").await, "lost");
    // The expiry is a failure, and the backoff is 1 us.
    let claimed = engine.claim_keys(&queue, claim(1, MINUTE)).await.expect("claimed");
    assert_eq!(claimed.items, []);
    set_time(&engine, 13 * SECOND).await;
    let new = one(&engine, &queue).await;
    assert_eq!(new.failures, 1);
    assert!(new.epoch > old.1, "{new:?} after {old:?}");
    let before = engine.look_up(&queue, &new.key).await.expect("looked up");
    for (function, rest) in [
        ("complete", ""),
        ("complete", ", '1 s'"),
        ("fail", ", 'no'"),
        ("fail", ", 'no', park => true"),
        ("release", ""),
        ("cancelled", ""),
    ] {
        assert!(!call::<bool>(&client, function, &old, rest).await, "{function}{rest}");
        assert_eq!(
            engine.look_up(&queue, &new.key).await.expect("looked up"),
            before,
            "{function}"
        );
    }
    assert_eq!(call::<String>(&client, "renew_lease", &old, "").await, "lost");

    // SQL now takes over an expired lease of the engine.
    set_time(&engine, 100 * SECOND).await;
    assert_eq!(claim_keys(&client, "q", "backoff => '1 ms', max_failures => 3").await, []);
    set_time(&engine, 101 * SECOND).await;
    let newest = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    let held = engine.finish_deliveries(&queue, end(&new, Finish::Succeed)).await;
    assert_eq!(held.expect("answered"), [false]);
    assert!(complete(&client, &newest).await);
    assert!(!complete(&client, &newest).await, "a second completion");
}

#[tokio::test]
async fn a_completion_belongs_to_the_transaction_of_the_caller() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    let client = other(&url).await;
    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    for (isolation, ends) in [("serializable", "rollback"), ("repeatable read", "commit")] {
        let begin =
            format!("begin isolation level {isolation}; set local synchronous_commit = local");
        client.batch_execute(&begin).await.expect("begun");
        assert!(complete(&client, &held).await);
        let setting = client.query_one("show synchronous_commit", &[]).await.expect("shown");
        assert_eq!(setting.get::<_, &str>(0), "local", "the setting of the caller");
        client.batch_execute(ends).await.expect(ends);
        let entry = queue.look_up("a").await.expect("looked up");
        assert_eq!(entry.is_some(), ends == "rollback");
    }
    // A claim is durable, even if the caller's commits are not.
    client.batch_execute("begin; set local synchronous_commit = off").await.expect("begun");
    assert_eq!(claim_keys(&client, "q", "1").await, []);
    let setting = client.query_one("show synchronous_commit", &[]).await.expect("shown");
    assert_eq!(setting.get::<_, &str>(0), "on");
    client.batch_execute("rollback").await.expect("rolled back");
}

#[tokio::test]
async fn failures_by_sql_are_those_of_the_library() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    stop_time(&engine).await;
    set_time(&engine, 10 * SECOND).await;
    let client = other(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    run("select requeue.open('q'); select requeue.add('q', 'a', priority => 'high', flags => 5)")
        .await;
    let store = crate::Store::connect(&url).await.expect("the store connects");
    let queue = store.queue("q").open().await.expect("the queue opens");
    let entry = async || queue.look_up("a").await.expect("looked up").expect("the key exists");

    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    let failure =
        ", repeat('\u{20ac}', 3000), exit_status => 3, output => repeat('\u{20ac}', 3000)";
    assert!(call::<bool>(&client, "fail", &held, failure).await);
    let due = entry().await.due.expect("the key waits");
    let longest = Duration::from_secs(1);
    assert!((longest / 2..=longest).contains(&due), "{due:?} instead of the default backoff");
    let kept = "\u{20ac}".repeat(1365);
    assert_eq!(entry().await.error.as_deref(), Some(&*kept), "the first 4 KiB");
    let attempts = queue.attempts("a").await.expect("read");
    let attempt =
        (attempts[0].exit_status, attempts[0].output.as_deref(), attempts[0].worker.as_deref());
    assert_eq!(attempt, (Some(3), Some(&*kept), Some("sql")));

    set_time(&engine, 20 * SECOND).await;
    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    assert!(call::<bool>(&client, "fail", &held, ", 'no', '7 s'").await);
    assert_eq!(
        (entry().await.due, entry().await.priority),
        (Some(7 * longest), crate::Priority::High)
    );

    set_time(&engine, 30 * SECOND).await;
    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    assert!(call::<bool>(&client, "fail", &held, ", null, max_failures => 3").await);
    assert_eq!((entry().await.state, entry().await.failures), (State::Parked, 3));

    // The key was added during the run, so it is not parked.
    assert!(queue.revive("a").await.expect("revived"));
    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    run("select requeue.add('q', 'a')").await;
    assert!(call::<bool>(&client, "fail", &held, ", 'no', park => true").await);
    assert_eq!((entry().await.state, entry().await.failures), (State::Ready, 0));

    // The expiry of this lease is the last permitted failure.
    let held = claim_keys(&client, "q", "lease => '1 ms'").await.pop().expect("claimed");
    set_time(&engine, 40 * SECOND).await;
    assert_eq!(claim_keys(&client, "q", "max_failures => 1").await, []);
    assert_eq!(entry().await.state, State::Parked);
    assert!(!complete(&client, &held).await);

    let minutes = queue.activity(MINUTE).await.expect("read");
    let total = minutes.total();
    let counts = (total.starts, total.successes, total.failures, total.given_up);
    assert_eq!(counts, (5, 0, 4, 3), "{minutes:?}");
    let workers: Vec<&str> = minutes.workers.iter().map(|worker| &*worker.name).collect();
    assert_eq!(workers, ["sql"], "{minutes:?}");
}

#[tokio::test]
async fn a_cancelled_run_is_reported_by_its_renewal() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    let (client, mut notes) = listening(&url).await;
    listen(&client, "").await;
    let held = claim_keys(&client, "q", "1").await.pop().expect("claimed");
    assert_eq!(call::<String>(&client, "renew_lease", &held, "").await, "renewed");
    let cancelled = queue.cancel_running("a").await.expect("answered");
    assert_eq!(cancelled, requeue::CancelledRun::Cancelled);
    while notes.recv().await.expect("a notification") != "cancel" {}
    assert_eq!(call::<String>(&client, "renew_lease", &held, "").await, "cancelled");
    assert!(call::<bool>(&client, "cancelled", &held, "").await);
    assert_eq!(queue.look_up("a").await.expect("looked up"), None);
}

/// In this test, no claim of the engine announces a wait. Only SQL announces waits.
#[tokio::test]
async fn a_session_that_waits_is_told_of_adds_and_knows_the_next_due_time() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    stop_time(&engine).await;
    set_time(&engine, 10 * SECOND).await;
    let (client, mut notes) = listening(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    run("select requeue.open('q')").await;
    assert_eq!(listen(&client, "").await, 0, "the session must claim first");
    assert_eq!(claim_keys(&client, "q", "1").await, []);
    assert_eq!(listen(&client, "").await, SECOND, "the default poll");
    let adder = other(&url).await;
    adder.batch_execute("select requeue.add('q', 'a')").await.expect("added");
    assert_eq!(notes.recv().await.as_deref(), Some(""));
    assert_eq!(claim_keys(&client, "q", "1, '700 ms'").await.len(), 1);
    assert_eq!(listen(&client, "").await, 0, "after a full claim");

    // The expiry of the lease is earlier than the due time of the delayed key.
    run("select requeue.add('q', 'b', '800 ms')").await;
    assert_eq!(claim_keys(&client, "q", "2").await, []);
    assert_eq!(listen(&client, ", '1 s'").await, 700_000);
    let sql = "select key, epoch from requeue.keys where state = 1";
    let row = client.query_one(sql, &[]).await.expect("the key is in flight");
    assert!(complete(&client, &(row.get(0), row.get(1))).await);
    assert_eq!(claim_keys(&client, "q", "2").await, []);
    assert_eq!(listen(&client, "").await, 800_000);
    assert_eq!(listen(&client, "").await, SECOND, "the due time counts once");
    // If the session announces a longer poll than before, it must claim first, because adds have not notified it.
    assert_eq!(listen(&client, ", '1 hour'").await, 0);
}

#[tokio::test]
async fn the_groups_take_turns_in_a_session() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").group_by("^.").open().await.expect("the queue opens");
    queue.group("b").set_weight(2).await.expect("set");
    for group in ["a", "b", "c"] {
        let keys = (0..40).map(|n| format!("{group}{n}"));
        queue.add_all(keys).await.expect("added");
    }
    // Each claim of the first session continues where the previous claim stopped.
    for (sessions, keys) in [(1, 1), (1, 3), (12, 1)] {
        let mut taken = HashMap::<u8, usize>::new();
        let mut clients = Vec::new();
        for _ in 0..sessions {
            clients.push(other(&url).await);
        }
        let claims = 24 / keys;
        for n in 0..claims {
            let held = claim_keys(&clients[n % sessions], "q", &keys.to_string()).await;
            for held in held {
                *taken.entry(held.0[0]).or_default() += 1;
                assert!(call::<bool>(&clients[0], "release", &held, "").await);
            }
        }
        let shares = [b'a', b'b', b'c'].map(|group| taken.get(&group).copied().unwrap_or(0));
        if sessions == 1 {
            assert_eq!(shares, [6, 12, 6], "claims of {keys} keys");
        } else {
            assert_eq!(shares.iter().sum::<usize>(), 24);
        }
    }
}

/// A claim that finds keys may leave groups out, and the session then claims again. One of these claims finds the only
/// group below its limit.
#[tokio::test]
async fn a_claim_searches_all_groups() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").group_by("^[^/]*").group_limit(1).open().await;
    let queue = queue.expect("the queue opens");
    for n in 0..40 {
        queue.add_all([format!("{n}/1"), format!("{n}/2")]).await.expect("added");
    }
    let client = other(&url).await;
    listen(&client, "").await;
    let mut first: Vec<Held> = Vec::new();
    loop {
        let held = claim_keys(&client, "q", "256").await;
        if held.is_empty() {
            break;
        }
        assert_eq!(listen(&client, "").await, 0);
        first.extend(held);
    }
    assert_eq!(first.iter().map(|held| &held.0).collect::<HashSet<_>>().len(), 40);
    assert!(complete(&client, &first[33]).await);
    assert_eq!(claim_keys(&client, "q", "256").await.len(), 1);
}

#[tokio::test]
async fn wrong_arguments_are_refused_with_the_next_step() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    let engine = at(&url, WHOLE);
    for (call, said) in [
        ("requeue.claim('r', 'w')", "no such queue: 'r'"),
        ("requeue.claim(null, 'w')", "no such queue: NULL"),
        ("requeue.claim('q', 'w', 0)", "invalid number of keys 0: use 1 to 256 [22023]"),
        ("requeue.claim('q', 'w', 257)", "invalid number of keys 257: use 1 to 256"),
        ("requeue.claim('q', 'w', null)", "invalid number of keys NULL: use 1 to 256"),
        ("requeue.claim('q', '')", "invalid worker name \"\": use 1 to 100 bytes without control"),
        ("requeue.claim('q', e'a\\n')", "invalid worker name \"a\\n\": use 1 to 100 bytes"),
        ("requeue.claim('q', null)", "invalid worker name NULL: use 1 to 100 bytes"),
        ("requeue.claim('q', repeat('w', 101))", "invalid worker name"),
        ("requeue.claim('q', 'w', 1, '0')", "invalid lease '00:00:00': use at least 1 ms [22023]"),
        ("requeue.claim('q', 'w', 1, null)", "invalid lease NULL: use at least 1 ms"),
        ("requeue.claim('q', 'w', 1, '-1 s')", "invalid lease '-00:00:01': use at least 1 ms"),
        (
            "requeue.claim('q', 'w', backoff => '-1 s')",
            "invalid backoff '-00:00:01': use at least 0 ms",
        ),
        (
            "requeue.claim('q', 'w', max_backoff => null)",
            "invalid max_backoff NULL: use at least 0",
        ),
        (
            "requeue.claim('q', 'w', max_failures => 0)",
            "invalid max_failures 0: use at least 1, or null for no limit [22023]",
        ),
        ("requeue.listen('r')", "no such queue: 'r'"),
        ("requeue.listen('q', '0')", "invalid poll '00:00:00': use at least 1 ms"),
        ("requeue.renew_lease('r', 'a', 1)", "no such queue: 'r'"),
        ("requeue.renew_lease('q', null, 1)", "the key is null"),
        ("requeue.renew_lease('q', 'a', 1, '0')", "invalid lease '00:00:00'"),
        ("requeue.complete('r', 'a', 1)", "no such queue: 'r'"),
        ("requeue.complete('q', null, 1)", "the key is null; pass a bytea or a text [22004]"),
        (
            "requeue.complete('q', 'a', null)",
            "the token is null; pass the token that requeue.claim has returned [22004]",
        ),
        (
            "requeue.fail('q', 'a', 1, 'no', '1 s', true)",
            "a failure has either after or park: omit",
        ),
        ("requeue.fail('q', 'a', 1, 'no', max_failures => -1)", "invalid max_failures -1"),
        ("requeue.fail('q', 'a', 1, 'no', backoff => null)", "invalid backoff NULL"),
        ("requeue.release('q', 'a', null)", "the token is null"),
        (
            "requeue.cancelled('q', repeat('a', 2049)::bytea, 1)",
            "the key has 2049 bytes; at most 2048",
        ),
    ] {
        let fault =
            engine.sessions.query_row(&format!("select {call}"), &[]).await.expect_err(call);
        assert_eq!(fault.kind, FaultKind::Refused, "{call}");
        assert!(fault.source.to_string().starts_with(said), "{call}: {}", fault.source);
    }
    let client = other(&url).await;
    for (function, rest) in [("claim", "'w'"), ("listen", "'1 s'"), ("renew_lease", "'a', 1")] {
        let sql = format!(
            "begin isolation level repeatable read; select requeue.{function}('q', {rest})"
        );
        let error = client.batch_execute(&sql).await.expect_err("the isolation level is refused");
        let error = error.as_db_error().expect("the server reports the error");
        let said = format!("requeue.{function} needs the isolation level read committed");
        assert_eq!((error.code().code(), error.message()), ("0A000", &*said));
        client.batch_execute("rollback").await.expect("rolled back");
    }
    // An unknown delivery causes no error, and no value is too large.
    let unknown = (b"a".to_vec(), 1);
    assert!(!complete(&client, &unknown).await);
    assert_eq!(call::<String>(&client, "renew_lease", &unknown, "").await, "lost");
    let eternal = "lease => '100000000 years', max_backoff => '100000000 years', backoff => '100000000 years'";
    let held = claim_keys(&client, "q", eternal).await.pop().expect("claimed");
    let long = ", 'no', backoff => '100000000 years', max_backoff => '100000000 years'";
    assert!(call::<bool>(&client, "fail", &held, long).await);
    queue.record_action(ActionRecord::new("test", "me")).await.expect("the queue works");
}

#[tokio::test]
async fn the_documented_roles_work_or_add() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    roles::with_roles(server, &url, roles::ROLES, async || {
        let worker = other(&server.url("worker", name(&url))).await;
        listen(&worker, "").await;
        let held = claim_keys(&worker, "q", "1").await.pop().expect("claimed");
        assert_eq!(call::<String>(&worker, "renew_lease", &held, "").await, "renewed");
        assert!(complete(&worker, &held).await);
        let producer = other(&server.url("producer", name(&url))).await;
        for call in [
            "claim('q', 'w')",
            "listen('q')",
            "renew_lease('q', 'a', 1)",
            "complete('q', 'a', 1)",
            "fail('q', 'a', 1, 'no')",
            "release('q', 'a', 1)",
            "cancelled('q', 'a', 1)",
            "end_delivery('q', 'a', 1, 0)",
        ] {
            let refused = producer.execute(&format!("select requeue.{call}"), &[]).await;
            let code = refused.expect_err(call).code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some("42501"), "{call}");
        }
    })
    .await;
    // The library can use the rows that SQL has written.
    queue.add("b").await.expect("added");
    get(&queue).await.succeed().await.expect("the lease is held");
}

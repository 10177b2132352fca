//! Tests the notifications of ready keys, and the ranges that claims search.

use tokio::time::timeout;

use super::changing::{MINUTE, asks, claim, end, failing, one, other};
use super::*;
use crate::engine::postgres::watermark::{LOWEST, Lows};
use crate::engine::time::Micros;
use crate::engine::{Failure, Finish};

/// A long timeout for an event that does not depend on the clock.
const PATIENCE: Duration = Duration::from_secs(900);

async fn woken(wakes: &mut watch::Receiver<u64>) {
    timeout(PATIENCE, wakes.changed())
        .await
        .expect("within the time limit")
        .expect("the listener runs");
    wakes.mark_unchanged();
}

/// Makes a claim that finds no key, so that adds know that a process waits. The record of this expires after 11.5 s of
/// the server's clock, so the clock must be stopped before.
async fn wait(engine: &Postgres, queue: &Place) {
    let claimed = engine.claim_keys(queue, claim(1, PATIENCE)).await.expect("claimed");
    assert_eq!(claimed.items, []);
}

#[tokio::test]
async fn who_waits_is_told_when_a_key_is_ready_and_only_then() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let another = engine.open_queue("another", Settings::default()).await.expect("the queue opens");
    // This engine stands for a process that claims no keys, so only adds wake it.
    let ears = at(&url, WHOLE);
    let mut wakes = ears.subscribe_wakes(&queue);
    // The process listens when this wake has arrived.
    woken(&mut wakes).await;
    let adder = other(&url).await;
    let run = async |sql: &str| adder.batch_execute(sql).await.expect(sql);
    // No process waits during the first add. A process waits during the second.
    run("select requeue.add('q', 'a')").await;
    let a = one(&engine, &queue).await;
    wait(&engine, &queue).await;
    wait(&engine, &another).await;
    run("begin; select requeue.add('q', 'b')").await;
    run("select requeue.add('q', 'c', '1 hour')").await;
    run("select requeue.add('another', 'd')").await;
    run("select requeue.add('q', 'a')").await;
    // `heard` sends a notification to `another`. Notifications arrive in order. Therefore, all earlier notifications
    // have arrived before this one.
    let mut others = ears.subscribe_wakes(&another);
    woken(&mut others).await;
    let mut heard = async |wakes: &watch::Receiver<u64>| {
        run(&format!("notify requeue_{}", another.id)).await;
        woken(&mut others).await;
        *wakes.borrow()
    };
    let before = *wakes.borrow();
    run("rollback").await;
    assert_eq!(heard(&wakes).await, before);
    run("begin; select requeue.add('q', 'b')").await;
    run("commit").await;
    woken(&mut wakes).await;
    let before = *wakes.borrow();
    // These adds do not make a key ready: one key is already ready, one is in flight, and one is due in an hour.
    for nothing in ["'q', 'b'", "'q', 'a'", "'q', 'c', '1 hour'"] {
        run(&format!("select requeue.add({nothing})")).await;
    }
    assert_eq!(heard(&wakes).await, before);
    // A dirty key is ready after its completion. A failed key is ready after its short backoff.
    for how in [Finish::Succeed, Finish::Retry(failing(), Failure::new(a.asked, "no"))] {
        let a = engine.look_up(&queue, &a.key).await.expect("looked up").expect("the key exists");
        let a = if a.state == State::Ready {
            loop {
                let out = one(&engine, &queue).await;
                if out.key == a.key {
                    break out.epoch;
                }
            }
        } else {
            a.fencing_token.expect("the key is in flight").cast_signed()
        };
        let ends = vec![End { key: "a".into(), epoch: a, how }];
        assert_eq!(engine.finish_deliveries(&queue, ends).await.expect("finished"), [true]);
        woken(&mut wakes).await;
    }
}

#[tokio::test]
async fn who_seldom_asks_is_told_as_well() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let ears = at(&url, WHOLE);
    let (mut wakes, adder) = (ears.subscribe_wakes(&queue), other(&url).await);
    woken(&mut wakes).await;
    let mut now = 0;
    for poll in [1, 3600] {
        let poll = Duration::from_secs(poll);
        let claim = Claim { poll, ..claim(1, PATIENCE) };
        assert_eq!(engine.claim_keys(&queue, claim).await.expect("claimed").items, []);
        now += i64::try_from(poll.as_micros()).expect("the length fits");
        set_time(&engine, now).await;
        let add = format!("select requeue.add('q', '{now}')");
        adder.batch_execute(&add).await.expect("added");
        woken(&mut wakes).await;
        let out = one(&engine, &queue).await;
        let ended = engine.finish_deliveries(&queue, end(&out, Finish::Succeed)).await;
        assert_eq!(ended.expect("finished"), [true]);
    }
    // A waiting process tracks leases without notifications. It receives a notification of a key that is due before its
    // next poll.
    engine.add_keys(&queue, asks(["held"])).await.expect("added");
    let held = one(&engine, &queue).await;
    assert_eq!(&*held.key, b"held");
    let second = at(&url, WHOLE);
    let claim = Claim { poll: Duration::from_secs(3600), ..claim(1, PATIENCE) };
    let mut scanned = second.subscribe_wakes(&queue);
    // A scan reports the lease.
    while second.claims.alarm(&queue).is_none() {
        let claimed = second.claim_keys(&queue, claim).await.expect("claimed");
        assert_eq!(claimed.items, []);
        if second.claims.alarm(&queue).is_none() {
            woken(&mut scanned).await;
        }
    }
    assert!(second.claims.alarm(&queue) <= Some(MINUTE));
    wakes.mark_unchanged();
    let add = "select requeue.add('q', 'later', '50 minutes')";
    adder.batch_execute(add).await.expect("added");
    woken(&mut wakes).await;
}

#[tokio::test]
async fn who_waits_is_told_of_all_that_is_due_before_they_look_again() {
    const SECOND: i64 = 1_000_000;
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let another = engine.open_queue("another", Settings::default()).await.expect("the queue opens");
    let ears = at(&url, WHOLE);
    let (mut wakes, mut others) = (ears.subscribe_wakes(&queue), ears.subscribe_wakes(&another));
    woken(&mut wakes).await;
    woken(&mut others).await;
    let adder = other(&url).await;
    let looks = async |engine: &Postgres, now: i64, poll: u64| {
        set_time(engine, now).await;
        let claim = Claim { poll: Duration::from_secs(poll), ..claim(1, PATIENCE) };
        assert_eq!(engine.claim_keys(&queue, claim).await.expect("claimed").items, []);
    };
    let mut is_told = async |now: i64, after: &str| {
        set_time(&engine, now).await;
        let before = *wakes.borrow();
        let add = format!("select requeue.add('q', 'a', '{after}')");
        adder.batch_execute(&add).await.expect("added");
        let cancelled = engine.cancel_keys(&queue, vec!["a".into()], None).await;
        assert!(cancelled.expect("cancelled")[0] == Some(true));
        // Notifications arrive in order. When this one arrives, all earlier notifications have arrived.
        adder.batch_execute(&format!("notify requeue_{}", another.id)).await.expect("notified");
        woken(&mut others).await;
        *wakes.borrow() > before
    };
    // Most processes poll again within about 1 s, and then find keys that are due later.
    looks(&engine, 0, 1).await;
    assert!(is_told(SECOND, "1 s").await);
    assert!(!is_told(SECOND, "2 s").await);
    // The first process has already recorded its wait, and need not record it again. It sleeps until 113.9 s. The
    // second process relies on this record, and sleeps until 114.9 s.
    let second = at(&url, WHOLE);
    looks(&engine, 100 * SECOND, 10).await;
    looks(&engine, 103_900_000, 10).await;
    looks(&second, 104_900_000, 10).await;
    assert!(is_told(104_900_000, "6.5 s").await);
    assert!(is_told(104_900_000, "9.9 s").await);
    // This is also true shortly before the processes poll again.
    assert!(is_told(113 * SECOND, "1.8 s").await);
}

#[tokio::test]
async fn who_listens_does_so_again_when_the_server_is_back() {
    let Some(server) = Server::start() else { return };
    let (engine, _) = engine(&server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let mut wakes = engine.subscribe_wakes(&queue);
    woken(&mut wakes).await;
    wait(&engine, &queue).await;
    server.stop();
    server.restart();
    woken(&mut wakes).await;
    engine.add_keys(&queue, asks(["a"])).await.expect("added");
    woken(&mut wakes).await;
    drop(engine);
    // The listening task has stopped, so no further wake can arrive.
    let ended = async { while wakes.changed().await.is_ok() {} };
    timeout(PATIENCE, ended).await.expect("within the time limit");
}

#[tokio::test]
async fn a_claim_looks_no_further_back_than_it_must_and_a_scan_does() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let adder = other(&url).await;
    let claimed = async |lows: &Lows| {
        let claim = claim(9, PATIENCE);
        let (claimed, lows, _) =
            engine.sessions.claim(&queue, &claim, lows, true).await.expect("claimed");
        (claimed.items.into_iter().map(|out| out.key.to_string()).collect::<Vec<_>>(), lows)
    };
    engine.add_keys(&queue, asks(["a"])).await.expect("added");
    let (keys, first) = claimed(&LOWEST).await;
    assert_eq!(keys, ["a"]);
    // These adds stand for transactions that were open for 10 s and for 60 s.
    for (key, priority, back) in [("b", "high", 10), ("c", "low", 10), ("d", "low", 60)] {
        let late = format!(
            "select requeue.add('q', '{key}', priority => '{priority}'); \
             update requeue.keys set at = at - {back}000000 where key = '{key}'"
        );
        adder.batch_execute(&late).await.expect("added");
    }
    engine.add_keys(&queue, asks(["e"])).await.expect("added");
    let (keys, lows) = claimed(&first).await;
    assert_eq!(keys, ["e"]);
    let scanned = async |floors: &Lows| {
        let found = engine.sessions.passed_over(queue.id, floors, &lows).await;
        found.expect("scanned")
    };
    let (found, lease) = scanned(&LOWEST).await;
    assert!(found[0] < found[2] && found[1].is_none() && found[3].is_none(), "{found:?}");
    assert!(lease.is_some_and(|lease| lease <= PATIENCE), "{lease:?}");
    // The first key above this bound is `c`. A scan with floors does not search for leases.
    let floors =
        std::array::from_fn(|n| found[0].filter(|_| n == 0).map_or(Micros::MIN + 1, |at| at + 1));
    let (later, lease) = scanned(&floors).await;
    assert!(found[0] < later[0] && later[2] == found[2] && lease.is_none(), "{later:?} {lease:?}");
    assert_eq!(claimed(&LOWEST).await.0, ["b", "d", "c"]);
    assert_eq!(scanned(&LOWEST).await.0, [None; 4]);
}

#[tokio::test]
async fn an_operation_reads_no_more_than_it_changes() {
    let Some(server) = Server::shared() else { return };
    let (_engine, url) = engine(server, WHOLE).await;
    let client = other(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    let low = "(-9223372036854775808)::bigint";
    let of_this = |max: u32| {
        format!(
            "requeue.claim(1, false, {max}, 3, 60000000, 1, 1, 0, null, array[{low}, {low}, {low}, {low}])"
        )
    };
    let take = format!(
        "create temp table held as select k.key, k.epoch from {} c, unnest(c.keys, c.epochs) k (key, epoch)",
        of_this(30)
    );
    let renew = "select requeue.renew(1, array_agg(key), array_agg(epoch), 60000000) from held";
    let finish = |how: u8| {
        format!(
            "select requeue.finish(1, false, row(array_agg(key), array_agg(epoch), \
             array_fill({how}::smallint, array[10]), array_fill(0::bigint, array[10]), \
             array_fill(0::smallint, array[10]), array_fill(0, array[10]), \
             array_fill(0, array[10]), array_fill('no'::text, array[10]), \
             array_fill(1::bigint, array[10]), array_fill(1::bigint, array[10]), \
             array_fill(0::float8, array[10]), array_fill(null::integer, array[10]), null, null, null)::requeue.ends) \
             from (select * from held order by epoch offset {} limit 10) h",
            how * 10
        )
    };
    let operations = [
        take,
        renew.to_owned(),
        finish(0),
        finish(1),
        finish(2),
        "select requeue.add_many('q', array(select n::text from generate_series(1, 30) n))".into(),
        "select requeue.cancel(1, '{40}', null), requeue.revive(1, '{41}', 3)".to_owned(),
        "select requeue.cancel(1, '{42, 43}', 0), requeue.revive(1, '{44, 45}', 3)".to_owned(),
        "select requeue.is_idle(1)".to_owned(),
        format!("select count(*) from {}", of_this(30)),
    ];
    run("select requeue.open('q')").await;
    // The plans are prepared while the table is empty, as in a process that was started early.
    for operation in &operations {
        run(operation).await;
    }
    let many = "drop table held; \
                select requeue.add_many('q', array(select n::text from generate_series(1, 5000) n))";
    run(many).await;
    for operation in &operations {
        run("begin").await;
        run(operation).await;
        let read = "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
                    where relid = 'requeue.keys'::regclass";
        let read: i64 = client.query_one(read, &[]).await.expect("the query succeeds").get(0);
        run("commit").await;
        assert!((1..=400).contains(&read), "{read} rows for 30: {operation}");
    }
}

#[tokio::test]
async fn a_page_reads_no_more_than_it_shows() {
    let Some(server) = Server::shared() else { return };
    let (_engine, url) = engine(server, WHOLE).await;
    let client = other(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    run("select requeue.open('q'); select requeue.add_many('q', array(
             select lpad(n::text, 5, '0') from generate_series(1, 5000) n));
         update requeue.keys set state = 2, at = null where get_byte(key, 4) = 55;
         analyze requeue.keys")
    .await;
    let read = async || {
        let read = "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
                    where relid = 'requeue.keys'::regclass";
        client.query_one(read, &[]).await.expect("the query succeeds").get::<_, i64>(0)
    };
    for state in [None, Some(State::Ready), Some(State::InFlight), Some(State::Parked)] {
        for after in [None, Some(&b"04000"[..])] {
            let page = operations::page_sql(state, after.is_some());
            let page = client.prepare(&page).await.expect("the statement is prepared");
            // After several executions, the server may choose a new plan.
            for _ in 0..8 {
                run("begin").await;
                let before = read().await;
                let shown =
                    client.query(&page, &[&1i32, &30i64, &after]).await.expect("the page is read");
                let read = read().await - before;
                run("commit").await;
                assert_eq!(shown.len(), if state == Some(State::InFlight) { 0 } else { 30 });
                assert!(read <= 60, "{read} rows for {}: {state:?} {after:?}", shown.len());
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_is_released_is_found_though_claims_begin_behind_it() {
    const SECOND: i64 = 1_000_000;
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::from_secs(3600)).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let mut claimed = Vec::new();
    for (n, key) in (1..).zip(["a", "b"]) {
        set_time(&engine, n * 10 * SECOND).await;
        engine.add_keys(&queue, asks([key])).await.expect("added");
        claimed.push(one(&engine, &queue).await);
    }
    let a = claimed.swap_remove(0);
    let mut wakes = engine.subscribe_wakes(&queue);
    let released = end(&a, Finish::Unclaim(a.asked, a.queued));
    assert_eq!(engine.finish_deliveries(&queue, released).await.expect("ended"), [true]);
    // The next claim starts a scan. The scan finds the key, and wakes the process.
    let again = loop {
        let claimed = engine.claim_keys(&queue, claim(1, MINUTE)).await.expect("claimed");
        match claimed.items.into_iter().next() {
            Some(again) => break again,
            None => woken(&mut wakes).await,
        }
    };
    let found = (&again.key, again.queued, again.failures, again.asked);
    assert_eq!(found, (&a.key, Duration::from_secs(10), 0, a.asked));
}

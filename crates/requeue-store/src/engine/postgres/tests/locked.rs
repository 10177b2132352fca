//! Tests operations on locked keys, and on other keys of the same batch.

use super::changing::{MINUTE, asks, claim, end, one, other};
use super::*;
use crate::engine::{Delivery, Finish};

const SECOND: i64 = 1_000_000;

#[tokio::test]
async fn a_lease_is_renewed_while_somebody_has_the_key_locked() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    let adder = other(&url).await;
    let run = async |sql: &str| adder.batch_execute(sql).await.expect(sql);
    let claimed = async || {
        let claimed = engine.claim_keys(&queue, claim(9, MINUTE)).await.expect("claimed");
        claimed.items.into_iter().map(|out| out.key.to_string()).collect::<Vec<_>>()
    };
    engine.add_keys(&queue, asks(["a", "b"])).await.expect("added");
    let (a, b) = (one(&engine, &queue).await, one(&engine, &queue).await);
    let renewed = async || {
        let held = vec![(a.key.clone(), a.epoch), (b.key.clone(), b.epoch)];
        engine.renew_leases(&queue, held, MINUTE).await.expect("renewed")
    };
    run("begin; select requeue.add('q', 'a')").await;
    for seconds in [50, 100, 150] {
        set_time(&engine, seconds * SECOND).await;
        assert_eq!(renewed().await, [Renewed::Yes, Renewed::Yes]);
    }
    run("commit").await;
    // In the key's row, the lease has expired. The stored renewal extends it.
    set_time(&engine, 205 * SECOND).await;
    assert_eq!(claimed().await, [""; 0]);
    assert_eq!(renewed().await, [Renewed::Yes, Renewed::Yes]);

    // The result is the same if the completion comes before the next claim and the next renewal.
    run("begin; select requeue.add('q', 'a'), requeue.add('q', 'b')").await;
    set_time(&engine, 260 * SECOND).await;
    assert_eq!(renewed().await, [Renewed::Yes, Renewed::Yes]);
    run("commit").await;
    set_time(&engine, 300 * SECOND).await;
    assert_eq!(
        engine.finish_deliveries(&queue, end(&a, Finish::Succeed)).await.expect("finished"),
        [true]
    );

    // If a lease is not renewed, it is lost.
    set_time(&engine, 330 * SECOND).await;
    let mut taken = claimed().await;
    taken.sort();
    assert_eq!(taken, ["a", "b"]);
    assert_eq!(renewed().await, [Renewed::Lost, Renewed::Lost]);
    let ends = [end(&a, Finish::Succeed), end(&b, Finish::Succeed)].concat();
    assert_eq!(engine.finish_deliveries(&queue, ends).await.expect("finished"), [false, false]);
    let left = "select count(*) from requeue.renewals";
    assert_eq!(engine.sessions.query_row(left, &[]).await.expect("counted").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn what_is_locked_is_told_apart_from_what_is_not() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let adder = other(&url).await;
    let names: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    let all = || asks(names.iter().map(String::as_str));
    engine.add_keys(&queue, all()).await.expect("added");
    let held = engine.claim_keys(&queue, claim(20, MINUTE)).await.expect("claimed").items;
    let locking = "begin; select requeue.add_many('q', array['03', '04', '17'])";
    adder.batch_execute(locking).await.expect("added");
    let mut adding = all();
    adding.reverse();
    let added = engine.add_free(&queue, adding).await.expect("added");
    for (n, added) in added.iter().rev().enumerate() {
        let free = (![3, 4, 17].contains(&n)).then_some(Added::Dirty);
        assert_eq!(*added, free, "{n}");
    }
    let ends: Vec<End> = held.iter().flat_map(|out| end(out, Finish::Succeed)).collect();
    let stale = [end(&Delivery { epoch: 0, ..held[0].clone() }, Finish::Succeed), ends].concat();
    let finished = engine.finish_free(&queue, stale).await.expect("finished");
    assert_eq!(finished[0], Some(false));
    for (out, finished) in held.iter().zip(&finished[1..]) {
        let is_free = ![&b"03"[..], b"04", b"17"].contains(&&*out.key);
        assert_eq!(*finished, is_free.then_some(true), "{}", out.key);
    }
    adder.batch_execute("rollback").await.expect("rolled back");
}

#[tokio::test]
async fn a_transaction_that_stays_open_holds_up_its_keys_alone() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = crate::Store::connect(&url).await.expect("the store connects");
    store.migrate().await.expect("the schema is created");
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all(["a", "b"]).await.expect("added");
    let [a, b] = queue.get_many(2).await.try_into().expect("two are ready");
    let adder = other(&url).await;
    let adding = "begin; select requeue.add('q', 'a'), requeue.add('q', 'new')";
    adder.batch_execute(adding).await.expect("added");
    let add = |key: &'static str| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add(key).await })
    };
    let (new, other) = (add("new"), add("other"));
    let (a, b) = (tokio::spawn(a.succeed()), tokio::spawn(b.succeed()));
    assert_eq!(other.await.expect("the task does not panic").expect("added"), Added::New);
    b.await.expect("the task does not panic").expect("the lease is valid");
    assert!(!new.is_finished() && !a.is_finished());
    adder.batch_execute("commit").await.expect("committed");
    assert_eq!(new.await.expect("the task does not panic").expect("added"), Added::Coalesced);
    a.await.expect("the task does not panic").expect("the lease is valid");
    let counts = queue.counts().await.expect("counted");
    assert_eq!((counts.ready, counts.in_flight), (3, 0), "a, new and other");
}

#[tokio::test]
async fn who_takes_a_lease_away_and_who_renews_it_do_not_both() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let (third, adder) = (other(&url).await, other(&url).await);
    let run = async |sql: &str| third.batch_execute(sql).await.expect(sql);
    engine.add_keys(&queue, asks(["a"])).await.expect("added");
    let a = one(&engine, &queue).await;
    let renewed = async |out: &Delivery| {
        let held = vec![(out.key.clone(), out.epoch)];
        engine.renew_leases(&queue, held, MINUTE).await.expect("renewed")
    };
    // When the claim runs, the lease has expired. When the renewal runs, it has not.
    let low = i64::MIN;
    let claiming = format!(
        "begin; update clock set now = {}; \
         select requeue.claim({}, false, 1, 0, 60000000, 1, 1, 0, null, '{{{low},{low},{low},{low}}}')",
        100 * SECOND,
        queue.id
    );
    run(&claiming).await;
    assert_eq!(renewed(&a).await, [Renewed::Busy]);
    run("commit").await;
    assert_eq!(renewed(&a).await, [Renewed::Lost]);

    // The order is now reversed: another transaction keeps the key locked until the renewal has begun.
    set_time(&engine, 200 * SECOND).await;
    let a = one(&engine, &queue).await;
    adder.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
    let renewing = format!(
        "begin; select requeue.renew({}, array['a'::bytea], array[{}::bigint], {})",
        queue.id,
        a.epoch,
        200 * SECOND
    );
    run(&renewing).await;
    adder.batch_execute("commit").await.expect("committed");
    set_time(&engine, 300 * SECOND).await;
    let claimed =
        async || engine.claim_keys(&queue, claim(9, MINUTE)).await.expect("claimed").items;
    assert_eq!(claimed().await, []);
    run("commit").await;
    assert_eq!(claimed().await, []);
    assert_eq!(
        engine.finish_deliveries(&queue, end(&a, Finish::Succeed)).await.expect("finished"),
        [true]
    );
}

#[tokio::test]
async fn leases_of_many_locked_keys_are_renewed_a_few_at_a_time() {
    const MANY: usize = 150;
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let (adder, third) = (other(&url).await, other(&url).await);
    let names: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    engine.add_keys(&queue, asks(names.iter().map(String::as_str))).await.expect("added");
    let held = engine.claim_keys(&queue, claim(MANY, MINUTE)).await.expect("claimed").items;
    let locking = "begin; select requeue.add_many('q', array_agg(convert_from(key, 'UTF8'))) \
                   from requeue.keys";
    adder.batch_execute(locking).await.expect("added");
    let held: Vec<(Key, i64)> = held.into_iter().map(|out| (out.key, out.epoch)).collect();
    let renewed = engine.renew_leases(&queue, held, MINUTE).await.expect("renewed");
    assert_eq!(renewed, vec![Renewed::Yes; MANY]);

    // One statement needs few entries in the lock table of the whole server.
    third.batch_execute("begin").await.expect("begun");
    let renewing = "select cardinality((requeue.renew(1, array_agg(key), array_agg(epoch), 1)).rest) \
                    from requeue.keys";
    let rest: i32 = third.query_one(renewing, &[]).await.expect("renewed").get(0);
    let locks = "select count(*) from pg_locks where locktype = 'advisory' \
                 and pid = pg_backend_pid()";
    let locks: i64 = third.query_one(locks, &[]).await.expect("counted").get(0);
    assert_eq!((locks, rest), (64, 150 - 64));
    third.batch_execute("rollback").await.expect("rolled back");
    adder.batch_execute("rollback").await.expect("rolled back");
}

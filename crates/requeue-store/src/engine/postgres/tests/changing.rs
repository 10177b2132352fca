//! Tests concurrent changes of the same keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_postgres::Client;

use super::*;
use crate::engine::{Asked, Backoff, Delivery, Failing, Failure, Finish};
use crate::types::add::Add;
use crate::types::error::{Answer, Kind};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn failing() -> Failing {
    let (base, cap) = (Duration::from_micros(1), Duration::from_micros(1));
    Failing { backoff: Backoff { base, cap, share: 0.0 }, max_failures: None }
}

pub(super) fn claim(max: usize, lease: Duration) -> Claim {
    Claim { max, oldest: max / 10, lease, expired: failing(), poll: Duration::from_secs(1) }
}

pub(super) fn asks<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<Ask> {
    keys.into_iter().map(|key| Ask::new(key, Add::now())).collect()
}

pub(super) fn end(out: &Delivery, how: Finish) -> Vec<End> {
    vec![End { key: out.key.clone(), epoch: out.epoch, how }]
}

pub(super) async fn one(engine: &Postgres, queue: &Place) -> Delivery {
    let claimed = engine.claim_keys(queue, claim(1, MINUTE)).await.expect("claimed");
    claimed.items.into_iter().next().expect("one is ready")
}

/// Connects a client that can begin a transaction.
pub(super) async fn other(url: &str) -> Client {
    let config: tokio_postgres::Config = url.parse().expect("the address is valid");
    let (client, connection) =
        config.connect(tokio_postgres::NoTls).await.expect("the server is reachable");
    tokio::spawn(connection);
    client
}

/// Waits until at least `statements` statements that begin with `statement` wait for locks.
async fn wait_for(statements: i64, client: &Client, statement: &str) {
    let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
               and datname = current_database() and query like $1 || '%'";
    loop {
        let found: i64 =
            client.query_one(sql, &[&statement]).await.expect("the query succeeds").get(0);
        if found >= statements {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Retries while the key is locked, because operations do not wait long for locks.
async fn patient<'a, T>(operation: impl Fn() -> crate::tests::BoxAnswer<'a, T>) -> Answer<T> {
    loop {
        match operation().await {
            Err(fault) if fault.kind == Kind::Locked => {}
            done => return done,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_has_a_key_that_another_has_and_none_is_lost() {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 250;
    const KEYS: usize = 25;
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, WHOLE).await;
    let engine = Arc::new(engine);
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    // For each key: its present holder, a number from before its last add, and a number from after its last delivery.
    // All numbers come from one sequence.
    let holders: Arc<[AtomicUsize; KEYS]> = Arc::new([const { AtomicUsize::new(0) }; KEYS]);
    let added: Arc<[AtomicUsize; KEYS]> = Arc::new([const { AtomicUsize::new(0) }; KEYS]);
    let taken: Arc<[AtomicUsize; KEYS]> = Arc::new([const { AtomicUsize::new(0) }; KEYS]);
    let order = Arc::new(AtomicUsize::new(1));
    let next = |order: &AtomicUsize| order.fetch_add(1, Ordering::SeqCst);
    let number = |key: &Key| key.as_str().and_then(|key| key.parse::<usize>().ok());
    let work = |worker: usize| {
        let (engine, queue) = (Arc::clone(&engine), queue.clone());
        let (holders, order) = (Arc::clone(&holders), Arc::clone(&order));
        let (added, taken) = (Arc::clone(&added), Arc::clone(&taken));
        async move {
            let mut random = fastrand::Rng::with_seed(worker as u64);
            let mut last: HashMap<Key, i64> = HashMap::new();
            for _ in 0..ROUNDS {
                let mut keys: Vec<usize> = (0..KEYS).filter(|_| random.u8(..) < 80).collect();
                // Each worker adds the keys in a different order.
                random.shuffle(&mut keys);
                let adds = keys.iter().map(|n| {
                    Ask::new(
                        n.to_string(),
                        Add::after(Duration::from_micros(random.u64(0..3) * 100)),
                    )
                });
                let (adds, before): (Vec<Ask>, _) = (adds.collect(), next(&order));
                patient(|| engine.add_keys(&queue, adds.clone())).await.expect("added");
                for n in keys {
                    added[n].fetch_max(before, Ordering::SeqCst);
                }
                let claimed = engine.claim_keys(&queue, claim(8, MINUTE)).await.expect("claimed");
                let after = next(&order);
                let mut ends = Vec::new();
                for out in claimed.items {
                    let n = number(&out.key).expect("the key is a number");
                    assert_eq!(holders[n].swap(worker + 1, Ordering::SeqCst), 0, "key {n}");
                    assert!(last.insert(out.key.clone(), out.epoch) < Some(out.epoch));
                    taken[n].fetch_max(after, Ordering::SeqCst);
                    let how = match random.u8(0..4) {
                        0 => Finish::Release(Asked::default()),
                        1 => Finish::Retry(failing(), Failure::new(out.asked, "no")),
                        _ => Finish::Succeed,
                    };
                    ends.push(End { key: out.key, epoch: out.epoch, how });
                }
                let held: Vec<_> = ends.iter().map(|end| (end.key.clone(), end.epoch)).collect();
                engine.renew_leases(&queue, held, MINUTE).await.expect("renewed");
                random.shuffle(&mut ends);
                ends.iter().for_each(|end| {
                    let n = number(&end.key).expect("the key is a number");
                    assert_eq!(holders[n].swap(0, Ordering::SeqCst), worker + 1, "key {n}");
                });
                let expected = vec![true; ends.len()];
                let finished = patient(|| engine.finish_deliveries(&queue, ends.clone())).await;
                assert_eq!(finished.expect("finished"), expected);
            }
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|worker| tokio::spawn(work(worker))).collect();
    for worker in workers {
        worker.await.expect("the task does not panic");
    }
    // Each key that was added after its last delivery must still be in the queue. If its add waited for a lock for a
    // long time, only a claim that searches all keys finds the key.
    while engine.count_keys(&queue).await.expect("counted") != StateCounts::default() {
        let claimed = engine.claim_keys(&queue, claim(100, MINUTE)).await.expect("claimed");
        for out in &claimed.items {
            taken[number(&out.key).expect("the key is a number")]
                .store(next(&order), Ordering::SeqCst);
            let ended = engine.finish_deliveries(&queue, end(out, Finish::Succeed)).await;
            assert_eq!(ended.expect("finished"), [true]);
        }
    }
    for (added, taken) in added.iter().zip(&*taken) {
        assert!(taken.load(Ordering::SeqCst) > added.load(Ordering::SeqCst), "{added:?} {taken:?}");
    }
}

#[tokio::test]
async fn an_add_that_commits_while_the_holder_finishes_is_not_lost() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let (adder, onlooker) = (other(&url).await, other(&url).await);
    for how in [Finish::Succeed, Finish::RequeueAfter(MINUTE, crate::types::add::Priority::Normal)]
    {
        engine.add_keys(&queue, asks(["a", "b"])).await.expect("added");
        let (a, b) = (one(&engine, &queue).await, one(&engine, &queue).await);
        adder.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
        let ends = [end(&a, how), end(&b, Finish::Succeed)].concat();
        let finishing = patient(|| engine.finish_deliveries(&queue, ends.clone()));
        let committing = async {
            wait_for(1, &onlooker, "select requeue.finish").await;
            adder.batch_execute("commit").await.expect("committed");
        };
        let (finished, ()) = tokio::join!(finishing, committing);
        assert_eq!(finished.expect("finished"), [true, true]);
        let again = one(&engine, &queue).await;
        assert_eq!((&again.key, again.asked.adds > 0), (&a.key, true));
        assert!(again.epoch > b.epoch);
        assert_eq!(
            engine.finish_deliveries(&queue, end(&again, Finish::Succeed)).await.expect("finished"),
            [true]
        );
        assert_eq!(engine.count_keys(&queue).await.expect("counted"), StateCounts::default());
    }
}

#[tokio::test]
async fn an_add_that_is_rolled_back_leaves_nothing() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let adder = other(&url).await;
    adder.batch_execute("begin; select requeue.add('q', 'new')").await.expect("added");
    adder.batch_execute("rollback").await.expect("rolled back");
    assert_eq!(engine.count_keys(&queue).await.expect("counted"), StateCounts::default());

    engine.add_keys(&queue, asks(["a"])).await.expect("added");
    let a = one(&engine, &queue).await;
    adder.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
    // The add is not committed. Other transactions do not see it, and do not wait for it.
    let seen = engine.look_up(&queue, &a.key).await.expect("looked up").expect("the key exists");
    assert!(!seen.dirty);
    adder.batch_execute("rollback").await.expect("rolled back");
    assert_eq!(
        engine.finish_deliveries(&queue, end(&a, Finish::Succeed)).await.expect("finished"),
        [true]
    );
    assert_eq!(engine.count_keys(&queue).await.expect("counted"), StateCounts::default());
}

#[tokio::test]
async fn a_key_that_somebody_has_locked_holds_up_no_lease_and_no_claim() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let adder = other(&url).await;
    engine.add_keys(&queue, asks(["a", "b", "c", "d"])).await.expect("added");
    let claimed = engine.claim_keys(&queue, claim(2, MINUTE)).await.expect("claimed").items;
    let mut held: Vec<_> = claimed.into_iter().map(|out| (out.key, out.epoch)).collect();
    adder
        .batch_execute("begin; select requeue.add('q', 'a'); select requeue.add('q', 'c')")
        .await
        .expect("added");
    held.push((Key::from("nobody's"), 1));
    let renewed = engine.renew_leases(&queue, held.clone(), MINUTE).await.expect("renewed");
    assert_eq!(renewed, [Renewed::Yes, Renewed::Yes, Renewed::Lost]);
    let claimed = engine.claim_keys(&queue, claim(2, MINUTE)).await.expect("claimed");
    assert_eq!(claimed.items.iter().map(|out| &*out.key).collect::<Vec<_>>(), [b"d"]);
    // The key may soon be unlocked, so the next claim is soon.
    assert!(claimed.next.is_some_and(|next| next < Duration::from_secs(1)));
    adder.batch_execute("commit").await.expect("committed");
    let renewed = engine.renew_leases(&queue, held, MINUTE).await.expect("renewed");
    assert_eq!(renewed, [Renewed::Yes, Renewed::Yes, Renewed::Lost]);
    assert_eq!(&*one(&engine, &queue).await.key, b"c");
}

#[tokio::test]
async fn batches_in_different_orders_do_not_deadlock() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let (adder, onlooker) = (other(&url).await, other(&url).await);
    adder.batch_execute("begin; select requeue.add('q', 'b')").await.expect("added");
    // Both transactions wait for `b`. Neither has locked a key that the other transaction needs before `b`.
    let backwards = format!(
        "select requeue.add_all({}, array['c', 'b', 'a']::bytea[], '{{0, 0, 0}}', '{{0, 0, 0}}', \
         '{{0, 0, 0}}', '{{0, 0, 0}}', '{{1, 1, 1}}', null)",
        queue.id
    );
    let other = other(&url).await;
    // If this query fails, the test ends with it. Otherwise, the other futures would wait for the query forever.
    let adding_backwards =
        async { other.query_one(&backwards, &[]).await.expect("added").get::<_, Vec<i16>>(0) };
    let (one, other) = tokio::join!(adding_backwards, async {
        wait_for(1, &onlooker, "select requeue.add_all").await;
        let adding = async {
            patient(|| engine.add_keys(&queue, asks(["a", "b", "c"]))).await.expect("added")
        };
        let committing = async {
            wait_for(2, &onlooker, "select requeue.add_all").await;
            adder.batch_execute("commit").await.expect("committed");
        };
        tokio::join!(adding, committing).0
    });
    assert_eq!(one, [0, 1, 0]);
    assert_eq!(other, [Added::Coalesced; 3]);
    let sql = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(onlooker.query_one(sql, &[]).await.expect("the query succeeds").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn what_waits_for_a_lock_ends_when_nobody_waits_for_it() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let (adder, onlooker) = (other(&url).await, other(&url).await);
    adder.batch_execute("begin; select requeue.add('q', 'b')").await.expect("added");
    {
        let adding = patient(|| engine.add_keys(&queue, asks(["a", "b"])));
        tokio::select! {
            _ = adding => panic!("`b` is locked"),
            () = wait_for(1, &onlooker, "select requeue.add_all") => {}
        }
    }
    // The dropped add has closed its connection. Therefore, `a` is not locked, but `b` is still locked.
    let added = patient(|| engine.add_keys(&queue, asks(["a"]))).await;
    assert_eq!(added.expect("added"), [Added::New]);
    adder.batch_execute("rollback").await.expect("rolled back");
}

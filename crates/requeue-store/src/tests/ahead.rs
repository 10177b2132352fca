//! Tests keys that are claimed ahead: when they are claimed, how many, and when they return.

use super::*;
use crate::types::inspect::State;

/// Opens the queue with the same engine, as another process does.
fn another(engine: &Arc<Memory>) -> Queue {
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    Queue::new(Arc::clone(engine) as Arc<dyn Engine>, place, Options::default(), None)
}

fn name(n: u32) -> String {
    format!("{n:05}")
}

/// Returns a queue of 1,000 keys. A worker has just run 300 of them without a break, and holds one more key.
async fn busy(options: Options) -> (Arc<Memory>, Queue, Item) {
    let (engine, queue) = queue_with(Memory::new(), options);
    for n in 0..1000 {
        queue.add(name(n)).await.expect("added");
        tokio::time::advance(Duration::from_micros(1)).await;
    }
    for _ in 0..300 {
        get(&queue).await.succeed().await.expect("the lease is held");
    }
    let item = get(&queue).await;
    settle().await;
    (engine, queue, item)
}

async fn in_flight(queue: &Queue) -> usize {
    let all = queue.snapshot(State::InFlight, None, 1000).await.expect("a page");
    all.len()
}

#[tokio::test(start_paused = true)]
async fn keys_are_claimed_ahead_of_a_quick_worker_and_of_no_slow_one() {
    let (engine, queue, item) = busy(Options::default()).await;
    let ahead = in_flight(&queue).await - 1;
    assert!((1..=40).contains(&ahead), "{ahead}");
    item.succeed().await.expect("the lease is held");
    // This call clears the list of batches. After it, one claim serves many getters.
    engine.batches();
    for _ in 0..20 {
        get(&queue).await.succeed().await.expect("the lease is held");
    }
    let claims = engine.batches().into_iter().filter(|&keys| keys > 1).count();
    assert!((1..10).contains(&claims), "{claims}");

    // No worker takes the keys that were claimed ahead, so they return to the store.
    tokio::time::advance(SECOND).await;
    settle().await;
    assert_eq!(in_flight(&queue).await, 0);
    for _ in 0..10 {
        let item = get(&queue).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(in_flight(&queue).await, 1);
        item.succeed().await.expect("the lease is held");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_elsewhere_gets_what_was_claimed_ahead_in_its_order_and_it_has_not_failed() {
    let (engine, queue, item) = busy(Options::default()).await;
    let ahead = in_flight(&queue).await - 1;
    let other = another(&engine);
    // This loop takes all keys that were not claimed ahead.
    let mut elsewhere = Vec::new();
    while elsewhere.len() + ahead < 699 {
        elsewhere.extend(other.get_many(699 - elsewhere.len() - ahead).await);
    }
    let start = Instant::now();
    for n in 0..ahead {
        let item = get(&other).await;
        let expected = name(u32::try_from(301 + n).expect("a small number"));
        let found = (item.as_str(), item.attempt(), item.adds());
        assert_eq!(found, (Some(expected.as_str()), 1, 1));
        item.succeed().await.expect("the lease is held");
    }
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    assert!(!item.is_lost());
    assert_eq!(queue.leased(), 1);
    item.succeed().await.expect("the lease is held");
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_ahead_is_back_once_it_is_shut_down_and_settled() {
    let (engine, queue, item) = busy(Options::default()).await;
    assert!(in_flight(&queue).await > 1);
    queue.shut_down();
    queue.settled().await;
    assert_eq!(in_flight(&queue).await, 1);
    item.succeed().await.expect("the lease is held");
    assert_eq!(engine.row("00301").map(|row| (row.failures, row.asked.adds)), Some((0, 1)));
    // The key has its earlier place in the order.
    assert_eq!(get(&another(&engine)).await.as_str(), Some("00301"));
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_ahead_is_back_when_the_last_handle_is_gone() {
    let (engine, queue, item) = busy(Options::default()).await;
    drop(queue);
    settle().await;
    item.succeed().await.expect("the lease is held");
    settle().await;
    assert_eq!(in_flight(&another(&engine)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn leases_of_keys_that_are_ahead_are_their_holders() {
    let (engine, queue, item) = busy(Options::default()).await;
    assert!(in_flight(&queue).await > 1);
    // The process is suspended until its leases have expired. Therefore, none of its keys is delivered.
    let gate = engine.gate.lock().await;
    tokio::time::advance(Options::default().lease).await;
    let getter = tokio::spawn({
        let queue = queue.clone();
        async move { get(&queue).await }
    });
    drop(gate);
    let next = getter.await.expect("the task completes");
    assert!(item.is_lost() && !next.is_lost());
    assert_eq!(
        engine
            .row(next.as_str().expect("text"))
            .and_then(|row| row.run)
            .map(|run| run.epoch.unsigned_abs()),
        Some(next.fencing_token())
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_ahead_where_that_is_switched_off_or_many_are_taken_at_once() {
    let off = Options { claim_ahead: 0, ..Options::default() };
    let (_, queue, item) = busy(off).await;
    assert_eq!(in_flight(&queue).await, 1);
    drop(item);

    let (_, queue) = queue_with(Memory::new(), Options::default());
    queue.add_all((0..1000u32).map(name)).await.expect("added");
    for _ in 0..50 {
        for item in queue.get_many(10).await {
            item.succeed().await.expect("the lease is held");
        }
    }
    settle().await;
    assert_eq!(in_flight(&queue).await, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_ahead_while_keys_come_one_by_one() {
    let (engine, queue) = queue();
    for n in 0..300 {
        let getter = tokio::spawn({
            let queue = queue.clone();
            async move { get(&queue).await }
        });
        settle().await;
        queue.add(name(n)).await.expect("added");
        getter.await.expect("the task completes").succeed().await.expect("the lease is held");
    }
    assert!(engine.batches().iter().all(|&keys| keys == 1));
}

#[tokio::test(start_paused = true)]
async fn a_pause_returns_what_was_claimed_ahead() {
    let (engine, queue, item) = busy(Options::default()).await;
    let ahead = in_flight(&queue).await - 1;
    let other = another(&engine);
    other.pause().await.expect("paused");
    item.succeed().await.expect("the lease is held");
    // The worker receives keys until its process claims again, and learns of the pause.
    let mut taken = 0;
    while let Ok(item) = tokio::time::timeout(SECOND, get(&queue)).await {
        item.succeed().await.expect("the lease is held");
        taken += 1;
    }
    assert!((1..=ahead).contains(&taken), "{taken} of {ahead}");
    assert_eq!(in_flight(&queue).await, 0);
    other.resume().await.expect("resumed");
    let next = name(u32::try_from(301 + taken).expect("a small number"));
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt(), item.adds()), (Some(&*next), 1, 1));
    item.succeed().await.expect("the lease is held");
}

#[tokio::test(start_paused = true)]
async fn a_pause_returns_what_a_worker_does_not_take_within_a_second() {
    let (engine, queue, item) = busy(Options::default()).await;
    assert!(in_flight(&queue).await > 1);
    another(&engine).pause().await.expect("paused");
    tokio::time::advance(SECOND).await;
    settle().await;
    assert_eq!(in_flight(&queue).await, 1);
    item.succeed().await.expect("the lease is held");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cancelled_while_its_key_was_ahead_never_starts() {
    let (engine, queue, item) = busy(Options::default()).await;
    assert!(in_flight(&queue).await > 1);
    let cancelled = another(&engine).cancel_running("00301").await.expect("answered");
    assert_eq!(cancelled, requeue::CancelledRun::Cancelled);
    queue.shut_down();
    queue.settled().await;
    assert_eq!(engine.row("00301"), None);
    assert_eq!(get(&another(&engine)).await.as_str(), Some("00302"));
    drop(item);
}

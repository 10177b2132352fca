//! Tests getters: the keys that they receive, when they are woken or poll, and when they return `None`.

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::engine::Claim;

fn getting(queue: &Queue) -> JoinHandle<Item> {
    let queue = queue.clone();
    tokio::spawn(async move { get(&queue).await })
}

#[tokio::test(start_paused = true)]
async fn a_getter_is_woken_when_a_key_comes_and_when_one_is_due() {
    let (_, queue) = queue();
    let start = Instant::now();
    let getter = getting(&queue);
    settle().await;
    queue.add("a").await.expect("added");
    let item = getter.await.expect("the task completes");
    assert_eq!((item.as_str(), start.elapsed()), (Some("a"), Duration::ZERO));
    item.succeed().await.expect("the lease is held");

    queue.add_after("b", Duration::from_millis(300)).await.expect("added");
    assert_eq!(get(&queue).await.as_str(), Some("b"));
    // The timers of tokio have a resolution of a millisecond.
    assert!(start.elapsed() <= Duration::from_millis(302), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_lost_costs_a_poll() {
    let mut engine = Memory::new();
    engine.tells = false;
    let (_, queue) = queue_with(engine, Options::default());
    let start = Instant::now();
    let getter = getting(&queue);
    settle().await;
    queue.add("a").await.expect("added");
    let item = getter.await.expect("the task completes");
    assert_eq!(item.as_str(), Some("a"));
    let waited = start.elapsed();
    assert!(Duration::from_millis(850) < waited && waited < Duration::from_millis(1150));
}

#[tokio::test(start_paused = true)]
async fn a_key_for_one_who_has_gone_is_put_back_and_has_not_failed() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    let getter = getting(&queue);
    settle().await;
    getter.abort();
    let add = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add("a").await })
    };
    settle().await;
    drop(gate);
    add.await.expect("the task completes").expect("added");
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt()), (Some("a"), 1));
    // A key that was already claimed is not lost either.
    item.succeed().await.expect("the lease is held");
    let mut getter = Box::pin(queue.get());
    assert!(polled(&mut getter).await.is_pending());
    queue.add("b").await.expect("added");
    settle().await;
    drop(getter);
    settle().await;
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt(), item.adds()), (Some("b"), 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_goes_to_one_getter_and_what_it_does_not_want_to_the_next() {
    let (_, queue) = queue();
    queue.add_all((0..10u32).map(|n| n.to_string())).await.expect("added");
    let many = queue.get_many(4).await;
    assert_eq!(many.len(), 4);
    assert_eq!(queue.get_many(100).await.len(), 6);
    assert_eq!(queue.get_many(0).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_in_so_many_is_the_oldest_whatever_its_priority() {
    let (_, queue) = queue_with(Memory::new(), Options { oldest_every: 3, ..Options::default() });
    queue.add_with("old", Add::now().priority(Priority::Low)).await.expect("added");
    tokio::time::advance(SECOND).await;
    let high = Add::now().priority(Priority::High);
    queue.add_all_with(["a", "b", "c", "d"], high).await.expect("added");
    let mut order = Vec::new();
    for _ in 0..5 {
        let item = get(&queue).await;
        order.push(item.to_string());
        item.succeed().await.expect("the lease is held");
    }
    assert_eq!(order, ["a", "b", "old", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_never_answered_is_made_again() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    engine.fail([Mishap::Silent, Mishap::Absent]);
    assert_eq!(get(&queue).await.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_shut_down_hands_out_no_more() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await })
    };
    settle().await;
    queue.shut_down();
    assert!(getter.await.expect("the task completes").is_none());
    assert!(queue.shutting_down() && queue.get().await.is_none());
    assert_eq!(queue.add("b").await.expect("adds still work"), Added::New);
    item.succeed().await.expect("the lease is held");
    assert!(engine.row("b").is_some());
}

#[tokio::test(start_paused = true)]
async fn it_is_not_idle_while_another_works() {
    let mut engine = Memory::new();
    // An engine need not report when leases expire.
    engine.knows_leases = false;
    let (engine, queue) = queue_with(engine, Options::default());
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    queue.shut_down_when_idle();
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await })
    };
    tokio::time::advance(SECOND).await;
    settle().await;
    assert!(!queue.shutting_down());
    item.succeed().await.expect("the lease is held");
    assert!(getter.await.expect("the task completes").is_none());
    assert!(engine.row("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn it_is_not_idle_while_a_schedule_is_due() {
    for (schedule_in, is_idle) in [(Duration::ZERO, false), (SECOND * 3600, true)] {
        let mut engine = Memory::new();
        engine.schedule_in = Some(schedule_in);
        let (_, queue) = queue_with(engine, Options::default());
        queue.shut_down_when_idle();
        let got = timeout(SECOND, queue.get()).await;
        assert_eq!(got.is_ok_and(|item| item.is_none()), is_idle, "{schedule_in:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_idle_however_long_a_count_takes() {
    let (engine, queue) = queue();
    let _counting = engine.counting.lock().await;
    queue.shut_down_when_idle();
    let ended = timeout(Duration::from_secs(3600), queue.get()).await;
    assert!(ended.expect("within an hour").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_worker_had_comes_back_to_one_who_seldom_looks() {
    let mut engine = Memory::new();
    engine.knows_leases = false;
    let hour = Duration::from_secs(3600);
    let options = Options { poll: hour, ..Options::default() };
    let (lease, expired) = (options.lease, options.failing_rules());
    let (engine, queue) = queue_with(engine, options);
    queue.add("a").await.expect("added");
    let claim = Claim { max: 1, oldest: 0, lease, expired, poll: hour };
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let dead = engine.claim_keys(&place, claim).await.expect("claimed");
    assert_eq!(dead.items.len(), 1);
    let start = Instant::now();
    assert_eq!(get(&queue).await.attempt(), 2);
    assert!(start.elapsed() < 3 * lease, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_wants_no_key_passes_its_wake_on() {
    let (engine, queue) =
        queue_with(Memory::new(), Options { claim_ahead: 0, ..Options::default() });
    let mut getter = Box::pin(queue.get());
    assert!(polled(&mut getter).await.is_pending());
    settle().await;
    engine.wake_getters();
    settle().await;
    assert_eq!(engine.passed_wakes(), 0, "the getter needs the wake");
    drop(getter);
    for n in 1..=2 {
        engine.wake_getters();
        settle().await;
        assert_eq!(engine.passed_wakes(), 1, "wake {n}: the process waits for no further one");
    }

    // The wake for another key arrives during a claim. The claim has taken its key, but is not answered yet.
    queue.add("a").await.expect("added");
    settle().await;
    let gate = engine.gate.lock().await;
    let mut getter = Box::pin(queue.get());
    assert!(polled(&mut getter).await.is_pending());
    settle().await;
    engine.wake_getters();
    drop(gate);
    assert_eq!(getter.await.expect("the queue is open").as_str(), Some("a"));
    settle().await;
    assert_eq!(engine.passed_wakes(), 2);
}

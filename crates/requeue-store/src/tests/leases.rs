//! Tests leases: their renewal and loss, and completions during an outage.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_as_long_as_the_item_is_held() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(9)).await;
        settle().await;
        assert!(!item.is_lost());
    }
    assert!(engine.row("a").expect("the key has a row").run.is_some());
    item.succeed().await.expect("the lease is held");
    assert_eq!((engine.row("a"), queue.leased()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_can_not_be_renewed_is_lost_before_the_engine_says_so() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let start = Instant::now();
    let item = get(&queue).await;
    engine.fail([Mishap::Silent, Mishap::Absent, Mishap::Absent]);
    item.lost().await;
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(matches!(
        item.succeed().await,
        Err(CompleteError::Lost | CompleteError::Unreachable(_))
    ));
    // The run has failed, so the key is delivered again.
    let item = get(&queue).await;
    assert_eq!((item.attempt(), item.fencing_token()), (2, 2));
    item.succeed().await.expect("the lease is held");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_keeps_nobody_from_hearing_of_the_loss() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    queue.add("b").await.expect("added");
    // Another key is claimed earlier. Therefore, no renewal happens when this lease expires.
    let first = get(&queue).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let start = Instant::now();
    let item = get(&queue).await;
    let gate = engine.gate.lock().await;
    item.lost().await;
    assert_eq!(start.elapsed().as_secs(), 30);
    drop(gate);
    assert!(matches!(item.succeed().await, Err(CompleteError::Lost)));
    assert!(first.is_lost());
}

#[tokio::test(start_paused = true)]
async fn who_has_lost_a_key_changes_nothing() {
    let (engine, queue) = queue();
    let (_, other) = {
        let place = Place::new(1, "q", ReaddPolicy::Replace);
        let other = Queue::new(Arc::clone(&engine) as _, place, Options::default(), None);
        ((), other)
    };
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    let gate = engine.gate.lock().await;
    tokio::time::advance(Duration::from_secs(31)).await;
    settle().await;
    drop(gate);
    let again = get(&other).await;
    assert!(again.fencing_token() > item.fencing_token() && item.is_lost());
    assert!(matches!(
        item.succeed().await,
        Err(CompleteError::Lost | CompleteError::Unreachable(_))
    ));
    assert!(engine.row("a").expect("the key has a row").run.is_some());
    again.succeed().await.expect("the lease is held");
}

#[tokio::test(start_paused = true)]
async fn an_end_is_tried_as_long_as_the_lease_lasts() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Absent, Mishap::Lost, Mishap::Absent]);
    item.succeed().await.expect("the lease is held");
    assert_eq!(engine.row("a"), None);

    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Unheard]);
    assert!(matches!(item.succeed().await, Err(CompleteError::Unsure)));

    queue.add("a").await.expect("added");
    let (start, item) = (Instant::now(), get(&queue).await);
    engine.fail(std::iter::repeat_n(Mishap::Absent, 1000));
    let error = item.succeed().await.expect_err("the store is unreachable");
    assert!(matches!(error, CompleteError::Unreachable(_)), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_may_have_happened_is_not_said_to_have_failed() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Unheard].into_iter().chain(std::iter::repeat_n(Mishap::Absent, 1000)));
    assert!(matches!(item.succeed().await, Err(CompleteError::Unsure)));
}

//! Tests keys that another transaction has locked.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_key_that_somebody_has_locked_holds_up_no_other() {
    let (engine, queue) = queue();
    let add = |key: &'static str, add: Add| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_with(key, add).await })
    };
    engine.set_locked("b", true);
    let start = Instant::now();
    let [a, b, c] = ["a", "b", "c"].map(|key| add(key, Add::now()));
    for other in [a, c] {
        assert_eq!(other.await.expect("the task completes").expect("added"), Added::New);
    }
    // Later adds of the locked key also wait, and delay no other key.
    let [again, high] = [Add::now(), Add::now().priority(Priority::High)].map(|how| add("b", how));
    settle().await;
    engine.batches();
    queue.add("d").await.expect("added");
    assert_eq!((engine.batches(), start.elapsed()), (vec![1], Duration::ZERO));
    tokio::time::advance(SECOND).await;
    assert!(!b.is_finished() && !again.is_finished());
    engine.set_locked("b", false);
    assert_eq!(b.await.expect("the task completes").expect("added"), Added::New);
    assert_eq!(again.await.expect("the task completes").expect("added"), Added::Coalesced);
    assert_eq!(high.await.expect("the task completes").expect("added"), Added::Coalesced);
    assert_eq!(engine.row("b").expect("the key has a row").asked.adds, 3);
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    // The key is again treated like any other key.
    engine.batches();
    queue.add("b").await.expect("added");
    assert_eq!(engine.batches(), [1]);

    engine.set_locked("e", true);
    let all = tokio::spawn({
        let queue = queue.clone();
        async move { queue.add_all(["e", "f"]).await }
    });
    settle().await;
    assert!(engine.row("f").is_some() && !all.is_finished());
    engine.set_locked("e", false);
    assert_eq!(all.await.expect("the task completes").expect("added"), [Added::New; 2]);
}

#[tokio::test(start_paused = true)]
async fn an_add_of_a_key_that_stays_locked_has_not_happened() {
    let (engine, queue) = queue();
    engine.set_locked("a", true);
    let start = Instant::now();
    let all = queue.add_all(["a"]).await.expect_err("the key is locked");
    for error in [all, queue.add("a").await.expect_err("the key is locked")] {
        assert!(
            chain(&error)
                .ends_with("added: another transaction has locked the key; try again later"),
            "{error}"
        );
        assert!(!error.may_have_happened());
    }
    assert!(start.elapsed() <= Duration::from_secs(60));
    settle().await;
    engine.set_locked("a", false);
    assert_eq!(queue.add("a").await.expect("added"), Added::New);
}

#[tokio::test(start_paused = true)]
async fn what_is_being_ended_is_kept_until_it_has_ended() {
    let (engine, queue) = queue();
    queue.add_all(["a", "b"]).await.expect("added");
    let (a, b) = (get(&queue).await, get(&queue).await);
    engine.set_locked("a", true);
    let ending = tokio::spawn(a.succeed());
    b.succeed().await.expect("the lease is held");
    assert_eq!((engine.row("b"), queue.leased()), (None, 0));
    // The loop takes much longer than the duration of the lease.
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(9)).await;
        settle().await;
    }
    assert!(!ending.is_finished());
    engine.set_locked("a", false);
    ending.await.expect("the task completes").expect("the lease is still held");
    assert_eq!(engine.row("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_locked_can_not_be_changed_and_that_is_said() {
    let (engine, queue) = queue();
    engine.set_locked("a", true);
    let cancelled = chain(&queue.cancel("a").await.expect_err("the key is locked"));
    assert_eq!(
        cancelled,
        "the key was not cancelled: another transaction has locked the key; try again later"
    );
    let revived = chain(&queue.revive("a").await.expect_err("the key is locked"));
    assert_eq!(
        revived,
        "the key was not revived: another transaction has locked the key; try again later"
    );
}

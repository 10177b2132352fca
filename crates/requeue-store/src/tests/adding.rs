//! Tests batches of adds, and their retries.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_comes_together_travels_together() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    // The other adds arrive while the first add is in flight.
    let adds: Vec<_> = (0..100u32)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.add((n % 50).to_string()).await })
        })
        .collect();
    settle().await;
    drop(gate);
    let mut new = 0;
    for add in adds {
        new += u32::from(add.await.expect("the task completes").expect("added") == Added::New);
    }
    assert_eq!(new, 50);
    let batches = engine.batches();
    assert!(batches.len() <= 3, "{batches:?}");
    assert_eq!(engine.row("7").expect("the key has a row").asked.adds, 2);
}

#[tokio::test(start_paused = true)]
async fn adds_of_one_key_that_differ_happen_one_after_the_other() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    let later = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_after("a", SECOND).await })
    };
    settle().await;
    let other = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_with("a", Add::now().priority(Priority::High)).await })
    };
    settle().await;
    drop(gate);
    assert_eq!(later.await.expect("the task completes").expect("added"), Added::New);
    assert_eq!(other.await.expect("the task completes").expect("added"), Added::New);
    assert_eq!(get(&queue).await.priority(), Priority::High);
}

#[tokio::test(start_paused = true)]
async fn an_add_is_tried_until_its_time_is_over() {
    let (engine, queue) = queue();
    engine.fail([Mishap::Absent, Mishap::Lost, Mishap::Absent]);
    assert_eq!(queue.add("a").await.expect("added at last"), Added::New);
    // The first attempt took effect, so the answer to the retry is that of a second add.
    engine.fail([Mishap::Unheard]);
    assert_eq!(queue.add("b").await.expect("added"), Added::Coalesced);

    let always = |mishap| std::iter::repeat_n(mishap, 1000);
    engine.fail(always(Mishap::Absent));
    let error = queue.add("c").await.expect_err("the store is unreachable");
    assert!(!error.may_have_happened(), "{error}");
    assert_eq!(chain(&error), "the key was not added: nobody is there");
    engine.fail([Mishap::Unheard].into_iter().chain(always(Mishap::Absent)));
    let error = queue.add("d").await.expect_err("the store is unreachable");
    assert!(
        engine.row("d").is_none() && !error.may_have_happened(),
        "it met the mishaps left over from the add before"
    );
}

#[tokio::test(start_paused = true)]
async fn an_add_says_whether_it_may_have_happened() {
    for (mishap, unsure) in [(Mishap::Lost, true), (Mishap::Silent, true), (Mishap::Absent, false)]
    {
        let (engine, queue) = queue();
        engine.fail([mishap].into_iter().chain(std::iter::repeat_n(Mishap::Absent, 1000)));
        let start = Instant::now();
        let error = queue.add("a").await.expect_err("the store is unreachable");
        assert_eq!(error.may_have_happened(), unsure, "{mishap:?}: {error}");
        assert!(start.elapsed() <= Duration::from_secs(30), "{mishap:?}");
    }
    let (engine, queue) = queue();
    engine.fail([Mishap::Refused]);
    let error = queue.add("a").await.expect_err("the store refuses it");
    assert_eq!(chain(&error), "the key was not added: it is not allowed");
    let error = queue.add(vec![b'x'; 5000]).await.expect_err("the key is too long");
    assert!(
        chain(&error).ends_with("...\": the key has 5000 bytes; at most 2048 are allowed"),
        "{error}"
    );
}

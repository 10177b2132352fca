//! The processes of a queue fire its schedules, also while some of them fail.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout};

use super::*;
use crate::engine::schedules::Scheduled;

/// A schedule that is due after the first second, and then each second.
fn scheduled(key: &str) -> Scheduled {
    let (key, spec, zone) = (key.into(), "every 1s".to_owned(), String::new());
    let (priority, group, error) = (Priority::Normal, None, None);
    let (next_at, is_new, is_paused) = (2_000_000, false, false);
    Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error }
}

/// Gets keys until this much time has passed. Returns how often each of them came.
async fn work_for(queue: &Queue, time: Duration) -> Vec<(String, usize)> {
    let until = Instant::now() + time;
    let mut counts = std::collections::BTreeMap::new();
    while let Ok(item) = timeout(until - Instant::now(), get(queue)).await {
        *counts.entry(item.key().to_string()).or_default() += 1;
        item.succeed().await.expect("the lease is held");
    }
    counts.into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn a_silent_shard_does_not_delay_the_schedules_of_the_others() {
    let mut engine = Memory::new();
    engine.schedules = vec![Mutex::default(), Mutex::new(vec![scheduled("pulse")])];
    engine.silent_shard = Some(0);
    let (_, queue) = queue_with(engine, Options::default());
    let counts = work_for(&queue, SECOND * 10 + SECOND / 2).await;
    assert_eq!(counts, [("pulse".to_owned(), 10)]);
}

#[tokio::test(start_paused = true)]
async fn claims_do_not_pay_for_a_schedule_that_cannot_be_fired() {
    let mut engine = Memory::new();
    engine.schedules = vec![Mutex::new(vec![scheduled("held"), scheduled("pulse")])];
    let options = Options { poll: SECOND / 10, ..Options::default() };
    let (engine, queue) = queue_with(engine, options);
    engine.set_locked("held", true);
    let counts = work_for(&queue, SECOND * 60 + SECOND / 2).await;
    assert_eq!(counts, [("pulse".to_owned(), 60)], "the other schedules continue");
    let (looks, shots) = (&engine.looks, &engine.shots);
    let tries = shots.swap(0, Ordering::SeqCst) - 60;
    assert!((5..=12).contains(&tries), "{tries} attempts in a minute");
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks <= 250, "{looks} requests in a minute, and at least 600 claims");

    // Other processes store a schedule, which claims name.
    let new = Scheduled { is_new: true, next_at: 0, ..scheduled("new") };
    engine.schedules[0].lock().expect("no panic").push(new);
    let counts = work_for(&queue, SECOND * 3).await;
    assert!(counts.iter().any(|(key, _)| key == "new"), "{counts:?}");
    engine.set_locked("held", false);
    let counts = work_for(&queue, SECOND * 9).await;
    assert!(counts.iter().any(|(key, _)| key == "held"), "{counts:?}");
}

/// The store may have lost the time that claims name.
#[tokio::test(start_paused = true)]
async fn a_schedule_that_no_claim_names_is_found() {
    let mut engine = Memory::new();
    engine.schedules = vec![Mutex::new(vec![scheduled("pulse")])];
    engine.knows_schedules = false;
    let (engine, queue) = queue_with(engine, Options::default());
    let counts = work_for(&queue, SECOND * 20).await;
    assert!(counts.first().is_some_and(|&(_, count)| count >= 9), "{counts:?}");
    assert!(engine.looks.load(Ordering::SeqCst) <= 25);
}

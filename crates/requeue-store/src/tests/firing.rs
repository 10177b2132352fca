//! Tests the processes that fire the schedules of a queue, even while some schedules fail.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout};

use super::*;
use crate::engine::schedules::Scheduled;

/// Returns a schedule that is first due one second after the beginning of the test, and then each second.
fn scheduled(key: &str) -> Scheduled {
    let (key, spec, zone) = (key.into(), "every 1s".to_owned(), String::new());
    let (priority, group, error) = (Priority::Normal, None, None);
    let (next_at, is_new, is_paused) = (2_000_000, false, false);
    Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error }
}

/// Takes and completes keys for the given time. Returns the number of deliveries of each key.
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

    // Another process stores a schedule, and claims return its time.
    let new = Scheduled { is_new: true, next_at: 0, ..scheduled("new") };
    engine.schedules[0].lock().expect("no panic").push(new);
    let counts = work_for(&queue, SECOND * 3).await;
    assert!(counts.iter().any(|(key, _)| key == "new"), "{counts:?}");
    engine.set_locked("held", false);
    let counts = work_for(&queue, SECOND * 9).await;
    assert!(counts.iter().any(|(key, _)| key == "held"), "{counts:?}");
}

/// A transaction may have locked the keys of many schedules. The wait for each of these locks takes time.
#[tokio::test(start_paused = true)]
async fn many_locked_schedules_do_not_stop_the_others() {
    const LOCKED: usize = 300;
    let names: Vec<String> = (0..LOCKED).map(|n| format!("locked-{n}")).collect();
    let mut engine = Memory::new();
    engine.lock_timeout = SECOND / 10;
    let mut schedules: Vec<_> = names.iter().map(|name| scheduled(name)).collect();
    schedules.push(Scheduled { next_at: 3_000_000, ..scheduled("pulse") });
    engine.schedules = vec![Mutex::new(schedules)];
    let (engine, queue) = queue_with(engine, Options::default());
    names.iter().for_each(|name| engine.set_locked(name, true));
    let counts = work_for(&queue, SECOND * 90).await;
    let [(pulse, count)] = &counts[..] else { panic!("only one key is free: {counts:?}") };
    assert!(pulse == "pulse" && *count >= 45, "{counts:?}");
    engine.shots.store(0, Ordering::SeqCst);
    let counts = work_for(&queue, SECOND * 60).await;
    assert!(counts[0].1 >= 50, "{counts:?}");
    let shots = engine.shots.load(Ordering::SeqCst);
    assert!(shots <= 150, "{shots} attempts in a minute");
    names.iter().for_each(|name| engine.set_locked(name, false));
    let counts = work_for(&queue, SECOND * 12).await;
    assert_eq!(counts.len(), LOCKED + 1, "each schedule is fired");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_unable_gets_few_attempts() {
    let mut engine = Memory::new();
    engine.is_unable = true;
    engine.schedules = vec![Mutex::new((0..100).map(|n| scheduled(&n.to_string())).collect())];
    let (engine, queue) = queue_with(engine, Options::default());
    assert_eq!(work_for(&queue, SECOND * 60).await, []);
    let shots = engine.shots.load(Ordering::SeqCst);
    assert!((40..=100).contains(&shots), "{shots} attempts in a minute");
}

/// The store may have lost the time that claims return.
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

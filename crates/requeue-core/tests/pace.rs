//! The pace of the state machine: the memory for starts, and the explanation in a snapshot.

use std::time::Duration;

use requeue_core::{Add, Config, Ending, Finish, GroupId, Pace, Queue, Time};

const SECOND: Duration = Duration::from_secs(1);

fn queue(pace: Pace) -> Queue<u32> {
    Queue::new(Config { pace: Some(pace), ..Config::default() })
}

fn add(queue: &mut Queue<u32>, key: u32, now: Time) {
    let _ = queue.add(key, key.into(), Add::now(), GroupId::default(), now);
}

fn run(queue: &mut Queue<u32>, now: Time) -> Option<u32> {
    let out = queue.get(now)?;
    let _ = queue.finish(&out.ticket, Finish::Succeed, now);
    Some(out.key)
}

/// Each delivery inserts at most one key, and each sweep checks only four keys.
#[test]
fn starts_are_forgotten_in_small_steps() {
    let mut queue = queue(Pace::new(3, SECOND));
    let mut keys = Vec::new();
    for key in 0..10_000 {
        add(&mut queue, key, Time::ZERO);
        assert_eq!(run(&mut queue, Time::ZERO), Some(key));
        queue.sweep_pace(Time::ZERO, &mut keys);
    }
    assert_eq!((queue.paced_keys(), queue.records(), keys.len()), (10_000, 0, 0));
    let later = Time::ZERO + SECOND;
    let mut largest = 0;
    for _ in 0..10_000 {
        let before = keys.len();
        queue.sweep_pace(later, &mut keys);
        largest = largest.max(keys.len() - before);
    }
    assert_eq!((queue.paced_keys(), keys.len(), largest), (0, 10_000, 4));
}

#[test]
fn a_key_that_keeps_running_keeps_no_more_starts_than_the_pace_permits() {
    let mut queue = queue(Pace::new(2, SECOND));
    let (mut now, mut starts) = (Time::ZERO, Vec::new());
    while starts.len() < 100 {
        add(&mut queue, 1, now);
        if run(&mut queue, now).is_some() {
            starts.push(now);
        }
        now = queue.next_due().unwrap_or(now);
    }
    let windows = starts.windows(3).map(|starts| starts[2].since(starts[0]));
    assert!(windows.into_iter().all(|window| window == SECOND));
    assert_eq!(queue.totals().paced, 49);
}

#[test]
fn a_snapshot_says_that_a_key_waits_for_its_pace() {
    let mut queue = queue(Pace::new(2, 10 * SECOND));
    for _ in 0..2 {
        add(&mut queue, 1, Time::ZERO);
        assert_eq!(run(&mut queue, Time::ZERO), Some(1));
    }
    add(&mut queue, 1, Time::ZERO);
    let now = Time::ZERO + 4 * SECOND;
    let entry = queue.look_up(&1, 1).expect("it waits");
    assert_eq!(
        entry.explain(now).to_string(),
        "waiting for its pace; ready in 6.0s; it ran 2 times in 10s"
    );
    assert_eq!(entry.explain(now + 6 * SECOND).to_string(), "waiting; ready in 0.0ns");
    // The add requests a time after the time of the pace, so the key waits for the time of the add.
    let _ = queue.cancel(&1, 1);
    let _ = queue.add(1, 1, Add::after(20 * SECOND), GroupId::default(), now);
    let entry = queue.look_up(&1, 1).expect("it waits");
    assert_eq!(entry.explain(now).to_string(), "waiting; ready in 20.0s");
}

/// The queue replaces a pace that a builder would refuse with the nearest valid pace.
#[test]
fn a_pace_outside_its_range_is_clamped() {
    for (runs, expected) in [(0, 1), (1, 1), (1000, 1000), (u32::MAX, 1000)] {
        let mut queue = queue(Pace::new(runs, SECOND));
        let mut ran = 0;
        while {
            add(&mut queue, 1, Time::ZERO);
            run(&mut queue, Time::ZERO).is_some()
        } {
            ran += 1;
        }
        assert_eq!((ran, queue.pace().map(|pace| pace.runs())), (expected, Some(expected)));
    }
    assert!(!Pace::new(0, SECOND).is_valid() && !Pace::new(1, Duration::ZERO).is_valid());
    assert!(Pace::new(1000, SECOND).is_valid() && !Pace::new(1001, SECOND).is_valid());
}

#[test]
fn the_copies_of_keys_are_given_back_at_the_end() {
    let mut queue = queue(Pace::min_interval(SECOND));
    add(&mut queue, 1, Time::ZERO);
    assert_eq!(run(&mut queue, Time::ZERO), Some(1));
    queue.end(Ending::ShutDown);
    assert!(queue.into_keys().eq([1]));
}

/// A worker that finds nothing to do takes back its start. If it starts its work later, the start
/// counts from that time.
#[test]
fn a_start_is_taken_back_once_and_can_count_later() {
    let mut queue = queue(Pace::new(2, 10 * SECOND));
    add(&mut queue, 1, Time::ZERO);
    assert_eq!(run(&mut queue, Time::ZERO), Some(1));
    add(&mut queue, 1, Time::ZERO);
    let out = queue.get(Time::ZERO).expect("a second run is within the pace");
    let until =
        |queue: &Queue<u32>| queue.look_up(&1, 1).and_then(|entry| entry.around.paced_until);
    assert_eq!(until(&queue), Some(Time::ZERO + 10 * SECOND));
    // A release would also take back the start.
    queue.uncount_start(&out.ticket);
    queue.uncount_start(&out.ticket);
    assert_eq!(until(&queue), Some(Time::ZERO));
    queue.count_start(&out.ticket, Time::ZERO + 3 * SECOND);
    queue.count_start(&out.ticket, Time::ZERO + 4 * SECOND);
    assert_eq!(until(&queue), Some(Time::ZERO + 10 * SECOND));
    let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO + 4 * SECOND);
    // A stale ticket has no effect.
    queue.uncount_start(&out.ticket);
    queue.count_start(&out.ticket, Time::ZERO + 9 * SECOND);
    let now = Time::ZERO + 10 * SECOND;
    add(&mut queue, 1, now);
    assert_eq!(run(&mut queue, now), Some(1));
    add(&mut queue, 1, now);
    assert_eq!(queue.next_due(), Some(Time::ZERO + 14 * SECOND));
}

/// The due time of the debounced run is before or after the time from which the pace permits it.
#[test]
fn a_flush_to_the_time_of_the_pace_is_counted_once() {
    for quiet in [2, 20] {
        let mut queue = queue(Pace::min_interval(8 * SECOND));
        add(&mut queue, 1, Time::ZERO);
        assert_eq!(run(&mut queue, Time::ZERO), Some(1));
        let at = |second: u32| Time::ZERO + second * SECOND;
        let _ = queue.add(1, 1, Add::debounce(quiet * SECOND), GroupId::default(), at(1));
        assert_eq!(queue.totals().paced, 0, "a debounced add");
        let mut walk = queue.walk();
        assert_eq!(queue.flush_debounced(&mut walk, 10, at(1)), 1);
        assert_eq!(queue.totals().paced, 1, "a flush");
        let explained = queue.look_up(&1, 1).expect("it waits").explain(at(1)).to_string();
        assert!(explained.starts_with("waiting for its pace; ready in 7.0s"), "{explained}");
        assert_eq!(run(&mut queue, at(7)), None);
        assert_eq!(run(&mut queue, at(8)), Some(1));
        assert_eq!(queue.totals().paced, 1);
    }
}

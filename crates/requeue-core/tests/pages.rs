//! Pages of snapshots, and statistics of a queue.

use std::time::Duration;

use requeue_core::{Add, Config, Cursor, Ending, Entry, Finish, GroupId, Phase, Queue, Time};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Time {
    Time::ZERO + seconds * SECOND
}

fn queue() -> Queue<u32> {
    Queue::new(Config { track: true, ..Config::default() })
}

fn add(queue: &mut Queue<u32>, key: u32, add: Add, now: Time) {
    let _ = queue.add(key, u64::from(key), add, GroupId::default(), now);
}

#[test]
fn a_cursor_is_a_number() {
    for bits in [0, 1, 7, u32::MAX] {
        assert_eq!(Cursor(bits).0, bits);
    }
    assert_ne!(Cursor(7), Cursor::default());
}

#[test]
fn running_keys_come_by_the_time_of_their_delivery() {
    let mut queue = queue();
    let keys = |queue: &Queue<u32>, skip, limit| {
        let running = queue.entries_in_flight(skip, limit).expect("times are tracked");
        running.into_iter().map(|entry| entry.key).collect::<Vec<_>>()
    };
    for key in [3, 1, 2] {
        add(&mut queue, key, Add::now(), at(0));
    }
    assert_eq!(keys(&queue, 0, 9), []);
    let first = queue.get(at(1)).expect("three are ready");
    let _ = [queue.get(at(2)), queue.get(at(3))];
    assert_eq!((keys(&queue, 0, 9), keys(&queue, 1, 1)), (vec![3, 1, 2], vec![1]));
    let _ = queue.finish(&first.ticket, Finish::Done, at(4));
    assert_eq!(keys(&queue, 0, 9), [1, 2]);
    assert_eq!(Queue::<u32>::new(Config::default()).entries_in_flight(0, 9), None);
}

#[test]
fn times_are_kept_where_they_are_asked_for() {
    let mut queue = queue();
    add(&mut queue, 1, Add::now(), at(0));
    let out = queue.get(at(1)).expect("one is ready");
    let _ = queue.finish(&out.ticket, Finish::Done, at(4));
    let (queued, worked) = queue.histograms().expect("times are tracked");
    assert_eq!((queued.count(), queued.sum, worked.count()), (1, SECOND.as_nanos(), 1));
    assert_eq!(worked.sum, 3 * SECOND.as_nanos());
    assert_eq!(Queue::<u32>::new(Config::default()).histograms(), None);
}

#[test]
fn an_entry_explains_itself_in_one_sentence() {
    let mut queue = queue();
    add(&mut queue, 1, Add::now(), at(1));
    let entry = queue.look_up(&1, 1).expect("it is ready");
    let explain = |change: &dyn Fn(&mut Entry<u32>)| {
        let mut entry = entry.clone();
        change(&mut entry);
        entry.explain(at(3)).to_string()
    };
    let idle = |due: Option<Time>, failures: u32| {
        explain(&|entry| (entry.phase, entry.due, entry.failures) = (Phase::Idle, due, failures))
    };
    assert_eq!(idle(Some(at(5)), 0), "waiting; ready in 2.0s");
    assert_eq!(idle(Some(at(5)), 1), "backing off; ready in 2.0s; failed once");
    assert_eq!(idle(Some(Time::NEVER), 0), "waiting; never due: its delay is infinite");
    let remembered = "not pending, its failures are kept; failed 2 times in a row";
    assert_eq!(idle(None, 2), remembered);

    assert_eq!(explain(&|_| {}), "ready, waiting for a worker, for 2.0s");
    let paused = "ready, but the queue is paused, for 2.0s";
    assert_eq!(explain(&|entry| entry.around.paused = true), paused);
    let held_back = "ready, but its group has reached its limit, for 2.0s";
    assert_eq!(explain(&|entry| entry.held_back = true), held_back);
    assert_eq!(explain(&|entry| entry.since = None), "ready, waiting for a worker");
    let also = "ready, waiting for a worker, for 2.0s; also due in 2.0s";
    assert_eq!(explain(&|entry| entry.due = Some(at(5))), also);

    let with = "in flight, for 2.0s";
    assert_eq!(explain(&|entry| entry.phase = Phase::InFlight), with);
    let dirty = "in flight, for 2.0s; added again, so it runs once more after this run";
    assert_eq!(explain(&|entry| entry.phase = Phase::InFlightDirty), dirty);

    let closed = "ready, waiting for a worker, for 2.0s; the queue is closed";
    assert_eq!(explain(&|entry| entry.around.ending = Ending::Closed), closed);
    let shut_down = "ready, waiting for a worker, for 2.0s; the queue is shut down";
    assert_eq!(explain(&|entry| entry.around.ending = Ending::ShutDown), shut_down);
}

#[test]
fn a_queue_that_is_taken_apart_gives_every_key_whatever_it_is_in_the_middle_of() {
    let mut queue = queue();
    for key in 1..=3 {
        add(&mut queue, key, Add::now(), at(0));
    }
    add(&mut queue, 4, Add::after(SECOND), at(0));
    let out = queue.get(at(0)).expect("three are ready");
    let _ = queue.cancel(&2, 2);
    let mut keys: Vec<u32> = queue.into_keys().collect();
    keys.sort_unstable();
    assert_eq!((out.key, keys), (1, vec![1, 3, 4]));
}

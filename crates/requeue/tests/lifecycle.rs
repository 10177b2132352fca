//! Close, shutdown, drain and pause. They are idempotent, work from any thread, and report every
//! dropped key.

mod common;

use std::task::Waker;
use std::thread;

use common::{Wakes, fake, ms, poll, ready, secs, take_all};
use requeue::{Add, Added, Completion, Item, Merge, Queue};

fn sorted<K: Ord>(mut keys: Vec<K>) -> Vec<K> {
    keys.sort_unstable();
    keys
}

// --- Close ---------------------------------------------------------------------------------------

#[test]
fn a_closed_queue_delivers_its_known_keys_and_then_none() {
    let (queue, clock) = fake();
    queue.add_all(["ready", "busy"]);
    let ready_item = queue.try_get().unwrap();
    let busy = queue.try_get().unwrap();
    ready_item.complete(Completion::Release);
    queue.add_after("waiting", secs(1));
    queue.add_after("later", secs(1));
    queue.close();
    assert!(queue.is_closed() && !queue.shutting_down());
    assert_eq!(queue.add("new"), Added::Refused);
    assert_eq!(queue.add_after("new", secs(1)), Added::Refused);
    assert_eq!(queue.add("busy"), Added::Dirty, "a known key is accepted");
    assert!(queue.add("waiting").is_accepted(), "a known key is accepted");

    assert_eq!(take_all(&queue), ["ready", "waiting"]);
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    busy.succeed();
    assert_eq!(take_all(&queue), ["busy"]);
    assert!(poll(&mut get, Waker::noop()).is_pending(), "a delayed add is pending");
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), ["later"]);
    assert!(ready(get).is_none());
}

#[test]
fn a_closed_queue_honours_retries() {
    let (queue, clock) = fake();
    queue.add("a");
    queue.close();
    for attempt in 1..=5 {
        let item = queue.try_get().unwrap();
        assert_eq!(item.attempt(), attempt);
        let mut get = queue.get();
        assert!(poll(&mut get, Waker::noop()).is_pending());
        item.retry();
        assert!(poll(&mut get, Waker::noop()).is_pending(), "a retry is pending");
        clock.advance(secs(1));
    }
    queue.try_get().unwrap().complete(Completion::RequeueAfter(secs(1)));
    clock.advance(secs(1));
    queue.try_get().unwrap().succeed();
    assert!(ready(queue.get()).is_none());
}

#[test]
fn the_last_key_of_a_closed_queue_wakes_all_getters() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut gets: Vec<_> = (0..5).map(|_| (queue.get(), Wakes::new())).collect();
    for (get, (_, waker)) in &mut gets {
        assert!(poll(get, waker).is_pending());
    }
    queue.close();
    assert!(gets.iter().all(|(_, (wakes, _))| wakes.count() == 0));
    item.succeed();
    for (get, (wakes, _)) in gets {
        assert_eq!(wakes.count(), 1);
        assert!(ready(get).is_none());
    }
}

#[test]
fn a_key_cancelled_last_ends_a_closed_queue() {
    let (queue, _clock) = fake();
    queue.add_after("a", secs(1));
    queue.close();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.cancel("a");
    assert_eq!(wakes.count(), 1);
    assert!(ready(get).is_none());
}

/// A key of which the queue only remembers failures does not keep the queue open.
#[test]
fn a_count_of_failures_does_not_keep_a_closed_queue_open() {
    let (queue, clock) = fake();
    queue.add("a");
    queue.try_get().unwrap().retry();
    clock.advance(secs(1));
    queue.close();
    queue.try_get().unwrap().done();
    assert_eq!(queue.failures("a"), 1);
    assert!(ready(queue.get()).is_none());
    assert_eq!(queue.add("a"), Added::Refused, "a record of failures is not a pending run");
}

// --- Shut down -----------------------------------------------------------------------------------

#[test]
fn a_shut_down_reports_waiting_keys_and_delivers_ready_ones() {
    let (queue, clock) = fake();
    queue.add_all(["a", "b"]);
    queue.add_after("waiting", secs(1));
    queue.add_rate_limited("failed");
    assert_eq!(sorted(queue.shut_down()), ["failed", "waiting"]);
    assert_eq!(queue.add("a"), Added::Refused);
    assert_eq!((queue.len(), queue.waiting()), (2, 0));
    assert_eq!(take_all(&queue), ["a", "b"]);
    clock.advance(secs(10));
    assert!(ready(queue.get()).is_none());
}

#[test]
fn a_shut_down_reports_the_run_that_was_to_follow_one_that_is_going_on() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add_after("a", secs(1));
    assert_eq!(queue.shut_down(), ["a"]);
    item.succeed();
    assert_eq!(queue.take_dropped(), [""; 0]);
    assert!(ready(queue.get()).is_none());
}

#[test]
fn a_failure_after_a_shut_down_is_dropped_and_reported() {
    let (queue, _clock) = fake();
    queue.add_all(["retried", "dropped", "released", "again", "done"]);
    let items = queue.get_many(5).now();
    queue.shut_down();
    let endings: [fn(Item<'_, &'static str>); 5] = [
        |item| item.retry(),
        |item| drop(item),
        |item| item.complete(Completion::Release),
        |item| item.complete(Completion::RequeueAfter(secs(1))),
        |item| item.done(),
    ];
    items.into_iter().zip(endings).for_each(|(item, end)| end(item));
    assert_eq!(sorted(queue.take_dropped()), ["again", "dropped", "released", "retried"]);
    assert_eq!(queue.take_dropped(), [""; 0]);
    assert!(ready(queue.get()).is_none());
}

#[test]
fn a_dirty_key_that_fails_after_a_shut_down_runs_once_more() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    queue.shut_down();
    item.retry();
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.take_dropped(), [""; 0]);
}

#[test]
fn close_and_shut_down_wake_all_getters() {
    let calls: [fn(&Queue<u8>); 4] = [
        |queue| queue.close(),
        |queue| drop(queue.shut_down()),
        |queue| drop(queue.shut_down_with_drain()),
        |queue| drop(queue.shut_down_with_drain().timeout(secs(1))),
    ];
    for call in calls {
        let (queue, clock) = fake();
        thread::scope(|scope| {
            let threads = [(); 3].map(|()| {
                let queue = &queue;
                scope.spawn(move || queue.get().timeout(secs(3600)).blocking().is_none())
            });
            clock.wait_armed(3);
            let (wakes, waker) = Wakes::new();
            let mut get = queue.get();
            assert!(poll(&mut get, &waker).is_pending());
            call(&queue);
            assert_eq!(wakes.count(), 1);
            assert!(ready(get).is_none());
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        });
    }
}

#[test]
fn close_and_shut_down_may_be_repeated_in_any_order() {
    let (queue, _clock) = fake();
    queue.add("a");
    queue.add_after("b", secs(1));
    queue.close();
    queue.close();
    assert_eq!(queue.shut_down(), ["b"]);
    assert_eq!(queue.shut_down(), [""; 0]);
    queue.close();
    assert!(queue.shutting_down(), "`close` does not undo a shutdown");
    assert!(!ready(queue.shut_down_with_drain().timeout(ms(0))).finished);
    assert_eq!(take_all(&queue), ["a"]);
    assert!(ready(queue.shut_down_with_drain().timeout(ms(0))).finished);
    assert!(ready(queue.shut_down_with_drain()).finished);
    assert!(queue.shut_down_with_drain().timeout(secs(1)).blocking().finished);
    assert_eq!(queue.shut_down(), [""; 0]);
}

#[test]
fn close_and_shut_down_may_come_from_all_threads_at_once() {
    for _ in 0..20 {
        let (queue, _clock) = fake();
        queue.add_all(0..100);
        (100..200).for_each(|key| _ = queue.add_after(key, secs(1)));
        let (served, dropped) = thread::scope(|scope| {
            let workers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut served = Vec::new();
                    while let Some(item) = queue.get().blocking() {
                        served.push(*item);
                        item.succeed();
                    }
                    served
                })
            });
            let enders = [0, 1, 2, 3].map(|how| {
                let queue = &queue;
                scope.spawn(move || match how {
                    0 => queue.shut_down(),
                    1 => queue.shut_down_with_drain().blocking().dropped,
                    2 => queue.shut_down_with_drain().timeout(secs(1)).blocking().dropped,
                    _ => {
                        queue.close();
                        Vec::new()
                    }
                })
            });
            let join = |thread: thread::ScopedJoinHandle<'_, Vec<i32>>| thread.join().unwrap();
            (workers.map(join).concat(), enders.map(join).concat())
        });
        assert_eq!(sorted(served), (0..100).collect::<Vec<_>>());
        assert_eq!(sorted(dropped), (100..200).collect::<Vec<_>>(), "each key is reported once");
    }
}

// --- Drains --------------------------------------------------------------------------------------

#[test]
fn a_drain_past_its_deadline_says_what_is_left() {
    let (queue, clock) = fake();
    queue.add_all(["busy", "fails"]);
    let busy = queue.try_get().unwrap();
    let fails = queue.try_get().unwrap();
    queue.add_after("waiting", secs(60));
    let mut drain = queue.shut_down_with_drain().timeout(secs(5));
    let (wakes, waker) = Wakes::new();
    assert!(poll(&mut drain, &waker).is_pending());
    fails.retry();
    assert!(poll(&mut drain, &waker).is_pending());
    clock.advance(secs(5));
    assert!(wakes.count() > 0);
    let drained = ready(drain);
    assert!(!drained.finished);
    assert_eq!(drained.in_flight, 1);
    assert_eq!(sorted(drained.dropped), ["fails", "waiting"]);
    assert_eq!(clock.armed(), 0);
    busy.succeed();
    assert!(ready(queue.shut_down_with_drain().timeout(secs(5))).finished);
}

/// Such a drain behaves like client-go's `ShutDownWithDrain`.
#[test]
fn a_drain_of_what_is_in_flight_ends_although_keys_are_ready_and_taken_at_once() {
    let (queue, _clock) = fake();
    queue.add_all(["a", "b", "c"]);
    let first = queue.try_get().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut all = Box::pin(queue.shut_down_with_drain());
    let mut in_flight = Box::pin(queue.shut_down_with_drain().in_flight_only());
    assert!(poll(&mut all, &waker).is_pending());
    assert!(poll(&mut in_flight, &waker).is_pending());
    first.succeed();
    assert_eq!(wakes.count(), 1, "only one drain has completed");
    // The next key is delivered before the drain is polled.
    let second = queue.try_get().unwrap();
    let drained = ready(in_flight);
    assert_eq!((drained.finished, drained.ready, drained.in_flight), (true, 1, 1));
    assert!(poll(&mut all, &waker).is_pending());
    second.succeed();
    assert_eq!(take_all(&queue), ["c"]);
    assert!(ready(all).finished);

    // A worker completes one key and takes the next key in one step. The drain is polled, and then
    // becomes `in_flight_only`. The queue is shut down before the drain is polled again.
    let (queue, _clock) = fake();
    queue.add_all(["a", "b", "c"]);
    let first = queue.try_get().unwrap();
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    let (wakes, waker) = Wakes::new();
    let mut drain = drain.in_flight_only();
    assert!(poll(&mut drain, &waker).is_pending());
    let second = queue.succeed_and_try_get(first);
    assert!(second.is_some());
    assert_eq!(wakes.count(), 1);
    queue.shut_down();
    assert!(ready(drain).finished);
    drop(second);

    let (queue, _clock) = fake();
    queue.add_all(["a", "b"]);
    let drained = queue.shut_down_with_drain().in_flight_only().blocking();
    assert_eq!((drained.finished, drained.ready), (true, 2), "nothing is in flight");
}

#[test]
fn a_later_shut_down_ends_every_drain_before() {
    let (queue, _clock) = fake();
    queue.add("a");
    let _item = queue.try_get().unwrap();
    let mut drains: Vec<_> =
        [queue.shut_down_with_drain(), queue.shut_down_with_drain().timeout(secs(60))]
            .map(|drain| (drain, Wakes::new()))
            .into();
    for (drain, (_, waker)) in &mut drains {
        assert!(poll(drain, waker).is_pending());
    }
    queue.shut_down();
    for (drain, (wakes, _)) in drains {
        assert_eq!(wakes.count(), 1);
        let drained = ready(drain);
        assert!(!drained.finished);
        assert_eq!(drained.in_flight, 1);
    }
    // The earlier shutdown does not end the wait of a drain that is created later.
    assert!(poll(&mut queue.shut_down_with_drain(), Waker::noop()).is_pending());
}

#[test]
fn two_drains_at_once_both_end_in_threads() {
    let (queue, clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    thread::scope(|scope| {
        let drains = [(); 2].map(|()| {
            scope.spawn(|| queue.shut_down_with_drain().timeout(secs(3600)).blocking().finished)
        });
        clock.wait_armed(2);
        item.succeed();
        assert!(drains.into_iter().all(|drain| drain.join().unwrap()));
    });
    assert_eq!(clock.armed(), 0);
}

#[test]
fn a_drain_that_is_dropped_leaves_the_queue_shut_down() {
    let (queue, clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut drain = queue.shut_down_with_drain().timeout(secs(1));
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    drop(drain);
    assert_eq!(clock.armed(), 0);
    assert!(queue.shutting_down());
    item.succeed();
    assert!(ready(queue.shut_down_with_drain()).finished);
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let (queue, _clock) = fake::<u8>();
    assert!(ready(queue.shut_down_with_drain()).finished);
    let (queue, _clock) = fake::<u8>();
    assert!(queue.shut_down_with_drain().timeout(ms(0)).blocking().finished);
}

// --- Pause ---------------------------------------------------------------------------------------

#[test]
fn a_paused_queue_delivers_nothing_and_accepts_everything() {
    let (queue, clock) = fake();
    queue.add("before");
    queue.pause();
    queue.pause();
    assert!(queue.is_paused());
    queue.add("ready");
    queue.add_after("due", secs(1));
    clock.advance(secs(1));
    assert_eq!(queue.len(), 3, "a due key becomes ready");
    assert!(queue.try_get().is_none());
    assert!(queue.get_many(10).now().is_empty());
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("more");
    assert_eq!(wakes.count(), 0);

    queue.resume();
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(get).map(|item| item.into_parts().0), Some("before"));
    assert_eq!(take_all(&queue), ["ready", "due", "more"]);
}

#[test]
fn what_is_with_a_worker_goes_on_while_paused() {
    let (queue, clock) = fake();
    queue.add_all(["a", "b"]);
    let a = queue.try_get().unwrap();
    let b = queue.try_get().unwrap();
    queue.pause();
    queue.add("a");
    a.succeed();
    b.retry();
    clock.advance(secs(1));
    assert_eq!((queue.len(), queue.states().in_flight), (2, 0));
    queue.resume();
    assert_eq!(take_all(&queue), ["a", "b"]);
}

#[test]
fn shutting_down_a_paused_queue_drops_what_is_ready() {
    let (queue, _clock) = fake();
    queue.add_all(["dirty", "a", "b"]);
    let dirty = queue.try_get().unwrap();
    queue.add("dirty");
    queue.add_after("waiting", secs(1));
    queue.pause();
    assert_eq!(sorted(queue.shut_down()), ["a", "b", "waiting"]);
    assert_eq!(queue.len(), 0);
    queue.resume();
    assert!(ready(queue.get()).is_none(), "a shutdown cannot be undone");
    dirty.succeed();
    assert!(ready(queue.get()).is_none());
    assert_eq!(queue.take_dropped(), ["dirty"], "its second run is dropped");
}

#[test]
fn a_paused_queue_is_drained_when_its_workers_are_done() {
    let (queue, _clock) = fake();
    queue.add_all(["busy", "a"]);
    let busy = queue.try_get().unwrap();
    queue.pause();
    let mut drain = queue.shut_down_with_drain();
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    busy.succeed();
    let drained = ready(drain);
    assert!(drained.finished);
    assert_eq!(drained.dropped, ["a"]);
}

#[test]
fn getters_of_a_closed_queue_that_is_paused_wait_for_it_to_resume() {
    let (queue, _clock) = fake();
    queue.add("a");
    queue.pause();
    queue.close();
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    queue.resume();
    ready(get).unwrap().succeed();
    assert!(ready(queue.get()).is_none());
}

#[test]
fn a_refused_retry_leaves_no_trace_in_the_limiter() {
    let (queue, _clock) = fake();
    queue.add("known");
    queue.close();
    assert_eq!(queue.add_rate_limited("new"), Added::Refused);
    assert_eq!(queue.num_requeues(&"new"), 0);
    assert!(queue.add_rate_limited("known").is_accepted());
    assert_eq!(queue.num_requeues(&"known"), 1);

    queue.shut_down();
    assert_eq!(queue.add_with("known", Add::now().merge(Merge::Exactly)), Added::Refused);
    assert_eq!(queue.num_requeues(&"known"), 1, "a refused add clears nothing");
}

/// After the drop, `cancel` finds no record of the key. The failures must therefore be forgotten
/// before.
#[test]
fn a_shut_down_forgets_the_failures_of_the_keys_that_it_drops() {
    for is_paused in [false, true] {
        let (queue, clock) = fake();
        queue.add_all(["ready", "failing", "dirty", "detached", "waiting"]);
        for _ in 0..5 {
            queue.try_get().unwrap().retry();
        }
        clock.advance(ms(1));
        assert_eq!(queue.len(), 5);
        let mut items = queue.get_many(5).now();
        items.drain(4..).for_each(Item::retry);
        items.remove(0).complete(Completion::Release);
        let [failing, dirty, detached] = items.try_into().unwrap();
        let (key, _ticket) = detached.into_parts();
        queue.add_all(["dirty", "detached"]);
        if is_paused {
            queue.pause();
        }
        let mut dropped = queue.shut_down();
        assert_eq!(queue.num_requeues(&"failing"), 1, "it is in flight");
        failing.retry();
        dirty.succeed();
        queue.done(&key);
        dropped.extend(queue.take_dropped());
        let expected: &[&str] = match is_paused {
            false => &["failing", "waiting"],
            true => &["detached", "dirty", "failing", "ready", "waiting"],
        };
        assert_eq!(sorted(dropped), expected);
        for key in ["ready", "failing", "dirty", "detached", "waiting"] {
            let [counted, in_a_row] = [queue.num_requeues(&key), queue.failures(key)];
            assert_eq!(counted, in_a_row, "{key}");
            assert!(counted == 0 || !expected.contains(&key), "{key}");
            queue.cancel(key);
            assert_eq!((queue.num_requeues(&key), queue.failures(key)), (0, 0), "{key}");
        }
    }
}

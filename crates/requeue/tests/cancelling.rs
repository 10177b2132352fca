//! Cancellation: dropped getters, dropped items, stale tickets, and cancelled keys.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::thread;

use common::{Wakes, fake, fake_client_go, ms, poll, ready, secs, take_all};
use requeue::clock::SystemClock;
use requeue::{Added, Phase, Queue};

// --- Getters -------------------------------------------------------------------------------------

#[test]
fn a_getter_that_is_dropped_before_it_is_woken_takes_nothing() {
    let (queue, _clock) = fake();
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    drop(get);
    queue.add("a");
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn a_getter_that_is_dropped_after_it_was_woken_passes_the_wake_on() {
    let (queue, _clock) = fake();
    let mut gets: Vec<_> = (0..5).map(|_| queue.get()).collect();
    let wakes: Vec<_> = (0..5).map(|_| Wakes::new()).collect();
    for (get, (_, waker)) in gets.iter_mut().zip(&wakes) {
        assert!(poll(get, waker).is_pending());
    }
    queue.add("a");
    // Each getter is woken, and then dropped without being polled. The last getter must get the
    // key.
    let mut last = gets.pop().unwrap();
    drop(gets);
    assert!(wakes.iter().all(|(wakes, _)| wakes.count() == 1));
    assert_eq!(poll(&mut last, Waker::noop()).map(|item| item.map(|item| *item)), Some("a").into());
}

#[test]
fn a_getter_with_a_deadline_that_is_dropped_disarms() {
    let (queue, clock) = fake::<&str>();
    let mut get = Box::pin(queue.get().timeout(secs(5)));
    assert!(poll(&mut get, Waker::noop()).is_pending());
    assert_eq!(clock.armed(), 1);
    drop(get);
    assert_eq!(clock.armed(), 0);
}

/// A key is delivered once, however its add and the drop of a getter interleave.
#[test]
fn getters_dropped_while_keys_come_lose_none() {
    // The queue has the clock of the machine, so that the keys of dropped items are retried at some
    // later time.
    let queue: Queue<u32> = Queue::builder().clock(SystemClock).build().unwrap();
    thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            while !queue.is_closed() {
                // If the getter has an item, the item is dropped immediately, and its key is
                // retried.
                let _ = poll(&mut queue.get(), Waker::noop());
            }
        });
        let worker = scope.spawn(|| {
            let mut keys = Vec::new();
            while let Some(item) = queue.get().blocking() {
                keys.push(*item);
                item.succeed();
            }
            keys
        });
        (0..1000).for_each(|key| assert_eq!(queue.add(key), Added::New));
        queue.close();
        dropper.join().unwrap();
        let mut keys = worker.join().unwrap();
        keys.sort_unstable();
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    });
}

// --- Items ---------------------------------------------------------------------------------------

#[test]
fn a_dropped_item_comes_back_with_backoff() {
    let (queue, clock) = fake();
    queue.add("a");
    for attempt in 1..=5_u32 {
        let item = queue.try_get().unwrap();
        assert_eq!((*item, item.attempt()), ("a", attempt));
        drop(item);
        let backoff = ms(1 << (attempt - 1));
        let entry = queue.look_up("a").unwrap();
        assert_eq!((entry.phase, entry.due), (Phase::Idle, Some(clock.now() + backoff)));
        clock.advance(backoff);
    }
    assert_eq!(queue.totals().failures, 5);
}

#[test]
fn a_worker_that_panics_gives_its_item_back() {
    let (queue, clock) = fake();
    queue.add("a");
    let worker = thread::scope(|scope| {
        scope
            .spawn(|| {
                let _item = queue.get().blocking().unwrap();
                std::panic::resume_unwind(Box::new("a worker's own panic"));
            })
            .join()
    });
    assert!(worker.is_err());
    assert_eq!((queue.states().in_flight, queue.waiting()), (0, 1));
    clock.advance(ms(1));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

#[test]
fn an_item_dropped_while_dirty_runs_once_more_after_its_backoff() {
    let (queue, clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    drop(item);
    assert_eq!((queue.len(), queue.waiting()), (0, 1));
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.records(), 0);
}

#[test]
fn in_client_go_an_item_dropped_while_dirty_runs_at_once_and_again_after_its_backoff() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    drop(item);
    assert_eq!(take_all(&queue), ["a"], "as in client-go, the add runs at once");
    assert_eq!(queue.waiting(), 1, "the retry of the failure stays pending");
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn items_of_a_dropped_batch_all_come_back() {
    let (queue, clock) = fake();
    queue.add_all(0..10);
    drop(queue.get_many(10).now());
    assert_eq!((queue.states().in_flight, queue.waiting()), (0, 10));
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), (0..10).collect::<Vec<_>>());
}

#[test]
fn an_item_outlives_every_handle_of_its_queue() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().map(requeue::Item::into_owned).unwrap();
    drop(queue);
    assert_eq!(*item, "a");
    item.retry();
}

// --- Tickets -------------------------------------------------------------------------------------

#[test]
fn a_ticket_completes_its_delivery_once() {
    let (queue, _clock) = fake();
    queue.add("a");
    let (_, ticket) = queue.try_get().unwrap().into_parts();
    assert!(queue.done_ticket(ticket.clone()));
    assert!(!queue.done_ticket(ticket));
}

#[test]
fn a_ticket_of_an_earlier_delivery_does_not_affect_a_later_one() {
    let (queue, _clock) = fake();
    queue.add("a");
    let (_, old) = queue.try_get().unwrap().into_parts();
    assert!(queue.done(&"a"));
    queue.add("a");
    let later = queue.try_get().unwrap();
    assert!(!queue.done_ticket(old));
    assert!(!queue.done(&"a"), "the item of the later delivery exists");
    assert_eq!(queue.states().in_flight, 1);
    assert!(queue.try_get().is_none(), "the key is still in flight");
    later.succeed();
    assert_eq!(queue.states().in_flight, 0);
}

/// The ticket is stale, even if the epochs of the two deliveries have the same lower 16 bits.
#[test]
fn a_ticket_stays_stale_after_any_number_of_deliveries() {
    let (queue, _clock) = fake();
    queue.add(1);
    let item = queue.try_get().unwrap();
    let first = item.fencing_token();
    let (_, old) = item.into_parts();
    assert!(queue.done(&1));
    for n in 1_u64..=1 << 16 {
        queue.add(1);
        let item = queue.try_get().unwrap();
        assert_eq!(item.fencing_token(), first + n);
        if n.is_power_of_two() {
            assert!(!queue.done_ticket(old.clone()), "after {n} deliveries");
            assert_eq!(queue.states().in_flight, 1);
        }
        item.succeed();
    }
}

#[test]
fn a_ticket_of_another_queue_does_nothing() {
    let ((one, _), (other, _)) = (fake(), fake());
    one.add("a");
    other.add("a");
    let (_, ticket) = one.try_get().unwrap().into_parts();
    let item = other.try_get().unwrap();
    assert!(!other.done_ticket(ticket.clone()));
    assert_eq!(other.states().in_flight, 1);
    item.done();
    assert!(one.done_ticket(ticket));
}

#[test]
fn a_ticket_that_is_lost_leaves_done_by_key() {
    let (queue, _clock) = fake();
    queue.add("a");
    let (key, _ticket) = queue.try_get().unwrap().into_parts();
    assert_eq!(queue.states().in_flight, 1, "dropping a ticket completes nothing");
    thread::scope(|scope| assert!(scope.spawn(|| queue.done(&key)).join().unwrap()));
    assert_eq!(queue.states().in_flight, 0);
}

#[test]
fn done_by_key_ends_only_what_was_given_up() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert!(!queue.done(&"a"));
    assert_eq!(queue.states().in_flight, 1);
    let (key, _) = item.into_parts();
    assert!(queue.done(&key));
    assert!(!queue.done(&key));
    assert!(!queue.done(&"never seen"));
}

// --- Cancelling keys -----------------------------------------------------------------------------

#[test]
fn a_cancelled_key_is_not_delivered() {
    let (queue, clock) = fake();
    queue.add("ready");
    queue.add_after("waiting", secs(1));
    assert!(queue.cancel("ready").ready);
    assert!(queue.cancel("waiting").waiting);
    assert!(!queue.cancel("never seen").any());
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[test]
fn a_key_cancelled_during_its_run_is_not_run_again() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    queue.add_after("a", secs(1));
    let cancelled = queue.cancel("a");
    assert!(cancelled.dirty && cancelled.waiting && !cancelled.ready);
    assert_eq!(queue.states().in_flight, 1, "the run continues");
    item.succeed();
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[test]
fn cancelling_clears_failures() {
    let (queue, _clock) = fake();
    queue.add_rate_limited("a");
    assert_eq!((queue.num_requeues(&"a"), queue.failures("a")), (1, 1));
    queue.cancel("a");
    assert_eq!((queue.num_requeues(&"a"), queue.failures("a")), (0, 0));
    queue.add("a");
    assert_eq!(queue.try_get().unwrap().attempt(), 1);
}

/// A getter is woken for a key, and the key is cancelled before the getter checks. The getter must
/// continue to wait.
#[test]
fn a_getter_woken_for_a_cancelled_key_waits_on() {
    let (queue, _clock) = fake();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("a");
    queue.cancel("a");
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("b");
    assert_eq!(wakes.count(), 2);
    assert_eq!(ready(get).as_deref(), Some(&"b"));
}

#[test]
fn an_item_dropped_while_another_panic_unwinds_is_retried() {
    let (queue, _clock) = fake();
    queue.add("a");
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _items = queue.get_many(usize::MAX).now();
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(unwound.is_err());
    assert_eq!(queue.failures("a"), 1);
}

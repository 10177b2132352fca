//! Batches of keys, and large numbers of getters.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use common::{Wakes, fake, poll, timeless};
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::{CustomOrder, Order, Queue, Time};

struct Stack(Vec<u32>);

impl CustomOrder<u32> for Stack {
    fn push(&mut self, key: u32) {
        self.0.push(key);
    }

    fn touch(&mut self, _: &u32) {}

    fn pop(&mut self) -> Option<u32> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn many_keys_come_in_the_order_of_ones_own() {
    let order = Order::Custom(Box::new(Stack(Vec::new())));
    let queue = timeless().order(order).build().unwrap();
    queue.add_all(1..=6);
    let keys: Vec<u32> = queue.get_many(6).now().iter().map(|item| **item).collect();
    assert_eq!(keys, [6, 5, 4, 3, 2, 1]);
}

/// A key that can be cloned a limited number of times. After that, its `clone` panics.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Rare(u32, Arc<()>);

static COPIES: AtomicUsize = AtomicUsize::new(0);

impl Clone for Rare {
    fn clone(&self) -> Self {
        let left = COPIES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(left.is_ok(), "no copy left");
        Self(self.0, Arc::clone(&self.1))
    }
}

#[test]
fn keys_taken_before_a_copy_fails_go_back() {
    let (queue, _clock) = fake();
    queue.add_all((0..6).map(|n| Rare(n, Arc::new(()))));
    COPIES.store(3, Ordering::Relaxed);
    let caught = catch_unwind(AssertUnwindSafe(|| queue.get_many(6).now().len()));
    assert!(caught.is_err());
    COPIES.store(100, Ordering::Relaxed);
    assert_eq!(queue.states().in_flight, 0, "no key without an item is in flight");
    assert_eq!(queue.len() + queue.waiting(), 6);
}

#[test]
fn with_two_tasks_that_are_not_polled_a_thread_behind_them_gets_the_key() {
    let (queue, _clock) = fake::<u32>();
    let mut lazy = [Box::pin(queue.get()), Box::pin(queue.get()), Box::pin(queue.get())];
    lazy.iter_mut().for_each(|getter| assert!(poll(getter, Waker::noop()).is_pending()));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().blocking().map(|item| *item));
        // The result must be the same if the thread does not wait yet.
        queue.add(7);
        assert_eq!(thread.join().unwrap(), Some(7));
    });
}

/// A clock that counts how often the queue reads it.
#[derive(Clone)]
struct Counted(FakeClock, Arc<AtomicUsize>);

impl Clock for Counted {
    fn now(&self) -> Time {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        self.0.arm(at, waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

#[test]
fn a_getter_of_a_paused_queue_makes_due_keys_ready_and_then_sleeps() {
    let (clock, count) = (FakeClock::new(), Arc::new(AtomicUsize::new(0)));
    let queue = Queue::builder().clock(Counted(clock.clone(), Arc::clone(&count))).build().unwrap();
    queue.add_after(1, Duration::from_millis(1));
    queue.pause();
    clock.advance(Duration::from_secs(1));
    let mut getter = Box::pin(queue.get());
    assert!(poll(&mut getter, Waker::noop()).is_pending());
    assert_eq!((queue.len(), queue.waiting()), (1, 0), "no key waits for its due time");
}

#[test]
fn a_retry_asks_for_the_time_once() {
    let (clock, count) = (FakeClock::new(), Arc::new(AtomicUsize::new(0)));
    let queue = Queue::builder().clock(Counted(clock, Arc::clone(&count))).build().unwrap();
    queue.add("a");
    let item = queue.try_get().unwrap();
    count.store(0, Ordering::Relaxed);
    item.retry();
    assert_eq!(count.swap(0, Ordering::Relaxed), 1);
    queue.add_rate_limited("b");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn a_drain_that_is_dropped_leaves_its_report() {
    let (queue, _clock) = fake();
    queue.add_after("waiting", Duration::from_secs(60));
    queue.add("busy");
    let busy = queue.try_get().unwrap();
    let mut drain = Box::pin(queue.shut_down_with_drain());
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    drop(drain);
    busy.retry();
    let mut dropped = queue.take_dropped();
    dropped.sort_unstable();
    assert_eq!(dropped, ["busy", "waiting"]);
}

#[test]
fn a_drain_that_times_out_says_what_is_ready_still() {
    let (queue, _clock) = fake();
    queue.add_all(0..10);
    let busy = queue.try_get();
    let drained = queue.shut_down_with_drain().timeout(Duration::ZERO).blocking();
    assert_eq!((drained.finished, drained.ready, drained.in_flight), (false, 9, 1));
    drop(busy);
}

/// A clock that never wakes a waker, like the clock of a runtime that does not run.
struct Silent;

impl Clock for Silent {
    fn now(&self) -> Time {
        requeue::clock::SystemClock.now()
    }

    fn arm(&self, _: Time, _: &Waker) -> Alarm {
        Alarm::none()
    }
}

#[test]
fn a_thread_checks_by_itself_if_its_clock_does_not_wake_it() {
    let queue = Queue::builder().clock(Silent).build().unwrap();
    let short = Duration::from_millis(1);
    assert!(queue.get().timeout(short).blocking().is_none());
    queue.add_after("due", short);
    let item = queue.get().blocking().unwrap();
    assert_eq!(*item, "due");
    assert!(!queue.shut_down_with_drain().timeout(short).blocking().finished);
    drop(item);
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_that_waits_on_hundreds_of_queues_is_served_by_each() {
    // There are more queues than units in the cooperative budget of one poll.
    let queues: Vec<Queue<usize>> = (0..300).map(|_| Queue::new()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let task = {
            let queues = queues.clone();
            tokio::spawn(async move {
                let mut getters: Vec<_> =
                    queues.iter().map(|queue| Box::pin(queue.get())).collect();
                std::future::poll_fn(|cx| {
                    getters
                        .iter_mut()
                        .map(|getter| getter.as_mut().poll(cx))
                        .find(std::task::Poll::is_ready)
                        .map_or(std::task::Poll::Pending, |ready| {
                            ready.map(|item| item.map(|i| *i))
                        })
                })
                .await
            })
        };
        // Yields until the task has checked all queues and waits.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        queues[290].add(290);
        assert_eq!(task.await.unwrap(), Some(290));
    });
}

/// Runs random rounds with one task that is polled, and with tasks that are woken but not polled.
/// In each round, the polled task must get the only key when the clock has advanced.
#[test]
fn a_lone_key_reaches_a_live_task_behind_any_number_of_tasks_that_are_not_polled() {
    let mut random = fastrand::Rng::with_seed(16);
    for round in 0..500 {
        let (queue, clock) = fake::<u32>();
        let mut stuck: Vec<_> = (0..random.usize(1..8)).map(|_| Box::pin(queue.get())).collect();
        for getter in &mut stuck {
            assert!(poll(getter, Waker::noop()).is_pending());
        }
        let (wakes, waker) = Wakes::new();
        let mut live = Box::pin(queue.get());
        assert!(poll(&mut live, &waker).is_pending());
        // Before the key is added, some tasks check again and wait again, or leave.
        for _ in 0..random.usize(..4) {
            match random.usize(..3) {
                0 => drop(stuck.pop()),
                1 => stuck.iter_mut().for_each(|getter| _ = poll(getter, Waker::noop())),
                _ => clock.advance(Duration::from_millis(random.u64(..9))),
            }
        }
        if random.bool() {
            queue.add(7);
        } else {
            queue.add_after(7, Duration::from_millis(1));
        }
        // In the worst case, the queue passes over these tasks one after the other, after a grace
        // period for each.
        for _ in 0..8 {
            if wakes.count() == 0 {
                clock.advance(Duration::from_millis(5));
            }
        }
        assert!(wakes.count() > 0, "round {round}");
        let Poll::Ready(Some(item)) = poll(&mut live, &waker) else { panic!("round {round}") };
        assert_eq!(*item, 7);
    }
}

/// A clock that counts the alarms with which a queue watches over tasks.
struct Watched(FakeClock, Arc<AtomicUsize>);

impl Clock for Watched {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        self.0.arm(at, waker)
    }

    fn arm_watchdog(&self, at: Time, waker: &Waker) -> Alarm {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.arm_watchdog(at, waker)
    }
}

/// For any number of keys, one alarm per grace period is armed. If no other getter waits, no alarm
/// is armed.
#[test]
fn tasks_that_are_polled_cost_one_alarm_for_each_grace_at_most() {
    for (tasks, alarms) in [(1, 0), (2, 0), (3, 1), (9, 1)] {
        let (clock, count) = (FakeClock::new(), Arc::new(AtomicUsize::new(0)));
        let watched = Watched(clock.clone(), Arc::clone(&count));
        let queue = Queue::builder().clock(watched).build().unwrap();
        let mut getters: Vec<_> = (0..tasks).map(|_| Box::pin(queue.get())).collect();
        getters.iter_mut().for_each(|getter| assert!(poll(getter, Waker::noop()).is_pending()));
        for key in 0..100 {
            queue.add(key);
            let Poll::Ready(Some(item)) = poll(&mut getters[0], Waker::noop()) else { panic!() };
            item.succeed();
            getters[0] = Box::pin(queue.get());
            getters.iter_mut().for_each(|getter| assert!(poll(getter, Waker::noop()).is_pending()));
        }
        assert_eq!((count.load(Ordering::Relaxed), clock.armed()), (alarms, 0));
        clock.advance(Duration::from_secs(1));
        assert_eq!(count.load(Ordering::Relaxed), alarms, "an idle queue is not watched");
    }
}

/// A clock that wakes each waker while the alarm is being armed. The system's clock does this if it
/// cannot start its thread.
struct Hasty;

impl Clock for Hasty {
    fn now(&self) -> Time {
        Time::ZERO
    }

    fn arm(&self, _: Time, waker: &Waker) -> Alarm {
        waker.wake_by_ref();
        Alarm::none()
    }
}

#[test]
fn a_clock_that_wakes_at_once_wakes_all_tasks_and_ends() {
    let queue = Queue::builder().clock(Hasty).build().unwrap();
    let mut stuck: Vec<_> = (0..100_000).map(|_| Box::pin(queue.get())).collect();
    stuck.iter_mut().for_each(|getter| assert!(poll(getter, Waker::noop()).is_pending()));
    let (wakes, waker) = Wakes::new();
    let mut last = Box::pin(queue.get());
    assert!(poll(&mut last, &waker).is_pending());
    queue.add(1);
    assert_eq!(wakes.count(), 1);
}

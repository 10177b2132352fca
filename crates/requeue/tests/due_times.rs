//! Delayed keys are delivered on time to any mix of tasks and threads, even if some of these
//! getters stop waiting.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Waker;
use std::thread::{self, ThreadId};

use common::{block_on, fake, ms, secs, until};
use requeue::clock::{Alarm, Clock, FakeClock, SystemClock};
use requeue::{Add, Completion, GroupId, Queue, ReaddPolicy, Time};

fn system() -> Queue<u32> {
    Queue::builder().clock(SystemClock).build().unwrap()
}

#[test]
fn a_flush_makes_all_debounced_keys_due_and_no_others() {
    for policy in [ReaddPolicy::Hold, ReaddPolicy::Replace, ReaddPolicy::KeepBoth] {
        let queue = Queue::builder().clock(FakeClock::new()).readd_policy(policy).build().unwrap();
        for key in 0..2000 {
            queue.add_with(key, Add::debounce(secs(60)));
            queue.add_with(key, Add::debounce(secs(60)));
        }
        for key in 2000..2100 {
            queue.add_after(key, secs(60));
        }
        let (sender, keys) = mpsc::channel();
        thread::scope(|threads| {
            threads.spawn(|| {
                while let Some(item) = queue.get().blocking() {
                    sender.send((*item, item.adds())).unwrap();
                    item.succeed();
                }
            });
            assert_eq!(queue.flush_debounced(), 2000);
            let ran: BTreeSet<_> = keys.iter().take(2000).collect();
            assert_eq!(ran, (0..2000).map(|key| (key, 2)).collect(), "{policy:?}");
            assert_eq!((queue.len(), queue.waiting()), (0, 100));
            assert_eq!(queue.shut_down().len(), 100);
        });
    }
}

/// The turns must be the same if another operation has already made the due keys ready.
#[test]
fn a_resumed_group_takes_its_turn_after_the_groups_that_are_due() {
    for is_settled in [false, true] {
        let clock = FakeClock::new();
        let queue =
            Queue::builder().clock(clock.clone()).fair().group_by(|n: &u64| GroupId::new(*n));
        let queue = queue.build().unwrap();
        let group = queue.group(GroupId::new(1)).unwrap();
        group.pause();
        queue.add_after(1, secs(1));
        queue.add_after(2, secs(2));
        clock.advance(secs(2));
        if is_settled {
            assert_eq!(queue.len(), 2);
        }
        group.resume();
        let keys: Vec<_> = queue.get_many(2).now().iter().map(|item| **item).collect();
        assert_eq!(keys, [2, 1], "{is_settled}");
    }
}

/// A key that counts its clones.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Counted(u32);

static CLONES: AtomicUsize = AtomicUsize::new(0);

impl Clone for Counted {
    fn clone(&self) -> Self {
        CLONES.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

#[test]
fn a_flush_clones_no_keys() {
    let queue = Queue::builder().clock(FakeClock::new()).build().unwrap();
    for key in 0..1000 {
        queue.add_with(Counted(key), Add::debounce(secs(60)));
        queue.add(Counted(1000 + key));
    }
    let before = CLONES.load(Ordering::Relaxed);
    assert_eq!(queue.flush_debounced(), 1000);
    assert_eq!(CLONES.load(Ordering::Relaxed), before);
    assert_eq!(queue.len(), 2000);
}

#[test]
fn delayed_keys_are_served_when_only_tasks_wait() {
    let (queue, clock) = fake();
    for (key, delay) in [("c", 3), ("a", 1), ("b", 2)] {
        queue.add_after(key, secs(delay));
    }
    let start = clock.now();
    for (key, delay) in [("a", 1), ("b", 2), ("c", 3)] {
        let item = clock.run(queue.get()).unwrap();
        assert_eq!((*item, clock.now()), (key, start + secs(delay)));
        item.succeed();
    }
}

#[test]
fn delayed_keys_are_served_when_only_tasks_wait_on_the_machines_clock() {
    let queue = system();
    let due = queue.now() + ms(20);
    queue.add_after(1, ms(20));
    let item = block_on(queue.get()).unwrap();
    assert!(queue.now() >= due, "never early");
    item.succeed();
}

#[test]
fn delayed_keys_are_served_when_only_threads_wait() {
    let queue = system();
    let due = queue.now() + ms(20);
    queue.add_after(1, ms(20));
    let item = queue.get().blocking().unwrap();
    assert!(queue.now() >= due, "never early");
    item.succeed();
}

#[test]
fn delayed_keys_are_served_when_only_threads_wait_on_a_fake_clock() {
    let (queue, clock) = fake();
    queue.add_after("a", secs(60));
    thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().blocking().map(|item| *item));
        clock.wait_armed(1);
        clock.advance(secs(60));
        assert_eq!(thread.join().unwrap(), Some("a"));
    });
}

#[test]
fn delayed_keys_are_served_when_tasks_and_threads_wait() {
    let queue = system();
    let keys = thread::scope(|scope| {
        let threads = [(); 3]
            .map(|()| scope.spawn(|| queue.get().blocking().map(|item| item.into_parts().0)));
        let tasks =
            [(); 3].map(|()| scope.spawn(|| block_on(queue.get()).map(|item| item.into_parts().0)));
        (0..6).for_each(|key| _ = queue.add_after(key, ms(5 + u64::from(key))));
        threads.into_iter().chain(tasks).map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(keys.into_iter().flatten().collect::<BTreeSet<_>>(), (0..6).collect());
}

#[test]
fn an_earlier_delay_that_comes_later_reaches_a_thread_that_sleeps_longer() {
    let queue = system();
    queue.add_after(1, secs(3600));
    thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().blocking().map(|item| item.into_parts().0));
        queue.add_after(2, ms(5));
        assert_eq!(thread.join().unwrap(), Some(2));
    });
}

/// The thread that waits for the deadline on behalf of all getters leaves with a key. Another
/// thread must then wait for the deadline.
#[test]
fn the_time_is_kept_on_when_the_thread_that_keeps_it_leaves_with_a_key() {
    for _ in 0..20 {
        let queue = system();
        thread::scope(|scope| {
            let threads = [(); 3]
                .map(|()| scope.spawn(|| queue.get().blocking().map(|item| item.into_parts().0)));
            queue.add_after(2, ms(3));
            queue.add_after(3, ms(6));
            queue.add(1);
            let keys = threads.map(|thread| thread.join().unwrap());
            assert_eq!(keys.into_iter().flatten().sum::<u32>(), 6);
        });
    }
}

/// A clock that never advances by itself, although it claims to follow real time. The thread that
/// waits for the deadline therefore checks repeatedly. Any other thread sleeps forever.
#[derive(Clone)]
struct Slept {
    clock: FakeClock,
    /// The threads that have read the time.
    seen: Arc<Mutex<HashSet<ThreadId>>>,
}

impl Clock for Slept {
    fn now(&self) -> Time {
        let now = self.clock.now();
        self.seen.lock().unwrap().insert(thread::current().id());
        now
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        self.clock.arm(at, waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

fn slept() -> (Queue<u32>, Slept) {
    let clock = Slept { clock: FakeClock::new(), seen: Arc::default() };
    (Queue::builder().clock(clock.clone()).build().unwrap(), clock)
}

/// If the wait of the first thread times out, another thread must wait for the deadline.
#[test]
fn the_time_is_kept_on_when_the_thread_that_keeps_it_times_out() {
    for _ in 0..20 {
        let (queue, clock) = slept();
        queue.add_after(1, ms(6));
        thread::scope(|scope| {
            let leader = scope.spawn(|| queue.get().timeout(ms(2)).blocking().map(|item| *item));
            // After this read, the thread knows the time until which it must wait.
            until(|| clock.seen.lock().unwrap().contains(&leader.thread().id()));
            let other = scope.spawn(|| queue.get().blocking().map(|item| item.into_parts().0));
            clock.clock.advance(ms(2));
            assert_eq!(leader.join().unwrap(), None);
            clock.clock.advance(ms(4));
            assert_eq!(other.join().unwrap(), Some(1));
        });
    }
}

/// If the deadline is postponed, the thread still checks at the old deadline. If an earlier
/// deadline is set, the thread is woken.
#[test]
fn the_thread_that_keeps_the_time_keeps_that_of_its_last_check() {
    let (queue, clock) = slept();
    queue.add_after(1, ms(1));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let leader = scope.spawn(|| {
            sender.send(queue.get().blocking().map(|item| item.into_parts().0)).unwrap();
        });
        let looks = || clock.seen.lock().unwrap().contains(&leader.thread().id());
        until(looks);
        // From this line on, the thread sleeps until the second key is due, in an hour.
        queue.add_after(2, secs(3600));
        assert!(queue.cancel(&1).waiting);
        // The thread reads the time twice: when it checks, and when it parks.
        for _ in 0..3 {
            clock.seen.lock().unwrap().clear();
            let asked = (0..1_000).any(|_| {
                thread::yield_now();
                looks()
            });
            if !asked {
                break;
            }
        }
        queue.add_after(3, ms(1));
        clock.clock.advance(ms(1));
        let key = receiver.recv_timeout(secs(3600));
        // The shutdown wakes a getter that is still asleep, so that the test can end.
        queue.shut_down();
        assert_eq!(key, Ok(Some(3)), "the thread that keeps the time slept through a deadline");
    });
}

/// All threads have left, and one task still waits. The alarm of the queue must then wake it.
#[test]
fn the_time_is_kept_on_when_only_a_task_is_left() {
    let (queue, clock) = slept();
    queue.add_after(1, ms(20));
    thread::scope(|scope| {
        let task = scope.spawn(|| block_on(queue.get()).map(|item| item.into_parts().0));
        let thread = scope.spawn(|| queue.get().timeout(ms(0)).blocking().is_none());
        assert!(thread.join().unwrap());
        clock.clock.advance(ms(20));
        assert_eq!(task.join().unwrap(), Some(1));
    });
}

/// A clock that is slower than the clock of its alarms and of parked threads. Wakes are therefore
/// too early.
struct Slow;

impl Clock for Slow {
    fn now(&self) -> Time {
        Time::from_nanos(SystemClock.now().as_nanos() / 4)
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        SystemClock.arm(SystemClock.now() + at.since(self.now()), waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

#[test]
fn a_getter_that_is_woken_early_by_a_drifting_clock_waits_for_the_rest() {
    let queue = Queue::builder().clock(Slow).build().unwrap();
    let get = |how| match how {
        "by a thread" => queue.get().blocking(),
        "by one with a time-out" => queue.get().timeout(secs(3600)).blocking(),
        _ => block_on(queue.get()),
    };
    for how in ["by a thread", "by one with a time-out", "by a task"] {
        let due = queue.now() + ms(2);
        queue.add_after(1, ms(2));
        get(how).unwrap().succeed();
        assert!(queue.now() >= due, "early {how}");
    }
    let end = queue.now() + ms(2);
    assert!(queue.get().timeout(ms(2)).blocking().is_none());
    assert!(queue.now() >= end, "never gives up early");
}

#[test]
fn a_flush_does_not_shorten_the_backoff_of_a_key_in_flight() {
    let (queue, clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add_rate_limited("a");
    queue.add_with("a", Add::debounce(secs(1)));
    assert_eq!(queue.flush_debounced(), 1);
    assert!(!common::is_dirty(&queue, &item), "the backoff takes 1 ms");
    clock.advance(ms(1));
    assert_eq!((queue.waiting(), common::is_dirty(&queue, &item)), (0, true));
    item.succeed();
}

#[test]
fn a_dirty_key_that_is_released_with_a_delay_does_not_wait() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    item.complete(Completion::ReleaseAfter(secs(1)));
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
}

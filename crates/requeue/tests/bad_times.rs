//! Times in the far future, clocks that go back, and alarms that are early.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::task::Waker;
use std::thread;
use std::time::Duration;

use common::{Wakes, fake, poll, ready, secs, take_all};
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::limiter::BackoffLimiter;
use requeue::{Add, Completion, Merge, Queue, Time};

#[test]
fn a_delay_of_duration_max_never_comes() {
    let (queue, clock) = fake();
    queue.add_after("never", Duration::MAX);
    queue.add_with("at never", Add::at(Time::NEVER));
    queue.add("later");
    queue.try_get().unwrap().complete(Completion::RequeueAfter(Duration::MAX));
    queue.add("failed");
    queue.try_get().unwrap().complete(Completion::RetryAfter(Duration::MAX));
    queue.add_after("soon", secs(1));
    assert_eq!(queue.waiting(), 5);

    assert_eq!(clock.run(queue.get()).map(|item| item.into_parts().0), Some("soon"));
    clock.advance(secs(1_000_000_000));
    assert!(queue.try_get().is_none());
    let mut dropped = queue.shut_down();
    dropped.sort_unstable();
    assert_eq!(dropped, ["at never", "failed", "later", "never"]);
}

#[test]
fn a_delay_that_never_comes_can_be_brought_forward() {
    let (queue, clock) = fake();
    queue.add_after("a", Duration::MAX);
    queue.add_after("a", secs(1));
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), ["a"]);
    queue.add_after("a", secs(1));
    queue.add_with("a", Add::after(Duration::MAX).merge(Merge::Latest));
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[test]
fn a_time_that_has_passed_is_now() {
    let (queue, _clock) = fake();
    queue.add_with("a", Add::at(Time::ZERO));
    assert_eq!(queue.len(), 1);
}

#[test]
fn waiting_for_duration_max_is_waiting_for_ever() {
    let (queue, clock) = fake();
    let mut get = Box::pin(queue.get().timeout(Duration::MAX));
    assert!(poll(&mut get, Waker::noop()).is_pending());
    clock.advance(secs(1_000_000_000));
    assert!(poll(&mut get, Waker::noop()).is_pending());
    thread::scope(|scope| {
        let thread =
            scope.spawn(|| queue.get().timeout(Duration::MAX).blocking().map(|item| *item));
        queue.add("a");
        queue.add("b");
        assert!(thread.join().unwrap().is_some());
    });
    drop(get);

    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut drain = queue.shut_down_with_drain().timeout(Duration::MAX);
    assert!(poll(&mut drain, Waker::noop()).is_pending());
    item.succeed();
    assert!(ready(drain).finished);
}

#[test]
fn a_clock_at_the_end_of_time_breaks_nothing() {
    let (queue, clock) = fake();
    queue.add_after("a", secs(1));
    clock.advance(Duration::MAX);
    assert_eq!(take_all(&queue), ["a"]);
    queue.add("b");
    queue.try_get().unwrap().retry();
    queue.add_after("c", secs(1));
    queue.shut_down();
}

#[test]
fn a_clock_that_goes_back_delays_and_loses_nothing() {
    let clock = FakeClock::new();
    let queue = Queue::builder()
        .clock(clock.clone())
        .limiter(BackoffLimiter::default().seed(1))
        .track_times()
        .build()
        .unwrap();
    clock.advance(secs(100));
    queue.add_all(["ready", "failed", "held"]);
    let start = clock.now();
    queue.add_after("waiting", secs(10));
    let ready_item = queue.try_get().unwrap();
    queue.try_get().unwrap().retry();
    let held = queue.try_get().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());

    clock.set(Time::ZERO);
    assert_eq!(
        queue.sample().times.unfinished_work,
        Duration::ZERO,
        "ages are zero until the clock catches up"
    );
    assert_eq!(queue.sample().times.longest_running, Duration::ZERO);
    ready_item.retry();
    held.succeed();
    queue.add("more");
    assert!(wakes.count() > 0);
    assert_eq!(ready(get).map(|item| item.into_parts().0), Some("more"));
    assert!(queue.try_get().is_none());

    clock.set(start + secs(1000));
    let mut keys = take_all(&queue);
    keys.sort_unstable();
    assert_eq!(keys, ["failed", "ready", "waiting"]);
}

// --- Custom clocks -------------------------------------------------------------------------------

/// A clock that arms alarms at most one second ahead, as the trait permits.
struct Early(FakeClock);

impl Clock for Early {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        self.0.arm(at.min(self.0.now() + secs(1)), waker)
    }
}

fn early() -> (Queue<&'static str>, FakeClock) {
    let clock = FakeClock::new();
    (Queue::builder().clock(Early(clock.clone())).build().unwrap(), clock)
}

#[test]
fn keys_are_served_by_alarms_that_go_off_early() {
    let (queue, clock) = early();
    let start = clock.now();
    queue.add_after("a", secs(10));
    assert_eq!(clock.run(queue.get()).map(|item| item.into_parts().0), Some("a"));
    assert_eq!(clock.now(), start + secs(10));
    assert!(clock.run(queue.get().timeout(secs(10))).is_none());
    assert_eq!(clock.now(), start + secs(20));
}

#[test]
fn a_blocked_getter_keeps_its_deadline_by_alarms_that_go_off_early() {
    let (queue, clock) = early();
    thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().timeout(secs(10)).blocking().is_none());
        for _ in 0..10 {
            clock.wait_armed(1);
            clock.advance(secs(1));
        }
        assert!(thread.join().unwrap());
    });
}

#[test]
fn a_drain_keeps_its_deadline_by_alarms_that_go_off_early() {
    let (queue, clock) = early();
    queue.add("a");
    let _item = queue.try_get().unwrap();
    let start = clock.now();
    assert!(!clock.run(queue.shut_down_with_drain().timeout(secs(10))).finished);
    assert_eq!(clock.now(), start + secs(10));
    thread::scope(|scope| {
        let thread =
            scope.spawn(|| queue.shut_down_with_drain().timeout(secs(10)).blocking().finished);
        for _ in 0..10 {
            clock.wait_armed(1);
            clock.advance(secs(1));
        }
        assert!(!thread.join().unwrap());
    });
}

/// A clock without a thread for alarms. It wakes each waker while the alarm is being armed.
struct AtOnce(FakeClock);

impl Clock for AtOnce {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn arm(&self, _: Time, waker: &Waker) -> Alarm {
        waker.wake_by_ref();
        Alarm::none()
    }
}

/// A getter that waits polls the clock continuously. A thread that adds keys does not.
#[test]
fn an_add_returns_where_alarms_go_off_as_they_are_armed() {
    let clock = FakeClock::new();
    let queue = Queue::builder().clock(AtOnce(clock.clone())).build().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add_after("a", secs(1));
    for looks in 1..5 {
        assert_eq!(wakes.count(), looks);
        assert!(poll(&mut get, &waker).is_pending());
    }
    clock.advance(secs(1));
    assert_eq!(ready(get).map(|item| item.into_parts().0), Some("a"));
}

//! Runs in flight that are cancelled, by a caller or by an add. The tests use items, and workers on
//! threads. The worked examples are in `semantics.rs`.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use common::{Wakes, fake, poll, secs};
use requeue::clock::FakeClock;
use requeue::limiter::RateLimiter;
use requeue::workers::{Action, Context, Error, ThreadWorkers};
use requeue::{
    Added, CancelReason, CancelledRun, Completion, InFlightPolicy, Item, Pace, Phase, Queue, Time,
};

/// Returns a queue in which adds restart runs, without a maximum length of a series.
fn restarting() -> (Queue<&'static str>, FakeClock) {
    restarting_for(Duration::MAX)
}

fn restarting_for(at_most: Duration) -> (Queue<&'static str>, FakeClock) {
    let clock = FakeClock::new();
    let rerun = InFlightPolicy::Restart { at_most };
    (Queue::builder().clock(clock.clone()).in_flight_policy(rerun).build().unwrap(), clock)
}

#[test]
fn a_key_that_changes_all_the_time_completes_under_a_pace_too() {
    let clock = FakeClock::new();
    let queue = Queue::builder()
        .clock(clock.clone())
        .in_flight_policy(InFlightPolicy::Restart { at_most: secs(10) })
        .pace(Pace::min_interval(secs(4)))
        .build()
        .unwrap();
    queue.add("a");
    for _ in 0..3 {
        let item = queue.try_get().expect("the pace permits this run");
        queue.add("a");
        assert_eq!(item.cancel_reason(), Some(CancelReason::Restarted));
        item.complete(Completion::Cancelled);
        assert!(queue.try_get().is_none(), "the pace delays the next run");
        clock.advance(secs(4));
    }
    // The first restart was more than 10 s ago, so an add no longer restarts the run.
    let item = queue.try_get().expect("the pace permits this run");
    queue.add("a");
    assert_eq!(item.cancel_reason(), None);
    item.succeed();
}

/// If the series did not end, its old bound would remain, and adds would not restart the next run.
#[test]
fn a_cancel_of_a_key_in_flight_ends_its_series() {
    let (queue, clock) = restarting_for(secs(10));
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    assert!(queue.cancel("a").dirty);
    queue.add("a");
    drop(item);
    let item = queue.try_get().unwrap();
    clock.advance(secs(11));
    queue.add("a");
    assert_eq!(item.cancel_reason(), Some(CancelReason::Restarted));
}

// --- Items ---------------------------------------------------------------------------------------

#[test]
fn everyone_who_waits_for_the_cancellation_of_a_run_is_notified() {
    let (queue, _clock) = fake();
    queue.add_all(["a", "b"]);
    let (a, b) = (queue.try_get().unwrap(), queue.try_get().unwrap());
    let (wakes, waker) = Wakes::new();
    let mut futures = [a.cancelled(), a.cancelled(), b.cancelled()];
    let dropped = a.cancelled();
    for future in &mut futures {
        assert!(poll(future, &waker).is_pending());
        assert!(poll(future, &waker).is_pending(), "it is listed once");
    }
    drop(dropped);
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    assert_eq!(wakes.count(), 2);
    let [first, second, other] = &mut futures;
    for future in [first, second] {
        assert_eq!(poll(future, &waker), Poll::Ready(CancelReason::Cancelled));
    }
    assert!(poll(other, &waker).is_pending());
    assert_eq!(poll(&mut a.cancelled(), &waker), Poll::Ready(CancelReason::Cancelled), "late");
}

/// The limiter is called after the queue has decided that the run failed, and before the run is
/// completed.
#[test]
fn a_run_is_not_cancelled_while_its_item_is_dropped() {
    struct Cancels(Arc<OnceLock<Queue<&'static str>>>, Arc<Mutex<Vec<CancelledRun>>>);
    impl RateLimiter<&'static str> for Cancels {
        fn delay(&mut self, key: &&'static str, _: Time) -> Duration {
            let cancelled = self.0.get().unwrap().cancel_running(key);
            self.1.lock().unwrap().push(cancelled);
            secs(5)
        }
        fn forget(&mut self, _: &&'static str) {}
        fn num_requeues(&self, _: &&'static str) -> u32 {
            0
        }
    }
    let (queue, cancelled) = (Arc::default(), Arc::default());
    let limiter = Cancels(Arc::clone(&queue), Arc::clone(&cancelled));
    let builder = Queue::builder().clock(FakeClock::new()).limiter(limiter);
    let queue = queue.get_or_init(|| builder.build().unwrap());
    queue.add("a");
    drop(queue.try_get().unwrap());
    assert_eq!(*cancelled.lock().unwrap(), [CancelledRun::NotInFlight]);
    assert_eq!((queue.failures("a"), queue.waiting()), (1, 1));
}

/// A future can exist for longer than its run, for example in a task that was not aborted.
#[test]
fn a_future_that_waits_keeps_neither_the_queue_nor_its_waker() {
    struct Ignores;
    impl std::task::Wake for Ignores {
        fn wake(self: Arc<Self>) {}
    }
    type Ends = fn(&Queue<Arc<u8>>, Item<'_, Arc<u8>>);
    let ends: [Ends; 6] = [
        |_, item| item.succeed(),
        |_, item| drop(item),
        |_, item| Item::succeed_all([item]),
        |queue, item| drop(queue.succeed_and_get(item)),
        |queue, item| assert!(queue.done(&item.into_parts().0)),
        |queue, item| assert!(queue.done_ticket(item.into_parts().1)),
    ];
    for end in ends {
        let (queue, key) = (Queue::new(), Arc::new(1));
        queue.add(Arc::clone(&key));
        let item = queue.try_get().unwrap();
        let mut future = item.cancelled();
        let ignores = [Arc::new(Ignores), Arc::new(Ignores)];
        let wakers = ignores.clone().map(Waker::from);
        assert!(poll(&mut future, &wakers[0]).is_pending());
        assert_eq!(Arc::strong_count(&ignores[0]), 3);
        end(&queue, item);
        assert!(poll(&mut future, &wakers[0]).is_pending());
        assert!(poll(&mut future, &wakers[1]).is_pending());
        let counts = ignores.each_ref().map(Arc::strong_count);
        assert_eq!(counts, [2, 2], "a run that is completed has no futures");
        queue.add(Arc::clone(&key));
        drop(queue);
        assert_eq!(Arc::strong_count(&key), 1);
        assert!(poll(&mut future, &wakers[0]).is_pending());
    }
}

/// An owned item keeps the queue alive, but the future does not.
#[test]
fn a_future_of_a_run_in_flight_does_not_keep_the_queue() {
    let (queue, key) = (Queue::new(), Arc::new(1));
    queue.add(Arc::clone(&key));
    let item = queue.try_get().unwrap();
    let mut future = item.cancelled();
    assert!(poll(&mut future, Waker::noop()).is_pending());
    drop(item.into_parts());
    drop(queue);
    assert_eq!(Arc::strong_count(&key), 1);
    assert!(poll(&mut future, Waker::noop()).is_pending());
}

#[test]
fn the_last_waker_of_a_future_is_woken() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let ((old, old_waker), (new, new_waker)) = (Wakes::new(), Wakes::new());
    let mut cancelled = item.cancelled();
    assert!(poll(&mut cancelled, &old_waker).is_pending());
    assert!(poll(&mut cancelled, &new_waker).is_pending());
    assert_eq!(Arc::strong_count(&old), 2, "the queue keeps no waker that is out of date");
    let _ = queue.cancel_running("a");
    assert_eq!((old.count(), new.count()), (0, 1));
}

#[test]
fn a_future_does_not_notice_the_cancellation_of_a_later_run() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut cancelled = item.cancelled();
    let (wakes, waker) = Wakes::new();
    assert!(poll(&mut cancelled, &waker).is_pending());
    item.succeed();
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    assert_eq!(wakes.count(), 0);
    assert!(poll(&mut cancelled, &waker).is_pending());
    item.succeed();
    drop(cancelled);
    assert_eq!(Arc::strong_count(&wakes), 2, "no waker is left");
}

#[test]
fn a_panic_in_a_cancelled_run_counts_as_its_cancellation() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let _ = queue.cancel_running("a");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _item = item;
        std::panic::resume_unwind(Box::new("it panics on purpose"));
    }));
    assert!(panicked.is_err());
    assert_eq!((queue.failures("a"), queue.num_requeues(&"a"), queue.records()), (0, 0, 0));
}

#[test]
fn the_reason_is_shown_while_the_run_is_in_flight() {
    let (queue, _clock) = fake();
    queue.add("a");
    let reason = || queue.look_up("a").map(|entry| (entry.phase, entry.cancelled));
    let (_key, ticket) = queue.try_get().unwrap().into_parts();
    assert_eq!(reason(), Some((Phase::InFlight, None)));
    let _ = queue.cancel_running("a");
    assert_eq!(reason(), Some((Phase::InFlight, Some(CancelReason::Cancelled))));
    queue.add("a");
    assert!(queue.done_ticket(ticket));
    assert_eq!(reason(), Some((Phase::Ready, None)));
}

#[test]
fn a_cancelled_run_ends_no_backoff() {
    let (queue, clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    // client-go's `AddRateLimited` is called while the key is in flight.
    queue.add_rate_limited("a");
    let _ = queue.cancel_running("a");
    drop(item);
    assert_eq!(queue.add("a"), Added::BackingOff);
    assert_eq!(queue.failures("a"), 1);
    clock.advance(secs(1));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

// --- Restarts ------------------------------------------------------------------------------------

#[test]
fn a_run_is_restarted_by_the_alarm_when_no_getter_waits() {
    let (queue, clock) = restarting();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut cancelled = item.cancelled();
    assert!(poll(&mut cancelled, &waker).is_pending());
    queue.add_after("a", secs(2));
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 0);
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut cancelled, &waker), Poll::Ready(CancelReason::Restarted));
}

#[test]
fn an_add_that_waits_for_a_backoff_restarts_nothing() {
    let (queue, _clock) = restarting();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add_rate_limited("a");
    assert_eq!(queue.add("a"), Added::BackingOff);
    assert!(item.cancel_reason().is_none());
}

#[test]
fn a_bound_of_zero_restarts_nothing() {
    let (queue, _clock) = restarting_for(Duration::ZERO);
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert_eq!(queue.add("a"), Added::Dirty);
    assert!(item.cancel_reason().is_none());
}

#[test]
fn without_a_bound_runs_are_restarted_for_years() {
    let (queue, clock) = restarting();
    queue.add("a");
    for n in 1..=10 {
        let item = queue.try_get().unwrap();
        assert_eq!(item.adds(), n);
        clock.advance(secs(1 << 27));
        queue.add("a");
        assert!(item.cancel_reason().is_some());
        item.complete(Completion::Cancelled);
    }
}

#[test]
fn a_failure_after_a_restart_ends_the_row() {
    let (queue, clock) = restarting_for(secs(5));
    queue.add("a");
    for _ in 0..3 {
        let item = queue.try_get().unwrap();
        queue.add("a");
        assert!(item.cancel_reason().is_some(), "the bound counts from the last row");
        item.complete(Completion::RetryAfter(Duration::ZERO));
        clock.advance(secs(5));
    }
}

#[test]
fn a_release_does_not_end_a_series() {
    let releases: [fn(Item<'_, &'static str>); 2] = [
        |item| item.complete(Completion::Release),
        |item| item.complete(Completion::ReleaseAfter(secs(1))),
    ];
    for release in releases {
        let (queue, clock) = restarting_for(secs(5));
        queue.add("a");
        let item = queue.try_get().unwrap();
        queue.add("a");
        drop(item);
        release(queue.try_get().unwrap());
        clock.advance(secs(5));
        let item = queue.try_get().unwrap();
        queue.add("a");
        assert!(item.cancel_reason().is_none(), "the bound counts from the first restart");
    }
}

#[test]
fn a_cancellation_by_name_comes_before_a_restart() {
    let (queue, _clock) = restarting();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let _ = queue.cancel_running("a");
    queue.add("a");
    assert_eq!(item.cancel_reason(), Some(CancelReason::Cancelled));
    drop(item);
    assert_eq!(queue.try_get().unwrap().adds(), 1, "the adds of the cancelled run are dropped");
}

// --- Threads -------------------------------------------------------------------------------------

#[test]
fn a_thread_learns_that_its_run_was_cancelled() {
    let queue = Queue::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (begin, begun) = mpsc::channel();
    let handler = {
        let seen = Arc::clone(&seen);
        move |key: &'static str, context: Context| {
            begin.send(()).unwrap();
            while !context.is_cancelled() {
                thread::yield_now();
            }
            seen.lock().unwrap().push((key, context.cancel_reason()));
            Ok::<_, Error>(Action::cancelled())
        }
    };
    queue.add("a");
    let workers = thread::spawn({
        let queue = queue.clone();
        move || ThreadWorkers::new(queue, handler).run()
    });
    begun.recv().unwrap();
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    queue.close();
    workers.join().unwrap();
    assert_eq!(*seen.lock().unwrap(), [("a", Some(CancelReason::Cancelled))]);
    assert_eq!((queue.totals().deliveries, queue.totals().failures, queue.records()), (1, 0, 0));
}

#[test]
fn a_waker_that_cancels_runs_may_be_called_anywhere() {
    // The queue must call the waker without its lock.
    struct Cancel(Queue<&'static str>);
    impl std::task::Wake for Cancel {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.cancel_running("a"), CancelledRun::AlreadyCancelled);
        }
    }
    let (queue, _clock) = restarting();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut cancelled = item.cancelled();
    let waker = Waker::from(Arc::new(Cancel(queue.clone())));
    assert!(poll(&mut cancelled, &waker).is_pending());
    assert_eq!(queue.add("a"), Added::Dirty);
    assert!(item.cancel_reason().is_some());
}

#[test]
fn a_panic_of_a_handler_whose_run_is_cancelled_counts_as_its_cancellation() {
    let queue = Queue::new();
    queue.add("a");
    queue.close();
    let handler = {
        let queue = queue.clone();
        move |key: &'static str, _: Context| -> Result<Action, Error> {
            assert_eq!(queue.cancel_running(key), CancelledRun::Cancelled);
            std::panic::resume_unwind(Box::new("it panics on purpose"));
        }
    };
    ThreadWorkers::new(queue.clone(), handler).max_retries(0).run();
    assert_eq!((queue.totals().failures, queue.sample().given_up, queue.records()), (0, 0, 0));
    assert_eq!(queue.sample().panics, 1);
}

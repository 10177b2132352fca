//! The promises of `Workers`.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{on_tokio, on_tokio_builder};
use requeue::limiter::ExponentialFailure;
use requeue::workers::{Action, Context, Error, Workers};
use requeue::{Add, Added, Order, ReaddPolicy};
use tokio::sync::{Notify, Semaphore};

type Log = Arc<Mutex<Vec<(&'static str, u32)>>>;

fn log() -> Log {
    Log::default()
}

fn seen(log: &Log) -> Vec<(&'static str, u32)> {
    log.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn an_error_is_retried_with_backoff_until_it_succeeds() {
    let (queue, log) = (on_tokio(), log());
    queue.add("a");
    queue.close();
    let handler = {
        let log = Arc::clone(&log);
        move |key, context: Context| {
            log.lock().unwrap().push((key, context.attempt()));
            async move {
                if context.attempt() < 4 { Err("not yet".into()) } else { Ok(Action::succeed()) }
            }
        }
    };
    let drained = Workers::new(queue.clone(), handler).run().await;
    assert_eq!(seen(&log), [("a", 1), ("a", 2), ("a", 3), ("a", 4)]);
    assert!(drained.finished);
    assert_eq!(queue.num_requeues(&"a"), 0);
    assert_eq!(queue.totals().failures, 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_and_the_worker_lives_on() {
    let (queue, log) = (on_tokio(), log());
    queue.add_all(["a", "b"]);
    queue.close();
    let handler = {
        let log = Arc::clone(&log);
        move |key: &'static str, context: Context| {
            // The handler panics in two ways: before it returns a future, and inside the future.
            assert!(!(key == "b" && context.attempt() == 1), "on purpose");
            let log = Arc::clone(&log);
            async move {
                assert!(!(key == "a" && context.attempt() == 1), "on purpose");
                log.lock().unwrap().push((key, context.attempt()));
                Ok(Action::succeed())
            }
        }
    };
    Workers::new(queue.clone(), handler).run().await;
    let mut seen = seen(&log);
    seen.sort_unstable();
    assert_eq!(seen, [("a", 2), ("b", 2)]);
    assert_eq!(queue.totals().failures, 2);
}

#[tokio::test(start_paused = true)]
async fn past_its_retries_a_key_is_given_up_and_forgotten() {
    let (queue, runs) = (on_tokio(), Arc::new(AtomicUsize::new(0)));
    queue.add("a");
    queue.close();
    let given_up = log();
    let handler = {
        let runs = Arc::clone(&runs);
        move |_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
            async { Err::<Action, Error>("never".into()) }
        }
    };
    Workers::new(queue.clone(), handler)
        .max_retries(5)
        .on_give_up({
            let given_up = Arc::clone(&given_up);
            move |key, error| {
                assert_eq!(error.to_string(), "never");
                given_up.lock().unwrap().push((key, 0));
            }
        })
        .run()
        .await;
    assert_eq!(runs.load(Ordering::Relaxed), 6, "five retries after the first run");
    assert_eq!(seen(&given_up), [("a", 0)]);
    assert_eq!((queue.num_requeues(&"a"), queue.failures(&"a")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_dirty_when_it_is_given_up_starts_afresh_at_once() {
    let (queue, log) = (on_tokio(), log());
    queue.add("a");
    let handler = {
        let (queue, log) = (queue.clone(), Arc::clone(&log));
        move |key, context: Context| {
            log.lock().unwrap().push((key, context.attempt()));
            let first = seen(&log).len() == 1;
            if first {
                assert_eq!(queue.add(key), Added::Dirty);
            } else {
                queue.close();
            }
            async move { if first { Err("fails".into()) } else { Ok(Action::succeed()) } }
        }
    };
    let started = tokio::time::Instant::now();
    Workers::new(queue.clone(), handler).max_retries(0).run().await;
    assert_eq!(seen(&log), [("a", 1), ("a", 1)]);
    assert_eq!(started.elapsed(), Duration::ZERO, "without any backoff");
}

#[tokio::test(start_paused = true)]
async fn a_terminal_error_is_not_retried() {
    let (queue, given_up) = (on_tokio(), Arc::new(AtomicUsize::new(0)));
    queue.add("a");
    queue.close();
    Workers::new(queue.clone(), |_, _| async { Err::<Action, _>(Error::terminal("hopeless")) })
        .on_give_up({
            let given_up = Arc::clone(&given_up);
            move |_, _| {
                given_up.fetch_add(1, Ordering::Relaxed);
            }
        })
        .run()
        .await;
    assert_eq!(given_up.load(Ordering::Relaxed), 1);
    assert_eq!(queue.totals().deliveries, 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_a_failure_that_leaves_the_exponent_alone() {
    let queue = on_tokio();
    queue.add("a");
    queue.close();
    let handler = {
        let queue = queue.clone();
        move |key, context: Context| {
            let requeues = queue.num_requeues(&key);
            async move {
                assert_eq!(requeues, 0);
                match context.attempt() {
                    3 => Ok(Action::succeed()),
                    _ => Err(Error::retry_after(Duration::from_secs(7), "busy")),
                }
            }
        }
    };
    let started = tokio::time::Instant::now();
    Workers::new(queue.clone(), handler).run().await;
    assert_eq!(started.elapsed(), Duration::from_secs(14));
    assert_eq!(queue.totals().failures, 2);
}

#[tokio::test(start_paused = true)]
async fn on_finish_finds_its_key_backing_off() {
    let limiter = ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(1));
    let queue =
        on_tokio_builder().readd_policy(ReaddPolicy::Hold).limiter(limiter).build().unwrap();
    queue.add_all(["fails", "panics", "succeeds"]);
    let handler = |key, context: Context| async move {
        assert!(key != "panics" || context.attempt() > 1, "on purpose");
        if key == "fails" && context.attempt() == 1 {
            Err("not yet".into())
        } else {
            Ok(Action::succeed())
        }
    };
    let log = log();
    let told = {
        let (queue, log) = (queue.clone(), Arc::clone(&log));
        move |key| {
            log.lock().unwrap().push((key, queue.failures(key)));
            if queue.failures(key) > 0 {
                assert_eq!(queue.add(key), Added::BackingOff);
            }
            panic!("is ignored");
        }
    };
    queue.close();
    Workers::new(queue, handler).on_finish(told).run().await;
    let first = [("fails", 1), ("panics", 1), ("succeeds", 0)];
    assert_eq!(seen(&log), [&first[..], &[("fails", 0), ("panics", 0)]].concat());
}

#[tokio::test(start_paused = true)]
async fn actions_say_when_the_key_is_added_again() {
    let (queue, log) = (on_tokio(), log());
    queue.add("a");
    let handler = {
        let (queue, log) = (queue.clone(), Arc::clone(&log));
        move |key, context: Context| {
            log.lock().unwrap().push((key, context.attempt()));
            let run = seen(&log).len();
            if run == 3 {
                queue.close();
            }
            async move {
                Ok::<_, Error>(match run {
                    1 => Action::requeue_after(Duration::ZERO),
                    2 => Action::requeue_after(Duration::from_secs(60)),
                    _ => Action::succeed(),
                })
            }
        }
    };
    let started = tokio::time::Instant::now();
    Workers::new(queue, handler).run().await;
    assert_eq!(seen(&log), [("a", 1), ("a", 1), ("a", 1)]);
    assert_eq!(started.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_cancelled_then_dropped_and_has_failed() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (queue, drops) = (on_tokio(), Arc::new(AtomicUsize::new(0)));
    queue.add("a");
    queue.close();
    let errors = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let drops = Arc::clone(&drops);
        move |_, context: Context| {
            let guard = Dropped(Arc::clone(&drops));
            async move {
                context.cancelled().await;
                // The handler is cancelled, but ignores its cancellation.
                std::future::pending::<()>().await;
                drop(guard);
                Ok(Action::succeed())
            }
        }
    };
    let started = tokio::time::Instant::now();
    Workers::new(queue, handler)
        .timeout(Duration::from_secs(3))
        .grace(Duration::from_secs(2))
        .max_retries(0)
        .on_give_up({
            let errors = Arc::clone(&errors);
            move |_, error| errors.lock().unwrap().push(error.to_string())
        })
        .run()
        .await;
    assert_eq!(started.elapsed(), Duration::from_secs(5));
    assert_eq!(*errors.lock().unwrap(), ["timed out after 3s"]);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_stops_within_the_grace_period_says_how_it_ended() {
    let queue = on_tokio();
    queue.add("a");
    queue.close();
    Workers::new(queue.clone(), |_, context: Context| async move {
        context.cancelled().await;
        Ok::<_, Error>(Action::succeed())
    })
    .timeout(Duration::from_secs(3))
    .run()
    .await;
    assert_eq!(queue.totals().failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_what_is_ready_and_drops_what_waits() {
    let (queue, log) = (on_tokio(), log());
    queue.add_all(["a", "b", "c"]);
    queue.add_after("later", Duration::from_secs(60));
    let shutdown = Arc::new(Notify::new());
    let handler = {
        let (log, shutdown) = (Arc::clone(&log), Arc::clone(&shutdown));
        move |key, context: Context| {
            log.lock().unwrap().push((key, context.attempt()));
            shutdown.notify_one();
            async { Ok::<_, Error>(Action::succeed()) }
        }
    };
    let drained = Workers::new(queue.clone(), handler).run_until(shutdown.notified()).await;
    assert_eq!(seen(&log), [("a", 1), ("b", 1), ("c", 1)]);
    assert_eq!(drained.dropped, ["later"]);
    assert!(drained.finished);
    assert_eq!(queue.add("d"), Added::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_dirty_key_is_finished_before_the_workers_end() {
    let (queue, log) = (on_tokio(), log());
    queue.add("a");
    let shutdown = Arc::new(Notify::new());
    let handler = {
        let (queue, log, shutdown) = (queue.clone(), Arc::clone(&log), Arc::clone(&shutdown));
        move |key, context: Context| {
            log.lock().unwrap().push((key, context.attempt()));
            if seen(&log).len() == 1 {
                assert_eq!(queue.add(key), Added::Dirty);
                shutdown.notify_one();
            }
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Error>(Action::succeed())
            }
        }
    };
    let workers = Workers::new(queue.clone(), handler).concurrency(4);
    let drained = workers.run_until(shutdown.notified()).await;
    assert_eq!(seen(&log), [("a", 1), ("a", 1)]);
    assert!(drained.finished);
}

#[tokio::test(start_paused = true)]
async fn past_the_drain_timeout_what_runs_is_cancelled_and_reported() {
    let queue = on_tokio();
    queue.add("stuck");
    let started = Arc::new(Notify::new());
    let handler = {
        let started = Arc::clone(&started);
        move |_, _| {
            started.notify_one();
            std::future::pending::<Result<Action, Error>>()
        }
    };
    let before = tokio::time::Instant::now();
    let drained = Workers::new(queue.clone(), handler)
        .drain_timeout(Duration::from_secs(30))
        .grace(Duration::from_secs(1))
        .run_until(started.notified())
        .await;
    assert_eq!(before.elapsed(), Duration::from_secs(31));
    assert_eq!(drained.dropped, ["stuck"], "a failure after the shutdown is dropped and reported");
    assert_eq!(drained.in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_workers_brings_their_keys_back_with_backoff() {
    let queue = on_tokio();
    queue.add("a");
    let started = Arc::new(Notify::new());
    let handler = {
        let started = Arc::clone(&started);
        move |_, _| {
            started.notify_one();
            std::future::pending::<Result<Action, Error>>()
        }
    };
    tokio::select! {
        _ = Workers::new(queue.clone(), handler).run() => unreachable!("the handler never returns"),
        () = started.notified() => {}
    }
    // Aborting a task is asynchronous: the key is retried when the future of the task is dropped.
    let item = queue.get().await.expect("the queue is open");
    assert_eq!((*item, item.attempt()), ("a", 2));
}

#[tokio::test(start_paused = true)]
async fn no_more_keys_are_worked_on_at_once_than_asked_for() {
    let queue = on_tokio();
    queue.add_all(0..50);
    queue.close();
    let slots = Arc::new(Semaphore::new(3));
    let handler = {
        let slots = Arc::clone(&slots);
        move |_, _| {
            let slots = Arc::clone(&slots);
            async move {
                let _slot = slots.try_acquire().expect("no more than three at once");
                tokio::task::yield_now().await;
                Ok::<_, Error>(Action::succeed())
            }
        }
    };
    let errors = Arc::new(AtomicUsize::new(0));
    Workers::new(queue.clone(), handler)
        .concurrency(3)
        .max_retries(0)
        .on_give_up({
            let errors = Arc::clone(&errors);
            move |_, _| {
                errors.fetch_add(1, Ordering::Relaxed);
            }
        })
        .run()
        .await;
    assert_eq!((queue.totals().deliveries, errors.load(Ordering::Relaxed)), (50, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_comes_back_with_the_priority_that_the_handler_says() {
    let order = Order::Priority { oldest_every: 10 };
    let queue = on_tokio_builder().order(order).build().unwrap();
    queue.add_with("a", Add::now().priority(3));
    queue.close();
    let priorities = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let priorities = Arc::clone(&priorities);
        move |_, context: Context| {
            let mut priorities = priorities.lock().unwrap();
            priorities.push(context.priority());
            let now = priorities.len();
            async move {
                match now {
                    1 => Err("with the priority it has".into()),
                    2 => Err(Error::from("with less").priority(-7)),
                    3 => Ok(Action::requeue_after(Duration::ZERO).priority(9)),
                    4 => Ok(Action::requeue_after(Duration::ZERO)),
                    _ => Ok(Action::succeed()),
                }
            }
        }
    };
    Workers::new(queue, handler).run().await;
    assert_eq!(*priorities.lock().unwrap(), [3, 3, -7, 9, 9]);
}

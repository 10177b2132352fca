//! The results of attempts, and the shutdown of workers.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::on_tokio;
use requeue::Added;
use requeue::workers::{Action, Context, Error, Workers};
use tokio::sync::Notify;
use tokio::time::Instant;

type Seen = Arc<Mutex<Vec<(u32, u32)>>>;

#[tokio::test(start_paused = true)]
async fn the_drain_timeout_holds_while_another_worker_has_a_dirty_key() {
    let queue = on_tokio();
    queue.add(1);
    let held = queue.try_get().map(requeue::Item::into_owned).unwrap();
    assert_eq!(queue.add(1), Added::Dirty);
    let before = Instant::now();
    let drained = Workers::new(queue.clone(), |_, _| async { Ok(Action::succeed()) })
        .concurrency(3)
        .grace(Duration::from_millis(10))
        .drain_timeout(Duration::from_millis(50))
        .run_until(ready(()))
        .await;
    assert_eq!(before.elapsed(), Duration::from_millis(50), "the grace period is not used");
    assert_eq!((drained.finished, drained.in_flight), (false, 1));
    held.succeed();
    assert!(queue.try_get().is_some(), "the key is still pending");
}

#[tokio::test(start_paused = true)]
async fn past_the_drain_timeout_nothing_new_is_begun() {
    let (queue, seen) = (on_tokio(), Seen::default());
    queue.add_all([1, 2]);
    let handler = {
        let seen = Arc::clone(&seen);
        move |key, context: Context| {
            seen.lock().unwrap().push((key, context.attempt()));
            async move {
                context.cancelled().await;
                Ok::<_, Error>(Action::succeed())
            }
        }
    };
    let before = Instant::now();
    let drained = Workers::new(queue.clone(), handler)
        .drain_timeout(Duration::from_secs(20))
        .run_until(ready(()))
        .await;
    assert_eq!(before.elapsed(), Duration::from_secs(20));
    assert_eq!((drained.finished, drained.ready), (false, 1));
    assert_eq!(*seen.lock().unwrap(), [(1, 1)]);
}

/// Runs a handler that returns an error at the time `late` after its cancellation. Returns the
/// error of the key and its source.
async fn given_up_after(late: Duration, error: fn() -> Error) -> (String, Option<String>) {
    let (queue, told) = (on_tokio(), Arc::new(Mutex::new(None)));
    queue.add(1);
    queue.close();
    let handler = move |_, context: Context| async move {
        context.cancelled().await;
        tokio::time::sleep(late).await;
        Err::<Action, _>(error())
    };
    Workers::new(queue, handler)
        .timeout(Duration::from_secs(3))
        .grace(Duration::from_secs(2))
        .max_retries(0)
        .on_give_up({
            let told = Arc::clone(&told);
            move |_, error| {
                let source = error.source().source().map(ToString::to_string);
                *told.lock().unwrap() = Some((error.to_string(), source));
            }
        })
        .run()
        .await;
    let told = told.lock().unwrap().take();
    told.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_timeout_says_that_and_what_the_handler_said() {
    let (error, source) = given_up_after(Duration::from_secs(1), || "half done".into()).await;
    assert_eq!(error, "timed out after 3s");
    assert_eq!(source.as_deref(), Some("half done"));
    let (error, source) = given_up_after(Duration::from_secs(9), || "half done".into()).await;
    assert_eq!((&*error, source), ("timed out after 3s", None));
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_timeout_is_followed_by_what_the_handler_asked_for() {
    let queue = on_tokio();
    queue.add(1);
    queue.close();
    let handler = |_, context: Context| async move {
        context.cancelled().await;
        Err::<Action, _>(match context.attempt() {
            1 => Error::retry_after(Duration::from_secs(7), "busy"),
            _ => Error::terminal("hopeless"),
        })
    };
    let before = Instant::now();
    Workers::new(queue.clone(), handler).timeout(Duration::from_secs(3)).run().await;
    assert_eq!(before.elapsed(), Duration::from_secs(3 + 7 + 3));
    assert_eq!((queue.totals().failures, queue.sample().given_up), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_an_attempt_that_a_drain_cancels_is_the_handlers() {
    let (queue, told) = (on_tokio(), Arc::new(Mutex::new(String::new())));
    queue.add(1);
    let handler = |_, context: Context| async move {
        context.cancelled().await;
        Err::<Action, _>(Error::terminal("interrupted"))
    };
    Workers::new(queue, handler)
        .drain_timeout(Duration::from_secs(1))
        .on_give_up({
            let told = Arc::clone(&told);
            move |_, error| *told.lock().unwrap() = error.to_string()
        })
        .run_until(ready(()))
        .await;
    assert_eq!(*told.lock().unwrap(), "interrupted");
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_knows_that_it_is() {
    for (retries, last) in [(Some(0), Some(1)), (Some(2), Some(3)), (None, None)] {
        let (queue, seen) = (on_tokio(), Seen::default());
        queue.add(1);
        queue.close();
        let handler = {
            let seen = Arc::clone(&seen);
            move |_, context: Context| {
                seen.lock().unwrap().push((context.attempt(), context.is_last_attempt().into()));
                async move {
                    match context.attempt() {
                        5 => Ok(Action::succeed()),
                        _ => Err("fails".into()),
                    }
                }
            }
        };
        let workers = Workers::new(queue.clone(), handler);
        match retries {
            Some(retries) => workers.max_retries(retries).run().await,
            None => workers.run().await,
        };
        let seen = seen.lock().unwrap();
        let expected = (1..=last.unwrap_or(5)).map(|n| (n, u32::from(Some(n) == last)));
        assert_eq!(*seen, expected.collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_released_is_ready_at_the_tail_with_no_failure_counted() {
    let (queue, seen) = (on_tokio(), Seen::default());
    queue.add_all([1, 2]);
    queue.close();
    let handler = {
        let seen = Arc::clone(&seen);
        move |key, context: Context| {
            seen.lock().unwrap().push((key, context.attempt()));
            let run = seen.lock().unwrap().len();
            async move {
                match run {
                    1 => Err("fails".into()),
                    // The failure before this run is not forgotten either.
                    3 => Ok(Action::release()),
                    _ => Ok(Action::succeed()),
                }
            }
        }
    };
    Workers::new(queue.clone(), handler).run().await;
    assert_eq!(*seen.lock().unwrap(), [(1, 1), (2, 1), (1, 2), (1, 2)]);
    assert_eq!(queue.totals().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_released_after_a_shutdown_is_reported() {
    let (queue, started) = (on_tokio(), Arc::new(Notify::new()));
    queue.add(1);
    let handler = {
        let started = Arc::clone(&started);
        move |_, context: Context| {
            started.notify_one();
            async move {
                context.cancelled().await;
                Ok::<_, Error>(Action::release())
            }
        }
    };
    let drained = Workers::new(queue, handler)
        .drain_timeout(Duration::from_secs(1))
        .run_until(started.notified())
        .await;
    assert_eq!((drained.finished, drained.dropped), (true, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn no_workers_at_all_are_one() {
    let queue = on_tokio();
    queue.add(1);
    queue.close();
    let workers = Workers::new(queue, |_, _| async { Ok(Action::succeed()) });
    assert!(workers.concurrency(0).run().await.finished);
}

#[tokio::test(start_paused = true)]
async fn the_report_of_workers_that_are_dropped_is_the_queues() {
    let (queue, started) = (on_tokio(), Arc::new(Notify::new()));
    queue.add(1);
    queue.add_after(2, Duration::from_secs(60));
    let handler = {
        let started = Arc::clone(&started);
        move |_, _| {
            started.notify_one();
            std::future::pending::<Result<Action, Error>>()
        }
    };
    let mut run = Box::pin(Workers::new(queue.clone(), handler).run_until(ready(())));
    tokio::select! {
        _ = &mut run => unreachable!("the handler never returns"),
        () = started.notified() => {}
    }
    drop(run);
    while queue.states().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    let mut dropped = queue.take_dropped();
    dropped.sort_unstable();
    assert_eq!(dropped, [1, 2]);
}

//! Workers whose runs the queue cancels or restarts.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{on_tokio, on_tokio_builder, secs};
use requeue::workers::{Action, Context, Error, Workers};
use requeue::{CancelReason, CancelledRun, InFlightPolicy, Queue};
use tokio::time::{Instant, sleep};

type Reasons = Arc<Mutex<Vec<CancelReason>>>;
type BoxFuture = Pin<Box<dyn Future<Output = Result<Action, Error>> + Send>>;

/// Cancels the run of "a" after a second, and closes the queue.
async fn cancel_and_close(queue: &Queue<&'static str>) {
    sleep(secs(1)).await;
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    queue.close();
}

/// Returns a handler that waits for its cancellation and records the reason. It then returns the
/// action.
fn record_reasons(
    reasons: &Reasons,
    action: fn() -> Action,
) -> impl Fn(&'static str, Context) -> BoxFuture + use<> {
    let reasons = Arc::clone(reasons);
    move |_, context| {
        let reasons = Arc::clone(&reasons);
        Box::pin(async move {
            assert_eq!(context.cancel_reason(), None);
            let reason = context.cancelled().await;
            reasons.lock().unwrap().push(reason);
            Ok(action())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_counts_neither_as_a_success_nor_as_a_failure() {
    let (queue, reasons) = (on_tokio(), Reasons::default());
    queue.add("a");
    let handler = record_reasons(&reasons, Action::cancelled);
    let workers = Workers::new(queue.clone(), handler).max_retries(0);
    tokio::join!(workers.run(), cancel_and_close(&queue));
    assert_eq!(*reasons.lock().unwrap(), [CancelReason::Cancelled]);
    assert_eq!((queue.totals().failures, queue.sample().given_up, queue.records()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_that_does_not_stop_is_dropped_after_the_grace_period() {
    let queue = on_tokio();
    queue.add("a");
    let before = Instant::now();
    let handler = |_, _| async {
        pending::<()>().await;
        Ok::<_, Error>(Action::succeed())
    };
    let workers = Workers::new(queue.clone(), handler).grace(secs(3)).max_retries(0);
    tokio::join!(workers.run(), cancel_and_close(&queue));
    assert_eq!(before.elapsed(), secs(4));
    assert_eq!((queue.totals().failures, queue.sample().given_up, queue.records()), (0, 0, 0));
}

/// The handler ignores its time limit, and is cancelled during the grace period.
#[tokio::test(start_paused = true)]
async fn a_run_can_be_cancelled_after_its_time_limit_and_at_a_shutdown() {
    for stops in [false, true] {
        let (queue, reasons) = (on_tokio(), Reasons::default());
        queue.add("a");
        let before = Instant::now();
        let handler = {
            let reasons = Arc::clone(&reasons);
            move |_, context: Context| {
                let reasons = Arc::clone(&reasons);
                async move {
                    let reason = context.cancelled().await;
                    reasons.lock().unwrap().push(reason);
                    sleep(secs(2)).await;
                    reasons.lock().unwrap().extend(context.cancel_reason());
                    pending::<()>().await;
                    Ok::<_, Error>(Action::succeed())
                }
            }
        };
        let workers = Workers::new(queue.clone(), handler).grace(secs(3)).max_retries(0);
        let cancel = async {
            sleep(secs(2)).await;
            assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
            queue.close();
        };
        let first = if stops {
            let workers = workers.drain_timeout(secs(1));
            tokio::join!(workers.run_until(ready(())), cancel);
            CancelReason::Stopping
        } else {
            tokio::join!(workers.timeout(secs(1)).run(), cancel);
            CancelReason::TimedOut
        };
        assert_eq!(*reasons.lock().unwrap(), [first, CancelReason::Cancelled]);
        assert_eq!(before.elapsed(), secs(4));
        assert_eq!((queue.totals().failures, queue.sample().given_up, queue.records()), (0, 0, 0));
    }
}

/// The panic is counted. The run is not a failure, as if its item had been dropped.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_cancelled_run_counts_as_its_cancellation() {
    let queue = on_tokio();
    queue.add("a");
    let handler = {
        let queue = queue.clone();
        move |_, context: Context| {
            let queue = queue.clone();
            async move {
                if context.attempt() == 1 {
                    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
                    queue.close();
                }
                std::panic::resume_unwind(Box::new("it panics on purpose"));
            }
        }
    };
    Workers::new(queue.clone(), handler).max_retries(0).run().await;
    assert_eq!((queue.totals().failures, queue.sample().given_up, queue.records()), (0, 0, 0));
    assert_eq!(queue.sample().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_cancellation_is_a_failure() {
    let queue = on_tokio();
    queue.add("a");
    let handler = |_, context: Context| async move {
        context.cancelled().await;
        Err::<Action, Error>("half done".into())
    };
    let workers = Workers::new(queue.clone(), handler).max_retries(0);
    tokio::join!(workers.run(), cancel_and_close(&queue));
    assert_eq!((queue.totals().failures, queue.sample().given_up), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_run_stops_and_the_key_runs_again_at_once() {
    let queue = on_tokio_builder().in_flight_policy(InFlightPolicy::restart()).build().unwrap();
    let runs = Arc::new(Mutex::new(Vec::new()));
    queue.add("a");
    let handler = {
        let runs = Arc::clone(&runs);
        move |_, context: Context| {
            runs.lock().unwrap().push((Instant::now(), context.adds(), context.attempt()));
            async move {
                tokio::select! {
                    reason = context.cancelled() => {
                        assert_eq!(reason, CancelReason::Restarted);
                        Ok::<_, Error>(Action::cancelled())
                    }
                    () = sleep(secs(10)) => Ok(Action::succeed()),
                }
            }
        }
    };
    let start = Instant::now();
    let adds = async {
        for _ in 0..2 {
            sleep(secs(4)).await;
            queue.add("a");
        }
        queue.close();
    };
    tokio::join!(Workers::new(queue.clone(), handler).run(), adds);
    let runs = runs.lock().unwrap();
    let runs: Vec<_> =
        runs.iter().map(|(at, adds, attempt)| (*at - start, *adds, *attempt)).collect();
    assert_eq!(runs, [(secs(0), 1, 1), (secs(4), 2, 1), (secs(8), 3, 1)]);
    assert_eq!(start.elapsed(), secs(18));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_changes_all_the_time_still_completes() {
    let queue = on_tokio_builder().in_flight_policy(InFlightPolicy::restart()).build().unwrap();
    let completed = Arc::new(Mutex::new(Vec::new()));
    queue.add("a");
    let start = Instant::now();
    let handler = {
        let completed = Arc::clone(&completed);
        move |_, context: Context| {
            let completed = Arc::clone(&completed);
            async move {
                tokio::select! {
                    _ = context.cancelled() => Ok::<_, Error>(Action::cancelled()),
                    () = sleep(secs(5)) => {
                        completed.lock().unwrap().push(start.elapsed());
                        Ok(Action::succeed())
                    }
                }
            }
        }
    };
    let adds = async {
        for _ in 0..100 {
            sleep(secs(1)).await;
            queue.add("a");
        }
        queue.close();
    };
    tokio::join!(Workers::new(queue.clone(), handler).run(), adds);
    // The first restart is at 1 s, so no run is restarted from 31 s on.
    assert_eq!(completed.lock().unwrap()[0], secs(35));
}

#[tokio::test(start_paused = true)]
async fn the_reason_tells_a_timeout_from_a_shutdown() {
    for (timeout, reason) in [(secs(1), CancelReason::TimedOut), (secs(9), CancelReason::Stopping)]
    {
        let (queue, reasons) = (on_tokio(), Reasons::default());
        queue.add("a");
        let handler = record_reasons(&reasons, Action::succeed);
        Workers::new(queue, handler)
            .timeout(timeout)
            .drain_timeout(Duration::from_secs(2))
            .run_until(ready(()))
            .await;
        assert_eq!(*reasons.lock().unwrap(), [reason]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_stops_for_another_reason_than_a_cancellation_does_not_lose_its_key() {
    let handler = |_, context: Context| async move {
        context.cancelled().await;
        Ok::<_, Error>(Action::cancelled())
    };
    let queue = on_tokio();
    queue.add("a");
    let workers = Workers::new(queue.clone(), handler).drain_timeout(secs(1));
    assert_eq!(workers.run_until(sleep(secs(1))).await.dropped, ["a"]);

    let queue = on_tokio();
    queue.add("a");
    let workers = Workers::new(queue.clone(), handler).timeout(secs(1)).max_retries(0);
    let close = async {
        sleep(secs(2)).await;
        queue.close();
    };
    tokio::join!(workers.run(), close);
    assert_eq!(queue.sample().given_up, 1);
}

//! One worker, and one attempt of it.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::outcome::Next;
use super::{Action, Context, Error, Options};
use crate::clock::{Clock, sleep_until};
use crate::{Item, Key, Queue};

/// Takes keys until there will be none.
pub(super) async fn work<K, S, H, F>(
    queue: Queue<K, S>,
    handler: Arc<H>,
    options: Options<K>,
    stop: CancellationToken,
) where
    K: Key + fmt::Debug,
    S: BuildHasher + Send + Sync + 'static,
    H: Fn(K, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    while !stop.is_cancelled()
        && let Some(item) = queue.get_to_the_end().await
    {
        let context = Context {
            attempt: item.attempt(),
            adds: item.adds(),
            reasons: item.reasons(),
            priority: item.priority(),
            token: stop.child_token(),
        };
        let key = item.key().clone();
        let span = tracing::info_span!("attempt", ?key, attempt = context.attempt);
        let clock = Arc::clone(&queue.shared().clock);
        let ended = attempt(&*handler, key, context, &clock, &options, &stop);
        match ended.instrument(span.clone()).await {
            Ended::Ok(action) => match action.after {
                None => item.succeed(),
                Some(delay) => item.requeue_after(delay),
            },
            Ended::Failed(error) => {
                span.in_scope(|| tracing::debug!(%error, "attempt failed"));
                fail(&options, item, error);
            }
            Ended::Panicked(error) => {
                queue.shared().panics.fetch_add(1, Ordering::Relaxed);
                span.in_scope(|| tracing::error!(%error, "attempt panicked"));
                fail(&options, item, error);
            }
            // Dropped unfinished: failed, whatever its count.
            Ended::Stopped => drop(item),
        }
    }
}

fn fail<K: Key>(options: &Options<K>, item: Item<'static, K>, error: Error) {
    let spent = options.max_retries.is_some_and(|retries| item.attempt() > retries);
    match error.next {
        Next::Backoff if !spent => {
            item.retry();
        }
        Next::After(delay) if !spent => item.retry_after(delay),
        _ => {
            options.give_up(item.key().clone(), error);
            item.give_up();
        }
    }
}

enum Ended {
    Ok(Action),
    Failed(Error),
    Panicked(Error),
    /// The workers are stopped, and the attempt has not ended by itself.
    Stopped,
}

async fn attempt<K, H, F>(
    handler: &H,
    key: K,
    context: Context,
    clock: &Arc<dyn Clock>,
    options: &Options<K>,
    stop: &CancellationToken,
) -> Ended
where
    H: Fn(K, Context) -> F,
    F: Future<Output = Result<Action, Error>>,
{
    let token = context.token.clone();
    // The call itself may panic, before there is a future.
    let Ok(future) = catch_unwind(AssertUnwindSafe(|| handler(key, context))) else {
        return Ended::Panicked("the handler panicked".into());
    };
    let mut future = pin!(future);
    let mut run = pin!(poll_fn(|cx| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(poll) => poll.map(|result| match result {
                Ok(action) => Ended::Ok(action),
                Err(error) => Ended::Failed(error),
            }),
            Err(panic) => std::task::Poll::Ready(Ended::Panicked(describe(&*panic))),
        }
    }));
    let timed_out = tokio::select! {
        biased;
        ended = &mut run => return ended,
        () = stop.cancelled() => None,
        timeout = after(clock, options.timeout) => Some(timeout),
    };
    token.cancel();
    tokio::select! {
        biased;
        ended = &mut run => ended,
        _ = after(clock, Some(options.grace)) => match timed_out {
            Some(timeout) => Ended::Failed(format!("timed out after {timeout:?}").into()),
            None => Ended::Stopped,
        },
    }
}

/// Waits for `delay`, for ever if there is none.
async fn after(clock: &Arc<dyn Clock>, delay: Option<Duration>) -> Duration {
    match delay {
        None => std::future::pending().await,
        Some(delay) => {
            sleep_until(clock, clock.now() + delay).await;
            delay
        }
    }
}

fn describe(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match message {
        Some(message) => format!("panicked: {message}").into(),
        None => "panicked".into(),
    }
}

//! A worker task, which takes keys and makes one attempt at a time.
//!
//! No panic of user code stops it.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::catch_panic::call_caught;
use super::options::{Options, panic_pause};
use super::outcome::{Action, Error};
use super::source::{WorkItem, WorkQueue};
use super::span::AttemptSpan;
use super::token::RunToken;
use super::{Context, Workers};
use crate::CancelReason;
use crate::clock::{Clock, sleep_until};
use crate::sync::{drop_quietly, quietly};

pub(super) struct Worker<Q: WorkQueue, H> {
    pub(super) workers: Arc<Workers<Q, H>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stop: CancellationToken,
}

impl<Q, H, F> Worker<Q, H>
where
    Q: WorkQueue,
    H: Fn(Q::Key, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    /// Takes keys until the queue delivers no more. After a panic, the worker continues.
    pub(super) async fn run_worker(self) {
        let mut panics = 0u32;
        loop {
            let mut round = pin!(Some(self.run_round()));
            match poll_fn(|cx| poll_caught(round.as_mut(), cx)).await {
                Ok(true) => panics = 0,
                Ok(false) => return,
                Err(error) => {
                    self.workers.queue.note_panic();
                    quietly(|| tracing::error!(%error, "a worker panicked"));
                    // If the worker had an item, its drop has failed the run, and the key is
                    // retried with a backoff. If it had none, the call for the next key has
                    // panicked. In both cases, the worker waits before it continues.
                    tokio::task::yield_now().await;
                    let mut pause = pin!(Some(self.pause_after_panic(panics)));
                    _ = poll_fn(|cx| poll_caught(pause.as_mut(), cx)).await;
                    panics = panics.saturating_add(1);
                }
            }
        }
    }

    /// Takes a key, makes an attempt, and completes the delivery. Returns true if the queue may
    /// deliver another key.
    ///
    /// If this method panics, it drops the item, so the attempt fails.
    async fn run_round(&self) -> bool {
        let item = tokio::select! {
            biased;
            // This branch comes first: the worker may wait for a dirty key whose delivery is never
            // completed, and must still stop.
            () = self.stop.cancelled() => return false,
            item = self.workers.queue.next_item() => item,
        };
        let Some(mut item) = item else { return false };
        let token = RunToken::new(&self.stop);
        let context = self.workers.options.new_context(&item, token.clone());
        let key = item.key().clone();
        let on_finish = self.workers.options.on_finish.as_ref().map(|f| (f, key.clone()));
        let outer = AttemptSpan::start(&item);
        let span = outer.in_scope(|| match &self.workers.span {
            Some(span) => span(&key, &context),
            None => tracing::info_span!("attempt", key = ?Shown(&key), attempt = context.attempt()),
        });
        let (attempt, stopped) = (context.attempt(), item.cancelled());
        let ran = self.run_attempt(stopped, key, context).instrument(span.clone());
        let result = match outer.in_context(ran).await {
            Ended::Ok(action) => Some(Ok(action)),
            Ended::Failed(error) => {
                span.in_scope(|| tracing::debug!(error = %Shown(&error), "attempt failed"));
                Some(Err(error))
            }
            Ended::Panicked(error) => {
                self.workers.queue.note_panic();
                span.in_scope(|| tracing::error!(%error, "attempt panicked"));
                Some(Options::after_panic(&item, error, &token))
            }
            Ended::Dropped(CancelReason::Cancelled | CancelReason::Restarted) => {
                span.in_scope(|| tracing::debug!("attempt cancelled"));
                Some(Ok(Action::cancelled()))
            }
            Ended::Dropped(_) => None,
        };
        // The span of the run is ended last, because it is the parent of the span of the attempt.
        drop(span);
        outer.end_with(result.as_ref());
        match result {
            Some(result) => {
                let completion =
                    self.workers.options.choose_completion(&mut item, attempt, result, &token);
                item.complete(completion).await;
            }
            // The item is dropped before its completion. The run has therefore failed, and is
            // retried even if this was the last attempt.
            None => drop(item),
        }
        if let Some((on_finish, key)) = on_finish {
            quietly(|| on_finish(key));
        }
        true
    }

    async fn run_attempt(
        &self,
        stopped: impl Future<Output = CancelReason>,
        key: Q::Key,
        context: Context,
    ) -> Ended {
        let (clock, timeout) = (&self.clock, self.workers.timeout);
        let token = context.token.clone();
        // The call of the handler may panic before it returns a future.
        let future = match call_caught(|| (self.workers.handler)(key, context)) {
            Ok(future) => future,
            Err(panic) => return Ended::Panicked(panic),
        };
        let (mut future, mut stopped) = (pin!(Some(future)), pin!(stopped));
        let (timeout, is_stopped) = tokio::select! {
            biased;
            // The handler is polled first. If it has already returned, its run is completed, not
            // stopped.
            ended = poll_fn(|cx| poll_caught(future.as_mut(), cx)) => return Ended::from(ended),
            () = self.stop.cancelled() => (None, false),
            reason = &mut stopped => {
                token.cancel(reason);
                (None, true)
            }
            timeout = wait_for(clock, timeout) => {
                token.cancel(CancelReason::TimedOut);
                (Some(timeout), false)
            }
        };
        // The queue may still cancel a run that has reached its time limit, or whose workers stop.
        let cancels = async {
            token.cancel(stopped.await);
            pending().await
        };
        let ended = tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_caught(future.as_mut(), cx)) => Some(Ended::from(ended)),
            () = cancels, if !is_stopped => None,
            _ = wait_for(clock, Some(self.workers.options.grace)) => None,
        };
        let reason = token.cancel_reason().unwrap_or(CancelReason::Stopping);
        match (ended, timeout) {
            (Some(Ended::Failed(error)), Some(timeout)) => {
                Ended::Failed(error.after_timeout(timeout))
            }
            (Some(ended), _) => ended,
            (None, timeout) => match (drop_caught(future), timeout) {
                (Err(panic), _) => Ended::Panicked(panic),
                (Ok(()), Some(timeout)) if reason == CancelReason::TimedOut => {
                    Ended::Failed(Error::timed_out(timeout))
                }
                (Ok(()), _) => Ended::Dropped(reason),
            },
        }
    }

    /// Waits after a panic of the worker. The delay grows with the number of consecutive panics.
    async fn pause_after_panic(&self, panics: u32) {
        let delay = panic_pause(panics);
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            _ = wait_for(&self.clock, Some(delay)) => {}
        }
    }
}

enum Ended {
    Ok(Action),
    Failed(Error),
    Panicked(Error),
    /// The attempt was cancelled for this reason, and did not return in time, so its future was
    /// dropped.
    Dropped(CancelReason),
}

impl From<Result<Result<Action, Error>, Error>> for Ended {
    /// Converts the result of the handler, or its panic.
    fn from(ended: Result<Result<Action, Error>, Error>) -> Self {
        match ended {
            Ok(Ok(action)) => Self::Ok(action),
            Ok(Err(error)) => Self::Failed(error),
            Err(panic) => Self::Panicked(panic),
        }
    }
}

/// Waits for `delay`. If it is `None`, waits forever.
async fn wait_for(clock: &Arc<dyn Clock>, delay: Option<Duration>) -> Duration {
    match delay {
        None => pending().await,
        Some(delay) => {
            sleep_until(clock, clock.now() + delay).await;
            delay
        }
    }
}

/// Polls a future of the user. Drops it when it is ready or has panicked. Returns a panic of the
/// poll or of the drop as an error.
fn poll_caught<F: Future>(
    mut future: Pin<&mut Option<F>>,
    cx: &mut task::Context<'_>,
) -> Poll<Result<F::Output, Error>> {
    let polled = call_caught(|| match future.as_mut().as_pin_mut() {
        Some(future) => future.poll(cx),
        None => Poll::Pending,
    });
    let ended = match polled {
        Ok(Poll::Pending) => return Poll::Pending,
        Ok(Poll::Ready(output)) => Ok(output),
        Err(panic) => Err(panic),
    };
    Poll::Ready(match (ended, drop_caught(future)) {
        (Ok(output), Err(panic)) => {
            drop_quietly(output);
            Err(panic)
        }
        (ended, _) => ended,
    })
}

/// Drops a future of the user. Returns a panic of the drop as an error.
fn drop_caught<F>(mut future: Pin<&mut Option<F>>) -> Result<(), Error> {
    call_caught(|| future.set(None))
}

/// Formats a value of the user, and catches a panic of the formatting. If the panic passed through
/// the tracing subscriber first, it could poison the locks of the subscriber.
struct Shown<'a, T: ?Sized>(&'a T);

impl<T: fmt::Debug + ?Sized> fmt::Debug for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quietly(|| self.0.fmt(f)).unwrap_or_else(|| f.write_str("(its Debug panicked)"))
    }
}

impl<T: fmt::Display + ?Sized> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quietly(|| self.0.fmt(f)).unwrap_or_else(|| f.write_str("(its Display panicked)"))
    }
}

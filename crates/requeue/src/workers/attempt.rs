//! One worker, and one attempt of it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::net::{self, Shown, caught};
use super::outcome::completion;
use super::source::{WorkItem, WorkQueue};
use super::{Action, Context, Error, Options};
use crate::Completion;
use crate::clock::{Clock, sleep_until};
use crate::sync::{drop_quietly, quietly};

pub(super) struct Worker<Q: WorkQueue, H> {
    pub(super) queue: Q,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) handler: Arc<H>,
    pub(super) options: Options<Q::Key>,
    pub(super) stop: CancellationToken,
}

impl<Q, H, F> Worker<Q, H>
where
    Q: WorkQueue,
    H: Fn(Q::Key, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    /// Takes keys until there will be none, whatever panics.
    pub(super) async fn work(self) {
        let mut panics = 0u32;
        loop {
            let mut round = pin!(Some(self.round()));
            match poll_fn(|cx| net::poll(round.as_mut(), cx)).await {
                Ok(true) => panics = 0,
                Ok(false) => return,
                Err(error) => {
                    self.queue.note_panic();
                    quietly(|| tracing::error!(%error, "a worker panicked"));
                    // The item, if there was one, has come back with backoff. If there was none, a
                    // key can't be taken, and is tried again: not all the time, though.
                    tokio::task::yield_now().await;
                    let mut pause = pin!(Some(self.pause(panics)));
                    _ = poll_fn(|cx| net::poll(pause.as_mut(), cx)).await;
                    panics = panics.saturating_add(1);
                }
            }
        }
    }

    /// Takes a key, makes an attempt, and completes the delivery. Returns whether there may be another key.
    ///
    /// What panics in here fails the attempt: the item is dropped.
    async fn round(&self) -> bool {
        let item = tokio::select! {
            biased;
            // Also while it waits for a key that is dirty with somebody who never ends.
            () = self.stop.cancelled() => return false,
            item = self.queue.next() => item,
        };
        let Some(mut item) = item else { return false };
        let context = Context {
            attempt: item.attempt(),
            is_last: self.options.is_last(item.attempt()),
            adds: item.adds(),
            reasons: item.reasons(),
            priority: item.priority(),
            epoch: item.epoch(),
            token: self.stop.child_token(),
        };
        let key = item.key().clone();
        let on_finish = self.options.on_finish.as_ref().map(|f| (f, key.clone()));
        let span = match &self.options.span {
            Some(span) => span(&key, &context),
            None => tracing::info_span!("attempt", key = ?Shown(&key), attempt = context.attempt),
        };
        match self.attempt(item.lost(), key, context).instrument(span.clone()).await {
            Ended::Ok(action) => {
                let (completion, priority) = completion(Ok(&action), false);
                item.set_priority(priority.unwrap_or(item.priority()));
                item.complete(completion).await;
            }
            Ended::Failed(error) => {
                span.in_scope(|| tracing::debug!(error = %Shown(&error), "attempt failed"));
                self.fail(item, error).await;
            }
            Ended::Panicked(error) => {
                self.queue.note_panic();
                span.in_scope(|| tracing::error!(%error, "attempt panicked"));
                self.fail(item, error).await;
            }
            // Dropped unfinished: failed, whatever its count.
            Ended::Stopped => drop(item),
        }
        if let Some((on_finish, key)) = on_finish {
            quietly(|| on_finish(key));
        }
        true
    }

    async fn attempt(
        &self,
        lost: impl Future<Output = ()>,
        key: Q::Key,
        context: Context,
    ) -> Ended {
        let (clock, options) = (&self.clock, &self.options);
        let token = context.token.clone();
        // The call itself may panic, before there is a future.
        let future = match caught(|| (self.handler)(key, context)) {
            Ok(future) => future,
            Err(panic) => return Ended::Panicked(panic),
        };
        let mut future = pin!(Some(future));
        let timed_out = tokio::select! {
            biased;
            ended = poll_fn(|cx| net::poll(future.as_mut(), cx)) => return Ended::from(ended),
            () = self.stop.cancelled() => None,
            () = lost => None,
            timeout = after(clock, options.timeout) => Some(timeout),
        };
        token.cancel();
        let ended = tokio::select! {
            biased;
            ended = poll_fn(|cx| net::poll(future.as_mut(), cx)) => Some(Ended::from(ended)),
            _ = after(clock, Some(options.grace)) => None,
        };
        match (ended, timed_out) {
            (Some(Ended::Failed(error)), Some(timeout)) => Ended::Failed(error.late(timeout)),
            (Some(ended), _) => ended,
            (None, timed_out) => match (net::end(future), timed_out) {
                (Err(panic), _) => Ended::Panicked(panic),
                (Ok(()), Some(timeout)) => Ended::Failed(Error::timed_out(timeout)),
                (Ok(()), None) => Ended::Stopped,
            },
        }
    }

    async fn fail(&self, mut item: Q::Item, error: Error) {
        let (completion, priority) = completion(Err(&error), self.options.is_last(item.attempt()));
        item.set_priority(priority.unwrap_or(item.priority()));
        item.note_error(&error);
        match &self.options.on_give_up {
            Some(on_give_up) if completion == Completion::GiveUp => {
                let key = item.key().clone();
                quietly(|| on_give_up(key, error));
            }
            _ => drop_quietly(error),
        }
        item.complete(completion).await;
    }

    /// Waits after the worker has panicked, the longer the more often it has in a row.
    async fn pause(&self, panics: u32) {
        let delay = Duration::from_millis(5 << panics.min(8));
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = after(&self.clock, Some(delay)) => {}
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

impl From<Result<Result<Action, Error>, Error>> for Ended {
    /// What the handler says, or the net below it.
    fn from(ended: Result<Result<Action, Error>, Error>) -> Self {
        match ended {
            Ok(Ok(action)) => Self::Ok(action),
            Ok(Err(error)) => Self::Failed(error),
            Err(panic) => Self::Panicked(panic),
        }
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

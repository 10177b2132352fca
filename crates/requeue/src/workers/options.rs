//! The settings that both kinds of workers share, and the conversion of a handler's result to a
//! completion.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use super::Context;
use super::outcome::{Action, Error};
use super::source::WorkItem;
use super::token::RunToken;
use crate::sync::{drop_quietly, quietly};
use crate::{CancelReason, Completion};

type GiveUp<K> = Arc<dyn Fn(K, Error) + Send + Sync>;
type Finished<K> = Arc<dyn Fn(K) + Send + Sync>;

pub(super) struct Options<K> {
    pub(super) max_retries: Option<u32>,
    /// The maximum time that an attempt may take to stop after it was cancelled.
    pub(super) grace: Duration,
    pub(super) on_give_up: Option<GiveUp<K>>,
    pub(super) on_finish: Option<Finished<K>>,
}

impl<K: Clone> Options<K> {
    pub(super) fn new() -> Self {
        let grace = Duration::from_secs(10);
        Self { max_retries: None, grace, on_give_up: None, on_finish: None }
    }

    /// Returns true if the key is given up when this attempt fails.
    fn is_last(&self, attempt: u32) -> bool {
        self.max_retries.is_some_and(|retries| attempt > retries)
    }

    pub(super) fn new_context(&self, item: &impl WorkItem<Key = K>, token: RunToken) -> Context {
        let delivery = item.delivery();
        let is_last = self.is_last(delivery.attempt);
        Context { delivery, reasons: item.reasons(), is_last, token }
    }

    /// Returns the result of a run that has panicked. It is a failure, unless the queue has
    /// cancelled the run.
    pub(super) fn after_panic(
        item: &impl WorkItem<Key = K>,
        panic: Error,
        token: &RunToken,
    ) -> Result<Action, Error> {
        // The queue may have cancelled the run so recently that the token is not cancelled yet.
        let mut cx = task::Context::from_waker(task::Waker::noop());
        if let Poll::Ready(reason) = pin!(item.cancelled()).poll(&mut cx) {
            token.cancel(reason);
        }
        if token.is_cancelled_by_queue() {
            drop_quietly(panic);
            return Ok(Action::cancelled());
        }
        Err(panic)
    }

    /// Returns the completion for the result of this attempt. Also sets the priority and the error
    /// of the item. If the key is given up, calls the hook.
    ///
    /// A handler can return [cancelled](Completion::Cancelled) although only its worker stops, or
    /// its time limit has passed. The key must not be lost: it is then released or retried.
    pub(super) fn choose_completion(
        &self,
        item: &mut impl WorkItem<Key = K>,
        attempt: u32,
        result: Result<Action, Error>,
        token: &RunToken,
    ) -> Completion {
        let cancelled = matches!(&result, Ok(action) if action.completion == Completion::Cancelled);
        let result = match token.cancel_reason().filter(|_| cancelled) {
            Some(CancelReason::Stopping | CancelReason::Lost) => Ok(Action::release()),
            Some(CancelReason::TimedOut) => Err(Error::from("stopped at its time limit")),
            _ => result,
        };
        let (completion, priority) = match &result {
            Ok(action) => (action.completion, action.priority),
            Err(error) if self.is_last(attempt) => (Completion::GiveUp, error.priority),
            Err(error) => (error.completion, error.priority),
        };
        if let Some(priority) = priority {
            item.set_priority(priority);
        }
        if let Err(error) = result {
            item.note_error(&error);
            match &self.on_give_up {
                Some(on_give_up) if completion == Completion::GiveUp => {
                    let key = item.key().clone();
                    quietly(|| on_give_up(key, error));
                }
                _ => drop_quietly(error),
            }
        }
        completion
    }
}

/// Returns the pause after a panic. It is 5 ms, and doubles with each earlier consecutive panic, up
/// to 1.28 s.
pub(super) const fn panic_pause(panics: u32) -> Duration {
    let exponent = if panics < 8 { panics } else { 8 };
    Duration::from_millis(5 << exponent)
}

#[cfg(test)]
mod tests {
    use super::super::token::Token;
    use super::*;
    use crate::Queue;
    use crate::clock::FakeClock;

    /// The worker has not been polled since the cancellation, so its token is not cancelled yet.
    #[test]
    fn a_panic_right_after_the_cancellation_counts_as_cancelled() {
        let queue = Queue::builder().clock(FakeClock::new()).build().expect("valid options");
        for is_cancelled in [false, true] {
            queue.add("a");
            let item = queue.try_get().map(crate::Item::into_owned).expect("it is ready");
            if is_cancelled {
                let _ = queue.cancel_running("a");
            }
            let token = RunToken::new(&Token::new());
            let result = Options::after_panic(&item, "a panic".into(), &token);
            let completion = result.map(|action| action.completion).ok();
            assert_eq!(completion, is_cancelled.then_some(Completion::Cancelled));
            item.succeed();
        }
    }
}

//! The tokens that stop workers and cancel runs. With the feature `tokio`, tasks can wait for their
//! cancellation.

use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "tokio")]
pub(super) use tokio_util::sync::CancellationToken as Token;

#[cfg(not(feature = "tokio"))]
pub(super) use self::flag::Token;
use crate::CancelReason;

/// The token of one run. It is cancelled for a reason, or together with the token of its workers.
#[derive(Clone, Debug)]
pub(super) struct RunToken {
    pub(super) token: Token,
    /// The reason for the cancellation of this run. `None` if it was not cancelled itself, for
    /// example because its workers stop.
    reason: Arc<Mutex<Option<CancelReason>>>,
}

impl RunToken {
    /// Creates the token of a run. `stop` is the token of its workers.
    pub(super) fn new(stop: &Token) -> Self {
        Self { token: stop.child_token(), reason: Arc::default() }
    }

    /// Cancels the run. The first reason is kept, but a later reason replaces `TimedOut`.
    pub(super) fn cancel(&self, reason: CancelReason) {
        // The reason is stored first, so that a run that notices the cancellation finds the reason.
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*first, None | Some(CancelReason::TimedOut)) {
            *first = Some(reason);
        }
        drop(first);
        self.token.cancel();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    pub(super) fn cancel_reason(&self) -> Option<CancelReason> {
        let reason = || *self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_cancelled().then(|| reason().unwrap_or(CancelReason::Stopping))
    }

    /// Returns true if the queue has cancelled the run, because a caller or an add has asked for
    /// it.
    pub(super) fn is_cancelled_by_queue(&self) -> bool {
        matches!(self.cancel_reason(), Some(CancelReason::Cancelled | CancelReason::Restarted))
    }
}

#[cfg(not(feature = "tokio"))]
mod flag {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A token without tokio: its own flag, and the flag of its parent.
    #[derive(Clone, Debug, Default)]
    pub(in super::super) struct Token {
        own: Arc<AtomicBool>,
        parent: Option<Arc<AtomicBool>>,
    }

    impl Token {
        pub(in super::super) fn new() -> Self {
            Self::default()
        }

        pub(in super::super) fn child_token(&self) -> Self {
            Self { own: Arc::default(), parent: Some(Arc::clone(&self.own)) }
        }

        pub(in super::super) fn cancel(&self) {
            self.own.store(true, Ordering::Release);
        }

        pub(in super::super) fn is_cancelled(&self) -> bool {
            let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
            is_set(&self.own) || self.parent.as_ref().is_some_and(is_set)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_reason_replaces_those_of_the_workers_and_no_other_does() {
        use CancelReason::{Cancelled, Lost, Restarted, Stopping, TimedOut};
        for (reasons, expected) in [
            ([TimedOut, Cancelled], Cancelled),
            ([TimedOut, Restarted], Restarted),
            ([Cancelled, TimedOut], Cancelled),
            ([Restarted, Cancelled], Restarted),
            ([Lost, TimedOut], Lost),
        ] {
            let token = RunToken::new(&Token::new());
            reasons.into_iter().for_each(|reason| token.cancel(reason));
            assert_eq!(token.cancel_reason(), Some(expected), "{reasons:?}");
        }
        let stop = Token::new();
        let token = RunToken::new(&stop);
        assert_eq!(token.cancel_reason(), None);
        stop.cancel();
        assert_eq!((token.cancel_reason(), token.is_cancelled_by_queue()), (Some(Stopping), false));
        token.cancel(Cancelled);
        assert_eq!((token.cancel_reason(), token.is_cancelled_by_queue()), (Some(Cancelled), true));
    }
}

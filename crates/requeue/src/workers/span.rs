//! The OpenTelemetry span of a run, for workers. Without the feature `opentelemetry`, it has no
//! effect.

use std::fmt;

use super::outcome::{Action, Error};
use super::source::WorkItem;
#[cfg(feature = "opentelemetry")]
use crate::sync::quietly;
#[cfg(feature = "opentelemetry")]
use crate::trace::RunSpan;

/// The span of the run. Dropping this value ends the span.
pub(super) struct AttemptSpan {
    #[cfg(feature = "opentelemetry")]
    run: Option<RunSpan>,
}

#[cfg(feature = "opentelemetry")]
impl AttemptSpan {
    pub(super) fn start<I: WorkItem<Key: fmt::Debug>>(item: &I) -> Self {
        let run = item.start_span();
        if let Some(run) = run.as_ref().filter(|run| run.is_recording()) {
            // The `Debug` of a key is user code, so its panics are caught.
            quietly(|| format!("{:?}", item.key())).into_iter().for_each(|key| run.set_key(key));
        }
        Self { run }
    }

    /// Calls `f` in the context of the run.
    pub(super) fn in_scope<R>(&self, f: impl FnOnce() -> R) -> R {
        let _current = self.run.as_ref().map(|run| run.context().clone().attach());
        f()
    }

    /// Polls `future` in the context of the run.
    #[cfg(feature = "tokio")]
    pub(super) async fn in_context<F: Future>(&self, future: F) -> F::Output {
        use opentelemetry::trace::FutureExt as _;
        match &self.run {
            Some(run) => future.with_context(run.context().clone()).await,
            None => future.await,
        }
    }

    /// Ends the span. `result` is the result of the attempt, or `None` if its future was dropped.
    pub(super) fn end_with(self, result: Option<&Result<Action, Error>>) {
        let run = self.run.as_ref().filter(|run| run.is_recording());
        if let (Some(run), Some(Err(error))) = (run, result) {
            // The values of `error.type` must come from a small set, and an error of a user does
            // not contain such a word.
            quietly(|| error.to_string()).into_iter().for_each(|error| run.fail("_OTHER", error));
        }
    }
}

#[cfg(not(feature = "opentelemetry"))]
impl AttemptSpan {
    pub(super) fn start<I: WorkItem<Key: fmt::Debug>>(_: &I) -> Self {
        Self {}
    }

    pub(super) fn in_scope<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn in_context<F: Future>(&self, future: F) -> F {
        future
    }

    pub(super) fn end_with(self, _: Option<&Result<Action, Error>>) {}
}

//! The tracing span of a run.

use std::fmt;
use std::time::Duration;

use requeue::describe_reasons;
use requeue::workers::Context;
use tracing::{Span, field};

use crate::metrics::Outcome;

/// The tracing span of one run. If it is dropped before [`record_end`](Self::record_end), its result is recorded as
/// cancelled.
pub(super) struct RunSpan {
    pub(super) span: Span,
    is_over: bool,
}

impl RunSpan {
    pub(super) fn new(
        parent: &Span,
        object: &impl fmt::Display,
        reason: &impl fmt::Display,
        attempt: u32,
        run: &Context,
    ) -> Self {
        let span = tracing::info_span!(
            parent: parent,
            "reconciling object",
            "object.ref" = %object,
            object.reason = %reason,
            reasons = (!run.reasons().is_empty())
                .then(|| field::display(describe_reasons(run.reasons()))),
            attempt,
            queued_seconds = run.queued().map(|queued| queued.as_secs_f64()),
            adds = run.adds(),
            priority = run.priority(),
            result = field::Empty,
            requeue_after_seconds = field::Empty,
        );
        Self { span, is_over: false }
    }

    /// Records the delay until the object's next run.
    pub(super) fn requeued_after(&self, delay: Duration) {
        self.span.record("requeue_after_seconds", delay.as_secs_f64());
    }

    /// Records the result of the run.
    pub(super) fn record_end(&mut self, outcome: Outcome) {
        self.is_over = true;
        self.span.record("result", outcome.name());
    }
}

impl Drop for RunSpan {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.record("result", "cancelled");
        }
    }
}

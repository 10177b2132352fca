//! OpenTelemetry: the export of spans by OTLP, and the trace contexts of runs. The standard environment variables
//! configure the export. Without the feature `opentelemetry`, this module does nothing.

use std::ffi::OsString;

use hyper::header::HeaderValue;
use requeue_store::OpenOptions;

#[cfg(feature = "opentelemetry")]
mod export;

#[cfg(feature = "opentelemetry")]
pub(crate) use self::export::Export;

/// The environment variables with a trace context, for commands.
const PARENT: &str = "TRACEPARENT";
const STATE: &str = "TRACESTATE";

/// Without the feature, no spans are exported.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) struct Export;

#[cfg(not(feature = "opentelemetry"))]
impl Export {
    pub(crate) const fn start() -> Self {
        Self
    }

    pub(crate) async fn finish(self) {}
}

/// Makes the queue store the trace context of each add, and makes each run a span.
pub(crate) fn trace_store(opening: OpenOptions) -> OpenOptions {
    #[cfg(feature = "opentelemetry")]
    let opening = opening.traces();
    opening
}

/// Makes the adds of this thread children of the span in `TRACEPARENT`, until the returned guard is dropped. The
/// program that started this process sets the variable.
#[cfg(feature = "opentelemetry")]
pub(crate) fn attach_own_context() -> Option<opentelemetry::ContextGuard> {
    let text = |name| std::env::var(name).ok();
    let context = requeue::trace::remote_context(&text(PARENT)?, text(STATE).as_deref())?;
    Some(context.attach())
}

/// Without the feature, adds have no trace context.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) const fn attach_own_context() {}

/// Returns the HTTP headers that send the trace context of this process to a server. The server ignores an invalid
/// context.
pub(crate) fn own_headers() -> impl Iterator<Item = (&'static str, HeaderValue)> {
    let header = |(name, variable)| {
        let value = std::env::var(variable).ok()?;
        Some((name, HeaderValue::from_str(&value).ok()?))
    };
    [("traceparent", PARENT), ("tracestate", STATE)].into_iter().filter_map(header)
}

/// The span of a run. It ends when this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct RunSpan {
    #[cfg(feature = "opentelemetry")]
    span: Option<requeue::trace::RunSpan>,
}

#[cfg(feature = "opentelemetry")]
impl From<Option<requeue::trace::RunSpan>> for RunSpan {
    fn from(span: Option<requeue::trace::RunSpan>) -> Self {
        Self { span }
    }
}

impl RunSpan {
    /// Returns the environment variables that pass the trace context to the command.
    pub(crate) fn env(&self) -> Vec<(&'static str, OsString)> {
        #[cfg(feature = "opentelemetry")]
        if let Some((parent, state)) = self.span.as_ref().and_then(|span| span.headers()) {
            // Both variables are set. This process may have inherited the state of another trace, which the command
            // must not see.
            return vec![(PARENT, parent.into()), (STATE, state.into())];
        }
        Vec::new()
    }

    pub(crate) fn set_key(&self, key: &[u8]) {
        #[cfg(feature = "opentelemetry")]
        if let Some(span) = &self.span {
            span.set_key(String::from_utf8_lossy(key));
        }
        let _ = key;
    }

    /// Marks the run as failed, with the exit code of its command.
    pub(crate) fn fail(&self, exit: Option<i32>, why: &str) {
        #[cfg(feature = "opentelemetry")]
        if let Some(span) = &self.span {
            span.fail(exit.map_or_else(|| "_OTHER".to_owned(), |exit| exit.to_string()), why);
        }
        let _ = (exit, why);
    }
}

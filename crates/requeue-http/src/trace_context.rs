//! Reads the trace context of a request from the headers that the W3C recommendation
//! Trace Context defines. Without the feature `opentelemetry`, these headers are
//! ignored.

use axum::http::HeaderMap;

#[cfg(feature = "opentelemetry")]
pub(crate) struct TraceContext(Option<opentelemetry::Context>);

#[cfg(feature = "opentelemetry")]
impl TraceContext {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let context = text("traceparent");
        Self(context.and_then(|parent| requeue::trace::remote_context(parent, text("tracestate"))))
    }

    /// Polls `future`, with the trace context of the request as the current context.
    pub(crate) async fn cover<F: Future>(self, future: F) -> F::Output {
        use opentelemetry::trace::FutureExt as _;
        match self.0 {
            Some(context) => future.with_context(context).await,
            None => future.await,
        }
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) struct TraceContext;

#[cfg(not(feature = "opentelemetry"))]
impl TraceContext {
    pub(crate) fn read(_: &HeaderMap) -> Self {
        Self
    }

    pub(crate) fn cover<F: Future>(self, future: F) -> F {
        future
    }
}

//! OpenTelemetry spans for the waits and the runs of keys.
//!
//! A queue that was built with [`Builder::traces`](crate::Builder::traces) stores the trace context
//! of each add, which is the current [`Context`]. With the layer of `tracing-opentelemetry`, the
//! current context is that of the entered `tracing` span. The queue creates two kinds of spans.
//! Their parent is the context of the first add that the run serves:
//!
//! - `wait NAME`: a wait of the key, from its add or its failure. The attribute
//!   `requeue.wait.cause` names the cause. In a queue in memory, a pause and the limit of a group
//!   are also causes, as far as the last 1,024 places of the recorder show them.
//! - `process NAME`: the run. The span has links to the contexts of up to 8 further adds of the
//!   run. If the run fails, its retry has the same parent and the same links.
//!
//! If no add of a run had a context, the span of the run starts a new trace, and there is no span
//! for the wait. All spans go to the [global] tracer provider.
//!
//! The attribute `requeue.key` contains the `Debug` text of the key, and the status of a failed run
//! contains the text of its error. Both can contain personal data. A collector or a span processor
//! can remove them.
//!
//! [`Workers`](crate::workers::Workers) and [`ThreadWorkers`](crate::workers::ThreadWorkers) create
//! the spans, and run the handler in the context of its run. Other code calls
//! [`Item::start_span`](crate::Item::start_span).

mod context;
mod names;
mod table;

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Link, SpanBuilder, SpanKind, Status, TraceContextExt as _};
use opentelemetry::{Context, global};
use requeue_core::Blocked;
use requeue_core::history::Transition;

pub(crate) use self::context::Origin;
use self::context::Origins;
use self::names::Operation;
pub(crate) use self::table::{Taken, Traces};

/// The cause of a wait, or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The key was ready, but no worker was free.
    Ready,
    /// The key backed off after a failure.
    Backoff,
    /// The key waited for further debounced adds.
    Debounce,
    /// The add or the completion had requested a delay.
    Delay,
    /// The pace of the key did not permit a run.
    Pace,
    /// The previous run of the key was in flight.
    InFlight,
    /// The key was ready, but its queue was paused.
    QueuePaused,
    /// The key was ready, but its group was paused.
    GroupPaused,
    /// The key was ready, but its group had reached its limit.
    GroupLimit,
}

impl Cause {
    const fn of_blocked(transition: Transition) -> Self {
        match transition {
            Transition::GroupFilled(_) => Self::GroupLimit,
            Transition::GroupPaused(_) => Self::GroupPaused,
            _ => Self::QueuePaused,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Backoff => "backoff",
            Self::Debounce => "debounce",
            Self::Delay => "delay",
            Self::Pace => "pace",
            Self::InFlight => "in_flight",
            Self::QueuePaused => "queue_paused",
            Self::GroupPaused => "group_paused",
            Self::GroupLimit => "group_limit",
        }
    }
}

/// The wait of a key before its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waited {
    since: SystemTime,
    /// The cause of the wait until the key was ready, or `None` if the key was ready immediately.
    cause: Option<Cause>,
}

/// The data of a delivery for its spans.
// The struct is hidden, because only requeue-store needs it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The name of the queue.
    pub queue: Option<&'a str>,
    /// The number of the attempt.
    pub attempt: u32,
    /// The number of adds that the run serves.
    pub adds: u32,
    /// The time for which the key was ready before the delivery.
    pub queued: Option<Duration>,
}

/// The span of a run. Dropping this value ends the span.
///
/// # Examples
///
/// ```
/// use requeue::Queue;
///
/// let queue = Queue::builder().name("pods").traces().build()?;
/// queue.add("web"); // within the span of a request, for example
/// let item = queue.try_get().expect("it is ready");
/// let span = item.start_span().expect("the queue has traces");
/// {
///     let _current = span.context().clone().attach();
///     // Spans that start here are children of the span of the run.
/// }
/// drop(span);
/// item.succeed();
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "the span ends when it is dropped"]
pub struct RunSpan {
    context: Context,
}

impl RunSpan {
    /// Creates the spans of the wait, which is over, and starts the span of the run. `blocked`
    /// contains the periods in which the key was ready but could not be delivered, the latest
    /// first.
    fn start(
        delivered: Delivered<'_>,
        origins: Option<&Origins>,
        waited: Option<Waited>,
        blocked: &[Blocked],
    ) -> Self {
        let Delivered { queue, attempt, adds, queued } = delivered;
        let now = SystemTime::now();
        let tracer = global::tracer_with_scope(names::scope());
        let parent = origins.map_or_else(Context::new, |origins| {
            Context::new().with_remote_span_context(origins.first().span.clone())
        });
        if let Some(Waited { since, cause }) = waited {
            let before = |time: Duration| now.checked_sub(time).unwrap_or(now).max(since);
            let wait = |from: SystemTime, until: SystemTime, cause| {
                let mut attributes = Operation::Wait.attributes(queue);
                attributes.push(names::wait_cause(cause));
                let span = SpanBuilder::from_name(Operation::Wait.span_name(queue))
                    .with_start_time(from)
                    .with_attributes(attributes)
                    .start_with_context(&tracer, &parent);
                parent.with_span(span).span().end_with_timestamp(until);
            };
            let ready = now.checked_sub(queued.unwrap_or_default()).unwrap_or(now);
            let mut from = since;
            // If the key was ready before this add, the add became part of the pending run.
            if let Some(cause) = cause.filter(|_| ready >= since) {
                wait(from, ready, cause);
                from = ready;
            }
            for Blocked { cause, from: began, until } in blocked.iter().rev() {
                let (began, ended) = (before(*began).max(from), before(*until));
                if ended > from {
                    if began > from {
                        wait(from, began, Cause::Ready);
                    }
                    wait(began, ended, Cause::of_blocked(*cause));
                    from = ended;
                }
            }
            wait(from, now.max(from), Cause::Ready);
        }
        let mut attributes = Operation::Process.attributes(queue);
        attributes.extend([names::attempt(attempt), names::adds(adds)]);
        let links = origins.into_iter().flat_map(Origins::links);
        let span = SpanBuilder::from_name(Operation::Process.span_name(queue))
            .with_kind(SpanKind::Consumer)
            .with_start_time(now)
            .with_attributes(attributes)
            .with_links(links.cloned().map(Link::with_context).collect())
            .start_with_context(&tracer, &parent);
        Self { context: parent.with_span(span) }
    }

    pub(crate) fn start_taken(
        delivered: Delivered<'_>,
        taken: Option<&Taken>,
        blocked: &[Blocked],
    ) -> Self {
        let (origins, waited) = (taken.map(|it| &it.origins), taken.map(|it| it.waited));
        Self::start(delivered, origins, waited, blocked)
    }

    /// Creates the spans of a delivery of a store, which has stored the contexts as text. If the
    /// previous run failed, `failed` is the time since that failure.
    #[doc(hidden)]
    pub fn start_stored(
        delivered: Delivered<'_>,
        text: Option<&str>,
        failed: Option<Duration>,
    ) -> Self {
        let origins = text.and_then(Origins::parse);
        let waited = origins.as_ref().map(|origins| {
            let first = origins.first();
            match failed.and_then(|failed| SystemTime::now().checked_sub(failed)) {
                Some(since) => Waited { since, cause: Some(Cause::Backoff) },
                None => Waited { since: first.at, cause: first.cause },
            }
        });
        Self::start(delivered, origins.as_ref(), waited, &[])
    }

    /// Returns the context of the run. A handler creates its spans in this context.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the headers `traceparent` and `tracestate` of the W3C recommendation Trace Context,
    /// for the requests and commands of the run. `tracestate` is empty if the context has none.
    /// Returns `None` if the program has set no tracer provider and no add of the run had a
    /// context.
    #[must_use]
    pub fn headers(&self) -> Option<(String, String)> {
        let span = self.context.span();
        let span = Some(span.span_context()).filter(|span| span.is_valid())?;
        Some((context::traceparent(span), span.trace_state().header()))
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.context.span().is_recording()
    }

    /// Sets the attribute with the key. Keys may be personal data.
    pub fn set_key(&self, key: impl Into<String>) {
        self.context.span().set_attribute(names::key(key.into()));
    }

    /// Marks the run as failed. `kind` is one of a few fixed words, and `error` is a text for
    /// people.
    pub fn fail(&self, kind: impl Into<String>, error: impl Into<String>) {
        let span = self.context.span();
        span.set_attribute(names::error_type(kind.into()));
        span.set_status(Status::error(error.into()));
    }
}

impl Drop for RunSpan {
    fn drop(&mut self) {
        // The span is ended explicitly, because clones of the context may exist for longer.
        self.context.span().end();
    }
}

/// Creates a context from the headers of the W3C recommendation Trace Context. The span of these
/// headers is the parent of an add in this context. Returns `None` if `traceparent` is invalid.
///
/// # Examples
///
/// ```
/// use requeue::{Queue, trace};
///
/// let queue = Queue::builder().traces().build()?;
/// let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// {
///     let _current = trace::remote_context(parent, None).expect("it is valid").attach();
///     queue.add("web");
/// }
/// let item = queue.try_get().expect("it is ready");
/// let (traceparent, _) = item.start_span().and_then(|span| span.headers()).expect("a parent");
/// assert!(traceparent.starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
/// # item.succeed();
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[must_use]
pub fn remote_context(traceparent: &str, tracestate: Option<&str>) -> Option<Context> {
    let span = context::parse(traceparent, tracestate)?;
    Some(Context::current().with_remote_span_context(span))
}

/// Returns the current trace context as a line of text, for a store. Returns `None` if there is no
/// context.
#[doc(hidden)]
#[must_use]
pub fn current_line(is_delayed: bool, is_debounced: bool) -> Option<String> {
    let cause = match (is_delayed, is_debounced) {
        (_, true) => Some(Cause::Debounce),
        (true, false) => Some(Cause::Delay),
        (false, false) => None,
    };
    Origin::current().map(|origin| origin.with_cause(cause).to_string())
}

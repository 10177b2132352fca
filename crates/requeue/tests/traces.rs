//! Spans of OpenTelemetry: waits, runs, and the contexts of adds.
#![cfg(feature = "opentelemetry")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, Value, global};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use requeue::clock::FakeClock;
use requeue::workers::{Action, Error, ThreadWorkers};
use requeue::{
    Add, Added, Builder, Completion, GroupId, InFlightPolicy, Merge, Pace, Queue, trace,
};

/// The spans of all tests of this process. Each test reads only the spans of the traces that it has
/// started.
static SPANS: LazyLock<(SdkTracerProvider, InMemorySpanExporter)> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider.clone());
    (provider, exporter)
});

const MINUTE: Duration = Duration::from_secs(60);

/// Starts a trace, and returns the context of its first span.
fn request() -> Context {
    let span = SPANS.0.tracer("test").start("request");
    Context::new().with_span(span)
}

fn id(context: &Context) -> SpanContext {
    context.span().span_context().clone()
}

/// Calls `f` in `context`.
fn within<R>(context: &Context, f: impl FnOnce() -> R) -> R {
    let _current = context.clone().attach();
    f()
}

/// Returns the finished spans of the trace, except those that the test itself has created.
fn spans_of(context: &Context) -> Vec<SpanData> {
    let trace = id(context).trace_id();
    let mut spans = SPANS.1.get_finished_spans().unwrap();
    spans.retain(|span| span.span_context.trace_id() == trace && span.name != "request");
    spans
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| match &attribute.value {
        Value::String(text) => text.as_str().to_owned(),
        other => other.to_string(),
    })
}

fn causes(spans: &[SpanData]) -> Vec<String> {
    spans.iter().filter_map(|span| attribute(span, "requeue.wait.cause")).collect()
}

fn runs(spans: &[SpanData]) -> Vec<&SpanData> {
    spans.iter().filter(|span| span.name.starts_with("process")).collect()
}

fn builder() -> (Builder<&'static str>, FakeClock) {
    let clock = FakeClock::new();
    (Queue::builder().clock(clock.clone()).name("pods").traces(), clock)
}

fn new_queue() -> (Queue<&'static str>, FakeClock) {
    let (builder, clock) = builder();
    (builder.build().unwrap(), clock)
}

/// Takes the next key, creates its spans, and completes its delivery.
fn run(queue: &Queue<&'static str>, completion: Completion) {
    let item = queue.try_get().expect("it is ready");
    drop(item.start_span().expect("the queue has traces"));
    item.complete(completion);
}

#[test]
fn a_run_is_a_child_of_its_first_add_and_links_to_the_others() {
    let (queue, _) = new_queue();
    let (one, two, three) = (request(), request(), request());
    within(&one, || queue.add("a"));
    within(&two, || queue.add_ref_with("a", Add::now(), |_| "a"));
    within(&three, || queue.add_all(["a", "b"]));
    queue.add("a"); // without a context
    let item = queue.try_get().unwrap();
    let span = item.start_span().unwrap();
    let (traceparent, tracestate) = span.headers().unwrap();
    span.set_key("a");
    drop(span);
    item.succeed();

    let spans = spans_of(&one);
    let [wait, process] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*wait.name, &*process.name), ("wait pods", "process pods"));
    assert_eq!((&wait.span_kind, &process.span_kind), (&SpanKind::Internal, &SpanKind::Consumer));
    assert_eq!([wait.parent_span_id, process.parent_span_id], [id(&one).span_id(); 2]);
    let links: Vec<_> = process.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [id(&two).span_id(), id(&three).span_id()]);
    assert!(wait.end_time <= process.start_time);
    let ids = (process.span_context.trace_id(), process.span_context.span_id());
    assert_eq!((traceparent, tracestate), (format!("00-{}-{}-01", ids.0, ids.1), String::new()));
    for (name, value) in [
        ("messaging.system", "requeue"),
        ("messaging.destination.name", "pods"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("requeue.key", "a"),
        ("requeue.attempt", "1"),
        ("requeue.adds", "4"),
    ] {
        assert_eq!(attribute(process, name).as_deref(), Some(value), "{name}");
    }

    assert!(spans_of(&two).is_empty());
    run(&queue, Completion::Succeed);
    assert_eq!(runs(&spans_of(&three)).len(), 1, "`b` has its own run");
}

#[test]
fn a_retry_keeps_the_contexts_and_waits_for_its_backoff() {
    let (queue, clock) = new_queue();
    let (one, two, later) = (request(), request(), request());
    within(&one, || queue.add("a"));
    within(&two, || queue.add("a"));
    let item = queue.try_get().unwrap();
    within(&later, || queue.add("a"));
    drop(item); // it fails
    clock.advance(MINUTE);
    run(&queue, Completion::Release);
    run(&queue, Completion::Succeed);
    let spans = spans_of(&one);
    let runs = runs(&spans);
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run.parent_span_id, id(&one).span_id());
        let links: Vec<_> = run.links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [id(&two).span_id(), id(&later).span_id()]);
    }
    assert_eq!(causes(&spans), ["backoff", "ready", "ready"]);

    queue.add("a");
    let item = queue.try_get().unwrap();
    assert!(item.start_span().unwrap().headers().is_some(), "it begins a trace");
    item.succeed();
    assert_eq!(spans_of(&one).len(), 5, "a success forgets the contexts");
}

#[test]
fn an_add_in_flight_belongs_to_the_next_run() {
    let (queue, _) = new_queue();
    let (one, two) = (request(), request());
    within(&one, || queue.add("a"));
    let item = queue.try_get().unwrap();
    within(&two, || queue.add("a"));
    item.succeed();
    run(&queue, Completion::Succeed);
    assert!(spans_of(&one).is_empty());
    let spans = spans_of(&two);
    assert_eq!(runs(&spans)[0].links.len(), 0);
    assert_eq!(causes(&spans), ["in_flight", "ready"]);
}

#[test]
fn a_restarted_run_passes_its_contexts_on() {
    let (builder, _) = builder();
    let queue = builder.in_flight_policy(InFlightPolicy::restart()).build().unwrap();
    let (one, two) = (request(), request());
    within(&one, || queue.add("a"));
    let item = queue.try_get().unwrap();
    within(&two, || queue.add("a"));
    item.complete(Completion::Cancelled);
    run(&queue, Completion::Succeed);
    assert_eq!(runs(&spans_of(&one))[0].links.len(), 1);
}

#[test]
fn a_cancelled_key_forgets_its_contexts() {
    let (queue, _) = new_queue();
    for cancels in [true, false] {
        let (one, two) = (request(), request());
        within(&one, || queue.add("a"));
        if cancels {
            assert!(queue.cancel("a").any());
        } else {
            let again = Add::now().merge(Merge::Exactly);
            within(&two, || queue.add_with("a", again));
            run(&queue, Completion::Succeed);
            assert_eq!(runs(&spans_of(&two)).len(), 1);
        }
        assert!(spans_of(&one).is_empty());
    }
}

#[test]
fn a_wait_has_its_cause() {
    let pace = Pace::min_interval(MINUTE);
    let debounce = Add::debounce(MINUTE);
    for (add, cause) in
        [(Add::after(MINUTE), "delay"), (debounce, "debounce"), (Add::now(), "pace")]
    {
        let (builder, clock) = builder();
        let queue = builder.pace(pace).build().unwrap();
        queue.add("a");
        run(&queue, Completion::Succeed);
        let request = request();
        within(&request, || queue.add_with("a", add));
        clock.advance(2 * MINUTE);
        run(&queue, Completion::Succeed);
        let spans = spans_of(&request);
        assert_eq!(causes(&spans), [cause, "ready"]);
    }
}

#[test]
fn a_ready_key_that_a_pause_or_the_limit_of_its_group_holds_back_waits_for_it() {
    type Hold = for<'a> fn(&'a Queue<&'static str>) -> Box<dyn FnOnce() + 'a>;
    let holds: [(Hold, &str); 3] = [
        (
            |queue| {
                queue.pause();
                Box::new(|| queue.resume())
            },
            "queue_paused",
        ),
        (
            |queue| {
                let group = queue.group(GroupId::new(1)).unwrap();
                group.pause();
                Box::new(move || group.resume())
            },
            "group_paused",
        ),
        (
            |queue| {
                queue.add("first");
                let item = queue.try_get().expect("it is ready");
                Box::new(|| item.succeed())
            },
            "group_limit",
        ),
    ];
    for (hold, cause) in holds {
        let (builder, clock) = builder();
        let queue = builder.group_by(|_| GroupId::new(1)).group_limit(1).build().unwrap();
        let request = request();
        let release = hold(&queue);
        within(&request, || queue.add("a"));
        clock.advance(MINUTE);
        release();
        run(&queue, Completion::Succeed);
        assert_eq!(causes(&spans_of(&request)), [cause, "ready"]);
    }
}

/// A key that counts its clones, and calls its queue when it is dropped.
struct Caller {
    name: &'static str,
    calls: Option<Arc<Calls>>,
}

#[derive(Default)]
struct Calls {
    queue: OnceLock<Queue<Caller>>,
    clones: AtomicUsize,
    refused: AtomicUsize,
}

impl Clone for Caller {
    fn clone(&self) -> Self {
        if let Some(calls) = &self.calls {
            calls.clones.fetch_add(1, Relaxed);
        }
        Self { name: self.name, calls: self.calls.clone() }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Some(calls) = &self.calls else { return };
        let Some(queue) = calls.queue.get() else { return };
        if queue.add(Self { name: "other", calls: None }) == Added::Refused {
            calls.refused.fetch_add(1, Relaxed);
        }
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

#[test]
fn an_add_with_a_context_copies_the_key_once_and_drops_the_copy_without_the_lock() {
    let builder = Queue::builder().clock(FakeClock::new()).name("pods").traces();
    let queue = builder.pace(Pace::min_interval(MINUTE)).build().unwrap();
    let calls = Arc::new(Calls::default());
    let key = || Caller { name: "a", calls: Some(Arc::clone(&calls)) };
    queue.add(key());
    queue.try_get().unwrap().succeed();
    assert!(calls.queue.set(queue.clone()).is_ok());
    calls.clones.store(0, Relaxed);
    // The key waits for its pace.
    for added in [Added::New, Added::Coalesced] {
        assert_eq!(within(&request(), || queue.add(key())), added);
    }
    assert_eq!(calls.refused.load(Relaxed), 0);
    assert_eq!(calls.clones.load(Relaxed), 2);
}

#[test]
fn traces_record_events_unless_the_memory_is_set() {
    for (bytes, is_recorded) in [(None, true), (Some(0), false), (Some(4096), true)] {
        let builder = Queue::builder().clock(FakeClock::new()).name("pods").traces();
        let queue = match bytes {
            Some(bytes) => builder.record_events(bytes).build().unwrap(),
            None => builder.build().unwrap(),
        };
        queue.add("a");
        assert_eq!(!queue.history(&"a").is_empty(), is_recorded, "{bytes:?}");
    }
}

#[test]
fn a_queue_without_traces_has_no_spans() {
    let queue = Queue::builder().build().unwrap();
    let request = request();
    within(&request, || queue.add("a"));
    assert!(queue.try_get().unwrap().start_span().is_none());
    assert!(spans_of(&request).is_empty());
}

#[test]
fn remote_contexts_pass_through_without_spans_of_their_own() {
    let (queue, _) = new_queue();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let context = trace::remote_context(parent, Some("a=1")).unwrap();
    within(&context, || queue.add("a"));
    let item = queue.try_get().unwrap();
    let (traceparent, tracestate) = item.start_span().unwrap().headers().unwrap();
    // The caller has decided not to sample its trace, and requeue must respect this decision.
    assert!(traceparent.starts_with(&parent[..36]) && traceparent.ends_with("-00"));
    assert_eq!(tracestate, "a=1");
    item.succeed();
    assert!(trace::remote_context("nonsense", None).is_none());
}

#[test]
fn threads_run_the_handler_in_the_context_of_its_run() {
    let (queue, _) = new_queue();
    let request = request();
    within(&request, || queue.add("a"));
    queue.close();
    ThreadWorkers::new(queue, |_, context| {
        SPANS.0.tracer("test").start("handler");
        if context.attempt() == 1 {
            Err(Error::retry_after(Duration::ZERO, "not yet"))
        } else {
            Ok(Action::succeed())
        }
    })
    .run();
    check_attempts(&request);
}

/// Checks the spans of a failed run and of its retry. In each of them, the handler has created a
/// span.
fn check_attempts(request: &Context) {
    let spans = spans_of(request);
    let runs = runs(&spans);
    let [first, second] = &runs[..] else { panic!("{spans:?}") };
    assert!(matches!(&first.status, Status::Error { description } if description == "not yet"));
    assert_eq!(attribute(first, "error.type").as_deref(), Some("_OTHER"));
    assert_eq!(attribute(first, "requeue.key").as_deref(), Some("\"a\""));
    assert_eq!(
        (attribute(second, "requeue.attempt").as_deref(), &second.status),
        (Some("2"), &Status::Unset)
    );
    let handlers = spans.iter().filter(|span| span.name == "handler");
    let parents: Vec<_> = handlers.map(|span| span.parent_span_id).collect();
    assert_eq!(parents, [first.span_context.span_id(), second.span_context.span_id()]);
}

#[cfg(feature = "tokio")]
mod with_tracing {
    use requeue::workers::Workers;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// The context of a span of `tracing` is kept with an add, and the spans of a handler are
    /// children of its run.
    #[tokio::test]
    async fn spans_of_tracing_are_parents_and_children() {
        let tracer = SPANS.0.tracer("test");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        let _here = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let (queue, _) = new_queue();
        let outer = tracing::info_span!("request");
        let request = outer.in_scope(|| {
            queue.add("a");
            Context::current()
        });
        queue.close();
        Workers::new(queue, |_, context| async move {
            tokio::task::yield_now().await;
            drop(tracing::info_span!("handler").entered());
            if context.attempt() == 1 {
                Err(Error::retry_after(Duration::ZERO, "not yet"))
            } else {
                Ok(Action::succeed())
            }
        })
        .span(|_, _| tracing::Span::none())
        .run()
        .await;
        check_attempts(&request);
    }
}

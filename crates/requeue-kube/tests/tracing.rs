//! The span of a run.
//!
//! The test is a separate binary, because tests without a subscriber on other threads could disable
//! the spans.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::controller::{ReconcileReason, ReconcileRequest};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use requeue_kube::controller::{Action, Config, Watched};
use requeue_kube::{Controller, policy};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// A subscriber that records spans with their fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

/// The number of a span.
#[derive(Clone, Copy)]
struct Number(usize);

struct Fields<'a>(&'a Spans, Number);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let Number(number) = self.1;
        self.0.0.lock().unwrap()[number] += &format!(" {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Spans {
    fn subscribe(&self) -> DefaultGuard {
        tracing::subscriber::set_default(Registry::default().with(self.clone()))
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, here: Context<'_, S>) {
        let new = here.span(id).unwrap();
        let parent = new.parent().map(|parent| format!("{} > ", parent.name()));
        let number = {
            let mut spans = self.0.lock().unwrap();
            spans.push(parent.unwrap_or_default() + span.metadata().name());
            Number(spans.len() - 1)
        };
        new.extensions_mut().insert(number);
        span.record(&mut Fields(self, number));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, here: Context<'_, S>) {
        let number = *here.span(id).unwrap().extensions().get::<Number>().unwrap();
        values.record(&mut Fields(self, number));
    }
}

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.namespace = Some("ns".into());
    map
}

/// Returns a stream that yields `item` after this number of seconds.
fn later<T>(seconds: u64, item: T) -> impl Stream<Item = T> {
    stream::once(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        item
    })
}

fn list(objects: &[&str]) -> Vec<watcher::Result<Event<ConfigMap>>> {
    let objects = objects.iter().map(|name| Event::InitApply(map(name)));
    [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).map(Ok).collect()
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_run_has_its_object_its_reason_and_its_result() {
    let spans = Spans::default();
    let _here = spans.subscribe();
    let (reader, writer) = store();
    let main = stream::iter(list(&["a"])).chain(stream::pending()).reflect(writer);
    let watched = later(10, Ok(Event::Apply(map("x"))));
    let watched = stream::iter(list(&[])).chain(watched).chain(stream::pending());
    let a = ObjectRef::<ConfigMap>::new("a").within("ns");
    let custom = ReconcileReason::Custom { reason: "because".into() };
    let because = ReconcileRequest { obj_ref: a.clone(), reason: custom };
    let named = later(20, because).chain(later(10, a.clone().into()));
    let idle = stream::iter(list(&[])).chain(stream::pending());
    let controller = Controller::for_stream(main, reader)
        .watch_mapped(Watched::stream(idle), |_: ConfigMap| [ObjectRef::new("none")])
        .watch_mapped(Watched::stream(watched), move |_: ConfigMap| [a.clone()])
        .reconcile_on(named)
        .reconcile_all_on(later(40, ()));
    let fails = Mutex::new(1);
    let reconcile = move |_: Arc<ConfigMap>, _: Arc<()>| {
        let fail = std::mem::take(&mut *fails.lock().unwrap()) > 0;
        async move {
            if fail { Err(fmt::Error) } else { Ok(Action::requeue_after(Duration::from_secs(45))) }
        }
    };
    let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
    let reading = stream.for_each(async |_| ()).instrument(tracing::info_span!("reading"));
    _ = tokio::time::timeout(Duration::from_secs(90), reading).await;
    let (requeued, bulk) = ("requeue_after requeue_after_seconds=45.0", -100);
    // Each run is requeued after 45 s, which counts as an add for the next run.
    let expected = [
        (
            "object updated reasons=ConfigMap listed",
            1,
            1,
            bulk,
            "error requeue_after_seconds=DELAY",
        ),
        // A retry keeps the reasons of the failed run.
        ("error policy requested retry reasons=ConfigMap listed", 2, 1, bulk, requeued),
        (
            "related object updated: ConfigMap.v1./x.ns reasons=ConfigMap created (watched, 2) (ns/x)",
            1,
            2,
            0,
            requeued,
        ),
        ("because reasons=trigger (because)", 1, 2, 0, requeued),
        ("unknown reasons=trigger", 1, 2, 0, requeued),
        ("bulk reconcile requested reasons=all objects", 1, 2, 0, requeued),
        ("reconciler requested retry", 1, 1, 0, requeued),
    ];
    let expected = expected.map(|(reason, attempt, adds, priority, result)| {
        format!(
            "reading > reconciling object object.ref=ConfigMap.v1./a.ns object.reason={reason} \
             attempt={attempt} queued_seconds=0.0 adds={adds} priority={priority} result={result}"
        )
    });
    let mut runs = spans.all().split_off(1);
    // The backoff has jitter.
    let (begin, delay) = runs[0].rsplit_once('=').unwrap();
    assert!(delay.parse::<f64>().is_ok_and(|delay| 0.0 < delay && delay < 1.0), "{delay}");
    runs[0] = format!("{begin}=DELAY");
    assert_eq!(runs, expected);
}

/// A reconciler that waits 10 s, and then acts as the name of its object says.
async fn obey(map: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, fmt::Error> {
    tokio::time::sleep(Duration::from_secs(10)).await;
    match map.metadata.name.as_deref() {
        Some("backs-off") => Ok(Action::backoff()),
        Some("fails") => Err(fmt::Error),
        Some("panics") => panic!("on purpose"),
        Some("times-out") => std::future::pending().await,
        _ => Ok(Action::await_change()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_run_has_the_wait_in_the_queue_and_the_kind_of_the_failure() {
    let spans = Spans::default();
    let _here = spans.subscribe();
    let names = ["a", "backs-off", "fails", "panics", "succeeds", "times-out"];
    let (reader, writer) = store();
    let changes = [1, 2].map(|seconds| later(seconds, Ok(Event::Apply(map("succeeds")))));
    let [first, second] = changes;
    let main = stream::iter(list(&names)).chain(first).chain(second).chain(stream::pending());
    let config = Config::default().reconcile_timeout(Duration::from_secs(20));
    let stream = Controller::for_stream(main.reflect(writer), reader)
        .name("kinds of results")
        .with_config(config)
        .run(obey, |_, _, _| Action::terminal(), Arc::new(()));
    let reading = stream.for_each(async |_| ());
    // After 70 s, an object that has failed runs again. Its task is aborted when the stream is
    // dropped.
    _ = tokio::time::timeout(Duration::from_secs(75), reading).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let runs: Vec<_> = spans
        .all()
        .iter()
        .map(|span| {
            let (_, object) = span.split_once("v1./").unwrap();
            let (name, _) = object.split_once('.').unwrap();
            let (_, rest) = object.split_once("attempt=").unwrap();
            format!("{name}: attempt={}", rest.split(" requeue_after").next().unwrap())
        })
        .collect();
    let expected = [
        "a: attempt=1 queued_seconds=0.0 adds=1 priority=-100 result=success",
        "succeeds: attempt=1 queued_seconds=10.0 adds=3 priority=0 result=success",
        "backs-off: attempt=1 queued_seconds=20.0 adds=1 priority=-100 result=requeue",
        "fails: attempt=1 queued_seconds=30.0 adds=1 priority=-100 result=terminal",
        "panics: attempt=1 queued_seconds=40.0 adds=1 priority=-100 result=panic",
    ];
    assert_eq!(runs[..5], expected);
    assert!(runs.iter().any(|run| run.starts_with("times-out") && run.ends_with("timeout")));
    assert!(runs.last().is_some_and(|run| run.ends_with("result=cancelled")), "{runs:?}");
}

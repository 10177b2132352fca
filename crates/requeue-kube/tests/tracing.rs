//! The span of an attempt.
//!
//! In a binary of its own: tests without a subscriber, on other threads, may have the spans switched
//! off while this begins.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::Event;
use requeue_kube::controller::{Action, ReconcileReason, ReconcileRequest};
use requeue_kube::{Controller, policy};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// Writes down spans.
struct Spans(Arc<Mutex<Vec<String>>>);

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut spans = self.0.lock().unwrap();
        *spans.last_mut().unwrap() += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(span.metadata().name().to_owned());
        span.record(&mut Self(Arc::clone(&self.0)));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.namespace = Some("ns".into());
    map
}

/// A stream that has `item` after so many seconds.
fn later<T>(seconds: u64, item: T) -> impl Stream<Item = T> {
    stream::once(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        item
    })
}

#[tokio::test(start_paused = true)]
async fn an_attempt_says_of_what_why_and_for_which_time() {
    let spans = Arc::new(Mutex::new(Vec::new()));
    let _here = tracing::subscriber::set_default(Spans(Arc::clone(&spans)));
    let list = |objects: &[&str]| {
        let objects = objects.iter().map(|name| Event::InitApply(map(name)));
        [Event::Init]
            .into_iter()
            .chain(objects)
            .chain([Event::InitDone])
            .map(Ok)
            .collect::<Vec<_>>()
    };
    let (reader, writer) = store();
    let main = stream::iter(list(&["a"])).chain(stream::pending()).reflect(writer);
    let watched = later(10, Ok(Event::Apply(map("x"))));
    let watched = stream::iter(list(&[])).chain(watched).chain(stream::pending());
    let a = ObjectRef::<ConfigMap>::new("a").within("ns");
    let custom = ReconcileReason::Custom { reason: "because".into() };
    let because = ReconcileRequest { obj_ref: a.clone(), reason: custom };
    let named = later(20, because).chain(later(10, a.clone().into()));
    let controller = Controller::for_stream(main, reader)
        .watches_stream(watched, move |_: ConfigMap| [a.clone()])
        .reconcile_on(named)
        .reconcile_all_on(later(40, ()));
    let fails = Mutex::new(1);
    let reconcile = move |_: Arc<ConfigMap>, _: Arc<()>| {
        let fail = std::mem::take(&mut *fails.lock().unwrap()) > 0;
        async move { if fail { Err(fmt::Error) } else { Ok(Action::requeue(Duration::from_secs(45))) } }
    };
    let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
    _ = tokio::time::timeout(Duration::from_secs(90), stream.for_each(async |_| ())).await;
    let expected = [
        ("object updated", 1),
        ("error policy requested retry", 2),
        ("related object updated: ConfigMap.v1./x.ns", 1),
        ("because", 1),
        ("unknown", 1),
        ("bulk reconcile requested", 1),
        ("reconciler requested retry", 1),
    ];
    let expected = expected.map(|(reason, attempt)| {
        format!(
            "reconciling object object.ref=ConfigMap.v1./a.ns object.reason={reason} \
             attempt={attempt}"
        )
    });
    assert_eq!(*spans.lock().unwrap(), expected);
}

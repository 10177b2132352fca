//! The span of an attempt.
//!
//! The test is a separate binary: tests without a subscriber on other threads could disable the
//! spans.

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
use tracing::span::{Attributes, Id};
use tracing::{Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// Records spans.
struct Spans(Arc<Mutex<Vec<String>>>);

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut spans = self.0.lock().unwrap();
        *spans.last_mut().unwrap() += &format!(" {field}={value:?}");
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, here: Context<'_, S>) {
        let parent = here.span(id).and_then(|span| Some(format!("{} > ", span.parent()?.name())));
        self.0.lock().unwrap().push(parent.unwrap_or_default() + span.metadata().name());
        span.record(&mut Self(Arc::clone(&self.0)));
    }
}

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.namespace = Some("ns".into());
    map
}

/// A stream that yields `item` after this number of seconds.
fn later<T>(seconds: u64, item: T) -> impl Stream<Item = T> {
    stream::once(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        item
    })
}

#[tokio::test(start_paused = true)]
async fn an_attempt_says_of_what_why_and_for_which_time() {
    let spans = Arc::new(Mutex::new(Vec::new()));
    let _here =
        tracing::subscriber::set_default(Registry::default().with(Spans(Arc::clone(&spans))));
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
    let reading = stream.for_each(async |_| ()).instrument(tracing::info_span!("reading"));
    _ = tokio::time::timeout(Duration::from_secs(90), reading).await;
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
            "reading > reconciling object object.ref=ConfigMap.v1./a.ns object.reason={reason} \
             attempt={attempt}"
        )
    });
    assert_eq!(spans.lock().unwrap()[1..], expected);
}

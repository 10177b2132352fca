//! Measures controllers with events from memory.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, applier};
use requeue_bench::meter::Meter;
use requeue_kube::{Controller, controller, policy};
use tokio::sync::Semaphore;

use crate::Result;
use crate::protocol::{Answer, Memory, Who};

const WORKERS: u16 = 2;

/// The progress of a pass, in which each object changes once.
struct Pass {
    objects: usize,
    left: AtomicUsize,
    ended: Semaphore,
}

impl Pass {
    fn reconciled(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.left.store(self.objects, Ordering::SeqCst);
            self.ended.add_permits(1);
        }
    }

    async fn end(&self) {
        // The semaphore is never closed.
        if let Ok(permit) = self.ended.acquire().await {
            permit.forget();
        }
    }
}

/// Returns a list, followed by a pass for each permit of `passes`.
fn events(
    objects: usize,
    passes: Arc<Semaphore>,
) -> impl Stream<Item = watcher::Result<Event<ConfigMap>>> + Send + 'static {
    let list = (0..objects).map(|number| Event::InitApply(object(number, 0)));
    let list = [Event::Init].into_iter().chain(list).chain([Event::InitDone]);
    let passes = stream::unfold((1, passes), |(pass, passes)| async move {
        passes.acquire().await.ok()?.forget();
        Some((pass, (pass + 1, passes)))
    });
    let changes = passes.flat_map(move |pass| {
        stream::iter((0..objects).map(move |number| Event::Apply(object(number, pass))))
    });
    stream::iter(list).chain(changes).map(Ok)
}

fn object(number: usize, pass: usize) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(format!("object-{number}")),
        namespace: Some("default".into()),
        uid: Some(format!("5fd2e1b6-5b1d-4b7e-8f0e-{number:012}")),
        resource_version: Some((1000 + pass).to_string()),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

pub(crate) async fn run(who: Who, work: Memory) -> Result<Answer> {
    let pass = Arc::new(Pass {
        objects: work.objects,
        left: AtomicUsize::new(work.objects),
        ended: Semaphore::new(0),
    });
    let passes = Arc::new(Semaphore::new(0));
    let events = events(work.objects, Arc::clone(&passes));
    let (reader, writer) = reflector::store();
    let events = events.reflect(writer);
    let context = Arc::clone(&pass);
    let controller = match who {
        Who::Ours => {
            let stream = Controller::for_stream(events, reader)
                .with_config(controller::Config::default().concurrency(WORKERS))
                .run(ours, policy::backoff, context);
            tokio::spawn(stream.for_each(|_| ready(())))
        }
        Who::Kube => {
            // The parts of kube's controller are used directly, because in kube a controller on a
            // stream is an unstable feature.
            let requests = events.applied_objects().map_ok(|map| ObjectRef::from_obj(&map));
            let config = kube::runtime::controller::Config::default().concurrency(WORKERS);
            // Each run is a separate task, as in kube's controller.
            let reconcile = |_: Arc<ConfigMap>, pass: Arc<Pass>| {
                tokio::spawn(kubes(pass)).map(|ended| ended.unwrap_or(Ok(Action::await_change())))
            };
            let again = |_, _: &Infallible, _| Action::await_change();
            let stream = applier(reconcile, again, context, reader, requests.boxed(), config);
            tokio::spawn(stream.for_each(|_| ready(())))
        }
        Who::Store => tokio::spawn(events.for_each(move |event| {
            if matches!(event, Ok(Event::InitApply(_) | Event::Apply(_))) {
                context.reconciled();
            }
            ready(())
        })),
    };
    // The list is not measured.
    pass.end().await;
    let meter = Meter::start();
    for _ in 0..work.passes {
        passes.add_permits(1);
        pass.end().await;
    }
    let answer = Answer::of(meter, work.objects * work.passes);
    controller.abort();
    answer
}

async fn ours(
    _: Arc<ConfigMap>,
    pass: Arc<Pass>,
) -> std::result::Result<controller::Action, Infallible> {
    pass.reconciled();
    Ok(controller::Action::await_change())
}

async fn kubes(pass: Arc<Pass>) -> std::result::Result<Action, Infallible> {
    pass.reconciled();
    Ok(Action::await_change())
}

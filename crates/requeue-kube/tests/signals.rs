//! Shutdown of a controller by signals. The tests are a separate binary, because a signal reaches
//! the whole process.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::Event;
use requeue_kube::controller::{Action, Error};
use requeue_kube::{Controller, Manager, ObjectQueue, policy};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Starts a controller of two objects with one worker, alone or in a manager, and waits until its
/// first run has begun. Returns the queue, a semaphore with a permit for each run that may
/// complete, and the results of the controller or the manager.
async fn control(
    name: &str,
    is_managed: bool,
) -> (ObjectQueue, Arc<Semaphore>, JoinHandle<Vec<String>>) {
    let (to_end, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (give, queue) = oneshot::channel();
    let map = |name: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.namespace = Some("ns".into());
        map
    };
    let list = [Event::Init, Event::InitApply(map("a")), Event::InitApply(map("b"))];
    let events = stream::iter(list.into_iter().chain([Event::InitDone]).map(Ok));
    let (reader, writer) = store();
    let has_begun = Arc::clone(&begun);
    let reconcile = move |_: Arc<ConfigMap>, to_end: Arc<Semaphore>| {
        has_begun.add_permits(1);
        async move {
            to_end.acquire().await.unwrap().forget();
            Ok::<_, kube::Error>(Action::await_change())
        }
    };
    let controller =
        Controller::for_stream(events.chain(stream::pending()).reflect(writer), reader)
            .name(name)
            .queue_on_start(|queue| give.send(queue).unwrap());
    let context = Arc::clone(&to_end);
    let item = |result: Result<(ObjectRef<_>, _), Error<_, _>>| {
        result.map_or_else(|error| error.to_string(), |(object, _)| object.name)
    };
    let items = if is_managed {
        let mut manager = Manager::new().shutdown_on_signal();
        let (send, mut items) = mpsc::unbounded_channel();
        manager.add(controller, move |controller| {
            let stream = controller.run(reconcile, policy::backoff, context);
            stream.inspect(move |result| {
                let name = result.as_ref().ok().map(|(object, _)| object.name.clone());
                name.into_iter().for_each(|name| send.send(name).unwrap());
            })
        });
        tokio::spawn(async move {
            let ended = manager.run().await;
            let mut seen = Vec::new();
            while let Some(name) = items.recv().await {
                seen.push(name);
            }
            seen.extend(ended.err().map(|error| error.to_string()));
            seen
        })
    } else {
        let stream = controller.shutdown_on_signal().run(reconcile, policy::backoff, context);
        tokio::spawn(stream.map(item).collect())
    };
    begun.acquire().await.unwrap().forget();
    (queue.await.unwrap(), to_end, items)
}

fn terminate() {
    kill_process(getpid(), Signal::TERM).unwrap();
}

async fn is_paused(queue: &ObjectQueue) {
    while !queue.is_paused() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_first_signal_waits_for_what_runs_and_the_second_for_nothing() {
    for (is_managed, prefix) in [(false, "runner error"), (true, r#"controller "second""#)] {
        let (queue, to_end, items) = control("first", is_managed).await;
        terminate();
        is_paused(&queue).await;
        assert!(!items.is_finished());
        to_end.add_permits(2);
        assert_eq!(items.await.unwrap(), ["a"]);

        // The run in flight never completes.
        let (queue, _to_end, items) = control("second", is_managed).await;
        terminate();
        is_paused(&queue).await;
        terminate();
        let cut_off = format!("{prefix}: the shutdown interrupted the reconciliation of ns/a");
        assert_eq!(items.await.unwrap(), [cut_off]);
    }
}

//! The events of a kind that the API server may begin or cease to serve at any time.

use std::future;
use std::time::Duration;

use async_stream::stream;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Client, Resource};
use tokio::time::{sleep, timeout};

use crate::relist::Events;

/// Returns the events of a kind that the API server may not serve.
///
/// `make` starts a watch. While the API server does not serve the kind, the stream yields one empty list and no errors.
/// It starts another watch after each change of the kind's definition, and in any case after kube's backoff, which is
/// at most 30 s.
pub(crate) fn optional_events<K: Resource, O: Send + 'static>(
    watch: String,
    client: Client,
    dyntype: K::DynamicType,
    mut make: impl FnMut() -> Events<O> + Send + 'static,
) -> Events<O>
where
    K::DynamicType: Send + Sync + 'static,
{
    let events = stream! {
        let mut is_listed = false;
        // `Some` while the API server does not serve the kind. Contains the stream of changes of the kind's definition,
        // and the backoff.
        let mut absence = None;
        loop {
            if let Some((changes, backoff)) = &mut absence {
                // kube's backoff never ends, so `next` always returns a delay.
                let delay = Iterator::next(backoff).unwrap_or_default();
                if timeout(delay, StreamExt::next(changes)).await.is_ok() {
                    // The API server begins to serve a kind shortly after its definition has changed. The backoff
                    // therefore starts again with short delays.
                    *backoff = DefaultBackoff::default();
                }
            }
            let mut running = make();
            let mut is_served = false;
            while let Some(event) = running.next().await {
                match event {
                    Ok(event) => {
                        is_served |= !matches!(event, Event::Init);
                        is_listed |= matches!(event, Event::InitDone);
                        if is_served && absence.take().is_some() {
                            tracing::info!(watch, "the kind is installed: it is watched");
                        }
                        yield Ok(event);
                    }
                    Err(error) if status_code(&error) == Some(404) => {
                        if is_served {
                            // An error of a watch does not show whether the API server still serves the kind. The next
                            // list shows it.
                            sleep(Duration::from_secs(1)).await;
                        } else if absence.is_none() {
                            tracing::info!(
                                watch,
                                "the kind is not installed: it is watched once it is"
                            );
                            let changes = definition_changes::<K>(&client, &dyntype);
                            absence = Some((changes, DefaultBackoff::default()));
                            is_listed = true;
                            yield Ok(Event::Init);
                            yield Ok(Event::InitDone);
                        }
                        break;
                    }
                    Err(error) => {
                        yield Err(error);
                        // The empty list lets the controller start, although the first list has failed.
                        if !std::mem::replace(&mut is_listed, true) {
                            yield Ok(Event::Init);
                            yield Ok(Event::InitDone);
                        }
                    }
                }
            }
        }
    };
    events.boxed()
}

/// Returns a stream that yields an item for each change of the kind's definition, and that never ends. If this process
/// may not watch definitions, the stream yields nothing.
fn definition_changes<O: Resource>(
    client: &Client,
    dyntype: &O::DynamicType,
) -> BoxStream<'static, ()> {
    let group = O::group(dyntype);
    let plural = O::plural(dyntype);
    let wc = watcher::Config::default().fields(&format!("metadata.name={plural}.{group}"));
    #[expect(deprecated, reason = "as in kube: an `Api` can't be turned into one of metadata")]
    let events =
        watcher::metadata_watcher(Api::<CustomResourceDefinition>::all(client.clone()), wc);
    let is_permitted = |event: &watcher::Result<_>| match event {
        Ok(_) => true,
        Err(error) => !matches!(status_code(error), Some(401 | 403 | 404)),
    };
    let changes = events
        .take_while(move |event| future::ready(is_permitted(event)))
        .default_backoff()
        .filter(|event| {
            let is_change = matches!(event, Ok(Event::InitApply(_) | Event::Apply(_)));
            future::ready(is_change)
        })
        .map(|_| ());
    changes.chain(stream::pending()).boxed()
}

/// Returns the HTTP status code with which the API server has answered, if the error is such an answer.
fn status_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

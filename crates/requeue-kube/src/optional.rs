//! The events of a kind that may be installed later, or removed.

use std::collections::VecDeque;
use std::future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Client, Resource};

use crate::relist::Events;

/// Returns a stream of the events of a kind, while the API server serves it.
///
/// `make` starts a watch. While the kind is not served, the stream yields one empty list, and no
/// errors. The watch is tried again when `definition` yields, and in any case with kube's backoff, which
/// is at most 30 s.
pub(crate) fn events<O: Send + 'static>(
    watch: String,
    make: impl FnMut() -> Events<O> + Send + 'static,
    definition: impl FnMut() -> BoxStream<'static, ()> + Send + 'static,
) -> Events<O> {
    let optional = Optional {
        watch,
        make,
        definition,
        running: None,
        is_served: false,
        is_listed: false,
        absence: None,
        pending: VecDeque::new(),
    };
    stream::unfold(optional, async |mut it| Some((it.next().await, it))).boxed()
}

/// Yields an item for each change of the definition of a kind, and never ends. Without the permission
/// to watch definitions, it yields nothing.
pub(crate) fn definition<O: Resource>(
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
        Err(error) => !matches!(code(error), Some(401 | 403 | 404)),
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

struct Optional<O, M, D> {
    /// The name of the watch.
    watch: String,
    make: M,
    definition: D,
    running: Option<Events<O>>,
    /// The running watch has received objects, or a list.
    is_served: bool,
    /// A list was yielded.
    is_listed: bool,
    /// `Some` while the kind is not served.
    absence: Option<Absence>,
    pending: VecDeque<Event<O>>,
}

struct Absence {
    changes: BoxStream<'static, ()>,
    backoff: DefaultBackoff,
}

impl Absence {
    /// Waits until the kind may be served.
    async fn wait(&mut self) {
        // The backoff never ends.
        let delay = self.backoff.next().unwrap_or_default();
        if tokio::time::timeout(delay, self.changes.next()).await.is_ok() {
            // The API server serves the kind a moment after its definition has changed.
            self.backoff = DefaultBackoff::default();
        }
    }
}

impl<O, M, D> Optional<O, M, D>
where
    M: FnMut() -> Events<O>,
    D: FnMut() -> BoxStream<'static, ()>,
{
    async fn next(&mut self) -> watcher::Result<Event<O>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let Some(events) = &mut self.running else {
                if let Some(absence) = &mut self.absence {
                    absence.wait().await;
                }
                self.running = Some((self.make)());
                self.is_served = false;
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => {
                    self.is_served |= !matches!(event, Event::Init);
                    self.is_listed |= matches!(event, Event::InitDone);
                    if self.is_served && self.absence.take().is_some() {
                        tracing::info!(watch = self.watch, "the kind is installed: it is watched");
                    }
                    return Ok(event);
                }
                Some(Err(error)) if code(&error) == Some(404) => {
                    self.running = None;
                    if self.is_served {
                        // Only a list shows that the kind is gone.
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    } else if self.absence.is_none() {
                        tracing::info!(
                            watch = self.watch,
                            "the kind is not installed: it is watched once it is"
                        );
                        let changes = (self.definition)();
                        let backoff = DefaultBackoff::default();
                        self.absence = Some(Absence { changes, backoff });
                        self.list_nothing();
                    }
                }
                Some(Err(error)) => {
                    if !self.is_listed {
                        // The start of the controller must not depend on this kind.
                        self.list_nothing();
                    }
                    return Err(error);
                }
                None => self.running = None,
            }
        }
    }

    fn list_nothing(&mut self) {
        self.is_listed = true;
        self.pending.extend([Event::Init, Event::InitDone]);
    }
}

/// Returns the HTTP status code of a response that was an error.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

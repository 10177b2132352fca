//! An API server in memory with ConfigMaps. It can apply or ignore selectors of shards.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, Uri};
use http_body_util::channel::{Channel, Sender};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::client::Body;
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use crate::range::fnv1a;

struct Maps {
    version: u64,
    /// The oldest version from which a watch can continue. A watch with an earlier version expires,
    /// and must list again.
    oldest: u64,
    maps: Vec<ConfigMap>,
}

#[derive(Clone)]
pub(super) struct FakeApi {
    honours: bool,
    maps: Arc<watch::Sender<Maps>>,
    /// The selectors of all lists so far, in order.
    selectors: Arc<Mutex<Vec<String>>>,
    /// The selectors of all watch requests so far, with the versions at which they began.
    watched: Arc<Mutex<Vec<(String, u64)>>>,
    /// The channel that sends each changed object to all watches.
    events: broadcast::Sender<ConfigMap>,
    /// The number of lists that permitted any version.
    stale_lists: Arc<AtomicU64>,
    /// The time that a list takes, in seconds.
    list_takes: Arc<AtomicU64>,
}

impl FakeApi {
    pub(super) fn new(honours: bool, maps: impl IntoIterator<Item = ConfigMap>) -> Self {
        let maps = Maps { version: 1, oldest: 1, maps: maps.into_iter().collect() };
        let maps = Arc::new(watch::Sender::new(maps));
        Self {
            honours,
            maps,
            selectors: Arc::default(),
            watched: Arc::default(),
            events: broadcast::Sender::new(16),
            stale_lists: Arc::default(),
            list_takes: Arc::default(),
        }
    }

    /// Replaces all objects. All watches expire, and must list again.
    pub(super) fn replace(&self, maps: impl IntoIterator<Item = ConfigMap>) {
        self.change(|before| *before = maps.into_iter().collect());
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<ConfigMap>)) {
        self.maps.send_modify(|maps| {
            maps.version += 1;
            maps.oldest = maps.version;
            change(&mut maps.maps);
        });
    }

    /// Changes the version of an object, and sends an event to the watches that select the object.
    pub(super) fn touch(&self, name: &str) {
        self.maps.send_modify(|maps| {
            maps.version += 1;
            let version = maps.version.to_string();
            let map = maps.maps.iter_mut().find(|map| map.name_any() == name).unwrap();
            map.metadata.resource_version = Some(version);
            _ = self.events.send(map.clone());
        });
    }

    pub(super) fn take_watched(&self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.watched.lock().unwrap())
    }

    pub(super) fn lists_take(&self, seconds: u64) {
        self.list_takes.store(seconds, Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<ConfigMap> {
        self.maps.borrow().maps.clone()
    }

    pub(super) fn take_selectors(&self) -> Vec<String> {
        std::mem::take(&mut self.selectors.lock().unwrap())
    }

    pub(super) fn stale_lists(&self) -> u64 {
        self.stale_lists.load(Ordering::Relaxed)
    }

    pub(super) fn maps(&self) -> Api<ConfigMap> {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            let uri = request.uri().clone();
            async move { Ok::<_, Infallible>(this.answer(uri).await) }
        });
        Api::all(Client::new(service, "ns"))
    }

    fn is_selected(&self, selector: &str, map: &ConfigMap) -> bool {
        !self.honours || selects(selector, map.meta().uid.as_deref().unwrap_or(""))
    }

    /// Sends events to a watch until `replace` or `change` replaces the objects.
    async fn watch(
        self,
        selector: String,
        version: u64,
        (mut maps, mut events): (watch::Receiver<Maps>, broadcast::Receiver<ConfigMap>),
        mut body: Sender<Bytes>,
    ) {
        loop {
            tokio::select! {
                // The version of the list is compared, so that a change between the list and the
                // watch request ends the watch.
                _ = maps.wait_for(|maps| maps.oldest > version).map(drop) => break,
                Ok(map) = events.recv() => {
                    if self.is_selected(&selector, &map) {
                        _ = body.send_data(line("MODIFIED", json!(map))).await;
                    }
                }
            }
        }
        let gone = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old resource version", "reason": "Expired", "code": 410
        });
        _ = body.send_data(line("ERROR", gone)).await;
    }

    async fn answer(&self, uri: Uri) -> Response<Channel<Bytes>> {
        let query = uri.query().unwrap_or_default().to_owned();
        let selector = query.split('&').find_map(|part| part.strip_prefix("shardSelector="));
        let selector = selector.unwrap_or_default().replace("%27", "'").replace("%7C", "|");
        let (mut body, channel) = Channel::new(1);
        if query.contains("watch=true") {
            let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
            let version: u64 = version.unwrap().parse().unwrap();
            self.watched.lock().unwrap().push((selector.clone(), version));
            let changes = (self.maps.subscribe(), self.events.subscribe());
            tokio::spawn(self.clone().watch(selector, version, changes, body));
            return Response::new(channel);
        }
        if query.split('&').any(|part| part == "resourceVersion=0") {
            self.stale_lists.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_secs(self.list_takes.load(Ordering::Relaxed))).await;
        let maps = self.maps.borrow();
        let version = maps.version.to_string();
        let items: Vec<_> = maps
            .maps
            .iter()
            .filter(|map| self.is_selected(&selector, map))
            .map(|map| serde_json::to_value(map).unwrap())
            .collect();
        // A list of one object only checks that the kind can be listed, so it is not recorded.
        if !query.split('&').any(|part| part == "limit=1") {
            self.selectors.lock().unwrap().push(selector);
        }
        let list = json!({
            "kind": "ConfigMapList", "apiVersion": "v1", "metadata": { "resourceVersion": version },
            "items": items
        });
        tokio::spawn(async move { body.send_data(list.to_string().into()).await });
        Response::new(channel)
    }
}

fn line(event: &str, object: Value) -> Bytes {
    Bytes::from(json!({ "type": event, "object": object }).to_string() + "\n")
}

fn selects(selector: &str, uid: &str) -> bool {
    let hash = u128::from(fnv1a(uid.as_bytes()));
    let number = |text: &str| {
        u128::from_str_radix(text.trim_matches('\'').trim_start_matches("0x"), 16).unwrap()
    };
    selector.is_empty()
        || selector.split("||").any(|range| {
            let mut parts = range.trim_end_matches(')').split(',').skip(1).map(number);
            let (start, end) = (parts.next().unwrap(), parts.next().unwrap());
            start <= hash && hash < end
        })
}

//! An API server with ConfigMaps. It selects shards, or ignores the selector.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, Uri};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::client::Body;
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::shard::fnv1a;

struct Maps {
    version: u64,
    maps: Vec<ConfigMap>,
}

#[derive(Clone)]
pub(super) struct FakeApi {
    honours: bool,
    maps: Arc<watch::Sender<Maps>>,
    /// The selectors of the lists so far.
    selectors: Arc<Mutex<Vec<String>>>,
    /// The number of lists that accept any version.
    stale_lists: Arc<AtomicU64>,
    /// The time that a list takes, in seconds.
    list_takes: Arc<AtomicU64>,
}

impl FakeApi {
    pub(super) fn new(honours: bool, maps: impl IntoIterator<Item = ConfigMap>) -> Self {
        let maps = Maps { version: 1, maps: maps.into_iter().collect() };
        let maps = Arc::new(watch::Sender::new(maps));
        Self {
            honours,
            maps,
            selectors: Arc::default(),
            stale_lists: Arc::default(),
            list_takes: Arc::default(),
        }
    }

    /// Replaces all objects. Every watch ends, and lists again.
    pub(super) fn replace(&self, maps: impl IntoIterator<Item = ConfigMap>) {
        self.change(|before| *before = maps.into_iter().collect());
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<ConfigMap>)) {
        self.maps.send_modify(|maps| {
            maps.version += 1;
            change(&mut maps.maps);
        });
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

    async fn answer(&self, uri: Uri) -> Response<Body> {
        let query = uri.query().unwrap_or_default().to_owned();
        let mut maps = self.maps.subscribe();
        if query.contains("watch=true") {
            // A watch continues at the version of its list, so it notices a change in between.
            let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
            let version: u64 = version.unwrap().parse().unwrap();
            _ = maps.wait_for(|maps| maps.version != version).await;
            let gone = json!({
                "type": "ERROR",
                "object": {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "too old resource version", "reason": "Expired", "code": 410
                }
            });
            return Response::new(Body::from(serde_json::to_vec(&gone).unwrap()));
        }
        if query.split('&').any(|part| part == "resourceVersion=0") {
            self.stale_lists.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_secs(self.list_takes.load(Ordering::Relaxed))).await;
        let selector = query.split('&').find_map(|part| part.strip_prefix("shardSelector="));
        let selector = selector.unwrap_or_default().replace("%27", "'").replace("%7C", "|");
        let maps = maps.borrow();
        let version = maps.version.to_string();
        let items: Vec<_> = maps
            .maps
            .iter()
            .filter(|map| {
                !self.honours || selects(&selector, map.meta().uid.as_deref().unwrap_or(""))
            })
            .map(|map| serde_json::to_value(map).unwrap())
            .collect();
        // A list of one object only shows that the kind can be listed.
        if !query.split('&').any(|part| part == "limit=1") {
            self.selectors.lock().unwrap().push(selector);
        }
        let list = json!({
            "kind": "ConfigMapList", "apiVersion": "v1", "metadata": { "resourceVersion": version },
            "items": items
        });
        Response::new(Body::from(serde_json::to_vec(&list).unwrap()))
    }
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

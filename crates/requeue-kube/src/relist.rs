//! Makes each list of a watch after its first list a consistent read.
//!
//! An API server may answer a list with resource version 0 from its cache. If another replica of the API server
//! answers, its cache may be older than the events that the watch has already received. Objects that are missing in
//! such a list would be treated as deleted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, BoxStream, StreamExt};
use http::Uri;
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, InitialListStrategy, ListSemantic};
use serde::de::DeserializeOwned;

use crate::intercept::{intercept_requests, set_query, unchanged_body};

/// The stream of raw events of a watch.
pub(crate) type Events<O> = BoxStream<'static, watcher::Result<Event<O>>>;

/// Returns a function that returns `api`, changed for a watch with this configuration. All calls return the same `Api`.
/// The first list may come from a cache, if the configuration permits it. Each later list is a consistent read.
///
/// The function must be called in a runtime, because the client of the changed `Api` starts a task. The `Api` is
/// therefore not created together with the controller, which may be created outside a runtime.
pub(crate) fn consistent_api<K: Resource + Clone>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    wc: &watcher::Config,
) -> impl FnMut() -> Api<K> + Send + use<K>
where
    K::DynamicType: Clone,
{
    let is_consistent = wc.list_semantic == ListSemantic::MostRecent
        && wc.initial_list_strategy == InitialListStrategy::ListWatch;
    let dyntype = dyntype.clone();
    let mut made = is_consistent.then(|| api.clone());
    move || made.get_or_insert_with(|| intercepted_api(api.clone(), &dyntype)).clone()
}

/// Returns a watch of the objects of `api` through [consistent_api]. The watch creates its client when it is first
/// polled.
pub(crate) fn consistent_watch<K>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    wc: watcher::Config,
) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    K::DynamicType: Clone,
{
    let mut api = consistent_api(api, dyntype, &wc);
    stream::once(async move { watcher::watcher(api(), wc) }).flatten().boxed()
}

fn intercepted_api<K: Resource>(api: Api<K>, dyntype: &K::DynamicType) -> Api<K> {
    let listed = Arc::new(AtomicBool::new(false));
    intercept_requests(api, dyntype, move |client, mut request| {
        let is_list = is_of_any_version(request.uri());
        if is_list && listed.load(Ordering::Relaxed) {
            let query = most_recent(request.uri().query().unwrap_or_default());
            set_query(&mut request, &query);
        }
        let listed = Arc::clone(&listed);
        async move {
            let response = client.send(request).await?;
            if is_list && response.status().is_success() {
                // The order `Relaxed` suffices, because the flag protects no other data, and one task sends all
                // requests of the watch.
                listed.store(true, Ordering::Relaxed);
            }
            Ok(unchanged_body(response))
        }
    })
}

fn is_of_any_version(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|it| it == "resourceVersion=0"))
}

/// Returns the query of a list or of a streaming list without its resource version. The API server answers such a
/// request by a consistent read. A list without a version must not contain `resourceVersionMatch`, but a streaming list
/// must contain it.
fn most_recent(query: &str) -> String {
    let is_watch = query.split('&').any(|it| it == "watch=true");
    let kept = query.split('&').filter(|it| {
        *it != "resourceVersion=0" && (is_watch || !it.starts_with("resourceVersionMatch="))
    });
    kept.collect::<Vec<_>>().join("&")
}

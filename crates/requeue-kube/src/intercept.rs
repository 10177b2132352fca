//! Changes the lists and watches of an [`Api`], beneath kube's watchers.

use std::future::pending;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use futures_util::stream::{StreamExt, TakeUntil};
use http::{Request, Response};
use http_body_util::{BodyStream, StreamBody};
use kube::api::Api;
use kube::client::Body;
use kube::{Client, Resource};

/// The body of a response, which may end early.
pub(crate) type Until = StreamBody<TakeUntil<BodyStream<Body>, BoxFuture<'static, ()>>>;

/// Returns the response with a body that ends when `end` completes. kube's watchers continue a watch
/// that ends by another request, from the version of its last event.
pub(crate) fn until(response: Response<Body>, end: BoxFuture<'static, ()>) -> Response<Until> {
    response.map(|body| StreamBody::new(BodyStream::new(body).take_until(end)))
}

/// Returns the response unchanged.
pub(crate) fn whole(response: Response<Body>) -> Response<Until> {
    until(response, pending().boxed())
}

/// Returns `api` with lists and watches that `send` sends. All other requests are sent unchanged.
pub(crate) fn intercept<K, F>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    send: impl Fn(Client, Request<Body>) -> F + Send + 'static,
) -> Api<K>
where
    K: Resource,
    F: Future<Output = kube::Result<Response<Until>>> + Send + 'static,
{
    // An `Api` cannot be created for a namespace if the scope of its kind is generic. So this one asks
    // for all namespaces, and its requests are redirected to the path of `api`.
    let path = api.resource_url().to_owned();
    let everywhere = K::url_path(dyntype, None);
    let client = api.into_client();
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        if request.uri().path() == everywhere {
            let query = request.uri().query().unwrap_or_default().to_owned();
            set(&mut request, &path, &query);
            Either::Left(send(client, request))
        } else {
            Either::Right(async move { client.send(request).await.map(whole) })
        }
    });
    Api::all_with(Client::new(service, namespace), dyntype)
}

/// Replaces the query of a request.
pub(crate) fn set_query(request: &mut Request<Body>, query: &str) {
    let path = request.uri().path().to_owned();
    set(request, &path, query);
}

fn set(request: &mut Request<Body>, path: &str, query: &str) {
    // The parts were valid before, or consist of characters that are valid in a query.
    if let Ok(uri) = format!("{path}?{query}").parse() {
        *request.uri_mut() = uri;
    }
}

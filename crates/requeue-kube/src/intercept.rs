//! Changes the lists and watches of an [`Api`], below kube's watchers.

use std::future::pending;
use std::task::{Poll, ready};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyStream, StreamBody};
use kube::api::Api;
use kube::client::Body;
use kube::{Client, Resource};

/// The body of a response, which may end early.
pub(crate) type Until = StreamBody<BoxStream<'static, <BodyStream<Body> as Stream>::Item>>;

/// Returns the response with a body that ends after a complete line, when `end` has completed. When a watch ends,
/// kube's watchers continue with another request, from the version of the last event.
pub(crate) fn end_body_when(
    response: Response<Body>,
    mut end: BoxFuture<'static, ()>,
) -> Response<Until> {
    response.map(|body| {
        let mut frames = BodyStream::new(body);
        let mut is_whole = true;
        let frames = stream::poll_fn(move |context| {
            // An incomplete line would be an error of the watch, which would then list again.
            if is_whole && end.poll_unpin(context).is_ready() {
                return Poll::Ready(None);
            }
            let frame = ready!(frames.poll_next_unpin(context));
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            if let Some(last) = data.and_then(|data| data.last()) {
                is_whole = *last == b'\n';
            }
            Poll::Ready(frame)
        });
        StreamBody::new(frames.boxed())
    })
}

/// Returns the response unchanged.
pub(crate) fn unchanged_body(response: Response<Body>) -> Response<Until> {
    end_body_when(response, pending().boxed())
}

/// Returns an `Api` whose lists and watches are sent by `send`. All other requests are sent
/// unchanged.
pub(crate) fn intercept_requests<K, F>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    send: impl Fn(Client, Request<Body>) -> F + Send + 'static,
) -> Api<K>
where
    K: Resource,
    F: Future<Output = kube::Result<Response<Until>>> + Send + 'static,
{
    // An `Api` cannot be created for a namespace if the scope of its kind is generic. This `Api` therefore asks for all
    // namespaces, and its requests are redirected to the path of `api`.
    let path = api.resource_url().to_owned();
    let everywhere = K::url_path(dyntype, None);
    let client = api.into_client();
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        if request.uri().path() == everywhere {
            let query = request.uri().query().unwrap_or_default().to_owned();
            set_uri(&mut request, &path, &query);
            Either::Left(send(client, request))
        } else {
            Either::Right(async move { client.send(request).await.map(unchanged_body) })
        }
    });
    Api::all_with(Client::new(service, namespace), dyntype)
}

/// Replaces the query of a request.
pub(crate) fn set_query(request: &mut Request<Body>, query: &str) {
    let path = request.uri().path().to_owned();
    set_uri(request, &path, query);
}

/// Returns an `Api` that adds a selector of shards to each list and watch. For each request, `selector` returns the
/// selector, and a future that completes when a watch with this selector should continue with another selector. A
/// server without the feature gate `ShardedListAndWatch` ignores the parameter, and returns all objects.
pub(crate) fn select_shards<K: Resource>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    selector: impl Fn() -> (String, BoxFuture<'static, ()>) + Send + 'static,
) -> Api<K> {
    intercept_requests(api, dyntype, move |client, mut request| {
        let (selector, is_outdated) = selector();
        let selector = selector.replace(' ', "").replace('\'', "%27").replace('|', "%7C");
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|part| part == "watch=true");
        let query = format!("{query}&shardSelector={selector}");
        set_query(&mut request, &query);
        // Only a watch is ended early, because a list that ended early would be incomplete.
        let end = if is_watch { is_outdated } else { pending().boxed() };
        async move { Ok(end_body_when(client.send(request).await?, end)) }
    })
}

fn set_uri(request: &mut Request<Body>, path: &str, query: &str) {
    // The parts were valid before, or consist of characters that are valid in a query.
    if let Ok(uri) = format!("{path}?{query}").parse() {
        *request.uri_mut() = uri;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body_util::BodyExt;
    use http_body_util::channel::Channel;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_body_ends_after_a_complete_line() {
        let (mut body, channel) = Channel::<Bytes>::new(4);
        let mut channel = Some(channel);
        let service = tower::service_fn(move |_: Request<Body>| {
            let response = Response::new(channel.take().unwrap());
            async move { Ok::<_, Infallible>(response) }
        });
        let client = Client::new(service, "ns");
        let (send, end) = oneshot::channel::<()>();
        let response = client.send(Request::new(Body::empty())).await.unwrap();
        let mut response = end_body_when(response, end.map(drop).boxed()).into_body();
        for data in ["one\ntw", "o\n", "three\n"] {
            body.send_data(data.into()).await.unwrap();
        }
        let first = response.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "one\ntw");
        send.send(()).unwrap();
        let rest = BodyExt::collect(response).await.unwrap().to_bytes();
        assert_eq!(rest, "o\n");
    }
}

//! Changes to the list and watch requests of an [`Api`]. kube's watcher does not notice these changes.

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

/// The body of a response that may end before the server ends it.
pub(crate) type Until = StreamBody<BoxStream<'static, <BodyStream<Body> as Stream>::Item>>;

/// Returns the response with a body that ends after a complete line, as soon as `end` has completed. When the response
/// to a watch ends, kube's watcher sends another request, which continues from the version of the last event.
pub(crate) fn end_body_when(
    response: Response<Body>,
    mut end: BoxFuture<'static, ()>,
) -> Response<Until> {
    response.map(|body| {
        let mut frames = BodyStream::new(body);
        let mut is_whole = true;
        let frames = stream::poll_fn(move |context| {
            // The body does not end inside a line. The watcher would treat an incomplete line as an error, and list
            // again.
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

/// Returns the response with its whole body, in the type that [`end_body_when`] returns.
pub(crate) fn unchanged_body(response: Response<Body>) -> Response<Until> {
    end_body_when(response, pending().boxed())
}

/// Returns an `Api` that sends its list and watch requests through `send`, and all other requests directly.
pub(crate) fn intercept_requests<K, F>(
    api: Api<K>,
    dyntype: &K::DynamicType,
    send: impl Fn(Client, Request<Body>) -> F + Send + 'static,
) -> Api<K>
where
    K: Resource,
    F: Future<Output = kube::Result<Response<Until>>> + Send + 'static,
{
    // kube cannot create an `Api` for one namespace if the scope of its kind is only known at run time. The returned
    // `Api` is therefore for all namespaces, and the path of each request is replaced by the path of `api`.
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

/// Replaces the query in the URI of a request.
pub(crate) fn set_query(request: &mut Request<Body>, query: &str) {
    let path = request.uri().path().to_owned();
    set_uri(request, &path, query);
}

/// Returns an `Api` that adds a selector of shards to each list and watch request. `selector` is called for each
/// request. It returns the text of the selector, and a future that completes when a watch should use another selector.
/// An API server without the feature gate `ShardedListAndWatch` ignores the selector, and returns all objects.
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
        // Only a watch can end early. A list that ended early would be incomplete.
        let end = if is_watch { is_outdated } else { pending().boxed() };
        async move { Ok(end_body_when(client.send(request).await?, end)) }
    })
}

fn set_uri(request: &mut Request<Body>, path: &str, query: &str) {
    // Parsing cannot fail: the path was valid, and the query contains only characters that are valid in a query.
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

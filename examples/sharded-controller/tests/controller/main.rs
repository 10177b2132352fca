//! The controller beside an API server in memory.

mod manifests;
#[path = "../../../website/tests/rbac/mod.rs"]
mod rbac;
mod replicas;

use http::Request;
use kube::Client;
use kube::client::Body;

/// Returns a client of an API server without the feature gate `ShardedListAndWatch`, which ignores `shardSelector` and
/// sends all objects to all replicas. The server in memory would refuse the parameter.
fn without_gate(client: Client) -> Client {
    let send = move |mut request: Request<Body>| {
        let (path, query) =
            (request.uri().path(), request.uri().query().unwrap_or_default().to_owned());
        let query = query.split('&').filter(|part| !part.starts_with("shardSelector="));
        let uri = format!("{path}?{}", query.collect::<Vec<_>>().join("&"));
        *request.uri_mut() = uri.parse().expect("a part of a valid URI");
        let client = client.clone();
        async move { client.send(request).await }
    };
    Client::new(tower::service_fn(send), "default")
}

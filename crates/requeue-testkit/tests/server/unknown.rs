//! The server refuses unknown requests, and names them.

use http::{Method, Request};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{EvictParams, ListParams, Patch, PatchParams, PostParams};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{define, maps, named, refused, thing, thing_api};

#[tokio::test]
async fn unknown_requests_fail_with_their_name() {
    let client = ApiServer::new().client();
    let pods = Api::<Pod>::default_namespaced(client.clone());
    let hooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let get = |path: &str| Request::builder().uri(path).body(Vec::new()).expect("a request");
    let table = Request::get("/api/v1/configmaps")
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .expect("a request");
    for (status, name) in [
        (refused(pods.evict("p", &EvictParams::default()).await), "pods/eviction"),
        (refused(pods.logs("p", &Default::default()).await), "pods/log"),
        (refused(hooks.list(&ListParams::default()).await), "validatingwebhookconfigurations"),
        (refused(client.request_text(get("/openapi/v3")).await), "/openapi/v3"),
        (
            refused(client.request_text(get("/api/v1/configmaps?shardSelector=x")).await),
            "shardSelector",
        ),
        (refused(client.request_text(table).await), "as=Table"),
    ] {
        assert_eq!((status.code, &*status.reason), (501, "NotImplemented"), "{status:?}");
        assert!(status.message.starts_with("requeue-testkit does not implement "), "{status:?}");
        assert!(status.message.contains(name), "{status:?}");
    }
}

#[tokio::test]
async fn what_no_server_has_is_not_found_or_not_allowed() {
    let client = ApiServer::new().client();
    define(&client, json!({ "type": "object" })).await;
    let request = |method: Method, path: &str| {
        Request::builder().method(method).uri(path).body(Vec::new()).expect("a request")
    };
    for (method, path, code) in [
        (Method::GET, "/apis/unknown.example.com/v1/things", 404),
        (Method::GET, "/nothing", 404),
        (Method::GET, "/api/v1/namespaces/default/nodes", 404),
        (Method::POST, "/version", 405),
        (Method::POST, "/api/v1/configmaps", 405),
        (Method::DELETE, "/api/v1/configmaps", 405),
        (Method::DELETE, "/apis/example.com/v1/things", 404),
        (Method::PUT, "/api/v1/namespaces/default/configmaps", 405),
        (Method::GET, "/apis/example.com/v1/namespaces/default/things/t/scale", 404),
    ] {
        let status = refused(client.request_text(request(method, path)).await);
        assert_eq!(status.code, code, "{path}");
    }
    let things = thing_api(&client);
    things.create(&PostParams::default(), &thing("t", json!({}))).await.expect("created");
    let strategic = Patch::Strategic(json!({}));
    let status = refused(things.patch("t", &PatchParams::default(), &strategic).await);
    assert_eq!((status.code, &*status.reason), (415, "UnsupportedMediaType"));
}

#[tokio::test]
async fn a_body_must_fit_its_path() {
    let server = ApiServer::new();
    let maps = maps(&server);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let put = |json: serde_json::Value| {
        Request::put("/api/v1/namespaces/default/configmaps/a")
            .body(json.to_string().into_bytes())
            .expect("a request")
    };
    for (json, text) in [
        (json!({ "metadata": { "name": "b" } }), "does not match the name on the URL (a)"),
        (
            json!({ "metadata": { "name": "a", "namespace": "other" } }),
            "the namespace of the provided object does not match",
        ),
        (
            json!({ "apiVersion": "v2", "metadata": { "name": "a" } }),
            "is registered for version \"v2\"",
        ),
        (json!({ "kind": "Pod", "metadata": { "name": "a" } }), "cannot be handled as a ConfigMap"),
        (json!([]), "cannot unmarshal array"),
        (
            json!({ "metadata": { "name": "a", "labels": "x" } }),
            "the field metadata.labels must be of type object",
        ),
        (json!({ "metadata": { "name": "a" }, "data": { "a": 1 } }), "the field data.a must be"),
    ] {
        let status = refused(server.client().request_text(put(json)).await);
        assert_eq!(status.code, 400, "{status:?}");
        assert!(status.message.contains(text), "{status:?}");
    }
}

//! Helpers of these tests.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::core::response::Status;
use kube::discovery::ApiResource;
use kube::{Api, Client, Error};
use requeue_testkit::ApiServer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) fn from<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("an object of this kind")
}

pub(crate) fn named(name: &str) -> ConfigMap {
    from(json!({ "metadata": { "name": name } }))
}

pub(crate) fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::default_namespaced(server.client())
}

/// Returns the status of a request that must fail.
pub(crate) fn refused<T: std::fmt::Debug>(result: kube::Result<T>) -> Status {
    match result {
        Err(Error::Api(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// The resource `things.example.com`.
pub(crate) fn things() -> ApiResource {
    ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    }
}

/// Returns a definition of `things.example.com` with a schema for the spec.
pub(crate) fn definition(spec: Value) -> CustomResourceDefinition {
    from(json!({
        "metadata": { "name": "things.example.com" },
        "spec": {
            "group": "example.com",
            "names": { "kind": "Thing", "plural": "things", "shortNames": ["th"] },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": spec,
                        "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    },
                } },
            }],
        },
    }))
}

pub(crate) async fn define(client: &Client, spec: Value) {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.create(&PostParams::default(), &definition(spec)).await.expect("a definition");
}

pub(crate) fn thing_api(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &things())
}

pub(crate) fn thing(name: &str, spec: Value) -> DynamicObject {
    from(json!({
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": { "name": name },
        "spec": spec,
    }))
}

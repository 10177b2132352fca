//! Server-side apply, and who owns which fields.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::{Value, json};

use crate::common::{define, from, maps, refused, thing, thing_api};

fn config(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data })
}

async fn apply(maps: &Api<ConfigMap>, manager: &str, data: Value) -> kube::Result<ConfigMap> {
    maps.patch("a", &PatchParams::apply(manager), &Patch::Apply(config(data))).await
}

fn data(map: &ConfigMap) -> Value {
    json!(map.data)
}

#[tokio::test]
async fn two_managers_own_different_keys() {
    let maps = maps(&ApiServer::new());
    apply(&maps, "one", json!({ "a": "1" })).await.expect("applied");
    let both = apply(&maps, "two", json!({ "b": "2" })).await.expect("applied");
    assert_eq!(data(&both), json!({ "a": "1", "b": "2" }));
    assert_eq!(both.managed_fields().len(), 2);
    // A key that a manager no longer applies goes.
    let left = apply(&maps, "one", json!({})).await.expect("applied");
    assert_eq!(data(&left), json!({ "b": "2" }));
}

#[tokio::test]
async fn an_apply_without_a_change_keeps_the_version() {
    let maps = maps(&ApiServer::new());
    let first = apply(&maps, "one", json!({ "a": "1" })).await.expect("applied");
    let again = apply(&maps, "one", json!({ "a": "1" })).await.expect("applied");
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_conflict_names_the_owner_and_force_takes_the_field() {
    let maps = maps(&ApiServer::new());
    apply(&maps, "one", json!({ "a": "1", "b": "1" })).await.expect("applied");
    let refused = refused(apply(&maps, "two", json!({ "a": "2" })).await);
    assert_eq!((refused.code, &*refused.reason), (409, "Conflict"));
    assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"one\": .data.a");
    let cause = &refused.details.expect("details").causes[0];
    assert_eq!((&*cause.reason, &*cause.field), ("FieldManagerConflict", ".data.a"));
    // The same value is no conflict: both own it.
    apply(&maps, "two", json!({ "a": "1" })).await.expect("applied");

    let force = PatchParams::apply("two").force();
    let forced = maps.patch("a", &force, &Patch::Apply(config(json!({ "a": "2" })))).await;
    assert_eq!(data(&forced.expect("applied")), json!({ "a": "2", "b": "1" }));
    let left = apply(&maps, "one", json!({ "b": "1" })).await.expect("applied");
    assert_eq!(data(&left), json!({ "a": "2", "b": "1" }));
}

#[tokio::test]
async fn a_plain_write_takes_fields_from_an_applier() {
    let maps = maps(&ApiServer::new());
    apply(&maps, "one", json!({ "a": "1" })).await.expect("applied");
    let patch = Patch::Merge(json!({ "data": { "a": "2" } }));
    let params = PatchParams { field_manager: Some("hand".into()), ..PatchParams::default() };
    let patched = maps.patch("a", &params, &patch).await.expect("patched");
    let managers: Vec<_> = patched
        .managed_fields()
        .iter()
        .map(|entry| (entry.manager.as_deref(), entry.operation.as_deref()))
        .collect();
    assert_eq!(managers, [(Some("hand"), Some("Update"))]);
    let refused = refused(apply(&maps, "one", json!({ "a": "1" })).await);
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"hand\" using v1: .data.a"
    );
}

#[tokio::test]
async fn items_of_a_list_are_merged_by_their_keys() {
    let services = Api::<Service>::default_namespaced(ApiServer::new().client());
    let apply = async |manager: &str, port: Value| {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
            "spec": { "ports": [port] },
        });
        services.patch("s", &PatchParams::apply(manager), &Patch::Apply(service)).await
    };
    apply("one", json!({ "port": 80, "name": "http" })).await.expect("applied");
    let both = apply("two", json!({ "port": 443, "name": "https" })).await.expect("applied");
    let ports = both.spec.expect("a spec").ports.expect("ports");
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80, 443]);
    // The default of the protocol is part of the key.
    let fields = &both.metadata.managed_fields.expect("managed fields")[0];
    let fields = json!(fields.fields_v1);
    let key = "k:{\"port\":80,\"protocol\":\"TCP\"}";
    assert_eq!(fields["f:spec"]["f:ports"][key]["f:name"], json!({}), "{fields}");
}

#[tokio::test]
async fn containers_are_merged_by_name_and_selectors_as_a_whole() {
    let deployments = Api::<Deployment>::default_namespaced(ApiServer::new().client());
    let config = |name: &str, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
            "spec": {
                "selector": { "matchLabels": { "app": "d" } },
                "template": {
                    "metadata": { "labels": { "app": "d" } },
                    "spec": { "containers": [{ "name": name, "image": image }] },
                },
            },
        })
    };
    let one = PatchParams::apply("one");
    let first = deployments.patch("d", &one, &Patch::Apply(config("main", "a"))).await;
    assert_eq!(first.expect("applied").metadata.generation, Some(1));
    let two = PatchParams::apply("two");
    let second = deployments.patch("d", &two, &Patch::Apply(config("side", "b"))).await;
    let second = second.expect("applied");
    assert_eq!(second.metadata.generation, Some(2));
    let containers = second.spec.template.spec.expect("a spec").containers;
    assert_eq!(containers.len(), 2);
    let fields = json!(second.metadata.managed_fields.expect("managed fields")[0].fields_v1);
    assert_eq!(fields["f:spec"]["f:selector"], json!({}), "the selector is one field");
}

#[tokio::test]
async fn managed_fields_have_the_form_of_the_real_server() {
    let maps = maps(&ApiServer::new());
    let map: ConfigMap = from(json!({
        "metadata": { "name": "a", "labels": { "app": "x" }, "finalizers": ["example.com/f"] },
        "data": { "key": "value" },
    }));
    let params = PostParams { field_manager: Some("tests".into()), ..PostParams::default() };
    let created = maps.create(&params, &map).await.expect("created");
    let entry = json!(created.managed_fields()[0]);
    assert_eq!(
        entry,
        json!({
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:data": { ".": {}, "f:key": {} },
                "f:metadata": {
                    "f:finalizers": { ".": {}, "v:\"example.com/f\"": {} },
                    "f:labels": { ".": {}, "f:app": {} },
                },
            },
            "manager": "tests",
            "operation": "Update",
            "time": created.creation_timestamp(),
        })
    );
}

#[tokio::test]
async fn conditions_of_a_custom_resource_belong_to_their_types() {
    let server = ApiServer::new();
    let client = server.client();
    let mut definition = json!(crate::common::definition(json!({ "type": "object" })));
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] = json!({
        "type": "object",
        "properties": { "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": { "type": { "type": "string" }, "status": { "type": "string" } },
            },
        } },
    });
    let definitions = Api::<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    >::all(client.clone());
    definitions.create(&PostParams::default(), &from(definition)).await.expect("a definition");
    let things = thing_api(&client);
    let created = things.create(&PostParams::default(), &thing("t", json!({}))).await;
    let created = created.expect("created");
    for (manager, condition) in [("one", "Ready"), ("two", "Synced")] {
        let status = json!({ "conditions": [{ "type": condition, "status": "True" }] });
        let patch = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "status": status });
        let params = PatchParams::apply(manager);
        things.patch_status("t", &params, &Patch::Apply(patch)).await.expect("applied");
    }
    let read = things.get("t").await.expect("read");
    assert_eq!(read.data["status"]["conditions"].as_array().map(Vec::len), Some(2));
    assert_eq!(read.metadata.generation, created.metadata.generation);
    let managers = read.managed_fields().iter().map(|entry| entry.subresource.as_deref());
    assert_eq!(managers.filter(|subresource| *subresource == Some("status")).count(), 2);
    // An apply of the spec does not touch the status.
    let spec = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "spec": {}, "status": { "conditions": [] },
    });
    let params = PatchParams::apply("three");
    let applied = things.patch("t", &params, &Patch::Apply(spec)).await.expect("applied");
    assert_eq!(applied.data["status"], read.data["status"]);
}

#[tokio::test]
async fn a_custom_resource_without_markers_has_atomic_lists() {
    let server = ApiServer::new();
    let client = server.client();
    let list = json!({ "type": "array", "items": { "type": "string" } });
    define(&client, json!({ "type": "object", "properties": { "list": list } })).await;
    let things = thing_api(&client);
    for (manager, list) in [("one", json!(["a"])), ("two", json!(["b"]))] {
        let applied = thing("t", json!({ "list": list }));
        let params = PatchParams::apply(manager).force();
        things.patch("t", &params, &Patch::Apply(applied)).await.expect("applied");
    }
    let read = things.get("t").await.expect("read");
    assert_eq!(read.data["spec"]["list"], json!(["b"]));
    assert_eq!(read.managed_fields().len(), 1, "the second manager took the only field");
}

#[tokio::test]
async fn an_apply_needs_a_manager_and_no_managed_fields() {
    let maps = maps(&ApiServer::new());
    let patch = Patch::Apply(config(json!({})));
    let refused_without = maps.patch("a", &PatchParams::apply(""), &patch).await;
    assert_eq!(refused(refused_without).code, 422);
    let mut bad = config(json!({}));
    bad["metadata"]["managedFields"] = json!([]);
    let status = refused(maps.patch("a", &PatchParams::apply("one"), &Patch::Apply(bad)).await);
    assert_eq!(status.message, "metadata.managedFields must be nil");
}

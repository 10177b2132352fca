//! Custom resources: definitions, schemas, defaults and versions.

use std::pin::pin;

use futures_util::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, ValidationDirective, WatchEvent,
    WatchParams,
};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::{Value, json};

use crate::common::{define, definition, from, refused, thing, thing_api, things};

#[tokio::test]
async fn a_kind_exists_while_it_is_defined() {
    let client = ApiServer::new().client();
    let things = thing_api(&client);
    assert_eq!(refused(things.list(&ListParams::default()).await).code, 404);
    define(&client, json!({ "type": "object" })).await;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    await_condition(definitions.clone(), "things.example.com", conditions::is_crd_established())
        .await
        .expect("established");
    let mut held = thing("t", json!({}));
    held.metadata.finalizers = Some(vec!["example.com/f".into()]);
    things.create(&PostParams::default(), &held).await.expect("created");

    // The definition waits for the last object.
    definitions.delete("things.example.com", &DeleteParams::default()).await.expect("deleted");
    assert!(things.get("t").await.expect("read").metadata.deletion_timestamp.is_some());
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    things.patch("t", &PatchParams::default(), &none).await.expect("patched");
    assert_eq!(definitions.get_opt("things.example.com").await.expect("read"), None);
    assert_eq!(refused(things.list(&ListParams::default()).await).code, 404);
}

#[tokio::test]
async fn a_label_of_a_definition_does_not_end_watches() {
    let client = ApiServer::new().client();
    define(&client, json!({ "type": "object" })).await;
    let things = thing_api(&client);
    let made =
        things.create(&PostParams::default(), &thing("t", json!({}))).await.expect("created");
    let version = made.resource_version().expect("a version");
    things.delete("t", &DeleteParams::default()).await.expect("deleted");
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for (change, is_kept) in [
        (json!({ "metadata": { "labels": { "a": "b" } } }), true),
        (json!({ "spec": { "names": { "shortNames": ["thg"] } } }), false),
    ] {
        let patch = Patch::Merge(change);
        let name = "things.example.com";
        definitions.patch(name, &PatchParams::default(), &patch).await.expect("patched");
        let watch = things.watch(&WatchParams::default(), &version).await.expect("a watch");
        let event = pin!(watch).try_next().await.expect("an event");
        assert_eq!(matches!(event, Some(WatchEvent::Deleted(_))), is_kept, "{event:?}");
    }
}

#[tokio::test]
async fn unknown_fields_are_pruned_and_defaults_are_set() {
    let client = ApiServer::new().client();
    let spec = json!({
        "type": "object",
        "properties": {
            "replicas": { "type": "integer", "default": 1 },
            "nested": {
                "type": "object",
                "default": {},
                "properties": { "size": { "type": "string", "default": "small" } },
            },
            "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        },
    });
    define(&client, spec).await;
    let things = thing_api(&client);
    let sent = thing("t", json!({ "unknown": 1, "replicas": null, "free": { "any": [1] } }));
    let created = things.create(&PostParams::default(), &sent).await.expect("created");
    assert_eq!(
        created.data["spec"],
        json!({ "replicas": 1, "nested": { "size": "small" }, "free": { "any": [1] } })
    );
    let validation = Some(ValidationDirective::Strict);
    let strict = PatchParams { field_validation: validation, ..PatchParams::default() };
    let unknown = Patch::Merge(json!({ "spec": { "unknown": 1 } }));
    let status = refused(things.patch("t", &strict, &unknown).await);
    assert_eq!(status.code, 422);
    assert!(status.message.contains("unknown field \"spec.unknown\""), "{status:?}");
    let patch = Patch::Apply(thing("u", json!({ "unknown": 1 })));
    let status = refused(things.patch("u", &PatchParams::apply("tests"), &patch).await);
    assert_eq!(status.code, 500);
    assert!(status.message.contains(".spec.unknown: field not declared"), "{status:?}");
}

#[tokio::test]
async fn an_object_must_fit_its_schema() {
    let client = ApiServer::new().client();
    let spec = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": { "type": "string", "minLength": 2, "pattern": "^[a-z]+$" },
            "count": { "type": "integer", "minimum": 0, "maximum": 5 },
            "mode": { "type": "string", "enum": ["On", "Off"] },
            "port": { "x-kubernetes-int-or-string": true },
            "tags": { "type": "array", "x-kubernetes-list-type": "set", "maxItems": 2,
                "items": { "type": "string" } },
            "when": { "type": "string", "format": "date-time" },
        },
    });
    define(&client, spec).await;
    let things = thing_api(&client);
    for (spec, field, reason) in [
        (json!({}), "spec.name", "FieldValueRequired"),
        (json!({ "name": "a" }), "spec.name", "FieldValueInvalid"),
        (json!({ "name": "A9" }), "spec.name", "FieldValueInvalid"),
        (json!({ "name": 1 }), "spec.name", "FieldValueTypeInvalid"),
        (json!({ "name": "ab", "count": -1 }), "spec.count", "FieldValueInvalid"),
        (json!({ "name": "ab", "count": 6 }), "spec.count", "FieldValueInvalid"),
        (json!({ "name": "ab", "mode": "Maybe" }), "spec.mode", "FieldValueNotSupported"),
        (json!({ "name": "ab", "port": true }), "spec.port", "FieldValueTypeInvalid"),
        (json!({ "name": "ab", "tags": ["a", "a"] }), "spec.tags[1]", "FieldValueDuplicate"),
        (json!({ "name": "ab", "tags": ["a", "b", "c"] }), "spec.tags", "FieldValueTooMany"),
        (json!({ "name": "ab", "when": "today" }), "spec.when", "FieldValueInvalid"),
    ] {
        let status =
            refused(things.create(&PostParams::default(), &thing("t", spec.clone())).await);
        assert_eq!((status.code, &*status.reason), (422, "Invalid"), "{spec}");
        let details = status.details.expect("details");
        assert_eq!((&*details.kind, &*details.group), ("Thing", "example.com"));
        let causes: Vec<_> =
            details.causes.iter().map(|cause| (&*cause.field, &*cause.reason)).collect();
        assert_eq!(causes, [(field, reason)], "{spec}");
    }
    let good = json!({ "name": "ab", "count": 5, "port": "http", "mode": "On", "tags": ["a"] });
    things.create(&PostParams::default(), &thing("t", good)).await.expect("created");
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec() {
    let client = ApiServer::new().client();
    let spec = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    define(&client, spec).await;
    let things = thing_api(&client);
    let created = things.create(&PostParams::default(), &thing("t", json!({}))).await;
    assert_eq!(created.expect("created").metadata.generation, Some(1));
    let patch = async |patch| {
        let patched = things.patch("t", &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("patched").metadata.generation
    };
    assert_eq!(patch(json!({ "metadata": { "labels": { "a": "b" } } })).await, Some(1));
    assert_eq!(patch(json!({ "status": { "a": 1 } })).await, Some(1));
    assert_eq!(patch(json!({ "spec": { "a": 1 } })).await, Some(2));
    let status = Patch::Merge(json!({ "status": { "a": 1 }, "spec": { "a": 2 } }));
    let patched = things.patch_status("t", &PatchParams::default(), &status).await;
    let patched = patched.expect("patched");
    assert_eq!(patched.metadata.generation, Some(2));
    assert_eq!((&patched.data["spec"]["a"], &patched.data["status"]["a"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_custom_resource_is_not_replaced_without_its_version() {
    let client = ApiServer::new().client();
    define(&client, json!({ "type": "object" })).await;
    let things = thing_api(&client);
    things.create(&PostParams::default(), &thing("t", json!({}))).await.expect("created");
    let status = refused(things.replace("t", &PostParams::default(), &thing("t", json!({}))).await);
    assert_eq!(status.code, 422);
    assert!(status.message.contains("must be specified for an update"), "{status:?}");
}

#[tokio::test]
async fn versions_differ_in_their_schema_alone() {
    let client = ApiServer::new().client();
    let mut json = json!(definition(json!({ "type": "object" })));
    let mut older = json["spec"]["versions"][0].clone();
    older["name"] = json!("v1beta1");
    older["storage"] = json!(false);
    json["spec"]["versions"].as_array_mut().expect("versions").push(older);
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.create(&PostParams::default(), &from(json)).await.expect("a definition");

    let newer = thing_api(&client);
    let mut resource = things();
    resource.version = "v1beta1".into();
    resource.api_version = "example.com/v1beta1".into();
    let older = Api::<DynamicObject>::default_namespaced_with(client, &resource);
    newer.create(&PostParams::default(), &thing("t", json!({}))).await.expect("created");
    let read = older.get("t").await.expect("read");
    assert_eq!(read.types.as_ref().expect("types").api_version, "example.com/v1beta1");
    let mut changed = read;
    changed.labels_mut().insert("a".into(), "b".into());
    older.replace("t", &PostParams::default(), &changed).await.expect("replaced");
    let read = newer.get("t").await.expect("read");
    assert_eq!(read.types.as_ref().expect("types").api_version, "example.com/v1");
    assert_eq!(read.labels()["a"], "b");
}

#[tokio::test]
async fn a_definition_must_be_complete() {
    let definitions = Api::<CustomResourceDefinition>::all(ApiServer::new().client());
    let mut json = json!(definition(json!({ "type": "object" })));
    json["metadata"]["name"] = json!("other.example.com");
    json["spec"]["versions"][0]["storage"] = json!(false);
    let status = refused(definitions.create(&PostParams::default(), &from(json)).await);
    assert_eq!(status.code, 422);
    let causes = status.details.expect("details").causes;
    let fields: Vec<_> = causes.iter().map(|cause| &*cause.field).collect();
    assert_eq!(fields, ["metadata.name", "spec.versions"]);
}

#[tokio::test]
async fn a_version_stays_until_nothing_is_stored_in_it() {
    let client = ApiServer::new().client();
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let mut json = json!(definition(json!({ "type": "object" })));
    definitions.create(&PostParams::default(), &from(json.clone())).await.expect("a definition");
    let mut newer = json["spec"]["versions"][0].clone();
    newer["name"] = json!("v2");
    json["spec"]["versions"][0]["storage"] = json!(false);
    let old = json["spec"]["versions"][0].clone();
    let patch = async |versions: Value| {
        let patch = Patch::Merge(json!({ "spec": { "versions": versions } }));
        definitions.patch("things.example.com", &PatchParams::default(), &patch).await
    };
    patch(json!([old, newer])).await.expect("patched");
    let status = refused(patch(json!([newer])).await);
    let causes = status.details.expect("details").causes;
    assert_eq!((status.code, &*causes[0].field), (422, "status.storedVersions[0]"));

    let write = async |stored: Value| {
        let patch = Patch::Merge(json!({ "status": { "storedVersions": stored } }));
        definitions.patch_status("things.example.com", &PatchParams::default(), &patch).await
    };
    assert_eq!(refused(write(json!(["v1"])).await).code, 422);
    let status = write(json!(["v2"])).await.expect("patched").status.expect("a status");
    assert_eq!(status.stored_versions, Some(vec!["v2".into()]));
    patch(json!([newer])).await.expect("patched");

    let scope = Patch::Merge(json!({ "spec": { "scope": "Cluster" } }));
    let params = PatchParams::default();
    let status = refused(definitions.patch("things.example.com", &params, &scope).await);
    assert!(status.message.contains("spec.scope"), "{status:?}");
}

#[tokio::test]
async fn a_schema_must_be_structural() {
    let definitions = Api::<CustomResourceDefinition>::all(ApiServer::new().client());
    let create = async |spec: &Value| {
        let sent = json!(definition(spec.clone()));
        // The types of Rust have no place for all of these.
        let mut sent: DynamicObject = from(sent);
        sent.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
            spec.clone();
        let definitions = Api::<DynamicObject>::all_with(
            definitions.clone().into_client(),
            &ApiResource::erase::<CustomResourceDefinition>(&()),
        );
        definitions.create(&PostParams::default(), &sent).await
    };
    let text = json!({ "type": "string" });
    for (spec, field) in [
        (json!({}), "type"),
        (json!({ "type": "object", "properties": { "a": {} } }), "properties[a].type"),
        (json!({ "type": "array", "items": {} }), "items.type"),
        (
            json!({ "type": "object", "properties": { "a": text }, "additionalProperties": text }),
            "additionalProperties",
        ),
        (json!({ "type": "array", "items": text, "uniqueItems": true }), "uniqueItems"),
        (json!({ "type": "string", "anyOf": [{ "type": "string" }] }), "anyOf[0].type"),
        (json!({ "type": "string", "not": { "default": "a" } }), "not.default"),
        (
            json!({ "type": "object", "oneOf": [{ "properties": { "a": { "minLength": 1 } } }] }),
            "properties[a]",
        ),
    ] {
        let status = refused(create(&spec).await);
        assert_eq!(status.code, 422, "{spec}");
        let causes = status.details.expect("details").causes;
        let fields: Vec<_> = causes.iter().map(|cause| &*cause.field).collect();
        let root = "spec.versions[0].schema.openAPIV3Schema.properties[spec]";
        assert_eq!(fields, [format!("{root}.{field}")], "{spec}");
    }
    let status = refused(create(&json!({ "type": "string", "format": "uuid" })).await);
    assert_eq!(status.code, 501);
    assert!(status.message.contains("\"uuid\""), "{status:?}");
    let good = json!({
        "type": "object",
        "properties": {
            "port": {
                "x-kubernetes-int-or-string": true,
                "anyOf": [{ "type": "integer" }, { "type": "string" }],
            },
            "count": { "type": "integer", "format": "uint32" },
        },
        "oneOf": [{ "required": ["port"] }, { "properties": { "count": { "minimum": 1 } } }],
    });
    create(&good).await.expect("a definition");
}

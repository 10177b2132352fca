//! Reads a manifest of permissions, for the tests of all examples with one.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use requeue_testkit::Access;
use serde::de::DeserializeOwned;

/// Returns the objects of one kind in the manifest.
pub(crate) fn objects<T: DeserializeOwned>(manifest: &str, kind: &str) -> Vec<T> {
    let documents =
        manifest.split("\n---\n").filter(|text| text.contains(&format!("kind: {kind}\n")));
    documents
        .filter_map(|text| serde_saphyr::from_str::<serde_json::Value>(text).ok())
        .filter(|object| object["kind"] == kind)
        .map(|object| serde_json::from_value(object).expect("an object of the kind"))
        .collect()
}

/// Returns the permissions that the manifest gives to the controller, whose role is in `namespace`.
pub(crate) fn permissions(manifest: &str, controller: &str, namespace: &str) -> Access {
    let rules = |rules: Option<Vec<PolicyRule>>| rules.unwrap_or_default();
    let of_cluster = objects::<ClusterRole>(manifest, "ClusterRole").into_iter();
    let of_namespace = objects::<Role>(manifest, "Role").into_iter();
    Access::user(controller)
        .allow(of_cluster.flat_map(|role| rules(role.rules)))
        .allow_in(namespace, of_namespace.flat_map(|role| rules(role.rules)))
}

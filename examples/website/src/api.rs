//! The custom resource `Website`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A page on the web.
#[derive(CustomResource, Deserialize, Serialize, Clone, Debug, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Website",
    namespaced,
    status = "WebsiteStatus",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas")
)]
pub struct WebsiteSpec {
    /// The page, as HTML.
    pub content: String,
    /// The number of pods that serve the page.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

fn one() -> i32 {
    1
}

/// The observed state of a website.
#[derive(Deserialize, Serialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebsiteStatus {
    /// The generation that this status describes.
    pub observed_generation: Option<i64>,
    /// The number of pods that are ready and serve the current page.
    pub ready_replicas: i32,
    /// The only condition of this controller is `Ready`.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Returns the schema of a list with one entry for each type, so that other controllers can add their conditions.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "properties": {
                "type": { "type": "string" },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": { "type": "integer", "format": "int64" },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": { "type": "string" },
                "message": { "type": "string" },
            },
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        },
    })
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::{Value, to_value};

    use super::*;

    #[test]
    fn the_manifest_is_what_the_program_prints() {
        let manifest = include_str!("../manifests/crd.yaml");
        let manifest: Value = serde_saphyr::from_str(manifest).expect("the manifest is YAML");
        let printed = to_value(Website::crd()).expect("the definition is JSON");
        assert_eq!(manifest, printed, "cargo run -p website-controller crd");
    }
}

//! The parts of a CustomResourceDefinition that its kinds need.

use std::sync::Arc;

use serde_json::Value;

/// A CustomResourceDefinition. All versions of its kind share it.
#[derive(Clone, Debug)]
pub(crate) struct Definition(Arc<Value>);

impl Definition {
    pub(crate) fn new(definition: Arc<Value>) -> Self {
        Self(definition)
    }

    /// Returns the resource version of the definition object.
    pub(crate) fn version_of_definition(&self) -> u64 {
        text(&self.0["metadata"]["resourceVersion"]).parse().unwrap_or(0)
    }

    /// Returns true if another state of the definition defines the same kinds.
    pub(crate) fn is_equal_to(&self, other: &Value) -> bool {
        let is_equal = |pointer| self.0.pointer(pointer) == other.pointer(pointer);
        ["/metadata/uid", "/spec", "/status/acceptedNames"].into_iter().all(is_equal)
    }

    pub(crate) fn list_kind(&self) -> String {
        text(&self.0["spec"]["names"]["listKind"])
    }

    pub(crate) fn storage_version(&self) -> &str {
        let mut versions = versions(&self.0);
        let version = versions.find(|version| version["storage"] == true);
        version.and_then(|version| version["name"].as_str()).unwrap_or_default()
    }

    /// Returns the schema of one version of the kind.
    pub(crate) fn schema(&self, version: &str) -> &Value {
        &self.version(version)["schema"]["openAPIV3Schema"]
    }

    /// Returns the entry of the subresource `scale`, which contains the paths of its
    /// fields.
    pub(crate) fn scale(&self, version: &str) -> &Value {
        &self.version(version)["subresources"]["scale"]
    }

    /// Returns the paths of the fields by which objects can be selected, without the
    /// leading dot.
    pub(crate) fn selectable_fields(&self, version: &str) -> Vec<String> {
        let fields = self.version(version)["selectableFields"].as_array();
        let fields = fields.into_iter().flatten();
        fields.map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned()).collect()
    }

    fn version(&self, name: &str) -> &Value {
        versions(&self.0).find(|version| version["name"] == *name).unwrap_or(&Value::Null)
    }
}

pub(crate) fn versions(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["spec"]["versions"].as_array().into_iter().flatten()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

//! Reads and applies manifests as `kubectl` does.

use kube::api::{DynamicObject, GroupVersionKind, Patch, PatchParams, ValidationDirective};
use kube::{Api, Client, ResourceExt, discovery};

/// Returns the objects of a manifest, in order.
///
/// # Panics
/// Panics if the manifest is not YAML.
pub fn objects(manifest: &str) -> Vec<DynamicObject> {
    match serde_saphyr::from_multiple(manifest) {
        Ok(objects) => objects,
        Err(err) => panic!("the manifest is not YAML: {err}"),
    }
}

/// Applies a manifest like `kubectl apply --server-side --validate=strict -f`.
///
/// # Panics
/// Panics if the server refuses an object or does not know one of its fields.
pub async fn apply(client: Client, manifest: &str) {
    for object in objects(manifest) {
        let name = object.name_any();
        let applied = apply_one(client.clone(), &object).await;
        applied.unwrap_or_else(|err| panic!("{name}: {err}"));
    }
}

async fn apply_one(client: Client, object: &DynamicObject) -> Result<(), kube::Error> {
    let kind = object.types.as_ref().map(GroupVersionKind::try_from);
    let Some(Ok(kind)) = kind else { panic!("{} has no valid kind", object.name_any()) };
    let (kind, _) = discovery::pinned_kind(&client, &kind).await?;
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client, &namespace, &kind),
        None => Api::all_with(client, &kind),
    };
    let strict = Some(ValidationDirective::Strict);
    let params = PatchParams { field_validation: strict, ..PatchParams::apply("kubectl") };
    api.patch(&object.name_any(), &params, &Patch::Apply(object)).await?;
    Ok(())
}

//! Applies the example's manifests as `kubectl` does.

use kube::api::{DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::conditions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt, discovery};

pub(crate) async fn install(client: &Client) {
    apply(client.clone(), manifest!("manifests/crd.yaml")).await;
    let established = conditions::is_crd_established();
    await_condition(Api::all(client.clone()), "websites.example.com", established)
        .await
        .expect("the kind is established");
    apply(client.clone(), manifest!("manifests/rbac.yaml")).await;
    apply(client.clone(), manifest!("manifests/deployment.yaml")).await;
}

pub(crate) fn objects(manifest: &str) -> Vec<DynamicObject> {
    serde_saphyr::from_multiple(manifest).expect("the manifest is YAML")
}

/// Does the same as `kubectl apply --server-side -f`.
pub(crate) async fn apply(client: Client, manifest: &str) {
    for object in objects(manifest) {
        let types = object.types.as_ref().expect("the object has a kind");
        let kind = GroupVersionKind::try_from(types).expect("a valid kind");
        let (kind, _) = discovery::pinned_kind(&client, &kind).await.expect("the kind is served");
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        let (name, params) = (object.name_any(), PatchParams::apply("kubectl"));
        let applied = api.patch(&name, &params, &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|err| panic!("{name}: {err}"));
    }
}

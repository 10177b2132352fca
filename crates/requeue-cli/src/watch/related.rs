//! `--owns` and `--all-on`: runs commands when other objects change.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::discovery::Scope;
use requeue_kube::ObjectKey;
use requeue_kube::watch::{ChangeKind, Observation, Watch};

use super::access::Access;
use super::enqueue::Enqueuer;
use super::events::{Source, Step};
use super::resource::Resource;
use crate::args::names::Selected;
use crate::exit::Refusal;

/// Only the metadata of related objects is fetched.
type Metadata = PartialObjectMeta<DynamicObject>;

/// The resources of `--owns` and `--all-on`.
pub(crate) struct Related {
    owned: Vec<Resource>,
    for_all: Vec<(Resource, ListParams)>,
}

impl Related {
    pub(crate) async fn find_resources(
        access: &Access,
        owns: &[String],
        all_on: &[Selected],
    ) -> Result<Self, Refusal> {
        let (mut owned, mut for_all) = (Vec::new(), Vec::new());
        for resource in owns {
            owned.push(access.find_listable(resource, &ListParams::default()).await?);
        }
        for (resource, name) in all_on {
            let field_selector = name.as_ref().map(|name| format!("metadata.name={name}"));
            let params = ListParams { field_selector, ..ListParams::default() };
            for_all.push((access.find_listable(resource, &params).await?, params));
        }
        Ok(Self { owned, for_all })
    }

    /// Starts a task for each of these resources. `owners` is the resource for whose objects commands run.
    pub(crate) fn follow_all(self, access: &Access, enqueuer: &Arc<Enqueuer>, owners: &Resource) {
        for resource in self.owned {
            let source = access.event_source(&resource, &ListParams::default());
            let reason = format!("{} changed", resource.api.kind);
            tokio::spawn(follow_owned(source, Arc::clone(enqueuer), owners.clone(), reason));
        }
        for (resource, params) in self.for_all {
            let source = access.event_source(&resource, &params);
            let reason = format!("{} changed", resource.api.kind);
            tokio::spawn(follow_for_all(source, Arc::clone(enqueuer), reason));
        }
    }
}

/// Adds the keys of the owners of each object that changes.
async fn follow_owned(
    source: Source<Metadata>,
    enqueuer: Arc<Enqueuer>,
    owners: Resource,
    reason: String,
) {
    let sight = |object: Metadata| {
        // An owner is in the same namespace as the object, or has cluster scope.
        let namespace = object.metadata.namespace.as_deref();
        let references = object.metadata.owner_references.iter().flatten();
        let keys: Vec<_> = references.filter_map(|it| owner_key(it, namespace, &owners)).collect();
        Observation::from_meta(&object.metadata).concerning(keys)
    };
    each_change(source, &enqueuer, sight, |owners| enqueuer.add_concerned(owners, &reason)).await;
}

/// Adds the keys of all objects when an object of this source changes.
async fn follow_for_all(source: Source<Metadata>, enqueuer: Arc<Enqueuer>, reason: String) {
    let sight = |object: Metadata| Observation::from_meta(&object.metadata);
    each_change(source, &enqueuer, sight, |_| enqueuer.add_all(|_| true, &reason)).await;
}

/// Calls `changed` once for each event with changes. Passes the keys of the affected objects, each key once. Commands
/// may start while the keys of a long list are still being added, so a key that comes twice would run twice. Objects
/// of the first list, and unchanged objects of later lists, are not changes.
async fn each_change(
    source: Source<Metadata>,
    enqueuer: &Enqueuer,
    sight: impl Fn(Metadata) -> Observation,
    changed: impl Fn(BTreeSet<ObjectKey>),
) {
    let mut watch = Watch::new();
    let take = |step: Step<_>| {
        let mut changes = step.shown_changes(&mut watch, &sight);
        changes.retain(|change| !matches!(change.kind, ChangeKind::Listed | ChangeKind::Unchanged));
        // An event without changes must not add all objects.
        if !changes.is_empty() {
            let keys: BTreeSet<_> = changes.into_iter().flat_map(|change| change.targets).collect();
            changed(keys);
        }
    };
    source.for_each_step(&enqueuer.runner, take).await;
}

/// Returns the key of the owner that `reference` names, for an object in this namespace. Returns `None` if the owner
/// does not have the kind `owners`. The version may differ.
fn owner_key(
    reference: &OwnerReference,
    namespace: Option<&str>,
    owners: &Resource,
) -> Option<ObjectKey> {
    let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
    let is_one = reference.kind == owners.api.kind && group == owners.api.group;
    // An owner of cluster scope has no namespace, even if its object has one.
    let namespace = namespace.filter(|_| owners.scope == Scope::Namespaced);
    is_one.then(|| ObjectKey::new(namespace, &reference.name))
}

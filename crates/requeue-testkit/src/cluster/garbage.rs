//! The controllers that complete deletions: of dependents, of the contents of namespaces, and of
//! custom resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::delete::{Deletion, FOREGROUND, ORPHAN};
use super::{Cluster, select};
use crate::crd::{self, CUSTOM_RESOURCES};
use crate::kind::{Kind, Part};
use crate::metadata;
use crate::patch::{self, Ownership};
use crate::request::Propagation;
use crate::store::Key;

/// For each uid, the keys of the objects that name it as their owner. The flag is true if the
/// dependent blocks the deletion of the owner.
type Dependents = BTreeMap<String, BTreeSet<(Key, bool)>>;

/// The conditions of a namespace whose contents are deleted, each with its type, reason and
/// message.
const DELETED: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

/// One change that a controller makes.
enum Step {
    Delete(Key, Propagation),
    /// Removes the owner references with these uids from an object.
    RemoveOwners(Key, Vec<Value>),
    RemoveFinalizer(Key, &'static str),
    /// Removes the finalizer from the spec of an empty namespace.
    Finalize(Key),
}

/// The state of the object that an owner reference names.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Exists,
    /// The owner is being deleted in the foreground, and is kept until this dependent is deleted.
    WaitsForDependents,
    Absent,
    /// The state cannot be determined, because the server does not have the kind, or because the
    /// namespace of the owner is unknown.
    Unknown,
}

impl Cluster {
    /// Deletes the dependents of deleted owners. Also deletes the contents of namespaces, and the
    /// custom resources of definitions, that are being deleted.
    ///
    /// Returns the number of objects that were deleted or changed. In a real cluster, controllers
    /// make these changes some time after the deletion of the owner.
    pub fn collect_garbage(&mut self, now: Timestamp) -> usize {
        let mut count = 0;
        while self.has_garbage {
            self.has_garbage = false;
            let steps = self.steps();
            for step in steps {
                count += usize::from(self.take_step(now, step));
            }
        }
        count
    }

    /// Executes a step. Returns true if it changed an object.
    fn take_step(&mut self, now: Timestamp, step: Step) -> bool {
        let before = self.store.version();
        match step {
            Step::Delete(key, propagation) => {
                let Some(kind) = self.kind_of_key(&key) else { return false };
                let deletion = Deletion::with(propagation);
                // The error is ignored, because an earlier step may have removed the object.
                let _ = self.delete_object(now, &kind, &key, &deletion);
            }
            Step::RemoveOwners(key, uids) => self.edit(&key, |object| {
                let kept = owners(object).iter().filter(|owner| !uids.contains(&owner["uid"]));
                let kept = kept.cloned().collect();
                set_list(object, "ownerReferences", kept);
            }),
            Step::RemoveFinalizer(key, finalizer) => self.edit(&key, |object| {
                let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
                let kept = finalizers.filter(|it| **it != *finalizer).cloned().collect();
                set_list(object, "finalizers", kept);
            }),
            Step::Finalize(key) => {
                self.report_deletion(now, &key);
                self.edit(&key, |namespace| {
                    if let Some(spec) = namespace["spec"].as_object_mut() {
                        spec.remove("finalizers");
                    }
                });
            }
        }
        let changed = self.store.version() != before;
        self.has_garbage |= changed;
        changed
    }

    /// Writes the conditions of a namespace whose contents are deleted.
    fn report_deletion(&mut self, now: Timestamp, key: &Key) {
        let Some(old) = self.store.get(key).filter(|it| it["status"]["conditions"].is_null())
        else {
            return;
        };
        let Some(kind) = self.kind_of_key(key) else { return };
        let time = metadata::time(now);
        let conditions = DELETED.map(|(condition, reason, message)| {
            json!({
                "type": condition,
                "status": "False",
                "lastTransitionTime": time,
                "reason": reason,
                "message": message,
            })
        });
        let mut new = Value::clone(old);
        new["status"]["conditions"] = json!(conditions);
        let ownership = Ownership {
            manager: "kube-controller-manager".into(),
            api_version: kind.api_version(),
            subresource: Some("status".into()),
            time,
            reset: kind.reset_fields(Part::Status),
        };
        let managed_fields = patch::own_update(&kind, Some(old), &new, &ownership);
        metadata::set_managed_fields(&mut new, managed_fields);
        self.store.put(key.clone(), new);
    }

    /// Changes an object. If it is being deleted and nothing keeps it any longer, removes it.
    fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        let Some(old) = self.store.get(key) else { return };
        let mut new = Value::clone(old);
        change(&mut new);
        if metadata::is_ready_to_go(&new) {
            self.remove_object(key);
        } else if new != **old {
            self.store.put(key.clone(), new);
        }
    }

    /// Returns the steps that the controllers must execute in the present state.
    fn steps(&self) -> Vec<Step> {
        let dependents = self.dependents();
        let mut steps = Vec::new();
        for (key, object) in self.store.objects() {
            let meta = &object["metadata"];
            let is_deleted = !meta["deletionTimestamp"].is_null();
            let is_core = key.group.is_empty();
            let is_namespace = is_core && key.plural == "namespaces";
            if is_deleted && is_namespace && !object["spec"]["finalizers"].is_null() {
                self.add_namespace_steps(key, &mut steps);
            } else if is_deleted && has_finalizer(object, CUSTOM_RESOURCES) {
                self.add_definition_steps(key, object, &mut steps);
            } else if is_deleted && has_finalizer(object, ORPHAN) {
                Self::add_orphan_steps(key, object, &dependents, &mut steps);
            } else if is_deleted && has_finalizer(object, FOREGROUND) {
                let uid = meta["uid"].as_str().unwrap_or_default();
                let mut blocking = dependents.get(uid).into_iter().flatten();
                if !blocking.any(|(_, blocks)| *blocks) {
                    steps.push(Step::RemoveFinalizer(key.clone(), FOREGROUND));
                }
            } else if !is_deleted && is_collected(key) {
                steps.extend(self.owner_step(key, object, &dependents));
            }
        }
        steps
    }

    /// Returns the dependents of each uid, with a flag that is true if they block the deletion of
    /// their owner.
    fn dependents(&self) -> Dependents {
        let mut dependents = Dependents::new();
        for (key, object) in self.store.objects().iter().filter(|(key, _)| is_collected(key)) {
            for owner in owners(object) {
                let uid = owner["uid"].as_str().unwrap_or_default().to_owned();
                let blocks = owner["blockOwnerDeletion"] == true;
                dependents.entry(uid).or_default().insert((key.clone(), blocks));
            }
        }
        dependents
    }

    fn owner_step(&self, key: &Key, object: &Value, dependents: &Dependents) -> Option<Step> {
        let states: Vec<_> =
            owners(object).iter().map(|owner| self.state_of_owner(key, owner)).collect();
        if states.is_empty() || states.contains(&Owner::Unknown) {
            return None;
        }
        let is_gone = |state: &Owner| *state != Owner::Exists;
        if !states.iter().any(is_gone) {
            return None;
        }
        if states.contains(&Owner::Exists) {
            // Another owner still exists, so the object is kept. Only the references to deleted
            // owners are removed.
            let gone = owners(object).iter().zip(&states).filter(|(_, state)| is_gone(state));
            let gone = gone.map(|(owner, _)| owner["uid"].clone()).collect();
            return Some(Step::RemoveOwners(key.clone(), gone));
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let has_dependents = dependents.get(uid).is_some_and(|them| !them.is_empty());
        let propagation = if states.contains(&Owner::WaitsForDependents) && has_dependents {
            Propagation::Foreground
        } else if has_finalizer(object, ORPHAN) {
            Propagation::Orphan
        } else if has_finalizer(object, FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        Some(Step::Delete(key.clone(), propagation))
    }

    fn state_of_owner(&self, dependent: &Key, owner: &Value) -> Owner {
        let api_version = owner["apiVersion"].as_str().unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kind =
            self.kinds.values().find(|kind| kind.group == group && owner["kind"] == *kind.kind);
        let Some(kind) = kind else { return Owner::Unknown };
        if kind.is_namespaced && dependent.namespace().is_none() {
            // An owner reference contains no namespace. The owner of a cluster-scoped object is
            // therefore unknown if its kind is namespaced.
            return Owner::Unknown;
        }
        let namespace = if kind.is_namespaced { dependent.namespace() } else { None };
        let name = owner["name"].as_str().unwrap_or_default();
        let key = Key::new(kind.storage_group(), &kind.plural, namespace, name);
        match self.store.get(&key) {
            Some(object) if object["metadata"]["uid"] == owner["uid"] => {
                let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
                if is_deleted && has_finalizer(object, FOREGROUND) {
                    Owner::WaitsForDependents
                } else {
                    Owner::Exists
                }
            }
            _ => Owner::Absent,
        }
    }

    fn add_orphan_steps(key: &Key, object: &Value, dependents: &Dependents, steps: &mut Vec<Step>) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        for (dependent, _) in dependents.get(uid).into_iter().flatten() {
            steps.push(Step::RemoveOwners(dependent.clone(), vec![json!(uid)]));
        }
        steps.push(Step::RemoveFinalizer(key.clone(), ORPHAN));
    }

    fn add_namespace_steps(&self, key: &Key, steps: &mut Vec<Step>) {
        let contents = self.store.objects().keys();
        let contents: Vec<_> =
            contents.filter(|it| it.namespace() == Some(key.name())).cloned().collect();
        if contents.is_empty() {
            steps.push(Step::Finalize(key.clone()));
        }
        let waits = |key: &Key| {
            let found = self.store.get(key);
            found.is_some_and(|found| !found["metadata"]["deletionTimestamp"].is_null())
        };
        let contents = contents.into_iter().filter(|key| !waits(key));
        steps.extend(contents.map(|key| Step::Delete(key, Propagation::Background)));
    }

    fn add_definition_steps(&self, key: &Key, object: &Value, steps: &mut Vec<Step>) {
        let (group, plural) = crd::resource_of(object);
        let mut is_empty = true;
        for (key, found) in select(self.store.objects(), group, plural, None) {
            is_empty = false;
            if found["metadata"]["deletionTimestamp"].is_null() {
                steps.push(Step::Delete(key.clone(), Propagation::Background));
            }
        }
        if is_empty {
            steps.push(Step::RemoveFinalizer(key.clone(), CUSTOM_RESOURCES));
        }
    }

    fn kind_of_key(&self, key: &Key) -> Option<Arc<Kind>> {
        let mut kinds = self.kinds.values();
        kinds.find(|kind| kind.group == key.group && kind.plural == key.plural).cloned()
    }

    /// Adds the kinds that a definition defines, and removes the versions that it no longer
    /// defines.
    ///
    /// If the write of the definition does not change the kinds, they are kept. Watches can then
    /// continue from a version before that write.
    pub(super) fn add_definition(&mut self, definition: &Arc<Value>) {
        let mut known = self.kinds.values().filter_map(|kind| kind.definition.as_ref());
        if known.any(|known| known.is_equal_to(definition)) {
            return;
        }
        self.remove_definition(definition);
        for kind in crd::kinds(definition) {
            self.kinds.insert(kind.key(), Arc::new(kind));
        }
    }

    pub(super) fn remove_definition(&mut self, definition: &Value) {
        let (group, plural) = crd::resource_of(definition);
        self.kinds.retain(|_, kind| kind.group != group || kind.plural != plural);
    }
}

/// Returns true if the garbage collector handles objects with this key. It ignores events.
fn is_collected(key: &Key) -> bool {
    !(key.group.is_empty() && key.plural == "events")
}

fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.into_iter().flatten().any(|it| it == finalizer)
}

fn set_list(object: &mut Value, field: &str, list: Vec<Value>) {
    let Some(meta) = object["metadata"].as_object_mut() else { return };
    if list.is_empty() {
        meta.remove(field);
    } else {
        meta.insert(field.into(), json!(list));
    }
}

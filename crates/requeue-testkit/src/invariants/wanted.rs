//! The invariant that no process deletes an object that its owner still needs.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{ObjectId, Verb, controller, text, uid};
use super::{Checked, Write};

/// Finds a deletion of an object that its controller then creates again.
///
/// The controller wanted the object, if it creates the object again while the generation of the
/// owner is the same.
#[derive(Default)]
pub(super) struct Wanted {
    /// The generation of each existing object, by uid.
    generations: BTreeMap<String, i64>,
    deleted: BTreeMap<Role, Deletion>,
}

/// The properties that an object and its replacement share: the owner, the kind, and the name or
/// the prefix of the generated name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Role {
    owner: String,
    plural: String,
    namespace: String,
    name: String,
}

struct Deletion {
    object: ObjectId,
    generation: i64,
}

impl Wanted {
    pub(super) fn check_write(&mut self, write: &Write) -> Checked {
        let checked = self.check_roles(write);
        match (&write.before, &write.after) {
            (_, Some(after)) if after["metadata"]["deletionTimestamp"].is_null() => {
                let generation = after["metadata"]["generation"].as_i64().unwrap_or_default();
                self.generations.insert(uid(after).to_owned(), generation);
            }
            (_, Some(gone)) | (Some(gone), None) => _ = self.generations.remove(uid(gone)),
            (None, None) => {}
        }
        checked
    }

    pub(super) fn note_removal(&mut self, object: &Value) {
        self.generations.remove(uid(object));
    }

    fn check_roles(&mut self, write: &Write) -> Checked {
        if !write.writer.is_process() {
            return Ok(());
        }
        if write.verb == Verb::Delete {
            let Some(before) = &write.before else { return Ok(()) };
            if let Some(role) = role_of(&write.object, before)
                && let Some(&generation) = self.generations.get(&role.owner)
            {
                let deletion = Deletion { object: write.object.clone(), generation };
                self.deleted.insert(role, deletion);
            }
            return Ok(());
        }
        if !write.has_created() {
            return Ok(());
        }
        let Some(after) = &write.after else { return Ok(()) };
        let Some(role) = role_of(&write.object, after) else { return Ok(()) };
        let generation = self.generations.get(&role.owner).copied();
        let deletion = self.deleted.remove(&role);
        match deletion.filter(|deletion| Some(deletion.generation) == generation) {
            Some(deletion) => Err(format!(
                "{} was deleted, and {} creates {} again for the same generation of its owner",
                deletion.object, write.writer, write.object
            )),
            None => Ok(()),
        }
    }
}

fn role_of(id: &ObjectId, object: &Value) -> Option<Role> {
    let owner = text(&controller(object)?["uid"]).to_owned();
    let prefix = text(&object["metadata"]["generateName"]);
    let name = if prefix.is_empty() { &id.name } else { prefix };
    let (plural, namespace) = (id.plural.clone(), id.namespace.clone());
    Some(Role { owner, plural, namespace, name: name.to_owned() })
}

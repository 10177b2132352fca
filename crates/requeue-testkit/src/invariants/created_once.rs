//! The invariant that no object is created twice.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{ObjectId, Verb, controller, text, uid};
use super::{Checked, Write};

/// Finds a creation with a generated name that repeats an earlier creation.
///
/// A server rejects a second object with the same name. With generated names, it
/// accepts both objects. This happens, for example, if a client repeats a creation
/// whose answer was lost.
#[derive(Default)]
pub(super) struct CreatedOnce {
    /// The existing objects with generated names. The map is indexed by the request
    /// that created them.
    live: BTreeMap<Asked, Created>,
}

/// The uid of the controlling owner, and the body of the creation.
type Asked = (String, String);

struct Created {
    object: ObjectId,
    uid: String,
}

impl CreatedOnce {
    pub(super) fn check_write(&mut self, write: &Write) -> Checked {
        let Some(after) = &write.after else { return Ok(()) };
        let prefix = text(&write.body["metadata"]["generateName"]);
        let is_named = !text(&write.body["metadata"]["name"]).is_empty();
        let is_generated = write.verb == Verb::Create && !prefix.is_empty() && !is_named;
        if !is_generated || !write.writer.is_process() || write.object.plural == "events" {
            return Ok(());
        }
        let owner = controller(&write.body).map(|owner| text(&owner["uid"])).unwrap_or_default();
        let asked = (owner.to_owned(), write.body.to_string());
        let created = Created { object: write.object.clone(), uid: uid(after).to_owned() };
        match self.live.insert(asked, created) {
            Some(first) => Err(format!(
                "{} creates {} although {} exists: both come from the same request body",
                write.writer, write.object, first.object
            )),
            None => Ok(()),
        }
    }

    /// Removes an object that no longer exists.
    pub(super) fn note_removal(&mut self, object: &Value) {
        self.live.retain(|_, live| live.uid != uid(object));
    }
}

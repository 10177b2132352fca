//! No write with a stale version.

use serde_json::Value;

use super::object::Verb;
use super::{Checked, Write};

/// The fields that a server sets by itself, so that no write can lose them.
const SET_BY_SERVER: [&str; 6] =
    ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"];

/// Finds writes without a version that overwrite a change which the writer has not seen.
///
/// A write with a `resourceVersion` is safe: the server compares it. A server-side apply only changes the fields of its
/// manager.
#[derive(Default)]
pub(super) struct CurrentVersion;

impl CurrentVersion {
    pub(super) fn check_write(&mut self, write: &Write) -> Checked {
        if !matches!(write.verb, Verb::Replace | Verb::Patch) || !write.writer.is_process() {
            return Ok(());
        }
        let has_version = !write.body["metadata"]["resourceVersion"].is_null();
        let (Some(before), Some(seen)) = (&write.before, &write.seen) else { return Ok(()) };
        // A JSON patch is an array. Its tests are its preconditions.
        if has_version || !write.body.is_object() {
            return Ok(());
        }
        let is_replace = write.verb == Verb::Replace;
        let lost = match write.subresource.as_deref() {
            Some("status") => find_lost(
                "status",
                &write.body["status"],
                &before["status"],
                &seen["status"],
                is_replace,
            ),
            Some(_) => None,
            None => {
                // A write of the object does not change the status of a kind with this subresource.
                let mut body = write.body.clone();
                body.as_object_mut().map(|body| body.remove("status"));
                find_lost("", &body, before, seen, is_replace)
            }
        };
        match lost {
            Some(field) => Err(format!(
                "{} writes {} without a resourceVersion, and overwrites {field}, which another client has changed \
                 since the process read the object",
                write.writer, write.object
            )),
            None => Ok(()),
        }
    }
}

/// Returns the first field that has changed since `seen`, and that the write sets to another value.
///
/// A field that a replacement does not contain is removed. Other writes leave it unchanged.
fn find_lost(
    path: &str,
    written: &Value,
    before: &Value,
    seen: &Value,
    is_replace: bool,
) -> Option<String> {
    if before == seen {
        return None;
    }
    match (written, before) {
        (Value::Object(written), Value::Object(current)) => {
            let fields = current.iter().filter(|(name, _)| {
                !SET_BY_SERVER.contains(&name.as_str()) && (!path.is_empty() || *name != "status")
            });
            let mut lost = fields.filter_map(|(name, now)| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match written.get(name) {
                    Some(written) => find_lost(&path, written, now, &seen[name], is_replace),
                    None if is_replace && *now != seen[name] => Some(path),
                    None => None,
                }
            });
            lost.next()
        }
        (written, before) if written == before => None,
        _ => Some(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_write_loses_only_changes_that_it_contradicts() {
        let seen = json!({ "metadata": { "annotations": {} }, "spec": { "a": 1, "b": 1 } });
        let now =
            json!({ "metadata": { "annotations": { "x": "1" } }, "spec": { "a": 2, "b": 1 } });
        let lost = |written: Value, replaces| find_lost("", &written, &now, &seen, replaces);
        assert_eq!(lost(json!({ "spec": { "b": 5 } }), false), None);
        assert_eq!(lost(json!({ "spec": { "a": 2 } }), false), None);
        assert_eq!(lost(json!({ "spec": { "a": 5 } }), false).as_deref(), Some("spec.a"));
        let replaced = json!({ "metadata": {}, "spec": { "a": 2, "b": 5 } });
        assert_eq!(lost(replaced, true).as_deref(), Some("metadata.annotations"));
    }
}

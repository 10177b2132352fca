//! The invariant that no write uses a stale version.

use serde_json::Value;

use super::object::Verb;
use super::{Checked, Write};

/// The fields that only the server sets, so that no write can overwrite them.
const SET_BY_SERVER: [&str; 6] =
    ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"];

/// Finds a write without a resource version that overwrites a change which the writer has not
/// received.
///
/// A write with a `resourceVersion` is safe, because the server compares the version. A server-side
/// apply is also safe, because it changes only the fields of its manager.
#[derive(Default)]
pub(super) struct CurrentVersion;

impl CurrentVersion {
    pub(super) fn check_write(&mut self, write: &Write) -> Checked {
        if !matches!(write.verb, Verb::Replace | Verb::Patch) || !write.writer.is_process() {
            return Ok(());
        }
        let has_version = !write.body["metadata"]["resourceVersion"].is_null();
        let (Some(before), Some(seen)) = (&write.before, &write.seen) else { return Ok(()) };
        // The body of a JSON patch is an array. Its `test` operations can serve as preconditions,
        // so it is not checked.
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
                // If the kind has a status subresource, this write does not change the status. The
                // status is therefore not compared.
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

/// Returns the first field that another client has changed since the state `seen`, and that this
/// write overwrites.
///
/// A replacement removes the fields that it does not contain. Other writes leave these fields
/// unchanged.
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

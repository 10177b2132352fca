//! Converts Events between their two forms. The server stores an Event once, in the form
//! of the core group.

use serde_json::{Value, json};

/// The fields whose names differ: the name in the core group, and the name in
/// `events.k8s.io`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts an Event from the form of the core group to that of `events.k8s.io`.
pub(crate) fn to_new(event: &Value) -> Value {
    convert(event, "events.k8s.io/v1", |(old, new)| (old, new))
}

/// Converts an Event from the form of `events.k8s.io` to that of the core group.
pub(crate) fn to_core(event: &Value) -> Value {
    convert(event, "v1", |(old, new)| (new, old))
}

fn convert(
    event: &Value,
    api_version: &str,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    let mut event = event.clone();
    if let Some(fields) = event.as_object_mut() {
        for (from, to) in NAMES.map(direction) {
            if let Some(value) = fields.remove(from) {
                fields.insert(to.into(), value);
            }
        }
        fields.insert("apiVersion".into(), json!(api_version));
    }
    event
}

//! Replaces the values that a server chooses itself, so that the answers of two servers can be compared.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::generator::Step;
use crate::runner::Answer;

/// Everything that is replaced before the comparison, each with the reason. Nothing else is masked.
pub(crate) const RULES: [(&str, &str); 12] = [
    (
        "resource versions of objects",
        "Other sequences write at the same time. Compared: equality and order.",
    ),
    (
        "resource versions of lists, bookmarks",
        "As above. Compared: the last version of the sequence at or before it.",
    ),
    (
        "resource versions of lists at or after a version",
        "The real server reads its cache, which may be older. Compared: the objects, up to 20 times.",
    ),
    ("uids", "They are random. Compared: equality."),
    ("the end of a generated name", "It is random. Compared: equality."),
    (
        "creationTimestamp, deletionTimestamp, times of managed fields and of conditions of Namespaces and Pods",
        "The servers run at different times. Compared: presence.",
    ),
    ("the order of managed fields", "It depends on the second of a write."),
    ("continue", "The token is opaque. Compared: presence, and the next page."),
    (
        "the order of causes, and of their texts in a message",
        "The real server collects most of them from maps, in a random order.",
    ),
    ("the controllers' name as a manager", "They run in a program for tests."),
    ("the place of a scheme in messages", "It is a line of the server's source."),
    ("bookmarks except the one after the initial events", "Their time is not specified."),
];

/// The values of one server that have occurred in a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Normalizer {
    versions: BTreeMap<u64, String>,
    /// Uids and generated names, with their replacements.
    texts: Vec<(String, String)>,
}

impl Normalizer {
    /// Returns an answer in which equal values of two servers are equal.
    pub(crate) fn answer(&mut self, at: usize, step: &Step, answer: &Answer) -> Value {
        let mut body = answer.body.clone();
        if step.path.contains("watch=1")
            && let Some(events) = body.as_array_mut()
        {
            events.retain(|event| {
                event["type"] != "BOOKMARK" || !event["object"]["metadata"]["annotations"].is_null()
            });
        }
        // A failed creation names its object, too.
        if step.what.ends_with("with generateName")
            && let Some(name) = body["details"]["name"].as_str()
            && let Some((prefix, _)) =
                name.rsplit_once('-').filter(|(prefix, _)| prefix.contains("-made-"))
        {
            self.add_text(name.to_owned(), format!("{prefix}-<random>"));
        }
        if is_cached(step)
            && body.get("items").is_some()
            && let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut)
        {
            mask(meta.get_mut("resourceVersion"), "<cached>");
        }
        sort_causes(&mut body);
        self.value(&mut body, &format!("{at}:"));
        self.replace_texts(&mut body, step);
        json!({ "code": answer.code, "body": body })
    }

    fn value(&mut self, value: &mut Value, path: &str) {
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(item, &format!("{path}[{at}]"));
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut().filter(|(name, _)| *name != "metadata") {
                    self.value(field, &format!("{path}.{name}"));
                }
                if let Some(uid) = fields.get("uid").and_then(Value::as_str) {
                    self.add_text(uid.to_owned(), format!("<uid {path}>"));
                }
                let is_list = fields.contains_key("items");
                if let Some(Value::Object(meta)) = fields.get_mut("metadata") {
                    self.metadata(meta, is_list, path);
                }
                mask_conditions(fields);
            }
            _ => {}
        }
    }

    fn metadata(&mut self, meta: &mut Map<String, Value>, is_list: bool, path: &str) {
        for field in ["creationTimestamp", "deletionTimestamp"] {
            mask(meta.get_mut(field), "<time>");
        }
        mask(meta.get_mut("continue"), "<continue>");
        if let Some(uid) = meta.get("uid").and_then(Value::as_str) {
            self.add_text(uid.to_owned(), format!("<uid {path}>"));
        }
        let text = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
        let (prefix, name) = (text("generateName"), text("name"));
        if !prefix.is_empty() && name.len() > prefix.len() && name.starts_with(prefix) {
            self.add_text(name.to_owned(), format!("{prefix}<random>"));
        }
        let is_bookmark =
            meta.get("annotations").is_some_and(|it| !it["k8s.io/initial-events-end"].is_null());
        if let Some(version) = meta.get_mut("resourceVersion")
            && let Some(number) = version.as_str().and_then(|text| text.parse().ok())
        {
            *version = json!(match is_list || is_bookmark {
                true => format!("<at {}>", self.last_before(number)),
                false => self.version(number, path),
            });
        }
        if let Some(Value::Array(owners)) = meta.get_mut("ownerReferences") {
            for (at, owner) in owners.iter_mut().enumerate() {
                self.value(owner, &format!("{path}.owner[{at}]"));
            }
        }
        if let Some(Value::Array(entries)) = meta.get_mut("managedFields") {
            for entry in entries.iter_mut() {
                mask(entry.get_mut("time"), "<time>");
                if entry["manager"] == "controllers" {
                    entry["manager"] = json!("kube-controller-manager");
                }
            }
            entries.sort_by_key(|entry| {
                let key = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
                ["operation", "manager", "apiVersion", "subresource"].map(key)
            });
        }
    }

    fn add_text(&mut self, text: String, replacement: String) {
        if !text.is_empty() && !self.texts.iter().any(|(known, _)| *known == text) {
            self.texts.push((text, replacement));
        }
    }

    /// Returns the name of a version: the place where it occurred first, and the version before it.
    fn version(&mut self, version: u64, path: &str) -> String {
        if let Some(known) = self.versions.get(&version) {
            return known.clone();
        }
        let before = self.last_before(version);
        let before =
            before.split(',').next().unwrap_or_default().trim_matches(['<', '>']).to_owned();
        let name = format!("<version {path}, after {before}>");
        self.versions.insert(version, name.clone());
        name
    }

    fn last_before(&self, version: u64) -> String {
        let last = self.versions.range(..=version).next_back();
        last.map_or_else(|| "the start".to_owned(), |(_, name)| name.clone())
    }

    fn replace_texts(&self, value: &mut Value, step: &Step) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace_texts(item, step)),
            Value::Object(fields) => {
                // Managed fields have uids of owners as keys.
                *fields = std::mem::take(fields)
                    .into_iter()
                    .map(|(mut name, mut field)| {
                        self.replace_known(&mut name);
                        self.replace_texts(&mut field, step);
                        (name, field)
                    })
                    .collect();
            }
            Value::String(text) => {
                self.replace_known(text);
                if let Some((before, place)) = text.split_once("in scheme \"pkg/") {
                    let after = place.split_once('"').map_or("", |(_, after)| after);
                    *text = format!("{before}in scheme <place>{after}");
                }
                let mentions = ["resource version", "ResourceVersion", "resourceVersion"];
                if !text.starts_with('<') && mentions.iter().any(|mention| text.contains(mention)) {
                    *text = self.replace_numbers(text, &step.path);
                }
            }
            _ => {}
        }
    }

    fn replace_known(&self, text: &mut String) {
        for (known, replacement) in &self.texts {
            if text.contains(known) {
                *text = text.replace(known, replacement);
            }
        }
    }

    /// Replaces the versions in a message. Numbers that the client sent stay.
    fn replace_numbers(&self, text: &str, sent: &str) -> String {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(|it: char| it.is_ascii_digit()) {
            let (before, from) = rest.split_at(start);
            let end = from.find(|it: char| !it.is_ascii_digit()).unwrap_or(from.len());
            let (number, after) = from.split_at(end);
            replaced += before;
            // The digits of names, such as `meta.k8s.io`, and of replacements.
            let is_replaced = replaced.matches('<').count() > replaced.matches('>').count();
            let is_name =
                before.ends_with(char::is_alphanumeric) || after.starts_with(char::is_alphanumeric);
            if is_replaced || is_name {
                replaced += number;
                rest = after;
                continue;
            }
            let known = number.parse().ok().and_then(|number| self.versions.get(&number));
            replaced += match known {
                Some(known) => known,
                None if sent.contains(&format!("={number}")) => number,
                None => "<version>",
            };
            rest = after;
        }
        replaced + rest
    }
}

/// Sorts the causes of a failure, and removes them from its message.
fn sort_causes(status: &mut Value) {
    let Some(causes) = status.pointer_mut("/details/causes").and_then(Value::as_array_mut) else {
        return;
    };
    if causes.len() < 2 {
        return;
    }
    causes.sort_by_key(Value::to_string);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed: Vec<_> = causes
        .iter()
        .map(|cause| format!("{}: {}", text(&cause["field"]), text(&cause["message"])))
        .collect();
    let mut message = text(&status["message"]);
    for cause in listed {
        message = message.replacen(&cause, "<cause>", 1);
    }
    status["message"] = json!(message);
}

/// Returns whether the real server may answer from its cache, a list at a version that it chooses.
pub(crate) fn is_cached(step: &Step) -> bool {
    let has = |text: &str| step.path.contains(text);
    has("resourceVersion=")
        && !has("watch=1")
        && !has("resourceVersionMatch=Exact")
        && !has("limit=")
        || has("resourceVersion=0")
        || has("resourceVersionMatch=NotOlderThan")
}

fn mask(value: Option<&mut Value>, replacement: &str) {
    if let Some(value) = value
        && value.as_str().is_some_and(|text| !text.is_empty())
    {
        *value = json!(replacement);
    }
}

/// Replaces the times in the conditions of Namespaces and Pods. Those of other objects come from the client.
fn mask_conditions(object: &mut Map<String, Value>) {
    match object.get("kind").and_then(Value::as_str) {
        Some("Namespace" | "Pod") => mask_times(object.get_mut("status")),
        // The items of a list do not name their kind.
        Some("NamespaceList" | "PodList") => {
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(|item| mask_times(item.get_mut("status")));
        }
        _ => {}
    }
}

fn mask_times(status: Option<&mut Value>) {
    let conditions = status.and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
        mask(condition.get_mut("lastTransitionTime"), "<time>");
    }
}

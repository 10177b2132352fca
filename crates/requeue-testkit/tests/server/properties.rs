//! Random requests to the state machine, compared with small models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use requeue_testkit::{Access, Cluster, Response, Watch};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A cluster without a client.
struct Server(Cluster);

impl Server {
    fn new() -> Self {
        Self(Cluster::new(1, 10_000))
    }

    fn send(&mut self, method: &str, path: &str, form: &str, body: &Value) -> Response {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", form)
            .body(body)
            .expect("a request");
        self.0.handle(Timestamp::UNIX_EPOCH, &Access::admin(), &request)
    }

    fn json(&mut self, method: &str, path: &str, form: &str, body: &Value) -> (u16, Value) {
        match self.send(method, path, form, body) {
            Response::Json(code, json) => (code, Arc::unwrap_or_clone(json)),
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, path: &str) -> Value {
        self.json("GET", path, "", &Value::Null).1
    }

    fn watch(&mut self, query: &str) -> Box<Watch> {
        match self.send("GET", &format!("{MAPS}?watch=true&{query}"), "", &Value::Null) {
            Response::Watch(watch) => watch,
            other => panic!("{other:?}"),
        }
    }
}

/// Without data, the field is missing: an empty one would itself have an owner, which the model does not know.
fn config(data: &BTreeMap<String, String>) -> Value {
    let mut config =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
    if !data.is_empty() {
        config["data"] = json!(data);
    }
    config
}

/// A write of one manager.
#[derive(Clone, Debug)]
enum Write {
    Apply { manager: usize, data: BTreeMap<String, String>, force: bool },
    Patch { manager: usize, key: String, value: Option<String> },
}

fn data() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map("[a-d]", "[x-z]", 0..4)
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        (0..3_usize, data(), any::<bool>()).prop_map(|(manager, data, force)| Write::Apply {
            manager,
            data,
            force
        }),
        (0..3_usize, "[a-d]", proptest::option::of("[x-z]"))
            .prop_map(|(manager, key, value)| Write::Patch { manager, key, value }),
    ]
}

/// The keys of a map with their values, and the managers that own them. Appliers are `(true, number)`.
type Model = BTreeMap<String, (String, BTreeSet<(bool, usize)>)>;

/// Returns false if the apply conflicts with another manager.
fn apply(model: &mut Model, manager: usize, data: &BTreeMap<String, String>, force: bool) -> bool {
    let own = (true, manager);
    let conflicts = data.iter().any(|(key, value)| {
        let found = model.get(key);
        found.is_some_and(|(old, owners)| old != value && owners.iter().any(|it| *it != own))
    });
    if conflicts && !force {
        return false;
    }
    model.retain(|key, (_, owners)| {
        data.contains_key(key) || !owners.remove(&own) || !owners.is_empty()
    });
    for (key, value) in data {
        let (old, owners) = model.entry(key.clone()).or_default();
        if old != value {
            owners.clear();
            old.clone_from(value);
        }
        owners.insert(own);
    }
    true
}

fn patch(model: &mut Model, manager: usize, key: &str, value: Option<&String>) {
    let Some(value) = value else {
        model.remove(key);
        return;
    };
    let (old, owners) = model.entry(key.to_owned()).or_default();
    if old != value {
        old.clone_from(value);
        *owners = [(false, manager)].into();
    }
}

/// Returns the owners in `metadata.managedFields`, as the model has them.
fn owners(object: &Value) -> BTreeMap<String, BTreeSet<(bool, usize)>> {
    let mut owners: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let manager = entry["manager"].as_str().and_then(|name| name[1..].parse().ok());
        let owner = (entry["operation"] == "Apply", manager.unwrap_or(9));
        let fields = entry["fieldsV1"]["f:data"].as_object();
        let keys = fields.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:"));
        for key in keys {
            owners.entry(key.to_owned()).or_default().insert(owner);
        }
    }
    owners
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn managers_own_what_the_model_says(writes in proptest::collection::vec(write(), 1..12)) {
        let mut server = Server::new();
        let mut model = Model::new();
        // An object without managers tracks none before the first apply.
        let first = json!({ "metadata": { "name": "a", "labels": { "made": "first" } } });
        server.json("POST", MAPS, "application/json", &first);
        let path = format!("{MAPS}/a");
        for write in writes {
            let before = server.get(&path);
            match &write {
                Write::Apply { manager, data, force } => {
                    let query = format!("{path}?fieldManager=m{manager}&force={force}");
                    let form = "application/apply-patch+yaml";
                    let (code, _) = server.json("PATCH", &query, form, &config(data));
                    let is_applied = apply(&mut model, *manager, data, *force);
                    prop_assert_eq!(code, if is_applied { 200 } else { 409 });
                    if !is_applied {
                        prop_assert_eq!(&server.get(&path), &before);
                    }
                }
                Write::Patch { manager, key, value } => {
                    let query = format!("{path}?fieldManager=m{manager}");
                    let form = "application/merge-patch+json";
                    let body = json!({ "data": { key: value } });
                    prop_assert_eq!(server.json("PATCH", &query, form, &body).0, 200);
                    patch(&mut model, *manager, key, value.as_ref());
                }
            }
            let after = server.get(&path);
            let data: BTreeMap<_, _> =
                model.iter().map(|(key, (value, _))| (key.clone(), json!(value))).collect();
            let found = after["data"].as_object().cloned().unwrap_or_default();
            prop_assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), data, "{:?}", write);
            let expected: BTreeMap<_, _> = model
                .iter()
                .filter(|(_, (_, owners))| !owners.is_empty())
                .map(|(key, (_, owners))| (key.clone(), owners.clone()))
                .collect();
            prop_assert_eq!(owners(&after), expected, "{:?}", write);
        }
    }

    #[test]
    fn events_lead_from_one_list_to_the_next(
        changes in proptest::collection::vec(("[a-d]", 0..3_u8, "[x-z]"), 1..30),
        start in 0..30_usize,
        reads in proptest::collection::vec(any::<bool>(), 30),
    ) {
        let mut server = Server::new();
        let selector = "labelSelector=on=x";
        let mut watch = None;
        let mut seen: BTreeMap<String, Value> = BTreeMap::new();
        let list = |server: &mut Server| -> (BTreeMap<String, Value>, String) {
            let list = server.get(&format!("{MAPS}?{selector}"));
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let items = items.into_iter().map(|item| (item["metadata"].to_string(), item));
            let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            (items.collect(), version.to_owned())
        };
        let by_name = |items: BTreeMap<String, Value>| -> BTreeMap<String, Value> {
            let items = items.into_values();
            items.map(|item| (item["metadata"]["name"].to_string(), item["metadata"].clone())).collect()
        };
        for (at, (name, change, value)) in changes.iter().enumerate() {
            if at == start {
                let (items, version) = list(&mut server);
                seen = by_name(items);
                watch = Some(server.watch(&format!("{selector}&resourceVersion={version}")));
            }
            let path = format!("{MAPS}/{name}");
            let labels = json!({ "metadata": { "name": name, "labels": { "on": value } } });
            match change {
                0 => server.json("POST", MAPS, "application/json", &labels),
                1 => server.json("PATCH", &path, "application/merge-patch+json", &labels),
                _ => server.json("DELETE", &path, "", &Value::Null),
            };
            let is_read = reads[at % reads.len()] || at + 1 == changes.len();
            let Some(watch) = watch.as_mut().filter(|_| is_read) else { continue };
            for event in server.0.events(watch) {
                let metadata = event["object"]["metadata"].clone();
                let name = metadata["name"].to_string();
                let is_known = match event["type"].as_str() {
                    Some("ADDED") => seen.insert(name, metadata).is_none(),
                    Some("MODIFIED") => seen.insert(name, metadata).is_some(),
                    Some("DELETED") => seen.remove(&name).is_some(),
                    _ => false,
                };
                prop_assert!(is_known, "{}", event);
            }
            prop_assert_eq!(&seen, &by_name(list(&mut server).0));
        }
    }

    #[test]
    fn pages_are_one_list(names in proptest::collection::btree_set("[a-z]{1,3}", 0..20), limit in 1..7_usize) {
        let mut server = Server::new();
        for name in &names {
            let map = json!({ "metadata": { "name": name } });
            server.json("POST", MAPS, "application/json", &map);
        }
        let whole = server.get(MAPS);
        let (mut items, mut token) = (Vec::new(), String::new());
        loop {
            let page = server.get(&format!("{MAPS}?limit={limit}&continue={token}"));
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            // Later changes do not show in the pages.
            let name = format!("later-{}", items.len());
            let map = json!({ "metadata": { "name": name } });
            server.json("POST", MAPS, "application/json", &map);
            let left = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            prop_assert_eq!(left as usize + items.len(), names.len());
            match page["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        prop_assert_eq!(json!(items), whole["items"].clone());
    }
}

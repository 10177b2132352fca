//! Generates sequences of requests from a seed.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::kinds::{CUSTOM, KINDS, Kind, content, toleration, valid_content};

/// The label of all objects of a sequence, by which lists of cluster-scoped kinds find them.
const LABEL: &str = "sequence";

/// Requests in one namespace.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) seed: u64,
    pub(crate) namespace: String,
    pub(crate) steps: Vec<Step>,
    /// True if the garbage collector or the namespace controller acts in this sequence. Then the runner waits for it
    /// after each write.
    pub(crate) is_collected: bool,
    /// The lists with all objects of the sequence.
    pub(crate) lists: Vec<String>,
}

/// One request. Its texts may refer to earlier answers: `{{version:3}}` is the resource version in the answer to step 3.
/// `uid`, `name` and `continue` refer to the other values that a server chooses.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The name of the request in reports, such as `create configmaps`.
    pub(crate) what: String,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) body: Body,
    /// The name of the object whose event ends a watch. Empty: the server ends it after a second.
    pub(crate) last: Option<String>,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Text(String),
    /// The object in the answer to an earlier step, with these values at JSON pointers. Null removes a field.
    Edited(usize, Vec<(String, Value)>),
}

impl Sequence {
    /// Returns the sequence of a seed.
    pub(crate) fn generate(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let namespace = generator.namespace.clone();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": namespace, "labels": { LABEL: namespace } },
        });
        generator.push(
            "create namespaces",
            "POST",
            "/api/v1/namespaces".into(),
            object.to_string(),
        );
        let count = generator.rng.usize(5..=30);
        while generator.steps.len() < count {
            generator.add_move();
        }
        let mut lists = Vec::new();
        for kind in &generator.kinds {
            let selector = format!("labelSelector={LABEL}%3D{namespace}");
            lists.push(match kind.is_namespaced {
                true => generator.collection(kind),
                false => format!("{}?{selector}", generator.collection(kind)),
            });
        }
        lists.push(format!("/api/v1/namespaces?labelSelector={LABEL}%3D{namespace}"));
        Self {
            seed,
            namespace,
            steps: generator.steps,
            is_collected: generator.is_collected,
            lists,
        }
    }
}

struct Generator {
    rng: Rng,
    namespace: String,
    kinds: Vec<&'static Kind>,
    steps: Vec<Step>,
    is_collected: bool,
    /// Steps whose answers may have an object, with its kind and name.
    objects: Vec<(usize, &'static str, String)>,
    markers: usize,
}

impl Generator {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut kinds: Vec<&'static Kind> = Vec::new();
        let total: u32 = KINDS.iter().map(|kind| kind.weight).sum();
        for _ in 0..rng.usize(1..=3) {
            let mut at = rng.u32(..total);
            let found = KINDS.iter().find(|kind| {
                let is_it = at < kind.weight;
                at = at.saturating_sub(kind.weight);
                is_it
            });
            kinds.extend(found.filter(|kind| !kinds.iter().any(|it| it.plural == kind.plural)));
        }
        let is_collected = rng.u8(..12) == 0;
        Self {
            rng,
            namespace: format!("s{seed}"),
            kinds,
            steps: Vec::new(),
            is_collected,
            objects: Vec::new(),
            markers: 0,
        }
    }

    /// Returns whether an event with this chance, in percent, happens.
    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())]
    }

    fn kind(&mut self) -> &'static Kind {
        self.kinds[self.rng.usize(..self.kinds.len())]
    }

    fn name(&mut self, kind: &Kind) -> String {
        let name = self.pick(&["a", "a", "b", "c"]);
        match kind.is_namespaced {
            true => name.to_owned(),
            // Cluster-scoped objects of all sequences are in one place.
            false => format!("{}-{name}", self.namespace),
        }
    }

    fn collection(&self, kind: &Kind) -> String {
        match kind.is_namespaced {
            true => format!("{}/namespaces/{}/{}", kind.root, self.namespace, kind.plural),
            false => format!("{}/{}", kind.root, kind.plural),
        }
    }

    fn path(&self, kind: &Kind, name: &str) -> String {
        format!("{}/{name}", self.collection(kind))
    }

    fn push(&mut self, what: &str, method: &'static str, path: String, body: String) -> usize {
        self.steps.push(Step {
            what: what.into(),
            method,
            path,
            content_type: "application/json",
            accept: "application/json",
            body: Body::Text(body),
            last: None,
        });
        self.steps.len() - 1
    }

    /// Notes that the answer to a step may have this object.
    fn note(&mut self, step: usize, kind: &'static Kind, name: &str) {
        self.objects.push((step, kind.plural, name.into()));
    }

    /// Returns an earlier step whose answer may have the object.
    fn earlier(&mut self, kind: &Kind, name: &str) -> Option<usize> {
        let found =
            self.objects.iter().filter(|(_, plural, it)| *plural == kind.plural && it == name);
        let found: Vec<_> = found.map(|(step, _, _)| *step).collect();
        (!found.is_empty()).then(|| found[self.rng.usize(..found.len())])
    }

    fn add_move(&mut self) {
        let kind = self.kind();
        match self.rng.u8(..100) {
            0..20 => self.create(kind),
            20..24 => self.create_with_generated_name(kind),
            24..32 => self.get(kind),
            32..44 => self.list(kind),
            44..56 => self.update(kind),
            56..64 => self.merge_patch(kind),
            64..70 => self.json_patch(kind),
            70..80 => self.apply(kind),
            80..83 => self.strategic_patch(kind),
            83..90 => self.delete(kind),
            90..92 => self.delete_collection(kind),
            92..95 => self.watch(kind),
            95..98 => self.malformed(kind),
            _ if self.is_collected => self.delete_namespace(),
            _ => self.scale(kind),
        }
    }

    /// Returns a new object. `name` may be empty.
    fn object(&mut self, kind: &'static Kind, name: &str) -> Value {
        let mut object = content(&mut self.rng, kind);
        object["apiVersion"] = json!(kind.api_version);
        object["kind"] = json!(kind.kind);
        let app = self.pick(&["x", "y"]);
        let mut metadata = json!({ "labels": { LABEL: self.namespace, "app": app } });
        if !name.is_empty() {
            metadata["name"] = json!(name);
        }
        if self.chance(15) {
            metadata["annotations"] = json!({ "example.com/note": app });
        }
        if self.chance(8) {
            metadata["finalizers"] = json!(["example.com/hold"]);
        }
        if self.chance(3) {
            metadata["labels"]["app"] = json!("not valid!");
        }
        if self.is_collected && self.chance(60) {
            self.add_owner(&mut metadata, kind);
        }
        object["metadata"] = metadata;
        object
    }

    fn add_owner(&mut self, metadata: &mut Value, dependent: &Kind) {
        let owners: Vec<_> = self
            .objects
            .iter()
            .filter_map(|(step, plural, name)| {
                let kind = KINDS.iter().find(|kind| kind.plural == *plural)?;
                let may_own = dependent.is_namespaced || !kind.is_namespaced;
                (may_own && metadata["name"] != **name).then(|| (*step, kind, name.clone()))
            })
            .collect();
        if owners.is_empty() {
            return;
        }
        let (step, owner, name) = &owners[self.rng.usize(..owners.len())];
        let mut reference = json!({
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "name": name,
            "uid": format!("{{{{uid:{step}}}}}"),
        });
        if self.chance(40) {
            reference["blockOwnerDeletion"] = json!(true);
        }
        if self.chance(30) {
            reference["controller"] = json!(true);
        }
        metadata["ownerReferences"] = json!([reference]);
    }

    /// Returns options of a write as a query.
    fn write_options(&mut self) -> String {
        let mut options = Vec::new();
        if self.chance(8) {
            options.push("dryRun=All");
        }
        if self.chance(30) {
            options.push(self.pick(&["fieldManager=one", "fieldManager=two"]));
        }
        if self.chance(6) {
            options.push(self.pick(&["fieldValidation=Strict", "fieldValidation=Ignore"]));
        }
        if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) }
    }

    fn text(&self, object: &Value) -> String {
        object.to_string().replace("{{namespace}}", &self.namespace)
    }

    fn create(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let object = self.object(kind, &name);
        let path = self.collection(kind) + &self.write_options();
        let step = self.push(&format!("create {}", kind.plural), "POST", path, self.text(&object));
        self.note(step, kind, &name);
    }

    fn create_with_generated_name(&mut self, kind: &'static Kind) {
        let mut object = self.object(kind, "");
        // The order of the objects in a list must not depend on the random part of their names.
        let prefix = format!("{}-made-{:02}-", self.namespace, self.steps.len());
        object["metadata"]["generateName"] = json!(prefix);
        let path = self.collection(kind) + &self.write_options();
        let what = format!("create {} with generateName", kind.plural);
        let step = self.push(&what, "POST", path, self.text(&object));
        if self.chance(50) {
            let path = self.path(kind, &format!("{{{{name:{step}}}}}"));
            let method = self.pick(&["GET", "DELETE"]);
            let verb = if method == "GET" { "get" } else { "delete" };
            self.push(
                &format!("{verb} {} with generateName", kind.plural),
                method,
                path,
                String::new(),
            );
        }
    }

    fn get(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let mut path = self.path(kind, &name);
        let subresource = self.subresource(kind);
        path += &subresource;
        match self.rng.u8(..20) {
            0 => path += "?resourceVersion=0",
            1 => {
                if let Some(step) = self.earlier(kind, &name) {
                    path += &format!("?resourceVersion={{{{version:{step}}}}}");
                }
            }
            2 => path += "?resourceVersion=abc",
            _ => {}
        }
        let step =
            self.push(&format!("get {}{subresource}", kind.plural), "GET", path, String::new());
        if self.chance(6) {
            self.steps[step].accept =
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
            self.steps[step].what += " as metadata";
        } else if subresource.is_empty() {
            self.note(step, kind, &name);
        }
    }

    /// Returns the path of a subresource, or nothing.
    fn subresource(&mut self, kind: &Kind) -> String {
        match self.rng.u8(..10) {
            0 | 1 if kind.has_status => "/status".into(),
            2 if kind.has_scale => "/scale".into(),
            3 if self.rng.u8(..4) == 0 => "/nothing".into(),
            _ => String::new(),
        }
    }

    fn list(&mut self, kind: &'static Kind) {
        let mut options = Vec::new();
        let own = format!("{LABEL}%3D{}", self.namespace);
        let terms = [
            "",
            "",
            "",
            "app%3Dx",
            "app%21%3Dx",
            "app",
            "%21app",
            "app+in+%28x%2Cy%29",
            "app+notin+%28x%29",
            "app%3Dx%2Capp%3Dy",
            "app%3E5",
        ];
        let term = self.pick(&terms);
        let selector = match (kind.is_namespaced, term) {
            (true, term) => term.to_owned(),
            (false, "") => own,
            (false, term) => format!("{own}%2C{term}"),
        };
        if !selector.is_empty() {
            options.push(format!("labelSelector={selector}"));
        }
        if self.chance(15) {
            let name = self.name(kind);
            options.push(format!("fieldSelector=metadata.name%3D{name}"));
        } else if self.chance(6) {
            let fields =
                ["metadata.namespace", "spec.color", "color", "type", "status.phase", "reason"];
            options.push(format!("fieldSelector={}%3Dred", self.pick(&fields)));
        }
        // The pages of cluster-scoped kinds end at objects of other sequences.
        let has_pages = self.chance(30) && kind.is_namespaced;
        let limit = has_pages.then(|| self.rng.usize(1..=2));
        if let Some(limit) = limit {
            options.push(format!("limit={limit}"));
        }
        let name = self.name(kind);
        if self.chance(15) {
            let version = match (self.rng.u8(..4), self.earlier(kind, &name)) {
                (0, _) => "0".into(),
                (1, _) => self.pick(&["abc", "-1", ""]).to_owned(),
                (_, Some(step)) => format!("{{{{version:{step}}}}}"),
                (_, None) => "0".into(),
            };
            options.push(format!("resourceVersion={version}"));
        }
        if self.chance(8) {
            let rule = self.pick(&["Exact", "NotOlderThan", "Exactly"]);
            options.push(format!("resourceVersionMatch={rule}"));
        }
        let base = self.collection(kind);
        let what = format!("list {}", kind.plural);
        let path = |options: &[String]| match options {
            [] => base.clone(),
            options => format!("{base}?{}", options.join("&")),
        };
        let step = self.push(&what, "GET", path(&options), String::new());
        if self.chance(5) {
            self.steps[step].accept =
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
            self.steps[step].what += " as metadata";
        }
        if limit.is_some() {
            if self.chance(30) {
                self.create(kind);
            }
            options.retain(|option| !option.starts_with("resourceVersion"));
            options.push(format!("continue={{{{continue:{step}}}}}"));
            self.push(&format!("{what}, next page"), "GET", path(&options), String::new());
        }
    }

    fn update(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let path = self.path(kind, &name);
        let options = self.write_options();
        let subresource = self.subresource(kind);
        let what = format!("update {}{subresource}", kind.plural);
        let step = match self.rng.u8(..10) {
            // As a controller does: read, change, write.
            0..6 => {
                let get =
                    self.push(&format!("get {}", kind.plural), "GET", path.clone(), String::new());
                self.note(get, kind, &name);
                let from = match self.rng.u8(..5) {
                    0 => self.earlier(kind, &name).unwrap_or(get),
                    _ => get,
                };
                let mut edits = self.edits(kind, &subresource);
                if self.chance(10) {
                    edits.push(("/metadata/resourceVersion".into(), Value::Null));
                }
                let step = self.push(&what, "PUT", path + &subresource + &options, String::new());
                self.steps[step].body = Body::Edited(from, edits);
                step
            }
            6..8 => {
                let mut object = self.object(kind, &name);
                if let Some(step) = self.earlier(kind, &name) {
                    object["metadata"]["resourceVersion"] =
                        json!(format!("{{{{version:{step}}}}}"));
                }
                let body = self.text(&object);
                self.push(&what, "PUT", path + &subresource + &options, body)
            }
            _ => {
                let object = self.object(kind, &name);
                let body = self.text(&object);
                self.push(&what, "PUT", path + &subresource + &options, body)
            }
        };
        if subresource != "/scale" {
            self.note(step, kind, &name);
        }
    }

    /// Returns changes of an object of a kind.
    fn edits(&mut self, kind: &Kind, subresource: &str) -> Vec<(String, Value)> {
        let value = self.pick(&["red", "green", "pink"]);
        let number = self.pick(&[0, 1, 2, 3, 7, 500]);
        if subresource == "/status"
            || (subresource.is_empty() && kind.has_status && self.chance(15))
        {
            return match kind.kind {
                "Widget" => vec![(
                    "/status".into(),
                    json!({ "phase": value, "replicas": number, "selector": "app=x" }),
                )],
                "Deployment" | "ReplicaSet" => vec![("/status/replicas".into(), json!(number))],
                _ => vec![(
                    "/status/phase".into(),
                    json!(self.pick(&["Active", "Running", "Failed"])),
                )],
            };
        }
        if self.chance(30) {
            return vec![self.metadata_edit(value)];
        }
        let edit = match kind.kind {
            "ConfigMap" => ("/data", json!({ "a": value })),
            "Secret" => ("/stringData", json!({ "user": value })),
            "Event" => ("/message", json!(value)),
            "Pod" => match self.rng.u8(..8) {
                0 => ("/spec/tolerations", json!([toleration(&mut self.rng)])),
                1 => ("/spec/schedulingGates", Value::Null),
                2 => ("/spec/schedulingGates", json!([{ "name": value }])),
                3 => ("/spec/nodeSelector", json!({ "zone": "a", "color": value })),
                4 => ("/spec/nodeSelector", json!({ "zone": value })),
                _ => ("/spec/containers/0/image", json!(value)),
            },
            "Lease" => ("/spec/holderIdentity", json!(value)),
            "Deployment" | "ReplicaSet" => match self.rng.u8(..4) {
                0 => ("/spec/template/spec/containers/0/image", json!(value)),
                1 => ("/spec/selector/matchLabels/app", json!(value)),
                _ => ("/spec/replicas", json!(number)),
            },
            "ClusterRole" | "Role" => ("/rules/0/resources/0", json!(value)),
            "Widget" => match self.rng.u8(..4) {
                0 => ("/spec/replicas", json!(number)),
                1 => ("/spec/size", json!(number)),
                2 => ("/spec/parts", json!([{ "name": value, "count": number }])),
                _ => ("/spec/color", json!(value)),
            },
            "Gadget" => match self.rng.u8(..3) {
                0 => ("/fixed", json!(value)),
                1 => ("/free", json!({ "any": number })),
                _ => ("/color", json!(value)),
            },
            _ => return vec![self.metadata_edit(value)],
        };
        vec![(edit.0.into(), edit.1)]
    }

    fn metadata_edit(&mut self, value: &str) -> (String, Value) {
        match self.rng.u8(..6) {
            0 => ("/metadata/finalizers".into(), json!(["example.com/hold", "example.com/more"])),
            1 => ("/metadata/finalizers".into(), Value::Null),
            2 => ("/metadata/annotations".into(), json!({ "example.com/note": value })),
            3 => ("/metadata/labels/app".into(), Value::Null),
            4 => ("/metadata/uid".into(), json!("another")),
            _ => ("/metadata/labels/app".into(), json!(value)),
        }
    }

    fn patch(
        &mut self,
        kind: &'static Kind,
        name: &str,
        content_type: &'static str,
        subresource: &str,
        body: String,
        options: &str,
    ) {
        let form = match content_type {
            "application/json-patch+json" => "json patch",
            "application/merge-patch+json" => "merge patch",
            "application/strategic-merge-patch+json" => "strategic patch",
            _ => "apply",
        };
        let path = self.path(kind, name) + subresource + options;
        let step = self.push(&format!("{form} {}{subresource}", kind.plural), "PATCH", path, body);
        self.steps[step].content_type = content_type;
        if subresource != "/scale" {
            self.note(step, kind, name);
        }
    }

    /// Returns changes as a merge patch.
    fn merge_body(&mut self, kind: &'static Kind, name: &str, subresource: &str) -> Value {
        let mut body = json!({});
        if subresource == "/scale" {
            body["spec"]["replicas"] = json!(self.pick(&[0, 1, 2, 3, -1]));
            return body;
        }
        for (pointer, value) in self.edits(kind, subresource) {
            if pointer.starts_with("/rules/") {
                body["rules"] = json!([
                    { "apiGroups": [""], "resources": ["pods", value], "verbs": ["get"] },
                ]);
                continue;
            }
            let mut place = &mut body;
            let mut parts: Vec<_> = pointer.split('/').skip(1).collect();
            // A merge patch replaces whole lists.
            let is_list = parts.iter().position(|part| *part == "0");
            let value = match is_list {
                Some(at) => {
                    let inner = parts.split_off(at).split_off(1);
                    let mut item = value;
                    for part in inner.iter().rev() {
                        item = json!({ *part: item });
                    }
                    if parts.last() == Some(&"containers") {
                        item["name"] = json!("main");
                    }
                    json!([item])
                }
                None => value,
            };
            for part in parts {
                place = &mut place[part];
            }
            *place = value;
        }
        if self.chance(10)
            && let Some(step) = self.earlier(kind, name)
        {
            body["metadata"]["resourceVersion"] = json!(format!("{{{{version:{step}}}}}"));
        }
        body
    }

    fn merge_patch(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let subresource = self.subresource(kind);
        let body = self.merge_body(kind, &name, &subresource).to_string();
        let options = self.write_options();
        self.patch(kind, &name, "application/merge-patch+json", &subresource, body, &options);
    }

    fn strategic_patch(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let subresource = self.subresource(kind);
        let mut body = self.merge_body(kind, &name, &subresource);
        if matches!(kind.kind, "Deployment" | "Pod") && self.chance(40) {
            let containers = json!([{ "name": self.pick(&["main", "side"]), "image": "new" }]);
            body = match kind.kind {
                "Pod" => json!({ "spec": { "containers": containers } }),
                _ => json!({ "spec": { "template": { "spec": { "containers": containers } } } }),
            };
        }
        let options = self.write_options();
        let content_type = "application/strategic-merge-patch+json";
        self.patch(kind, &name, content_type, &subresource, body.to_string(), &options);
    }

    fn json_patch(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let subresource = self.subresource(kind);
        let mut operations = Vec::new();
        if self.chance(35) {
            let value = self.pick(&["x", "y", "red"]);
            operations
                .push(json!({ "op": "test", "path": "/metadata/labels/app", "value": value }));
        }
        if self.chance(15)
            && let Some(step) = self.earlier(kind, &name)
        {
            let version = format!("{{{{version:{step}}}}}");
            operations.push(
                json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }),
            );
        }
        let (path, value) = if subresource == "/scale" {
            ("/spec/replicas".into(), json!(self.pick(&[0, 1, 3])))
        } else {
            self.edits(kind, &subresource).remove(0)
        };
        operations.push(match self.rng.u8(..8) {
            _ if value.is_null() => json!({ "op": "remove", "path": path }),
            0 => json!({ "op": "remove", "path": path }),
            1 => json!({ "op": "copy", "from": "/metadata/name", "path": "/metadata/annotations/copy" }),
            2..5 => json!({ "op": "add", "path": path, "value": value }),
            _ => json!({ "op": "replace", "path": path, "value": value }),
        });
        let options = self.write_options();
        let body = json!(operations).to_string();
        self.patch(kind, &name, "application/json-patch+json", &subresource, body, &options);
    }

    fn apply(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let mut object = self.object(kind, &name);
        if self.chance(20)
            && let Some(fields) = object["metadata"].as_object_mut()
        {
            fields.remove("name");
        }
        let subresource = match self.rng.u8(..10) {
            0 | 1 if kind.has_status => "/status",
            _ => "",
        };
        if subresource == "/status" {
            for (pointer, value) in self.edits(kind, subresource) {
                let field = pointer.split('/').nth(2);
                match field {
                    Some(field) => object["status"][field] = value,
                    None => object["status"] = value,
                }
            }
        }
        let mut options = String::from("?fieldManager=");
        options += self.pick(&["one", "two", "two", "one", ""]);
        if self.chance(30) {
            options += "&force=true";
        }
        if self.chance(8) {
            options += "&dryRun=All";
        }
        let body = self.text(&object);
        self.patch(kind, &name, "application/apply-patch+yaml", subresource, body, &options);
    }

    fn delete(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let path = self.path(kind, &name);
        let mut options = json!({});
        if self.chance(25) {
            let policies: &[&str] = match self.is_collected {
                true => &["Background", "Foreground", "Orphan"],
                // Without a wait for the collector, the other policies are a race.
                false => &["Background", "Sideways"],
            };
            options["propagationPolicy"] = json!(self.pick(policies));
        }
        if self.chance(15)
            && let Some(step) = self.earlier(kind, &name)
        {
            options["preconditions"] = match self.rng.bool() {
                true => json!({ "resourceVersion": format!("{{{{version:{step}}}}}") }),
                false => json!({ "uid": format!("{{{{uid:{step}}}}}") }),
            };
        }
        if self.chance(15) {
            options["gracePeriodSeconds"] = json!(self.pick(&[0, 0, 5, -1]));
        }
        if self.chance(8) {
            options["dryRun"] = json!(["All"]);
        }
        // The namespace controller deletes namespaces.
        self.is_collected |= kind.kind == "Namespace";
        let body = match options.as_object() {
            Some(fields) if fields.is_empty() => String::new(),
            _ => options.to_string(),
        };
        let step = self.push(&format!("delete {}", kind.plural), "DELETE", path, body);
        self.note(step, kind, &name);
    }

    fn delete_collection(&mut self, kind: &'static Kind) {
        let mut path = self.collection(kind);
        let own = format!("{LABEL}%3D{}", self.namespace);
        if kind.kind == "Namespace" {
            // Namespaces have no such verb.
            path += &format!("?labelSelector={own}");
        } else if !kind.is_namespaced {
            path += &format!("?labelSelector={own}%2Capp%3Dx");
        } else if self.chance(60) {
            path += self.pick(&["?labelSelector=app%3Dx", "?labelSelector=app%3Dx&dryRun=All"]);
        }
        self.push(&format!("deletecollection {}", kind.plural), "DELETE", path, String::new());
    }

    /// Watches from an earlier version, up to an object that is created before.
    fn watch(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let own = format!("{LABEL}%3D{}", self.namespace);
        let refused = self.pick(&[
            "&resourceVersionMatch=NotOlderThan",
            "&sendInitialEvents=true",
            "&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=0",
            "&resourceVersion=abc",
            // The real server forgets the changes of other kinds at some time.
            if kind.root == CUSTOM { "&resourceVersion=1" } else { "&resourceVersion=-1" },
            "&limit=1&continue=abc",
            "&fieldSelector=unknown%3Dx",
        ]);
        let mut path = format!("{}?watch=1&labelSelector={own}", self.collection(kind));
        let what = format!("watch {}", kind.plural);
        if self.chance(20) {
            self.push(&what, "GET", path + "&timeoutSeconds=1" + refused, String::new());
            return;
        }
        self.markers += 1;
        let marker = format!("{}-marker-{}", self.namespace, self.markers);
        let mut object = valid_content(kind);
        object["apiVersion"] = json!(kind.api_version);
        object["kind"] = json!(kind.kind);
        object["metadata"] =
            json!({ "name": marker, "labels": { LABEL: self.namespace, "app": "x" } });
        let body = self.text(&object);
        self.push(&format!("create {}", kind.plural), "POST", self.collection(kind), body);
        if self.chance(40) {
            path += "%2Capp%3Dx";
        }
        if self.chance(50) {
            path += "&allowWatchBookmarks=true";
        }
        path += &match (self.rng.u8(..10), self.earlier(kind, &name)) {
            (0..5, Some(step)) => format!("&resourceVersion={{{{version:{step}}}}}"),
            (5, _) => "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            // The namespace is older than all other objects of the sequence.
            _ => "&resourceVersion={{version:0}}".to_owned(),
        };
        let step = self.push(&what, "GET", path + "&timeoutSeconds=10", String::new());
        self.steps[step].last = Some(marker);
    }

    fn scale(&mut self, kind: &'static Kind) {
        if !kind.has_scale {
            return self.get(kind);
        }
        let name = self.name(kind);
        let path = self.path(kind, &name) + "/scale";
        let get =
            self.push(&format!("get {}/scale", kind.plural), "GET", path.clone(), String::new());
        let edits = vec![("/spec/replicas".to_owned(), json!(self.pick(&[0, 1, 2, 9, -1])))];
        let path = path + &self.write_options();
        let step = self.push(&format!("update {}/scale", kind.plural), "PUT", path, String::new());
        self.steps[step].body = Body::Edited(get, edits);
    }

    fn delete_namespace(&mut self) {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.push("delete namespaces", "DELETE", path, String::new());
    }

    /// A request that a client should not make.
    fn malformed(&mut self, kind: &'static Kind) {
        let name = self.name(kind);
        let (collection, path) = (self.collection(kind), self.path(kind, &name));
        let plural = kind.plural;
        let mut object = self.object(kind, &name);
        let own = format!("{LABEL}%3D{}", self.namespace);
        let json = "application/json";
        let (what, method, path, content_type, body) = match self.rng.u8(..16) {
            0 => ("create without a body", "POST", collection, json, String::new()),
            1 => ("create from broken JSON", "POST", collection, json, "{\"metadata\": {".into()),
            2 => ("create from a list", "POST", collection, json, "[]".into()),
            3 => {
                object["kind"] = json!("Other");
                ("create of another kind", "POST", collection, json, self.text(&object))
            }
            4 => {
                object["apiVersion"] = json!("other/v1");
                ("create of another version", "POST", collection, json, self.text(&object))
            }
            5 => {
                object["metadata"]["namespace"] = json!("elsewhere");
                ("create in another namespace", "POST", collection, json, self.text(&object))
            }
            6 => {
                object["metadata"]["name"] = json!(self.pick(&["Not_Valid", "", "x/y"]));
                ("create with another name", "POST", collection, json, self.text(&object))
            }
            7 => {
                object["metadata"]["name"] = json!("other");
                ("update of another name", "PUT", path, json, self.text(&object))
            }
            8 => ("get of an unknown kind", "GET", format!("{collection}x"), json, String::new()),
            9 => (
                "get of an unknown group",
                "GET",
                "/apis/none.example.com/v1/things".into(),
                json,
                String::new(),
            ),
            10 => {
                let selector =
                    self.pick(&["%3D%3D", "a+in+x", "a%3D%21", "-a", "a%3Db%3Dc", "%28"]);
                (
                    "list by a bad selector",
                    "GET",
                    format!("{collection}?labelSelector={selector}"),
                    json,
                    String::new(),
                )
            }
            11 => {
                let selector = self.pick(&["a", "%3D", "metadata.name", "a%3Db%3Dc"]);
                (
                    "list by bad fields",
                    "GET",
                    format!("{collection}?labelSelector={own}&fieldSelector={selector}"),
                    json,
                    String::new(),
                )
            }
            12 => ("patch of no form", "PATCH", path, json, "{}".into()),
            13 => ("create of text", "POST", collection, "text/plain", self.text(&object)),
            14 => {
                let query =
                    self.pick(&["limit=abc", "continue=abc", "timeoutSeconds=abc", "limit=-1"]);
                (
                    "list with a bad query",
                    "GET",
                    format!("{collection}?labelSelector={own}&{query}"),
                    json,
                    String::new(),
                )
            }
            _ => (
                "patch with broken operations",
                "PATCH",
                path,
                "application/json-patch+json",
                "[{\"op\": \"jump\"}]".into(),
            ),
        };
        let step = self.push(&format!("{what}: {plural}"), method, path, body);
        self.steps[step].content_type = content_type;
    }
}

//! The kinds of a server: the built-in kinds, which a table describes, and the kinds that
//! definitions add.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::definition::Definition;

/// The built-in kinds of Kubernetes 1.37. Each line contains the version, the resource, the
/// kind, the singular, the scope, the short names, the categories, the subresources and the
/// verbs.
const BUILT_IN: &str = include_str!("builtin/kinds.txt");

/// The groups whose kinds change how the server treats other objects or requests. The testkit
/// does not have these kinds, because storing them without this effect would be misleading.
const ACTING: [&str; 6] = [
    "admissionregistration.k8s.io",
    "apiregistration.k8s.io",
    "certificates.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "resource.k8s.io",
    "storagemigration.k8s.io",
];

/// The built-in kinds whose `metadata.generation` the server increases with each change of the
/// spec.
const GENERATIONS: [&str; 15] = [
    "cronjobs",
    "daemonsets",
    "deployments",
    "endpointslices",
    "horizontalpodautoscalers",
    "ingressclasses",
    "ingresses",
    "jobs",
    "networkpolicies",
    "poddisruptionbudgets",
    "pods",
    "podtemplates",
    "priorityclasses",
    "replicasets",
    "replicationcontrollers",
];

/// A resource in one version of its group.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) is_namespaced: bool,
    pub(crate) subresources: Vec<String>,
    pub(crate) verbs: Vec<String>,
    /// The definition of a custom resource, or `None` for a built-in kind.
    pub(crate) definition: Option<Arc<Definition>>,
}

/// The part of an object that a write can change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    /// All fields. If the kind has the subresource `status`, all fields except the status.
    Main,
    Status,
}

/// The kinds, by their group, version and plural.
pub(crate) type Kinds = BTreeMap<(String, String, String), Arc<Kind>>;

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the name of the resource with its group, as error messages contain it:
    /// `websites.example.com`.
    pub(crate) fn qualified(&self) -> String {
        qualify(&self.plural, &self.group)
    }

    /// Returns the name of the kind with its group, as error messages contain it:
    /// `Website.example.com`.
    pub(crate) fn qualified_kind(&self) -> String {
        qualify(&self.kind, &self.group)
    }

    pub(crate) fn list_kind(&self) -> String {
        match &self.definition {
            Some(definition) => definition.list_kind(),
            None => format!("{}List", self.kind),
        }
    }

    pub(crate) fn key(&self) -> (String, String, String) {
        (self.group.clone(), self.version.clone(), self.plural.clone())
    }

    /// Returns the group under which the objects are stored. The two kinds of Event share one
    /// resource in the core group.
    pub(crate) fn storage_group(&self) -> &str {
        if self.is_new_event() { "" } else { &self.group }
    }

    /// Returns true if this is the kind Event of `events.k8s.io`, whose fields have other names
    /// than in the core group.
    pub(crate) fn is_new_event(&self) -> bool {
        self.group == "events.k8s.io" && self.plural == "events"
    }

    pub(crate) fn is_core(&self, plural: &str) -> bool {
        self.group.is_empty() && self.plural == plural
    }

    pub(crate) fn is_definition(&self) -> bool {
        self.group == "apiextensions.k8s.io"
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| subresource == name)
    }

    pub(crate) fn has_generation(&self) -> bool {
        self.definition.is_some()
            || self.is_definition()
            || (GENERATIONS.contains(&&*self.plural) || self.plural == "statefulsets")
    }

    /// Returns the fields that a write to this part cannot change. The writer therefore never
    /// owns them.
    pub(crate) fn reset_fields(&self, part: Part) -> &'static [&'static [&'static str]] {
        const STATUS: &[&[&str]] = &[&["f:status"]];
        const ALL_BUT_STATUS: &[&[&str]] = &[&["f:metadata"], &["f:spec"]];
        if part == Part::Main {
            return if self.has_subresource("status") { STATUS } else { &[] };
        }
        if self.definition.is_some() {
            return ALL_BUT_STATUS;
        }
        match &*self.plural {
            "deployments" => &[&["f:spec"], &["f:metadata", "f:labels"]],
            "pods" => &[
                &["f:spec"],
                &["f:metadata", "f:deletionTimestamp"],
                &["f:metadata", "f:ownerReferences"],
            ],
            "customresourcedefinitions" | "csinodes" | "servicecidrs" | "volumeattachments" => {
                ALL_BUT_STATUS
            }
            _ => &[&["f:spec"]],
        }
    }

    /// Returns true if a PUT without a resource version may replace a stored object.
    pub(crate) fn allows_unconditional_update(&self) -> bool {
        let kinds = [
            "csidrivers",
            "csinodes",
            "leases",
            "poddisruptionbudgets",
            "runtimeclasses",
            "volumeattachments",
        ];
        self.definition.is_none() && !self.is_definition() && !kinds.contains(&&*self.plural)
    }

    /// Returns true if a PUT creates the object if it does not exist.
    pub(crate) fn allows_create_on_update(&self) -> bool {
        let kinds = [
            "clusterrolebindings",
            "clusterroles",
            "endpoints",
            "events",
            "leases",
            "limitranges",
            "rolebindings",
            "roles",
            "runtimeclasses",
            "services",
        ];
        self.definition.is_none() && kinds.contains(&&*self.plural)
    }

    /// Returns true if a deletion without a policy keeps the dependents. These kinds still
    /// behave like their first versions.
    pub(crate) fn orphans_by_default(&self) -> bool {
        self.is_core("replicationcontrollers") || (self.group == "batch" && self.plural == "jobs")
    }

    /// Returns true if the response to a deletion contains the object instead of a `Status`.
    pub(crate) fn returns_deleted_object(&self) -> bool {
        let kinds = [
            "csidrivers",
            "csinodes",
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "resourcequotas",
            "serviceaccounts",
            "services",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ];
        self.definition.is_none() && kinds.contains(&&*self.plural)
    }

    /// Returns the entry for this kind, or for one of its subresources, in the responses of
    /// discovery.
    pub(crate) fn resource(&self, subresource: Option<&str>) -> Value {
        let Some(subresource) = subresource else {
            let mut resource = json!({
                "name": self.plural,
                "singularName": self.singular,
                "namespaced": self.is_namespaced,
                "kind": self.kind,
                "verbs": self.verbs,
            });
            if !self.short_names.is_empty() {
                resource["shortNames"] = json!(self.short_names);
            }
            if !self.categories.is_empty() {
                resource["categories"] = json!(self.categories);
            }
            return resource;
        };
        let mut resource = json!({
            "name": format!("{}/{subresource}", self.plural),
            "singularName": "",
            "namespaced": self.is_namespaced,
            "kind": self.kind,
            "verbs": ["get", "patch", "update"],
        });
        if subresource == "scale" {
            resource["kind"] = json!("Scale");
            resource["group"] = json!("autoscaling");
            resource["version"] = json!("v1");
        }
        resource
    }
}

pub(crate) fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Returns the built-in kinds that the testkit has.
pub(crate) fn built_in() -> Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        BUILT_IN
            .lines()
            .map(read_line)
            .filter(|kind| !ACTING.contains(&&*kind.group))
            .map(|kind| (kind.key(), Arc::new(kind)))
            .collect()
    });
    KINDS.clone()
}

/// Returns true if a real server may have built-in kinds in this group.
pub(crate) fn is_known_group(group: &str) -> bool {
    group.is_empty()
        || group.ends_with(".k8s.io")
        || ["apps", "autoscaling", "batch", "extensions", "policy"].contains(&group)
}

/// Returns true if the testkit has every kind in this version of a built-in group.
pub(crate) fn has_all_kinds(group: &str, version: &str) -> bool {
    !ACTING.contains(&group)
        && BUILT_IN
            .lines()
            .map(read_line)
            .any(|kind| kind.group == group && kind.version == version)
}

fn read_line(line: &str) -> Kind {
    let words: Vec<_> = line.split(' ').collect();
    let [api_version, plural, kind, singular, scope, short, categories, subresources, verbs] =
        words.as_slice()
    else {
        unreachable!("a line of the table has nine words: {line}")
    };
    let list = |word: &str| -> Vec<String> {
        let words = word.split(',').filter(|word| *word != "-");
        words.map(str::to_owned).collect()
    };
    let all = "create,delete,deletecollection,get,list,patch,update,watch";
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Kind {
        group: group.into(),
        version: version.into(),
        kind: (*kind).into(),
        plural: (*plural).into(),
        singular: (*singular).into(),
        short_names: list(short),
        categories: list(categories),
        is_namespaced: *scope == "N",
        subresources: list(subresources),
        verbs: list(if *verbs == "*" { all } else { verbs }),
        definition: None,
    }
}

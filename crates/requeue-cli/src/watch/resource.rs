//! Finds a resource of the server by its name. The syntax of names is that of kubectl.

use kube::core::discovery::v2::{APIGroupDiscoveryList, APIResourceDiscovery};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::Scope;

use crate::key::escaped;

/// The resources of a server, in the server's order of preference. The core group comes first, and the preferred
/// version of each group comes before its other versions.
#[derive(Debug)]
pub(crate) struct Resources(Vec<Resource>);

/// A resource in one version.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) api: ApiResource,
    pub(crate) scope: Scope,
    singular: String,
    short: Vec<String>,
    is_watchable: bool,
}

impl Resource {
    fn new(group: &str, version: &str, resource: APIResourceDiscovery) -> Option<Self> {
        let plural = resource.resource?;
        // The kind of the response may belong to another group, as for the scale of a Deployment. The path of the
        // resource always contains the group of the list.
        let kind = resource.response_kind?.kind?;
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        let can = |verb: &str| resource.verbs.iter().any(|it| it == verb);
        Some(Self {
            is_watchable: can("list") && can("watch"),
            api: ApiResource::from_gvk_with_plural(&gvk, &plural),
            scope: match resource.scope.as_deref() {
                Some("Cluster") => Scope::Cluster,
                _ => Scope::Namespaced,
            },
            singular: resource.singular_resource.unwrap_or_default(),
            short: resource.short_names,
        })
    }

    /// Returns a namespaced resource that can be listed and watched.
    #[cfg(test)]
    pub(crate) fn of(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        Self {
            api: ApiResource::from_gvk_with_plural(&gvk, plural),
            scope: Scope::Namespaced,
            singular: String::new(),
            short: Vec::new(),
            is_watchable: true,
        }
    }

    /// Returns the name for messages, such as `deployments.apps`.
    pub(crate) fn name(&self) -> String {
        let dot = if self.api.group.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.api.plural, self.api.group)
    }

    /// Returns the name for messages, with the namespace unless it is empty.
    pub(crate) fn name_in(&self, namespace: &str) -> String {
        match namespace {
            "" => self.name(),
            _ => format!("{} in namespace {namespace}", self.name()),
        }
    }

    fn has_name(&self, name: &str) -> bool {
        [&self.api.plural, &self.singular, &self.api.kind]
            .into_iter()
            .any(|own| own.eq_ignore_ascii_case(name))
    }

    fn has_short_name(&self, name: &str) -> bool {
        self.short.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

impl Resources {
    /// Collects the resources that a server lists at `/api` and `/apis`.
    pub(crate) fn new(core: APIGroupDiscoveryList, groups: APIGroupDiscoveryList) -> Self {
        let mut all = Vec::new();
        for group in core.items.into_iter().chain(groups.items) {
            let name = group.metadata.and_then(|meta| meta.name).unwrap_or_default();
            for version in group.versions {
                let number = version.version.unwrap_or_default();
                let resources = version.resources.into_iter();
                all.extend(resources.filter_map(|it| Resource::new(&name, &number, it)));
            }
        }
        Self(all)
    }

    /// Finds the resource that `text` names. `text` is a singular or plural name, a kind or a short name. A group, or
    /// a version and a group, can follow after a dot.
    pub(crate) fn find_resource(&self, text: &str) -> Result<Resource, String> {
        let (name, rest) = text.split_once('.').unwrap_or((text, ""));
        let is_meant = |resource: &&Resource| {
            let ApiResource { group, version, .. } = &resource.api;
            let tail = rest.strip_prefix(version.as_str());
            let has_both = tail.is_some_and(|tail| tail.strip_prefix('.').unwrap_or(tail) == group);
            rest.is_empty() || rest == group || has_both
        };
        let meant = || self.0.iter().filter(is_meant);
        let found = meant()
            .find(|resource| resource.has_name(name))
            .or_else(|| meant().find(|resource| resource.has_short_name(name)));
        match found {
            Some(resource) if resource.is_watchable => Ok(resource.clone()),
            Some(resource) => Err(format!(
                "{}: the server has {}, but does not support list and watch for it",
                escaped(text.as_bytes()),
                resource.name()
            )),
            None => Err(self.unknown_message(text, name)),
        }
    }

    fn unknown_message(&self, text: &str, name: &str) -> String {
        let text = escaped(text.as_bytes());
        let nearest = self.nearest_names(name);
        match nearest.split_last() {
            None => format!("{text}: the server has no such resource"),
            Some((only, [])) => format!("{text}: the server has no such resource, but {only}"),
            Some((last, others)) => {
                let others = others.join(", ");
                format!("{text}: the server has no such resource, but {others} and {last}")
            }
        }
    }

    /// Returns the names of at most three resources that can be watched and have similar names.
    fn nearest_names(&self, name: &str) -> Vec<String> {
        const SIMILAR: f64 = 0.8;
        let name = name.to_lowercase();
        let alike = |resource: &Resource| {
            let own = [&resource.api.plural, &resource.singular];
            let names = own.into_iter().chain(&resource.short);
            names.map(|own| strsim::jaro_winkler(own, &name)).fold(0.0, f64::max)
        };
        let watchable = self.0.iter().filter(|resource| resource.is_watchable);
        let mut all: Vec<_> = watchable.map(|it| (alike(it), it.name())).collect();
        all.retain(|(alike, _)| *alike >= SIMILAR);
        // The sort is stable, so resources with equally similar names stay in the server's order of preference.
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut names: Vec<_> = all.into_iter().map(|(_, name)| name).collect();
        names.dedup();
        names.truncate(3);
        names
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resource(plural: &str, kind: &str, short: &[&str], scope: &str) -> Value {
        json!({
            "resource": plural,
            "responseKind": { "group": "", "version": "v1", "kind": kind },
            "singularResource": kind.to_lowercase(),
            "scope": scope,
            "shortNames": short,
            "verbs": ["create", "delete", "get", "list", "watch"],
        })
    }

    fn group(name: &str, versions: &[(&str, &[Value])]) -> Value {
        let versions = versions
            .iter()
            .map(|(version, resources)| json!({ "version": version, "resources": resources }));
        json!({ "metadata": { "name": name }, "versions": versions.collect::<Vec<_>>() })
    }

    fn resources() -> Resources {
        let review = json!({
            "resource": "tokenreviews",
            "responseKind": { "kind": "TokenReview" },
            "singularResource": "tokenreview",
            "scope": "Cluster",
            "verbs": ["create"],
        });
        let core = [
            resource("configmaps", "ConfigMap", &["cm"], "Namespaced"),
            resource("events", "Event", &["ev"], "Namespaced"),
            resource("namespaces", "Namespace", &["ns"], "Cluster"),
        ];
        let deployments = [
            resource("deployments", "Deployment", &["deploy"], "Namespaced"),
            resource("daemonsets", "DaemonSet", &["ds"], "Namespaced"),
        ];
        let old = [resource("deployments", "Deployment", &["deploy"], "Namespaced")];
        let core = json!({ "items": [group("", &[("v1", &core)])] });
        let groups = json!({ "items": [
            group("apps", &[("v1", &deployments), ("v1beta1", &old)]),
            group("events.k8s.io", &[("v1", &[resource("events", "Event", &[], "Namespaced")])]),
            group("authentication.k8s.io", &[("v1", &[review])]),
            // The short name of one resource is the full name of another one.
            group("example.com", &[("v1", &[resource("dses", "Dse", &["cm", "event"], "Cluster")])]),
        ] });
        let list = |value| serde_json::from_value(value).unwrap();
        Resources::new(list(core), list(groups))
    }

    #[test]
    fn a_resource_is_found_by_any_of_its_names() {
        let resources = resources();
        for (text, is) in [
            ("cm", "v1 configmaps"),
            ("configmap", "v1 configmaps"),
            ("configmaps", "v1 configmaps"),
            ("ConfigMap", "v1 configmaps"),
            ("configmaps.v1", "v1 configmaps"),
            ("configmaps.v1.", "v1 configmaps"),
            ("deploy", "apps/v1 deployments"),
            ("deployments.apps", "apps/v1 deployments"),
            ("deploy.apps", "apps/v1 deployments"),
            ("deployments.v1.apps", "apps/v1 deployments"),
            ("Deployment.v1beta1.apps", "apps/v1beta1 deployments"),
            ("events", "v1 events"),
            ("event", "v1 events"),
            ("events.events.k8s.io", "events.k8s.io/v1 events"),
            ("cm.example.com", "example.com/v1 dses"),
        ] {
            let ApiResource { api_version, plural, .. } =
                resources.find_resource(text).unwrap().api;
            assert_eq!(format!("{api_version} {plural}"), is, "{text}");
        }
        assert_eq!(resources.find_resource("ns").unwrap().scope, Scope::Cluster);
        assert_eq!(resources.find_resource("cm").unwrap().scope, Scope::Namespaced);
    }

    #[test]
    fn unknown_resources_are_reported_with_the_nearest_names() {
        let resources = resources();
        for (text, said) in [
            ("depoly", r#""depoly": the server has no such resource, but deployments.apps"#),
            ("configmps", r#""configmps": the server has no such resource, but configmaps"#),
            ("xyz", r#""xyz": the server has no such resource"#),
            // The resource exists, but in another group.
            ("events.apps", r#""events.apps": the server has no such resource, but events, "#),
            ("cm.v2", r#""cm.v2": the server has no such resource, but "#),
            (
                "tokenreviews",
                "\"tokenreviews\": the server has tokenreviews.authentication.k8s.io, but does not \
                 support list and watch for it",
            ),
        ] {
            let why = resources.find_resource(text).unwrap_err();
            assert!(why.starts_with(said), "{why}");
        }
    }
}

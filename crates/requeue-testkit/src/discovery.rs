//! Answers requests without a resource in the path: discovery of groups, versions and
//! resources, and probes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::Method;
use http::header::ACCEPT;
use serde_json::{Value, json};

use crate::kind::{Kind, Kinds};
use crate::status::Failure;

/// Answers a request whose path is not that of a resource. Returns `None` for a probe, which
/// has no JSON.
pub(crate) fn respond(
    kinds: &Kinds,
    request: &http::Request<Bytes>,
) -> Result<Option<Value>, Failure> {
    if request.method() != Method::GET {
        return Err(Failure::method_not_allowed());
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let wants_all = accept.unwrap_or_default().contains("as=APIGroupDiscoveryList");
    let parts: Vec<_> = request.uri().path().split('/').filter(|part| !part.is_empty()).collect();
    let json = match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return Ok(None),
        ["version"] => version(),
        ["api"] if wants_all => all_resources(kinds, |group| group.is_empty()),
        ["apis"] if wants_all => all_resources(kinds, |group| !group.is_empty()),
        ["api"] => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }),
        ["apis"] => {
            let groups: BTreeSet<_> = kinds.keys().map(|(group, _, _)| &**group).collect();
            let groups = groups.into_iter().filter(|group| !group.is_empty());
            let groups: Vec<_> = groups.map(|name| group(kinds, name)).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        ["api", version] => resources(kinds, "", version)?,
        ["apis", name] => {
            if versions(kinds, name).is_empty() {
                return Err(Failure::no_such_path());
            }
            let mut group = group(kinds, name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }
        ["apis", group, version] => resources(kinds, group, version)?,
        ["openapi" | "metrics" | "logs" | "debug" | ".well-known", ..] => {
            return Err(Failure::not_implemented(format_args!(
                "the path {}",
                request.uri().path()
            )));
        }
        _ => return Err(Failure::no_such_path()),
    };
    Ok(Some(json))
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "37",
        "gitVersion": "v1.37.0+requeue-testkit",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// Returns the versions of a group: first the stable versions, then beta, then alpha, and
/// within these the newest first. Other names follow, sorted alphabetically.
fn versions(kinds: &Kinds, group: &str) -> Vec<String> {
    let of_group = kinds.keys().filter(|(found, _, _)| found == group);
    let versions: BTreeSet<_> = of_group.map(|(_, version, _)| version.clone()).collect();
    let mut versions: Vec<_> = versions.into_iter().collect();
    // The names are already sorted alphabetically. The sort is stable, so names without a
    // priority keep this order.
    versions.sort_by_key(|version| Reverse(priority(version)));
    versions
}

/// Returns the stability, the major and the minor number of a version such as `v2beta1`.
/// Returns `None` for names of another form.
fn priority(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let number = |text: &str| {
        let is_number = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    for (word, stability) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

fn group(kinds: &Kinds, name: &str) -> Value {
    let versions = versions(kinds, name)
        .into_iter()
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }));
    let versions: Vec<_> = versions.collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions[0] })
}

fn resources(kinds: &Kinds, group: &str, version: &str) -> Result<Value, Failure> {
    let mut resources = Vec::new();
    let mut group_version = None;
    for kind in kinds_of(kinds, group, version) {
        group_version = Some(kind.api_version());
        resources.push(kind.resource(None));
        let subresources = kind.subresources.iter().filter(|name| is_implemented(name));
        resources.extend(subresources.map(|name| kind.resource(Some(name))));
    }
    let Some(group_version) = group_version else { return Err(Failure::no_such_path()) };
    Ok(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }))
}

/// Returns the resources of all selected groups in one response, the aggregated form of
/// discovery.
fn all_resources(kinds: &Kinds, has_group: impl Fn(&str) -> bool) -> Value {
    let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (group, _, _) in kinds.keys().filter(|(group, _, _)| has_group(group)) {
        groups.entry(group).or_default();
    }
    for (group, found) in &mut groups {
        for version in versions(kinds, group) {
            let resources: Vec<_> =
                kinds_of(kinds, group, &version).map(aggregated_resource).collect();
            found.push(json!({
                "version": version, "resources": resources, "freshness": "Current",
            }));
        }
    }
    let items = groups
        .into_iter()
        .map(|(group, versions)| json!({ "metadata": { "name": group }, "versions": versions }));
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind = |group: &str, version: &str, kind: &str| json!({ "group": group, "version": version, "kind": kind });
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": response_kind(&kind.group, &kind.version, &kind.kind),
        "scope": if kind.is_namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    let subresources = kind.subresources.iter().filter(|name| is_implemented(name));
    let subresources = subresources.map(|name| {
        let kind = match &**name {
            "scale" => response_kind("autoscaling", "v1", "Scale"),
            _ => response_kind(&kind.group, &kind.version, &kind.kind),
        };
        json!({ "subresource": name, "responseKind": kind, "verbs": ["get", "patch", "update"] })
    });
    let subresources: Vec<_> = subresources.collect();
    if !subresources.is_empty() {
        resource["subresources"] = json!(subresources);
    }
    resource
}

fn kinds_of<'a>(
    kinds: &'a Kinds,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Kind> {
    let of_version = kinds.iter().filter(move |(key, _)| key.0 == group && key.1 == version);
    of_version.map(|(_, kind)| &**kind)
}

fn is_implemented(subresource: &str) -> bool {
    subresource == "status" || subresource == "scale"
}

//! The permissions of the controller, and the permissions that it uses.

use std::collections::BTreeSet;
use std::path::Path;

use requeue_e2e::objects;
use serde_json::Value;

const USER: &str = "system:serviceaccount:website-system:website-controller";

/// Logs the user, verb, resource and response code of each request.
pub(crate) const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"#;

/// A verb, with the group and the resource to which it is applied.
pub(crate) type Use = (String, String, String);

/// Returns the permissions in the manifest.
pub(crate) fn allowed() -> BTreeSet<Use> {
    let rules = objects(manifest!("manifests/rbac.yaml"));
    let rules = rules.iter().filter_map(|object| object.data["rules"].as_array()).flatten();
    let texts = |of: &Value| -> Vec<String> {
        serde_json::from_value(of.clone()).expect("a list of texts")
    };
    let mut allowed = BTreeSet::new();
    for rule in rules {
        let groups = texts(&rule["apiGroups"]);
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                let uses =
                    groups.iter().map(|group| (verb.clone(), group.clone(), resource.clone()));
                allowed.extend(uses);
            }
        }
    }
    allowed
}

/// Returns the permissions that the controller has used, from the audit log. Fails if any request
/// was refused.
pub(crate) fn used(audit: &Path) -> BTreeSet<Use> {
    let audit = std::fs::read_to_string(audit).expect("the audit log exists");
    let events = audit.lines().map(|line| serde_json::from_str(line).expect("an event is JSON"));
    let events = events.filter(|event: &Value| event["impersonatedUser"]["username"] == USER);
    let mut used = BTreeSet::new();
    for event in events {
        let code = &event["responseStatus"]["code"];
        assert_ne!(code, 403, "{event}");
        let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let (group, mut resource) = (text(&object["apiGroup"]), text(&object["resource"]));
        if let Some(subresource) = object["subresource"].as_str() {
            resource = format!("{resource}/{subresource}");
        }
        if code == 201 {
            // An apply that created an object also needs `create`.
            used.insert(("create".to_owned(), group.clone(), resource.clone()));
        }
        used.insert((text(&event["verb"]), group, resource));
    }
    used
}

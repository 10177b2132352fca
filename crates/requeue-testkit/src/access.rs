//! The permissions of users, as rules of RBAC.

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use crate::request::{Request, Verb};

/// A user, and the requests that RBAC permits to this user.
///
/// As in RBAC, a rule can only permit requests. Every user may read discovery, and may ask for
/// their own permissions.
///
/// # Examples
///
/// ```
/// use k8s_openapi::api::rbac::v1::PolicyRule;
/// use requeue_testkit::Access;
///
/// let reader = PolicyRule {
///     api_groups: Some(vec!["".into()]),
///     resources: Some(vec!["configmaps".into()]),
///     verbs: vec!["get".into(), "list".into(), "watch".into()],
///     ..PolicyRule::default()
/// };
/// let access = Access::user("reader").allow([reader]);
/// # let _ = access;
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    user: String,
    /// The rules, each with the namespace in which it applies. A rule with the namespace
    /// `None` applies in all namespaces. If the list itself is `None`, the user may send any
    /// request.
    rules: Option<Vec<(Option<String>, PolicyRule)>>,
}

impl Access {
    /// Returns a user who may send any request.
    #[must_use]
    pub fn admin() -> Self {
        Self { user: "system:admin".into(), rules: None }
    }

    /// Returns a user with this name, who has no permissions yet.
    #[must_use]
    pub fn user(name: &str) -> Self {
        Self { user: name.into(), rules: Some(Vec::new()) }
    }

    /// Adds rules that apply in all namespaces, as a ClusterRoleBinding does.
    #[must_use]
    pub fn allow(self, rules: impl IntoIterator<Item = PolicyRule>) -> Self {
        self.add(None, rules)
    }

    /// Adds rules that apply in one namespace, as a RoleBinding does.
    #[must_use]
    pub fn allow_in(self, namespace: &str, rules: impl IntoIterator<Item = PolicyRule>) -> Self {
        self.add(Some(namespace), rules)
    }

    fn add(mut self, namespace: Option<&str>, rules: impl IntoIterator<Item = PolicyRule>) -> Self {
        if let Some(known) = &mut self.rules {
            let namespace = namespace.map(str::to_owned);
            known.extend(rules.into_iter().map(|rule| (namespace.clone(), rule)));
        }
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.user
    }

    /// Returns the reason why RBAC forbids the request, or `None` if it is permitted.
    pub(crate) fn refusal(&self, verb: Verb, request: &Request) -> Option<String> {
        let path = &request.path;
        let (_, _, name) = request.resource();
        if path.group == "authorization.k8s.io" && path.plural.starts_with("selfsubject") {
            return None;
        }
        let attributes = Attributes {
            verb: verb.name(),
            group: &path.group,
            resource: &path.plural,
            subresource: path.subresource.as_deref().unwrap_or_default(),
            namespace: path.own_namespace(),
            name,
        };
        (!self.allows(&attributes)).then(|| {
            let place = match attributes.namespace {
                "" => "at the cluster scope".into(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            format!(
                "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
                self.user,
                attributes.verb,
                attributes.full_resource(),
                path.group,
            )
        })
    }

    /// Answers a SelfSubjectAccessReview: fills in whether this user may send the described
    /// request.
    pub(crate) fn review(&self, review: &Value) -> Value {
        let spec = &review["spec"];
        let attribute = |name: &str| spec["resourceAttributes"][name].as_str().unwrap_or_default();
        let is_allowed = if spec["nonResourceAttributes"].is_object() {
            let rules = self.rules.iter().flatten();
            let (path, verb) = (
                spec["nonResourceAttributes"]["path"].as_str().unwrap_or_default(),
                spec["nonResourceAttributes"]["verb"].as_str().unwrap_or_default(),
            );
            let is_in = |rule: &PolicyRule| {
                holds(&rule.verbs, verb)
                    && rule.non_resource_urls.iter().flatten().any(|url| {
                        url == path
                            || url.strip_suffix('*').is_some_and(|start| path.starts_with(start))
                    })
            };
            self.rules.is_none() || rules.map(|(_, rule)| rule).any(is_in)
        } else {
            self.allows(&Attributes {
                verb: attribute("verb"),
                group: attribute("group"),
                resource: attribute("resource"),
                subresource: attribute("subresource"),
                namespace: attribute("namespace"),
                name: attribute("name"),
            })
        };
        json!({
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": spec,
            "status": { "allowed": is_allowed },
        })
    }

    fn allows(&self, attributes: &Attributes<'_>) -> bool {
        let Some(rules) = &self.rules else { return true };
        rules.iter().any(|(namespace, rule)| {
            namespace.as_deref().is_none_or(|namespace| namespace == attributes.namespace)
                && attributes.fit(rule)
        })
    }
}

/// The properties of a request that the rules of RBAC refer to.
struct Attributes<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl Attributes<'_> {
    fn full_resource(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }

    fn fit(&self, rule: &PolicyRule) -> bool {
        let names = rule.resource_names.as_deref().unwrap_or_default();
        let resources = rule.resources.as_deref().unwrap_or_default();
        let any_resource = format!("*/{}", self.subresource);
        holds(&rule.verbs, self.verb)
            && holds(rule.api_groups.as_deref().unwrap_or_default(), self.group)
            && (holds(resources, &self.full_resource())
                || (!self.subresource.is_empty() && resources.contains(&any_resource)))
            && (names.is_empty() || names.iter().any(|name| name == self.name))
    }
}

fn holds(list: &[String], wanted: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == wanted)
}

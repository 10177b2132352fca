//! Names of Kubernetes objects, as values of flags of `requeue watch`.

use std::str::FromStr;

/// Checks the name of a finalizer: a domain and a name, as Kubernetes requires.
pub(crate) fn parse_finalizer(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "expected a domain of yours and a name, as in example.com/cleanup";
    let (domain, name) = text.split_once('/').ok_or(WRONG)?;
    let is_name = name.len() <= 63 && is_within_alphanumerics(name, is_name_byte);
    (is_subdomain(domain) && is_name).then(|| text.to_owned()).ok_or(WRONG)
}

/// `NAME=RESOURCE`: the name of a snapshot's file, and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) resource: String,
}

impl FromStr for Named {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "expected a name of letters, digits and -_. and a resource, as in maps=configmaps";
        let (name, resource) = text.split_once('=').ok_or(WRONG)?;
        // The name of a file has at most 255 bytes. Its extension takes some of them.
        let is_name = name.len() <= 200 && is_within_alphanumerics(name, is_name_byte);
        let is_good = is_name && !resource.is_empty();
        let (name, resource) = (name.to_owned(), resource.to_owned());
        is_good.then_some(Self { name, resource }).ok_or(WRONG)
    }
}

/// `RESOURCE[/NAME]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Selected {
    pub(crate) resource: String,
    pub(crate) name: Option<String>,
}

impl FromStr for Selected {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "expected a resource, or a resource and a name, as in configmaps/settings";
        let (resource, name) = match text.split_once('/') {
            Some((resource, name)) => (resource, Some(name)),
            None => (text, None),
        };
        // Names of roles have colons. Characters with a meaning in a field selector are refused.
        let is_allowed = |byte: u8| is_name_byte(byte) || byte == b':';
        let is_good = !resource.is_empty()
            && name.is_none_or(|name| !name.is_empty() && name.bytes().all(is_allowed));
        let (resource, name) = (resource.to_owned(), name.map(str::to_owned));
        is_good.then_some(Self { resource, name }).ok_or(WRONG)
    }
}

/// `[NAMESPACE/]NAME` of a Lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseName {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl FromStr for LeaseName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "expected the name of a Lease, as in my-controller or default/my-controller";
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let is_good = is_subdomain(name) && namespace.is_none_or(is_subdomain);
        let (namespace, name) = (namespace.map(str::to_owned), name.to_owned());
        is_good.then_some(Self { namespace, name }).ok_or(WRONG)
    }
}

/// Returns true for a DNS subdomain, which is a valid domain and the name of most objects.
fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253 && text.split('.').all(|label| is_within_alphanumerics(label, is_lower))
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Returns true if all bytes are allowed, and the first and the last are letters or digits.
fn is_within_alphanumerics(text: &str, is_allowed: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|&byte| is_allowed(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_and_selections_have_a_resource_and_a_name() {
        let named = "a-1.b=deploy.apps".parse::<Named>().unwrap();
        assert_eq!((&*named.name, &*named.resource), ("a-1.b", "deploy.apps"));
        for text in ["", "a", "=cm", "a=", "../a=cm", "a/b=cm", ".a=cm", "a b=cm"] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
        let selected = |text: &str| {
            let Selected { resource, name } = text.parse().ok()?;
            Some((resource, name))
        };
        assert_eq!(selected("cm"), Some(("cm".into(), None)));
        let name = "system:node".to_owned();
        assert_eq!(selected("clusterroles/system:node"), Some(("clusterroles".into(), Some(name))));
        for text in ["", "/", "/a", "cm/", "cm/a/b", "cm/a,b", "cm/a=b"] {
            assert_eq!(selected(text), None, "{text}");
        }
    }

    #[test]
    fn a_lease_may_have_a_namespace() {
        let lease = |text: &str| {
            let LeaseName { namespace, name } = text.parse().ok()?;
            Some((namespace, name))
        };
        assert_eq!(lease("a-b"), Some((None, "a-b".into())));
        assert_eq!(lease("a/b.c"), Some((Some("a".into()), "b.c".into())));
        for text in ["", "/", "a/", "/a", "a/b/c", "A", "a_b"] {
            assert_eq!(lease(text), None, "{text}");
        }
    }

    #[test]
    fn a_finalizer_has_a_domain() {
        for text in ["example.com/cleanup", "a/b", "a-b.c/D_e.f-1"] {
            assert_eq!(parse_finalizer(text).as_deref(), Ok(text));
        }
        let long = format!("a/{}", "x".repeat(64));
        for text in
            ["", "/", "a", "a/", "/b", "a/b/c", "A.com/b", "a..b/c", "-a/b", "a/b-", "a/ b", &long]
        {
            assert!(parse_finalizer(text).is_err(), "{text}");
        }
    }
}

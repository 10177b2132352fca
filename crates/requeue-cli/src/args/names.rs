//! Parsers for names of Kubernetes objects in flags of `requeue watch`.

/// Parses the name of a finalizer. Kubernetes requires a domain and a name.
pub(crate) fn parse_finalizer(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "expected a domain of yours and a name, as in example.com/cleanup";
    let (domain, name) = text.split_once('/').ok_or(WRONG)?;
    let is_name = name.len() <= 63 && is_within_alphanumerics(name, is_name_byte);
    (is_subdomain(domain) && is_name).then(|| text.to_owned()).ok_or(WRONG)
}

/// The two parts of `NAME=RESOURCE`: the name of the snapshot's file, and the resource of the objects in it.
pub(crate) type Named = (String, String);

/// Parses the value of `--snapshot`.
pub(crate) fn parse_named(text: &str) -> Result<Named, &'static str> {
    const WRONG: &str =
        "expected a name of letters, digits and -_. and a resource, as in maps=configmaps";
    let (name, resource) = text.split_once('=').ok_or(WRONG)?;
    // File systems permit names of up to 255 bytes, including the extension. This limit leaves space for it.
    let is_name = name.len() <= 200 && is_within_alphanumerics(name, is_name_byte);
    let is_good = is_name && !resource.is_empty();
    is_good.then(|| (name.to_owned(), resource.to_owned())).ok_or(WRONG)
}

/// The two parts of `RESOURCE[/NAME]`.
pub(crate) type Selected = (String, Option<String>);

/// Parses the value of `--all-on`.
pub(crate) fn parse_selected(text: &str) -> Result<Selected, &'static str> {
    const WRONG: &str = "expected a resource, or a resource and a name, as in configmaps/settings";
    let (resource, name) = match text.split_once('/') {
        Some((resource, name)) => (resource, Some(name)),
        None => (text, None),
    };
    // The names of roles can contain colons. The name becomes a part of a field selector, so characters with a meaning
    // there are refused.
    let is_allowed = |byte: u8| is_name_byte(byte) || byte == b':';
    let is_good = !resource.is_empty()
        && name.is_none_or(|name| !name.is_empty() && name.bytes().all(is_allowed));
    is_good.then(|| (resource.to_owned(), name.map(str::to_owned))).ok_or(WRONG)
}

/// The two parts of the name of a Lease, `[NAMESPACE/]NAME`.
pub(crate) type LeaseName = (Option<String>, String);

/// Parses the value of `--leader-election`.
pub(crate) fn parse_lease(text: &str) -> Result<LeaseName, &'static str> {
    const WRONG: &str =
        "expected the name of a Lease, as in my-controller or default/my-controller";
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let is_good = is_subdomain(name) && namespace.is_none_or(is_subdomain);
    is_good.then(|| (namespace.map(str::to_owned), name.to_owned())).ok_or(WRONG)
}

/// Returns true if `text` is a DNS subdomain. It is then a valid domain, and a valid name for most kinds of objects.
fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253 && text.split('.').all(|label| is_within_alphanumerics(label, is_lower))
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Returns true if all bytes are allowed, and the first and the last byte are letters or digits.
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
        assert_eq!(parse_named("a-1.b=deploy.apps"), Ok(("a-1.b".into(), "deploy.apps".into())));
        for text in ["", "a", "=cm", "a=", "../a=cm", "a/b=cm", ".a=cm", "a b=cm"] {
            assert!(parse_named(text).is_err(), "{text}");
        }
        assert_eq!(parse_selected("cm"), Ok(("cm".into(), None)));
        let name = "system:node".to_owned();
        let selected = ("clusterroles".into(), Some(name));
        assert_eq!(parse_selected("clusterroles/system:node"), Ok(selected));
        for text in ["", "/", "/a", "cm/", "cm/a/b", "cm/a,b", "cm/a=b"] {
            assert!(parse_selected(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lease_may_have_a_namespace() {
        assert_eq!(parse_lease("a-b"), Ok((None, "a-b".into())));
        assert_eq!(parse_lease("a/b.c"), Ok((Some("a".into()), "b.c".into())));
        for text in ["", "/", "a/", "/a", "a/b/c", "A", "a_b"] {
            assert!(parse_lease(text).is_err(), "{text}");
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

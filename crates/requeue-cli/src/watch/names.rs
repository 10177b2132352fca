//! Names as Kubernetes has them.

/// A finalizer's: a domain and a name, as Kubernetes wants them.
pub(crate) fn parse_finalizer(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "a domain of yours and a name, as in example.com/cleanup";
    let (domain, name) = text.split_once('/').ok_or(WRONG)?;
    let is_name = name.len() <= 63 && is_within_alphanumerics(name, is_name_byte);
    (is_subdomain(domain) && is_name).then(|| text.to_owned()).ok_or(WRONG)
}

/// What most objects can be called, and a domain.
fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253 && text.split('.').all(|label| is_within_alphanumerics(label, is_lower))
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Whether there is something, all of it such bytes, and a letter or digit at either end.
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

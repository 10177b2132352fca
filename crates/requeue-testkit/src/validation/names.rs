//! The rules for names, labels and keys, with the error messages of the package `content`
//! of apimachinery.

/// The maximum length of a label, and of the name in a qualified key, in bytes.
const LONGEST_LABEL: usize = 63;

/// The maximum length of a subdomain, in bytes.
const LONGEST_SUBDOMAIN: usize = 253;

const WHY_NO_KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must \
                          start and end with an alphanumeric character (e.g. 'MyName',  or \
                          'my.name',  or '123-abc', regex used for validation is \
                          '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Returns the errors in the key of a label, such as `example.com/name`.
pub(crate) fn label_key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<_> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let found = subdomain_errors(prefix);
                errors.extend(found.into_iter().map(|why| format!("prefix part {why}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {WHY_NO_KEY} with an optional DNS subdomain prefix and '/' \
                 (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > LONGEST_LABEL {
        errors.push(format!("name part {}", too_long(LONGEST_LABEL)));
    }
    if !is_label(name) {
        errors.push(format!("name part {WHY_NO_KEY}"));
    }
    errors
}

/// Returns the errors in the value of a label.
pub(crate) fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LONGEST_LABEL {
        errors.push(too_long(LONGEST_LABEL));
    }
    if !value.is_empty() && !is_label(value) {
        let why = "a valid label must be an empty string or consist of alphanumeric characters, \
                   '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
                   'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                   '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        errors.push(why.into());
    }
    errors
}

/// Returns the errors in a key of a ConfigMap or a Secret.
pub(super) fn config_key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > LONGEST_SUBDOMAIN {
        errors.push(format!("must be no more than {LONGEST_SUBDOMAIN} characters"));
    }
    let is_key = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if key.is_empty() || !key.chars().all(is_key) {
        let why = "a valid config key must consist of alphanumeric characters, '-', '_' or \
                   '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for \
                   validation is '[-._a-zA-Z0-9]+')";
        errors.push(why.into());
    } else if key == "." || key == ".." {
        errors.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        errors.push("must not start with '..'".into());
    }
    errors
}

/// Returns the errors in a name that must be a segment of a path.
pub(super) fn segment_errors(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    let contained = ["/", "%"].into_iter().filter(|part| name.contains(part));
    contained.map(|part| format!("may not contain '{part}'")).collect()
}

/// Returns the errors in a name that must be a subdomain, such as `my.name`.
pub(super) fn subdomain_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > LONGEST_SUBDOMAIN {
        errors.push(too_long(LONGEST_SUBDOMAIN));
    }
    if !is_subdomain(name) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                   characters, '-' or '.', and must start and end with an alphanumeric character \
                   (e.g. 'example.com', regex used for validation is \
                   '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        errors.push(why.into());
    }
    errors
}

/// Returns the errors in a name that must be a DNS label, which contains no dots.
pub(super) fn dns_label_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > LONGEST_LABEL {
        errors.push(too_long(LONGEST_LABEL));
    }
    if !is_subdomain(name) {
        let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                   or '-', and must start and end with an alphanumeric character (e.g. \
                   'my-name',  or '123-abc', regex used for validation is \
                   '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        errors.push(why.into());
    } else if name.contains('.') {
        errors.push("must not contain dots".into());
    }
    errors
}

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn is_subdomain(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.split('.').all(|part| {
        part.bytes().all(is_inner)
            && !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
    })
}

fn is_label(text: &str) -> bool {
    let is_inner = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let is_edge = |character: char| character.is_ascii_alphanumeric();
    text.chars().all(is_inner) && text.starts_with(is_edge) && text.ends_with(is_edge)
}

//! Groups of keys, such as the keys of one tenant. The store keeps the name of the group with each key.

use std::fmt;
use std::sync::Arc;

use regex::bytes::Regex;

use crate::types::key::Key;

/// The maximum length, in bytes, of the name of a group.
const MAX_NAME: usize = 100;

/// The rule that assigns the keys of a queue to groups.
///
/// This value is a setting of the queue for all processes: see [`OpenOptions::group_by`](crate::OpenOptions::group_by).
/// The name of a group has up to 100 bytes and no control characters. The group with the empty name is for keys without
/// a tenant. It takes turns and has a limit, like any other group.
///
/// # Examples
///
/// ```
/// use requeue_store::GroupBy;
///
/// assert_eq!(GroupBy::from("^[^/]*"), GroupBy::Pattern("^[^/]*".to_owned()));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum GroupBy {
    /// Each add names the group of its key: see [`Queue::group`](crate::Queue::group). If the add names no group, the
    /// key is in the group with the empty name.
    Add,
    /// A regular expression extracts the group from the key: the first capture, or the whole match if the expression
    /// has no captures. A key that does not match is in the group with the empty name.
    ///
    /// The crate `regex` defines the syntax. In the name of the group, control characters, backslashes and bytes that
    /// are not UTF-8 are escaped, as [`Key`](crate::Key) shows them. If the escaped name has more than 100 bytes, the
    /// queue refuses the add.
    Pattern(String),
}

impl GroupBy {
    /// Returns an error with the reason if a queue with this setting refuses an add of `key` that names the group
    /// `named`.
    #[doc(hidden)] // Only `requeue-cli` checks an add before it creates the queue.
    pub fn check_add(&self, key: &Key, named: Option<&str>) -> Result<(), String> {
        Grouping::new(self)?.group_of(key, named).map(drop)
    }

    /// Returns the setting that engines store as the text `stored`.
    pub(crate) fn from_stored(stored: &str) -> Self {
        if stored.is_empty() { Self::Add } else { Self::from(stored) }
    }
}

impl From<&str> for GroupBy {
    fn from(pattern: &str) -> Self {
        Self::Pattern(pattern.to_owned())
    }
}

/// A [`GroupBy`] with its compiled pattern.
#[derive(Clone, Debug)]
pub(crate) enum Grouping {
    Add,
    Pattern(Regex),
}

impl Grouping {
    /// Compiles the pattern. The error is the reason why it is not a regular expression.
    pub(crate) fn new(by: &GroupBy) -> Result<Self, String> {
        match by {
            GroupBy::Add => Ok(Self::Add),
            GroupBy::Pattern(pattern) if pattern.is_empty() => {
                Err("the pattern of its groups is empty; use one such as ^[^/]*".to_owned())
            }
            GroupBy::Pattern(pattern) => Regex::new(pattern).map(Self::Pattern).map_err(|error| {
                // The lines before the last one repeat the pattern.
                let error = error.to_string();
                let why = error.lines().last().unwrap_or_default();
                let why = why.strip_prefix("error: ").unwrap_or(why);
                format!("the pattern {pattern:?} of its groups is not a regular expression: {why}")
            }),
        }
    }

    /// Returns the setting as the text that engines store: the pattern, or an empty text if each add names the group.
    pub(crate) fn as_stored(&self) -> &str {
        match self {
            Self::Add => "",
            Self::Pattern(pattern) => pattern.as_str(),
        }
    }

    /// Returns the group of a key. `named` is the group that the add names.
    ///
    /// # Errors
    ///
    /// Returns the reason why the group has no valid name, or differs from the group that the add names.
    pub(crate) fn group_of(&self, key: &Key, named: Option<&str>) -> Result<Arc<str>, String> {
        let group = match self {
            Self::Add => named.unwrap_or_default().into(),
            Self::Pattern(pattern) => {
                let found = pattern.captures(key);
                let found = found.and_then(|found| found.get(1).or(found.get(0)));
                let bytes = found.map(|found| found.as_bytes()).unwrap_or_default();
                // A key may contain any bytes. Bytes that are not text are escaped, so that different bytes are
                // different groups.
                let group = Key::from(bytes).to_string();
                if let Some(named) = named.filter(|&named| named != group) {
                    return Err(format!(
                        "the add names the group {named:?}, and the pattern {:?} of the queue extracts {group:?}; \
                         omit the group",
                        pattern.as_str()
                    ));
                }
                group
            }
        };
        match invalid_name(&group) {
            Some(why) => Err(why),
            None => Ok(group.into()),
        }
    }
}

impl PartialEq for Grouping {
    fn eq(&self, other: &Self) -> bool {
        self.as_stored() == other.as_stored()
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add => f.write_str("named by each add"),
            Self::Pattern(pattern) => write!(f, "extracted by the pattern {:?}", pattern.as_str()),
        }
    }
}

/// Returns a text that is less than `name`, but not less than any valid name before `name`. The order is the order of
/// bytes, which engines use. Returns `None` if no name is less than `name`.
pub(crate) fn preceding(name: &str) -> Option<String> {
    let mut chars = name.chars();
    let last = chars.next_back()?;
    // The range has no surrogates, because they are not characters.
    let before = ('\0'..last).next_back()?;
    // This text is longer than any name, so no name begins with it.
    let tail = std::iter::repeat_n(char::MAX, MAX_NAME / char::MAX.len_utf8() + 1);
    Some(chars.chain([before]).chain(tail).collect())
}

/// Returns the reason why the name of a group is invalid, or `None` if it is valid.
pub(crate) fn invalid_name(name: &str) -> Option<String> {
    let shown = crate::types::text::prefix(name, MAX_NAME);
    if name.len() > MAX_NAME {
        return Some(format!(
            "the name of the group {shown:?}… has {} bytes; at most {MAX_NAME} are allowed; shorten it",
            name.len()
        ));
    }
    name.contains(char::is_control)
        .then(|| format!("the name of the group {shown:?} has control characters; remove them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_of(pattern: &str, key: &[u8]) -> Result<Arc<str>, String> {
        Grouping::new(&pattern.into()).expect("a pattern").group_of(&key.into(), None)
    }

    #[test]
    fn a_group_is_the_first_capture_or_the_match_or_empty() {
        for (pattern, key, group) in [
            ("^[^/]*", &b"a/b/c"[..], "a"),
            ("^([^/]*)/([^/]*)", b"a/b/c", "a"),
            ("x(y)?", b"wxz", "x"),
            ("x", b"abc", ""),
            ("(?s-u)^.", b"\xffabc", "\\xff"),
        ] {
            assert_eq!(group_of(pattern, key).as_deref(), Ok(group), "{pattern}");
        }
    }

    #[test]
    fn no_name_lies_between_a_name_and_the_text_that_precedes_it() {
        let most = "\u{10ffff}".repeat(25);
        let mut names = ["", " ", "a", "a ", "aa", "a\u{d7ff}", "a\u{e000}", "ab", "b", &most, "é"];
        names.sort_unstable();
        assert_eq!(preceding(names[0]), None);
        for pair in names.windows(2) {
            let before = preceding(pair[1]).expect("it is not the least name");
            assert!(
                pair[0] <= before.as_str() && before.as_str() < pair[1],
                "{pair:?}: {before:?}"
            );
        }
    }

    #[test]
    fn an_invalid_group_is_named() {
        let long = "é".repeat(5000);
        let error = Grouping::Add.group_of(&"k".into(), Some(&long)).expect_err("too long");
        assert!(error.contains("has 10000 bytes; at most 100 are allowed"), "{error}");
        assert!(error.len() < 300, "{error}");
        let error = Grouping::Add.group_of(&"k".into(), Some("a\nb")).expect_err("a line break");
        assert!(error.contains(r#""a\nb" has control characters"#), "{error}");
        let pattern = Grouping::new(&"^[^/]*".into()).expect("a pattern");
        let error = pattern.group_of(&"a/b".into(), Some("c")).expect_err("another group");
        assert!(
            error.contains(r#"names the group "c""#) && error.contains(r#"extracts "a""#),
            "{error}"
        );
        assert_eq!(pattern.group_of(&"a/b".into(), Some("a")).as_deref(), Ok("a"));
        let error = Grouping::new(&"(".into()).expect_err("no regular expression");
        assert!(error.contains("unclosed group"), "{error}");
        assert!(Grouping::new(&"".into()).is_err());
    }
}

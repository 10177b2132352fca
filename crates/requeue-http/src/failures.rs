//! Groups the failing keys by their errors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::api::{FailureGroup, FailureList, State as RowState};
use crate::history::first_part;
use crate::rows::shown_key;

/// The maximum number of failing keys that one request reads.
const MOST_FAILURES: usize = 10_000;
/// The maximum length, in bytes, of the name of a group, and of the example of an error.
const MOST_NAME: usize = 200;
const MOST_ERROR: usize = 1_000;
/// The maximum number of keys for which one request reads the individual failures from the store.
const MOST_READ: usize = 30;

/// A key whose last run failed.
pub(crate) struct Failing<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) state: RowState,
    /// The number of consecutive failures of the key.
    pub(crate) failures: u32,
    pub(crate) error: Option<&'a str>,
    /// The times since the first and the last failure of the key whose errors belong to the group,
    /// in seconds. `None` if the time is unknown.
    pub(crate) first: Option<f64>,
    pub(crate) last: Option<f64>,
}

/// The keys of a group whose first failure is unknown.
#[derive(Default)]
struct Unknown {
    count: usize,
    /// The first keys that were found, at most [`MOST_READ`].
    keys: Vec<Vec<u8>>,
}

/// Collects failing keys, and groups them by their errors.
#[derive(Default)]
pub(crate) struct Failures {
    groups: BTreeMap<String, (FailureGroup, Unknown)>,
    keys: usize,
    waiting: usize,
    pub(crate) looked_at: usize,
    /// True if some failing keys were not read.
    pub(crate) cut: bool,
}

impl Failures {
    /// Adds a failing key. Returns false if the maximum number of keys was reached, so that the key
    /// was not added.
    pub(crate) fn push(&mut self, failing: &Failing<'_>) -> bool {
        if self.keys == MOST_FAILURES {
            self.cut = true;
            return false;
        }
        self.keys += 1;
        self.waiting +=
            usize::from(matches!(failing.state, RowState::Waiting | RowState::BackingOff));
        let (key, key_base64) = shown_key(failing.key);
        let error = group_of(failing.error, &key);
        let (group, unknown) = self.groups.entry(error).or_insert_with_key(|error| {
            let sample = failing.error.map(|error| first_part(error.to_owned(), MOST_ERROR));
            let error = error.clone();
            let group = FailureGroup { error, key, key_base64, sample, ..FailureGroup::default() };
            (group, Unknown::default())
        });
        group.keys += 1;
        group.parked += usize::from(failing.state == RowState::Parked);
        group.failures += u64::from(failing.failures);
        let known = [group.oldest, failing.first, failing.last];
        group.oldest = known.into_iter().flatten().reduce(f64::max);
        if failing.first.is_none() {
            unknown.count += 1;
            if unknown.keys.len() < MOST_READ {
                unknown.keys.push(failing.key.to_owned());
            }
        }
        group.last = group.last.into_iter().chain(failing.last).reduce(f64::min);
        true
    }

    /// Returns the keys whose individual failures are needed to compute the first failure of their
    /// groups. Each key has the name of its group. If there are more than [`MOST_READ`] of these
    /// keys, the rest is omitted.
    #[cfg_attr(not(feature = "store"), expect(dead_code, reason = "only stores know a part"))]
    pub(crate) fn keys_to_read(&self) -> Vec<(String, Vec<u8>)> {
        let mut left = MOST_READ;
        let mut keys = Vec::new();
        for (name, (_, unknown)) in &self.groups {
            let some = unknown.keys.iter().take(left);
            keys.extend(some.map(|key| (name.clone(), key.clone())));
            left = MOST_READ - keys.len();
        }
        keys
    }

    /// Sets the time since the oldest known failure of a group, if `oldest` is greater. The failure
    /// belongs to a key [to read](Self::keys_to_read).
    #[cfg_attr(not(feature = "store"), expect(dead_code, reason = "only stores know a part"))]
    pub(crate) fn note_oldest(&mut self, group: &str, oldest: f64) {
        if let Some((group, _)) = self.groups.get_mut(group) {
            group.oldest = Some(group.oldest.map_or(oldest, |other| other.max(oldest)));
        }
    }

    /// Records that the first failure of one more key [to read](Self::keys_to_read) is now known.
    #[cfg_attr(not(feature = "store"), expect(dead_code, reason = "only stores know a part"))]
    pub(crate) fn note_first(&mut self, group: &str) {
        if let Some((_, unknown)) = self.groups.get_mut(group) {
            unknown.count = unknown.count.saturating_sub(1);
        }
    }

    /// Returns up to `limit` groups. The group with the most keys is first.
    pub(crate) fn into_list(self, limit: usize) -> FailureList {
        let Self { groups, keys, waiting, looked_at, cut } = self;
        // If the first failure of one key is unknown, it may be the first failure of the group.
        let known = |(group, unknown): (FailureGroup, Unknown)| FailureGroup {
            first: group.oldest.filter(|_| unknown.count == 0),
            ..group
        };
        let mut groups: Vec<_> = groups.into_values().map(known).collect();
        groups.sort_by(|a, b| b.keys.cmp(&a.keys).then_with(|| a.error.cmp(&b.error)));
        let more = groups.len() > limit;
        groups.truncate(limit);
        FailureList { failures: groups, keys, waiting, looked_at, more, cut }
    }
}

// --- The name of a group -------------------------------------------------------------------------

/// The name of the group of keys whose errors are unknown.
const UNKNOWN: &str = "unknown error";
/// The name of the group of keys whose errors are empty.
const EMPTY: &str = "empty error";

/// A number of at most three digits after one of these words is the kind of the error, such as an
/// exit status. It is therefore part of the name of the group.
const KINDS: [&str; 7] = ["status", "code", "signal", "http", "exit", "errno", "error"];

/// Returns the name of the group of an error. Errors with the same cause should have the same name,
/// even if they contain different keys, addresses or times. `key` is the key as it is shown.
///
/// The name is the first line of the error. If this line ends with a colon, the name also contains
/// the last line. In these lines, some parts are replaced:
///
/// - The key is replaced with `KEY`, and a quoted part with `"…"`.
/// - A UUID, a number, and a hexadecimal word of at least 6 characters are replaced with `#`. A
///   number of at most three digits is kept if it follows one of the words in [`KINDS`]. Therefore,
///   `exit status: 1` and `exit status: 2` are two groups.
/// - In other words, each sequence of digits is replaced with `#`.
pub(crate) fn group_of(error: Option<&str>, key: &str) -> String {
    let Some(error) = error else { return UNKNOWN.to_owned() };
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    // An empty name must not be returned, because a request with an empty parameter `error` selects
    // all keys.
    let Some(first) = lines.next() else { return EMPTY.to_owned() };
    let mut line = Cow::Borrowed(first);
    if line.ends_with(':')
        && let Some(last) = lines.next_back()
    {
        line = Cow::Owned(format!("{line} {last}"));
    }
    // A key of one or two bytes may be part of other words, so it is not replaced.
    if key.len() > 2 && line.contains(key) {
        line = Cow::Owned(line.replace(key, "KEY"));
    }
    let (mut name, mut rest, mut before) = (String::new(), &*line, "");
    while let Some(first) = rest.chars().next()
        && name.len() <= MOST_NAME
    {
        let is_inside_word = name.ends_with(char::is_alphanumeric);
        let length = if !is_inside_word && let Some(length) = quoted_length(rest) {
            name.push_str("\"…\"");
            length
        } else if first.is_alphanumeric() {
            let length = word_length(rest);
            let word = &rest[..length];
            let general = general_word(word, before);
            // The parts of an IP address or of a decimal number are replaced with one `#` together.
            if general.starts_with('#') && name.ends_with("#.") {
                name.truncate(name.len() - "#.".len());
            }
            name.push_str(&general);
            before = word;
            length
        } else {
            name.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    first_part(name, MOST_NAME)
}

/// Returns the length of the quoted part with which the text begins, or `None` if the text does not
/// begin with a quote.
fn quoted_length(text: &str) -> Option<usize> {
    let (open, close) = [('"', '"'), ('\'', '\''), ('`', '`'), ('“', '”')]
        .into_iter()
        .find(|&(open, _)| text.starts_with(open))?;
    let ends = text.match_indices(close).map(|(at, close)| at + close.len());
    // An apostrophe that is followed by a letter or digit does not end a quoted part.
    let is_end = |end: &usize| !text[*end..].starts_with(char::is_alphanumeric);
    ends.filter(|&end| end > open.len_utf8()).find(is_end)
}

/// Returns the length of the word or the UUID with which the text begins.
fn word_length(text: &str) -> usize {
    const UUID: usize = 36;
    let is_uuid = text.as_bytes().get(..UUID).is_some_and(|bytes| {
        bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    });
    if is_uuid {
        return UUID;
    }
    text.find(|char: char| !char.is_alphanumeric()).unwrap_or(text.len())
}

/// Returns a word whose numbers are replaced with `#`. `before` is the word before it.
fn general_word<'a>(word: &'a str, before: &str) -> Cow<'a, str> {
    let is_digit = |char: char| char.is_ascii_digit();
    if !word.contains(is_digit) {
        return Cow::Borrowed(word);
    }
    let is_kind = || KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(before));
    if word.len() <= 3 && word.chars().all(is_digit) && is_kind() {
        return Cow::Borrowed(word);
    }
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let is_hex = digits.chars().all(|char| char.is_ascii_hexdigit() || char == '-');
    if is_hex && (word.len() >= 6 || digits.len() < word.len()) {
        return Cow::Borrowed("#");
    }
    let mut general = String::new();
    for char in word.chars() {
        match is_digit(char) {
            true if general.ends_with('#') => {}
            true => general.push('#'),
            false => general.push(char),
        }
    }
    Cow::Owned(general)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_one_cause_are_in_one_group() {
        for (error, key, name) in [
            ("exit status: 1", "a", "exit status: 1"),
            ("HTTP 503 after 12 tries", "a", "HTTP 503 after # tries"),
            ("no answer from 10.0.0.7:5432 within 1.5s", "a", "no answer from #:# within #s"),
            ("no answer from 10.1.2.3:80 within 30s", "a", "no answer from #:# within #s"),
            ("cannot sync acme/web/7: gone", "acme/web/7", "cannot sync KEY: gone"),
            ("no such user 'it's me'", "a", "no such user \"…\""),
            ("it can't be: `x` and “y”", "a", "it can't be: \"…\" and \"…\""),
            ("row 018f7e9c-abcd-7abc-8def-0123456789ab", "a", "row #"),
            ("row ABCDEF12 at 0xff, v12b", "a", "row # at #, v#b"),
            ("\nTraceback:\n  at line 7\nKeyError: 'id'\n", "a", "Traceback: KeyError: \"…\""),
            ("first\nsecond", "a", "first"),
            ("größe 5 “", "a", "größe # “"),
            ("", "a", EMPTY),
        ] {
            assert_eq!(group_of(Some(error), key), name, "{error}");
        }
        assert_eq!(group_of(None, "a"), UNKNOWN);
        assert_eq!(group_of(Some(&"ü".repeat(500)), "a"), format!("{}…", "ü".repeat(100)));
    }

    #[test]
    fn a_collection_is_bounded_and_says_so() {
        let mut failures = Failures::default();
        let failing = |error, last| Failing {
            key: b"a",
            state: RowState::Parked,
            failures: 2,
            error: Some(error),
            first: Some(20_000.0),
            last,
        };
        assert!(failures.push(&failing("other", None)));
        for n in 1..MOST_FAILURES {
            assert!(failures.push(&failing("busy", Some(n as f64))));
        }
        assert!(!failures.push(&failing("busy", None)));
        let list = failures.into_list(1);
        let group = &list.failures[0];
        assert_eq!((list.keys, list.more, list.cut), (MOST_FAILURES, true, true));
        assert_eq!(
            (group.keys, group.failures),
            (MOST_FAILURES - 1, 2 * (MOST_FAILURES - 1) as u64)
        );
        let times = (group.first, group.last);
        assert_eq!((&*group.error, times), ("busy", (Some(20_000.0), Some(1.0))));
    }

    #[test]
    fn the_first_failure_of_a_group_is_known_if_it_is_known_for_each_key() {
        let first_of = |known: &[Option<f64>], read: &[f64]| {
            let mut failures = Failures::default();
            for (n, &first) in known.iter().enumerate() {
                let (key, state) = (n.to_string(), RowState::Parked);
                let (failures_in_row, error, last) = (2, Some("busy"), Some(1.0));
                let key = key.as_bytes();
                let failing = Failing { key, state, failures: failures_in_row, error, first, last };
                assert!(failures.push(&failing));
            }
            let keys = failures.keys_to_read();
            assert!(keys.iter().all(|(group, _)| group == "busy"));
            for &first in read {
                failures.note_oldest("busy", first);
                failures.note_first("busy");
            }
            let group = failures.into_list(1).failures.remove(0);
            (keys.len(), group.first, group.oldest)
        };
        let nine = Some(9.0);
        assert_eq!(first_of(&[Some(3.0), nine], &[]), (0, nine, nine));
        assert_eq!(first_of(&[None, nine, None], &[7.0, 10.0]), (2, Some(10.0), Some(10.0)));
        assert_eq!(first_of(&[None, nine, None], &[7.0]), (2, None, nine));
        let four = Some(4.0);
        assert_eq!(first_of(&[None; MOST_READ], &[4.0; MOST_READ]), (MOST_READ, four, four));
        assert_eq!(first_of(&[None; MOST_READ + 1], &[4.0]), (MOST_READ, None, four));
    }
}

//! Actions of operators. A store records the last actions on each queue.

use std::time::Duration;

use super::text::prefix;

/// The number of actions that a store keeps for each queue.
pub(crate) const KEPT: usize = 100;
/// The maximum length of each text, in bytes.
const MAX_ACTION: usize = 50;
const MAX_BY: usize = 200;
const MAX_TARGET: usize = 200;
const MAX_NOTE: usize = 500;

/// An action of an operator: see [`Queue::record_action`](crate::Queue::record_action).
///
/// # Examples
///
/// ```
/// use requeue_store::ActionRecord;
///
/// let action = ActionRecord::new("revive", "ann on ops-1").target("3 keys").note("the API is back");
/// assert_eq!((&*action.by, &*action.target), ("ann on ops-1", "3 keys"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ActionRecord {
    /// The time since the action, by the clock of the store. It is zero for a new action.
    pub ago: Duration,
    /// The name of the action, as in the HTTP API: `pause`, or `group-limit`.
    pub action: String,
    /// The person or the program that acted.
    pub by: String,
    /// The key or group that the action changed, or the number of changed keys. The text is empty if the action
    /// concerns the whole queue.
    pub target: String,
    /// The reason that the operator gave, or an empty text.
    pub note: String,
}

impl ActionRecord {
    /// Creates the record of an action on the whole queue, without a note.
    ///
    /// `action` has 1 to 50 bytes, and `by` 1 to 200.
    pub fn new(action: impl Into<String>, by: impl Into<String>) -> Self {
        let (ago, target, note) = Default::default();
        Self { ago, action: action.into(), by: by.into(), target, note }
    }

    /// Sets the key or group that the action changed, or the number of changed keys. Only the first 200 bytes are kept.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = target.into();
        if self.target.len() > MAX_TARGET {
            self.target = format!("{}…", prefix(&self.target, MAX_TARGET - '…'.len_utf8()));
        }
        self
    }

    /// Sets the reason that the operator gave. It has up to 500 bytes.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Returns the reason why the action cannot be recorded, or `None` if it can be recorded.
    pub(crate) fn refusal(&self) -> Option<String> {
        [
            ("action", &self.action, 1, MAX_ACTION),
            ("by", &self.by, 1, MAX_BY),
            ("target", &self.target, 0, MAX_TARGET),
            ("note", &self.note, 0, MAX_NOTE),
        ]
        .into_iter()
        .find(|(_, text, least, most)| {
            !(*least..=*most).contains(&text.len()) || text.contains(char::is_control)
        })
        .map(|(name, text, least, most)| {
            format!(
                "invalid {name} {text:?}: use {least} to {most} bytes without control characters"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_a_length_and_no_control_characters() {
        let of = |action: &str, by: &str, note: &str| ActionRecord::new(action, by).note(note);
        assert_eq!(of("pause", "ann", "").refusal(), None);
        assert_eq!(of(&"a".repeat(50), &"b".repeat(200), &"c".repeat(500)).refusal(), None);
        for (wrong, name) in [
            (of("", "ann", ""), "action"),
            (of("pause", "", ""), "by"),
            (of("pause", "a\nb", ""), "by"),
            (of("pause", &"b".repeat(201), ""), "by"),
            (of("pause", "ann", &"c".repeat(501)), "note"),
            (of("pause", "ann", "\u{85}"), "note"),
            (of("pause", "ann", "").target("a\0"), "target"),
        ] {
            let why = wrong.refusal().expect("it is refused");
            assert!(why.starts_with(&format!("invalid {name} ")), "{why}");
        }
    }

    #[test]
    fn a_long_target_is_cut() {
        let target = ActionRecord::new("cancel", "ann").target("é".repeat(300)).target;
        assert_eq!((target.len(), target.ends_with("é…")), (199, true));
    }
}

//! The operator of an action, and the last actions of operators on a queue in memory.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::access::Remote;
use crate::api::PastAction;
use crate::params::Problem;
use crate::time::seconds;

/// The number of past actions that are kept for a queue. It is the same as in a store.
pub(crate) const KEPT: usize = 100;
/// The maximum lengths of the operator's name and of a note, in bytes. They are the same
/// as in a store.
const MAX_BY: usize = 200;
const MAX_NOTE: usize = 500;

/// The operator who sent an action: the address of the client, the name in the request,
/// and the note in the request.
#[derive(Debug)]
pub(crate) struct Operator {
    remote: Remote,
    by: Option<String>,
    note: Option<String>,
}

impl Operator {
    /// Removes the fields `by` and `note` from the body of a request. Returns an error
    /// if one of them is too long, or is not plain text.
    pub(crate) fn take_from(
        body: &mut Map<String, Value>,
        remote: Remote,
    ) -> Result<Self, Problem> {
        let mut take = |name: &str, most: usize| match body.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() <= most && !text.contains(char::is_control) => {
                Ok(Some(text).filter(|text| !text.is_empty()))
            }
            Some(_) => {
                let error =
                    format!("expected text of at most {most} bytes without control characters");
                Err(Problem::parameter(name, &error))
            }
        };
        Ok(Self { remote, by: take("by", MAX_BY)?, note: take("note", MAX_NOTE)? })
    }

    /// Returns true if the request contains the name of the operator.
    pub(crate) const fn is_named(&self) -> bool {
        self.by.is_some()
    }

    /// Returns the record of an action by this operator, and the address of the client.
    pub(crate) fn into_action(self, action: &str, target: Option<String>) -> (Remote, PastAction) {
        let Self { remote, by, note } = self;
        let by = by.unwrap_or_else(|| remote.name());
        (remote, PastAction { ago: 0.0, action: action.to_owned(), by, target, note })
    }
}

impl PastAction {
    /// Returns the action that paused the queue, if no recorded resume follows it.
    /// `actions` must be sorted from the newest to the oldest.
    #[must_use]
    pub fn last_pause(actions: &[Self]) -> Option<&Self> {
        let last = actions.iter().find(|done| ["pause", "resume"].contains(&done.action.as_str()));
        last.filter(|done| done.action == "pause")
    }
}

/// The last actions on a queue in memory, each with its time.
#[derive(Debug, Default)]
pub(crate) struct ActionLog(Mutex<VecDeque<(Instant, PastAction)>>);

impl ActionLog {
    pub(crate) fn push(&self, action: PastAction) {
        let mut actions = self.0.lock();
        actions.push_front((Instant::now(), action));
        actions.truncate(KEPT);
    }

    /// Returns the past actions, the newest first.
    pub(crate) fn all(&self) -> Vec<PastAction> {
        let aged = |(at, action): &(Instant, PastAction)| action.at_age(seconds(at.elapsed()));
        self.0.lock().iter().map(aged).collect()
    }
}

impl PastAction {
    pub(crate) fn at_age(&self, ago: f64) -> Self {
        Self { ago, ..self.clone() }
    }
}

/// Returns the target of an action on a group. `None` stands for all groups without a
/// separate limit.
pub(crate) fn group_target(group: Option<&str>) -> &str {
    match group {
        None => "groups without another limit",
        Some("") => "(no group)",
        Some(name) => name,
    }
}

/// Returns the target of an action on keys: the key if there is only one and it is
/// known, or else the number of keys.
pub(crate) fn keys_target(keys: usize, only: Option<&str>) -> String {
    match only {
        Some(key) if keys == 1 => key.to_owned(),
        _ => format!("{keys} {}", if keys == 1 { "key" } else { "keys" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_name_its_operator_and_its_reason() {
        let take = |body: Value| {
            let Value::Object(mut body) = body else { unreachable!() };
            let operator = Operator::take_from(&mut body, Remote::default());
            operator.map(|Operator { by, note, .. }| (by, note, body.len()))
        };
        let text = |text: &str| Some(text.to_owned());
        let named = take(serde_json::json!({ "by": "ann", "note": "why", "keys": [] })).unwrap();
        assert_eq!(named, (text("ann"), text("why"), 1));
        let none = take(serde_json::json!({ "by": "", "note": null })).unwrap();
        assert_eq!(none, (None, None, 0));
        for (body, parameter) in [
            (serde_json::json!({ "by": 7 }), "by: "),
            (serde_json::json!({ "by": "a\nb" }), "by: "),
            (serde_json::json!({ "by": "é".repeat(101) }), "by: expected text of at most 200"),
            (serde_json::json!({ "note": "x".repeat(501) }), "note: expected text of at most 500"),
        ] {
            let problem = format!("{:?}", take(body).unwrap_err());
            assert!(problem.contains(parameter), "{problem}");
        }
    }

    #[test]
    fn only_the_last_pause_or_resume_says_who_paused() {
        let of = |action: &str, by: &str| PastAction {
            ago: 0.0,
            action: action.to_owned(),
            by: by.to_owned(),
            target: None,
            note: None,
        };
        let log = ActionLog::default();
        let paused_by = || PastAction::last_pause(&log.all()).map(|pause| pause.by.clone());
        assert_eq!(paused_by(), None);
        for (action, by, paused) in [
            ("pause", "ann", Some("ann")),
            ("revive", "bob", Some("ann")),
            ("group-resume", "bob", Some("ann")),
            ("pause", "bob", Some("bob")),
            ("resume", "ann", None),
            ("group-pause", "ann", None),
        ] {
            log.push(of(action, by));
            assert_eq!(paused_by().as_deref(), paused, "{action} {by}");
        }
        for n in 0..KEPT {
            log.push(of("cancel", &n.to_string()));
        }
        assert_eq!((log.all().len(), &*log.all()[0].by), (KEPT, "99"));
    }
}

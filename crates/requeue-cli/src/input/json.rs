//! Parses and writes the JSON objects that contain keys.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use requeue::Merge;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration::{parse_debounce, parse_duration};
use crate::input::change::{AddOptions, Change, Why};

/// The fields of a JSON record.
#[derive(Deserialize)]
struct Line {
    key: Option<String>,
    key_base64: Option<String>,
    after: Option<Value>,
    at: Option<String>,
    debounce: Option<Value>,
    priority: Option<i32>,
    merge: Option<HowMerged>,
    revive: Option<bool>,
    group: Option<String>,
    reason: Option<String>,
    op: Option<Op>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum HowMerged {
    Earliest,
    Latest,
    Exactly,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Op {
    Add,
    Cancel,
}

/// Parses a JSON record. Unknown fields are ignored.
pub(crate) fn parse_record(record: &[u8]) -> Result<Change<'static>, Why> {
    let bad = |why: String| Why::Json(why);
    // serde would also accept an array with the values of the fields.
    if record.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("not a JSON object".to_owned()));
    }
    let line: Line = serde_json::from_slice(record).map_err(|error| {
        // Most records have only one line, so the column is shown as the position in the record.
        bad(format!("JSON: {error}").replace(" at line 1 column ", " at byte "))
    })?;
    let key = match (line.key, line.key_base64) {
        (Some(key), None) => key.into_bytes(),
        (None, Some(key)) => {
            STANDARD.decode(key).map_err(|error| bad(format!("key_base64: {error}")))?
        }
        (None, None) => return Err(bad("it has neither `key` nor `key_base64`".to_owned())),
        (Some(_), Some(_)) => return Err(bad("it has both `key` and `key_base64`".to_owned())),
    };
    let key = Cow::Owned(key);
    if line.op == Some(Op::Cancel) {
        return Ok(Change::Cancel(key));
    }
    let after = match (line.after, line.at) {
        (None, None) => None,
        (Some(after), None) => Some(parse_field("after", &after, parse_duration)?),
        (None, Some(at)) => Some(time_until(&at)?),
        (Some(_), Some(_)) => return Err(bad("it has both `after` and `at`".to_owned())),
    };
    let debounce = line.debounce.map(|value| parse_field("debounce", &value, parse_debounce));
    let debounce = debounce.transpose()?;
    if debounce.is_some() && after.is_some() {
        return Err(bad("it has both `debounce` and a due time".to_owned()));
    }
    let merge = match line.merge {
        None | Some(HowMerged::Earliest) => Merge::Earliest,
        Some(HowMerged::Latest) => Merge::Latest,
        Some(HowMerged::Exactly) => Merge::Exactly,
    };
    let (priority, revive) = (line.priority.unwrap_or(0), line.revive);
    let group = line.group.map(Arc::from);
    let reason = line.reason.as_deref().map(requeue::intern_reason);
    Ok(Change::Add(key, AddOptions { after, debounce, merge, priority, reason, revive, group }))
}

/// Parses a field whose value is a number of seconds or a text.
fn parse_field<T, E: Display>(
    name: &str,
    value: &Value,
    parse: fn(&str) -> Result<T, E>,
) -> Result<T, Why> {
    let parsed = match value {
        Value::Number(seconds) => parse(&seconds.to_string()),
        Value::String(text) => parse(text),
        _ => parse(""),
    };
    parsed.map_err(|expected| Why::Json(format!("{name}: {value}: {expected}")))
}

/// Returns the duration from now to a time. Returns zero if the time has passed.
fn time_until(at: &str) -> Result<Duration, Why> {
    // The system time is read only at this point, so a later change of the system time has no effect.
    let at: Timestamp = at.parse().map_err(|error| Why::Json(format!("at: {error}")))?;
    Ok(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO))
}

/// A key and its properties, in the JSON format that [`parse_record`] reads.
#[derive(Serialize, Debug, Default)]
pub(crate) struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// The key in Base64, in place of `key`. Used if the key is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    /// The due time, in the format of RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) given_up_at: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl<'a> Written<'a> {
    pub(crate) fn of_key(key: &'a [u8]) -> Self {
        match std::str::from_utf8(key) {
            Ok(text) => Self { key: Some(text), ..Self::default() },
            Err(_) => Self { key_base64: Some(STANDARD.encode(key)), ..Self::default() },
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers can always be serialized, and a write to a vector does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(key: &[u8], options: AddOptions) -> Result<Change<'static>, Why> {
        Ok(Change::Add(Cow::Owned(key.to_vec()), options))
    }

    #[test]
    fn known_fields_have_an_effect_and_others_have_none() {
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        for (record, key, options) in [
            (r#"{"key":"a"}"#, &b"a"[..], AddOptions::default()),
            (r#" {"key":"a\nb","x":{"key":"c"},"after":null} "#, b"a\nb", AddOptions::default()),
            (r#"{"key_base64":"/w=="}"#, b"\xff", AddOptions::default()),
            (
                r#"{"key":"a","after":1.5}"#,
                b"a",
                AddOptions { after: seconds(1.5), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","after":"2m"}"#,
                b"a",
                AddOptions { after: seconds(120.0), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","at":"2001-02-03T04:05:06+07:00"}"#,
                b"a",
                AddOptions { after: seconds(0.0), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","priority":-7,"merge":"latest","op":"add"}"#,
                b"a",
                AddOptions { priority: -7, merge: Merge::Latest, ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","revive":true}"#,
                b"a",
                AddOptions { revive: Some(true), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","revive":false}"#,
                b"a",
                AddOptions { revive: Some(false), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","group":"acme"}"#,
                b"a",
                AddOptions { group: Some("acme".into()), ..AddOptions::default() },
            ),
            (
                r#"{"key":"a","reason":"invoice paid"}"#,
                b"a",
                AddOptions {
                    reason: Some(requeue::intern_reason("invoice paid")),
                    ..AddOptions::default()
                },
            ),
            (
                r#"{"key":"a","merge":"exactly"}"#,
                b"a",
                AddOptions { merge: Merge::Exactly, ..AddOptions::default() },
            ),
        ] {
            assert_eq!(parse_record(record.as_bytes()), add(key, options), "{record}");
        }
        let cancel = parse_record(br#"{"op":"cancel","key":"a","after":1}"#);
        assert_eq!(cancel, Ok(Change::Cancel(Cow::Borrowed(b"a"))));
    }

    #[test]
    fn errors_name_the_cause() {
        for (record, why) in [
            ("a", "not a JSON object"),
            (r#"["a"]"#, "not a JSON object"),
            ("{", "EOF while parsing"),
            (r#"{"key":"a"} x"#, "trailing characters at byte 13"),
            ("{}", "neither `key` nor `key_base64`"),
            (r#"{"key":"a","key_base64":"YQ=="}"#, "both `key` and `key_base64`"),
            (r#"{"key":42}"#, "expected a string"),
            (r#"{"key_base64":"?"}"#, "key_base64: "),
            (r#"{"key":"a","after":-1}"#, "after: -1: expected a time"),
            (r#"{"key":"a","after":true}"#, "after: true: expected a time"),
            (r#"{"key":"a","at":"tomorrow"}"#, "at: "),
            (r#"{"key":"a","after":1,"at":"2001-02-03T04:05:06Z"}"#, "both `after` and `at`"),
            (r#"{"key":"a","priority":2147483648}"#, "expected i32"),
            (r#"{"key":"a","merge":"later"}"#, "expected one of `earliest`, `latest`"),
            (r#"{"key":"a","revive":"yes"}"#, "expected a boolean"),
            (r#"{"key":"a","group":7}"#, "expected a string"),
            (r#"{"key":"a","reason":7}"#, "expected a string"),
            (r#"{"key":"a","op":"remove"}"#, "`add` or `cancel`"),
            (r#"{"key":"a","key":"b"}"#, "duplicate field `key`"),
        ] {
            match parse_record(record.as_bytes()) {
                Err(Why::Json(said)) => assert!(said.contains(why), "{record}: {said}"),
                other => panic!("{record}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for key in [&b"a\n\"b\""[..], b"\xff\xfe", "größe".as_bytes()] {
            let written = Written { priority: 3, ..Written::of_key(key) };
            let options = AddOptions { priority: 3, ..AddOptions::default() };
            assert_eq!(parse_record(&written.to_bytes()), add(key, options));
        }
        assert_eq!(Written::of_key(b"a").to_bytes(), br#"{"key":"a"}"#);
    }
}

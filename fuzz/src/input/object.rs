//! A second parser for the JSON objects of the input.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use requeue::Merge;
use requeue_cli::fuzz_api::{self, Asked};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{checked, is_about};

/// The start of each message about a wrong object, regardless of which fault is found first.
const WRONG: &str = "JSON: ";

/// The operation that an object requests.
#[derive(Debug)]
pub(super) enum Reading {
    Add(Object),
    Cancel(Vec<u8>),
}

/// The parts of an add.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) key: Vec<u8>,
    after: Option<Wait>,
    merge: Merge,
    priority: i32,
}

#[derive(Debug)]
enum Wait {
    For(Duration),
    /// A range of delays, because the result depends on the time of reading.
    Between(Duration, Duration),
    /// A time in a format that this parser does not evaluate.
    Some,
}

impl Reading {
    pub(super) fn allows(&self, asked: &Asked) -> bool {
        match (self, asked) {
            (Self::Cancel(key), Asked::Cancel { key: other }) => key == other,
            (Self::Add(object), Asked::Add { key, after, merge, priority }) => {
                let waits = match (&object.after, after) {
                    (None, None) | (Some(Wait::Some), Some(_)) => true,
                    (Some(Wait::For(wait)), Some(after)) => is_about(*wait, *after),
                    (Some(Wait::Between(least, most)), Some(after)) => {
                        (least..=most).contains(&after)
                    }
                    _ => false,
                };
                waits && (&object.key, object.merge, object.priority) == (key, *merge, *priority)
            }
            _ => false,
        }
    }
}

impl Object {
    /// Returns an add of a key without options.
    pub(super) fn of(key: Vec<u8>) -> Self {
        Self { key, ..Self::default() }
    }

    /// Parses `record`. Returns the start of a message if it must be rejected.
    pub(super) fn read(
        record: &[u8],
        clock: &RangeInclusive<Duration>,
    ) -> Result<Reading, &'static str> {
        if !record.trim_ascii_start().starts_with(b"{") {
            return Err("not a JSON object");
        }
        let Ok(Pairs(pairs)) = serde_json::from_slice(record) else { return Err(WRONG) };
        let one = |name| {
            let mut found = pairs.iter().filter(|pair| pair.0 == name).map(|pair| &pair.1);
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(WRONG),
                (None | Some(Value::Null), None) => Ok(None),
                (Some(value), None) => Ok(Some(value)),
            }
        };
        let text = |name| match one(name)? {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or(WRONG),
        };
        let (key, key_base64) = (text("key")?, text("key_base64")?);
        let (after, at) = (one("after")?, text("at")?);
        let priority = match one("priority")? {
            None => 0,
            Some(number) => {
                number.as_i64().and_then(|number| number.try_into().ok()).ok_or(WRONG)?
            }
        };
        let merge = match choice(one("merge")?)? {
            None | Some("earliest") => Merge::Earliest,
            Some("latest") => Merge::Latest,
            Some("exactly") => Merge::Exactly,
            Some(_) => return Err(WRONG),
        };
        let cancels = match choice(one("op")?)? {
            None | Some("add") => false,
            Some("cancel") => true,
            Some(_) => return Err(WRONG),
        };
        let key = match (key, key_base64) {
            (None, None) => return Err("it has neither `key` nor `key_base64`"),
            (Some(_), Some(_)) => return Err("it has both `key` and `key_base64`"),
            (Some(key), None) => key.as_bytes().to_vec(),
            (None, Some(digits)) => base64(digits).ok_or("key_base64: ")?,
        };
        if cancels {
            return checked(Reading::Cancel(key));
        }
        let after = match (after, at) {
            (Some(_), Some(_)) => return Err("it has both `after` and `at`"),
            (None, None) => None,
            (Some(Value::Number(seconds)), None) => {
                let seconds = seconds.as_f64().ok_or("after: ")?;
                Some(Wait::For(Duration::try_from_secs_f64(seconds).map_err(|_| "after: ")?))
            }
            // Another target checks the values of such texts.
            (Some(Value::String(text)), None) => {
                Some(Wait::For(fuzz_api::duration(text).map_err(|_| "after: ")?))
            }
            (Some(_), None) => return Err("after: "),
            (None, Some(at)) => Some(until(at, clock)?),
        };
        checked(Reading::Add(Self { key, after, merge, priority }))
    }
}

/// Parses one of several words. serde_json also accepts `{"word": null}` for a word.
fn choice(value: Option<&Value>) -> Result<Option<&str>, &'static str> {
    match value {
        None => Ok(None),
        Some(Value::String(word)) => Ok(Some(word)),
        Some(Value::Object(map)) if map.len() == 1 && map.values().all(Value::is_null) => {
            Ok(map.keys().next().map(String::as_str))
        }
        Some(_) => Err(WRONG),
    }
}

/// Returns the delay until `at`, if it has the most common format. For a valid time in another
/// format, the delay is not checked. An invalid time must be rejected.
fn until(at: &str, clock: &RangeInclusive<Duration>) -> Result<Wait, &'static str> {
    let Some(at) = seconds(at) else {
        let record = serde_json::json!({"key": "a", "at": at}).to_string();
        let read = fuzz_api::read(true, b'\n', usize::MAX, 64, record.as_bytes());
        return if matches!(read[..], [Ok(_)]) { Ok(Wait::Some) } else { Err("at: ") };
    };
    let at = Duration::from_secs(at.max(0).cast_unsigned());
    let until = |now| at.saturating_sub(now);
    // The two clocks may differ by some nanoseconds.
    let slack = Duration::from_millis(5);
    Ok(Wait::Between(until(*clock.end() + slack), until(clock.start().saturating_sub(slack))))
}

/// Returns the seconds since 1970 at "2001-02-03T04:05:06Z".
fn seconds(at: &str) -> Option<i64> {
    let shape = at.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    if !shape.eq(*b"0000-00-00T00:00:00Z") {
        return None;
    }
    let number = |from: usize, to: usize| at[from..to].parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let is_time = (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60;
    // The last days of months are not evaluated here.
    if !is_time || !(1..=28).contains(&day) {
        return None;
    }
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let is_leap = leap_days(year) != leap_days(year - 1);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let in_year =
        before[usize::try_from(month - 1).ok()?] + i64::from(month > 2 && is_leap) + day - 1;
    let to_year = |year: i64| year * 365 + leap_days(year - 1);
    let days = to_year(year) - to_year(1970) + in_year;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Decodes canonical base64.
fn base64(digits: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let padding = digits.bytes().rev().take_while(|&digit| digit == b'=').count();
    if !digits.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0);
    for digit in digits.bytes().take(digits.len() - padding) {
        let value = DIGITS.iter().position(|&other| other == digit)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held).to_le_bytes()[0]);
            bits &= (1 << held) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

/// The known names of an object with their values, in order.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
                const NAMES: [&str; 7] =
                    ["key", "key_base64", "after", "at", "priority", "merge", "op"];
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if NAMES.contains(&&*name) {
                        pairs.push((name, map.next_value()?));
                    } else {
                        // Unknown values may be of any type.
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(All)
    }
}

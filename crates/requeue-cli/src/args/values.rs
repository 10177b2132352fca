//! Parsers for the values of flags.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use requeue::{InFlightPolicy, Pace};
use requeue_store::{ParseRateError, Rate};

use crate::duration::parse_duration;
use crate::process::command;

/// Parses the number of commands that run at the same time. 0 stands for as many commands as the limit on open files
/// permits.
pub fn parse_jobs(text: &str) -> Result<usize, &'static str> {
    const WRONG: &str = "expected a number, 0 for no limit, or a percentage of the cores";
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.parse().ok().filter(|&percent| percent > 0).ok_or(WRONG)?;
        return Ok(share_of_cores(percent));
    }
    match text.parse::<u32>().map_err(|_| WRONG)? {
        0 => Ok(command::most_at_once()),
        jobs => Ok(jobs as usize),
    }
}

/// Parses a number of bytes such as "4096", "512K" or "4M".
pub(crate) fn parse_size(text: &str) -> Result<usize, &'static str> {
    const WRONG: &str = "expected a number of bytes, as in 4096, 512K, 4M or 1G";
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: usize = number.parse().map_err(|_| WRONG)?;
    number.checked_mul(1 << shift).ok_or(WRONG)
}

/// Returns this percentage of the number of cores. The result is at least 1.
pub(crate) fn share_of_cores(percent: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (cores.saturating_mul(percent as usize) / 100).max(1)
}

/// The maximum number of runs after the first one. `None` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retries(pub(crate) Option<u32>);

/// Parses a number of retries, or `inf` for no limit.
pub(crate) fn parse_retries(text: &str) -> Result<Retries, &'static str> {
    match text {
        "inf" => Ok(Retries(None)),
        number => {
            number.parse().map(|n| Retries(Some(n))).map_err(|_| "expected a number, or `inf`")
        }
    }
}

/// Returns a parser that accepts one of these names.
pub(crate) fn named_values<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).try_map(|name| {
        let found = values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone()).ok_or("not one of the names")
    })
}

/// Parses a rate such as "10/s". Returns the interval between two starts.
pub fn parse_rate(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str = "expected a number above 0 per second, or one like 10/s, 90/m or 1000/h";
    let (number, unit) = match text.split_once('/') {
        None | Some((_, "s")) => (text.strip_suffix("/s").unwrap_or(text), 1.0),
        Some((number, "m")) => (number, 60.0),
        Some((number, "h")) => (number, 3600.0),
        Some(_) => return Err(WRONG),
    };
    let number: f64 = number.parse().map_err(|_| WRONG)?;
    if !(number > 0.0 && number.is_finite()) {
        return Err(WRONG);
    }
    Duration::try_from_secs_f64(unit / number).map_err(|_| WRONG)
}

/// The value of `--rate`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StartRate {
    /// The interval between two starts in this process.
    pub(crate) every: Duration,
    /// The rate as a setting of a queue in a store. An error if a store does not permit this rate.
    pub(crate) of_store: Result<Rate, ParseRateError>,
}

pub(crate) fn parse_start_rate(text: &str) -> Result<StartRate, &'static str> {
    parse_rate(text).map(|every| StartRate { every, of_store: text.parse() })
}

/// The rate of a queue in a store or of a group. `None` means no rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoreRate(pub(crate) Option<Rate>);

/// Parses the rate of a queue in a store or of a group, or `none` for no rate.
pub(crate) fn parse_store_rate(text: &str) -> Result<StoreRate, &'static str> {
    if text == "none" {
        return Ok(StoreRate(None));
    }
    let wrong =
        |_| "expected a number above 0 per second, or one like 10/s, 90/m or 1000/h, or `none`";
    let rate = parse_start_rate(text).map_err(wrong)?.of_store;
    rate.map(|rate| StoreRate(Some(rate))).map_err(|_| {
        "it is too high or too low for a queue in a store; use one such as 10/s, 90/m or 1000/h"
    })
}

/// Parses a pace such as "10/1m": the maximum number of starts of a key in a period.
pub(crate) fn parse_pace(text: &str) -> Result<Pace, &'static str> {
    const WRONG: &str = "expected 1 to 1000 starts and a time above 0, like 10/1m or 50/s";
    const { assert!(Pace::MAX_RUNS == 1000, "the message names the limit") };
    let (runs, per) = text.split_once('/').ok_or(WRONG)?;
    let is_unit = per.starts_with(|first: char| first.is_ascii_alphabetic());
    // A unit without a number stands for one unit, so `10/m` is equal to `10/1m`.
    let per = parse_duration(&format!("{}{per}", if is_unit { "1" } else { "" }));
    let pace = Pace::new(runs.parse().map_err(|_| WRONG)?, per.map_err(|_| WRONG)?);
    pace.is_valid().then_some(pace).ok_or(WRONG)
}

/// The maximum number of keys of a group in flight. `None` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupLimit(pub(crate) Option<u32>);

/// Parses the value of `--group-limit`.
pub(crate) fn parse_group_limit(text: &str) -> Result<u32, &'static str> {
    parse_from_one(text, "expected a number from 1 to 4294967295; omit the flag for no limit")
}

/// Parses the weight of a group.
pub(crate) fn parse_weight(text: &str) -> Result<u32, &'static str> {
    parse_from_one(
        text,
        "expected a number from 1 to 4294967295; `requeue groups pause` stops a group",
    )
}

/// Parses the limit of a group, or `none` for no limit.
pub(crate) fn parse_limit(text: &str) -> Result<GroupLimit, &'static str> {
    const WRONG: &str =
        "expected a number from 1 to 4294967295, or `none`; `requeue groups pause` stops a group";
    limit_or_none(text, WRONG)
}

/// Parses the common limit of all groups without a separate limit, or `none` for no limit.
pub(crate) fn parse_default_limit(text: &str) -> Result<GroupLimit, &'static str> {
    const WRONG: &str =
        "expected a number from 1 to 4294967295, or `none`; `requeue pause` stops a queue";
    limit_or_none(text, WRONG)
}

fn limit_or_none(text: &str, wrong: &'static str) -> Result<GroupLimit, &'static str> {
    match text {
        "none" => Ok(GroupLimit(None)),
        number => parse_from_one(number, wrong).map(|limit| GroupLimit(Some(limit))),
    }
}

fn parse_from_one(text: &str, wrong: &'static str) -> Result<u32, &'static str> {
    text.parse().ok().filter(|&number| number > 0).ok_or(wrong)
}

/// Parses the delimiter of records. As with xargs, it is a byte or an escape of C.
pub fn parse_delimiter(text: &str) -> Result<u8, &'static str> {
    const WRONG: &str =
        "expected one byte, or an escape: \\n, \\t, \\0, \\x1e, or octal as in \\036";
    let number = |digits: &str, radix| {
        // `from_str_radix` also accepts a sign, so the digits are checked.
        let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        u8::from_str_radix(digits, radix).ok().filter(|_| plain).ok_or(WRONG)
    };
    let byte = match text.strip_prefix('\\') {
        None | Some("") => match text.as_bytes() {
            [byte] => *byte,
            _ => return Err(WRONG),
        },
        Some("a") => 0x07,
        Some("b") => 0x08,
        Some("f") => 0x0c,
        Some("n") => b'\n',
        Some("r") => b'\r',
        Some("t") => b'\t',
        Some("v") => 0x0b,
        Some("\\") => b'\\',
        Some(escape) => match escape.strip_prefix('x') {
            Some(hex) => number(hex, 16)?,
            None => number(escape, 8)?,
        },
    };
    Ok(byte)
}

/// Parses the policy for an add of a key in flight.
pub(crate) fn parse_rerun(text: &str) -> Result<InFlightPolicy, &'static str> {
    const WRONG: &str = "expected `after`, `restart`, or `restart` with a time, as in restart,10s";
    match text.split_once(',') {
        None if text == "after" => Ok(InFlightPolicy::After),
        None if text == "restart" => Ok(InFlightPolicy::restart()),
        Some(("restart", time)) => match parse_duration(time).map_err(|_| WRONG)? {
            Duration::ZERO => Ok(InFlightPolicy::Restart { at_most: Duration::MAX }),
            at_most => Ok(InFlightPolicy::Restart { at_most }),
        },
        _ => Err(WRONG),
    }
}

/// The value of `--server`: `http://HOST[:PORT][/PATH]`, the same with `https`, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ServerUrl {
    Tcp {
        /// The host and the port.
        authority: String,
        /// The path, without a slash at its end.
        path: String,
        has_tls: bool,
    },
    Unix(PathBuf),
}

/// Parses the address of a server.
pub(crate) fn parse_server(text: &str) -> Result<ServerUrl, &'static str> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(ServerUrl::Unix(path.into()));
    }
    let (rest, has_tls) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => return Err("expected http://HOST:PORT, https://HOST:PORT or unix:PATH"),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_valid = !authority.is_empty() && !authority.contains(['@', ' ', '?', '#']);
    let is_path = path.bytes().all(|byte| byte.is_ascii_graphic()) && !path.contains(['?', '#']);
    if !is_valid || !is_path {
        return Err(
            "expected http://HOST:PORT, https://HOST:PORT or unix:PATH, without a user and a query",
        );
    }
    let (authority, path) = (authority.to_owned(), path.trim_end_matches('/').to_owned());
    Ok(ServerUrl::Tcp { authority, path, has_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rerun_is_after_or_a_restart_with_a_bound() {
        let restart = |at_most| Ok(InFlightPolicy::Restart { at_most });
        assert_eq!(parse_rerun("after"), Ok(InFlightPolicy::After));
        assert_eq!(parse_rerun("restart"), restart(Duration::from_secs(30)));
        assert_eq!(parse_rerun("restart,2m"), restart(Duration::from_secs(120)));
        assert_eq!(parse_rerun("restart,0"), restart(Duration::MAX));
        for text in ["", "restart,", "after,1s", "restart,x", "never"] {
            assert!(parse_rerun(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pace_is_a_number_of_runs_in_a_time() {
        let pace = |runs, seconds| Ok(Pace::new(runs, Duration::from_secs_f64(seconds)));
        assert_eq!(parse_pace("50/1s"), pace(50, 1.0));
        assert_eq!(parse_pace("50/s"), pace(50, 1.0));
        assert_eq!(parse_pace("1000/1h 30m"), pace(1000, 5400.0));
        assert_eq!(parse_pace("1/0.5"), pace(1, 0.5));
        for text in
            ["", "5", "/", "5/", "/s", "0/s", "1001/s", "-1/s", "1.5/s", "5/0", "5/-1s", "5/x"]
        {
            assert!(parse_pace(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_and_a_weight_are_numbers_from_one() {
        assert_eq!(parse_limit("5"), Ok(GroupLimit(Some(5))));
        assert_eq!(parse_limit("none"), Ok(GroupLimit(None)));
        assert_eq!(parse_default_limit("4294967295"), Ok(GroupLimit(Some(u32::MAX))));
        assert_eq!((parse_weight("1"), parse_group_limit("2")), (Ok(1), Ok(2)));
        for text in ["", "0", "-1", "1.5", "x", "4294967296"] {
            assert!(parse_limit(text).is_err() && parse_default_limit(text).is_err(), "{text}");
            assert!(parse_weight(text).is_err() && parse_group_limit(text).is_err(), "{text}");
        }
        assert!(parse_weight("none").is_err() && parse_group_limit("none").is_err());
    }

    #[test]
    fn jobs_are_a_number_no_limit_or_a_share_of_the_cores() {
        assert_eq!(parse_jobs("3"), Ok(3));
        assert_eq!(parse_jobs("0"), Ok(command::most_at_once()));
        assert_eq!(parse_jobs("50%"), Ok(share_of_cores(50)));
        assert_eq!(share_of_cores(300), 3 * share_of_cores(100));
        assert!(share_of_cores(1) >= 1);
        for text in ["", "-1", "%", "0%", "x", "1.5"] {
            assert!(parse_jobs(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_per_second_minute_or_hour() {
        for (text, every) in
            [("4", 250), ("4/s", 250), ("0.5", 2000), ("90/m", 666), ("3600/h", 1000), ("1e1", 100)]
        {
            let parsed = parse_rate(text).map(|every| every.as_millis());
            assert_eq!(parsed, Ok(every), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "/s", "1/d", "1/", "1/s/s", "x"] {
            assert!(parse_rate(text).is_err() && parse_store_rate(text).is_err(), "{text}");
        }
        let rate = Rate::new(90, Duration::from_secs(60));
        assert_eq!(parse_store_rate("90/m"), Ok(StoreRate(Some(rate))));
        assert_eq!(parse_store_rate("none"), Ok(StoreRate(None)));
        assert!(parse_rate("1e-9/h").is_ok() && parse_store_rate("1e-9/h").is_err());
    }

    #[test]
    fn delimiters_are_a_byte_or_an_escape() {
        for (text, byte) in [
            (",", b','),
            ("\\", b'\\'),
            ("\\\\", b'\\'),
            ("\\n", b'\n'),
            ("\\t", b'\t'),
            ("\\0", 0),
            ("\\x1E", 0x1e),
            ("\\x0", 0),
            ("\\036", 0x1e),
            ("\\377", 0xff),
        ] {
            assert_eq!(parse_delimiter(text), Ok(byte), "{text}");
        }
        for text in ["", "ab", "é", "\\y", "\\x", "\\x100", "\\400", "\\8", "\\+7", "\\x+7"] {
            assert!(parse_delimiter(text).is_err(), "{text}");
        }
    }
}

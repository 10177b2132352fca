//! Fuzzes times and rates.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use requeue_cli::fuzz_api;

use super::number;

/// The units, each with its spellings and its length in nanoseconds.
const UNITS: [(&[&str], u128); 8] = [
    (&["w", "wk", "wks", "week", "weeks"], 604_800_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000_000_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000_000),
    (&["ms", "msec", "millisecond", "milliseconds"], 1_000_000),
    (&["us", "µs", "usec", "microsecond", "microseconds"], 1_000),
    (&["ns", "nsec", "nanosecond", "nanoseconds"], 1),
];

/// Writes a time in a format that these bytes select, and checks that it is read as the same time.
pub(super) fn written(data: &[u8]) {
    let Ok((text, nanos)) = write(&mut Unstructured::new(data)) else { return };
    let read = fuzz_api::duration(&text).map(|read| read.as_nanos());
    assert_eq!(read, Ok(nanos), "{text:?}");
}

fn write(from: &mut Unstructured<'_>) -> Result<(String, u128)> {
    let is_iso = from.ratio(1, 4)?;
    let (mut text, mut nanos) = (if is_iso { "PT" } else { "" }.to_owned(), 0);
    let units = if is_iso { &UNITS[2..5] } else { &UNITS[..] };
    let first = from.choose_index(units.len())?;
    // In formats with days and weeks, hours are limited to about twenty thousand years.
    let has_days = !is_iso && first < 2;
    for (at, (names, unit)) in units.iter().enumerate().skip(first) {
        // At least the first unit is written.
        let is_last = at + 1 == units.len() || from.ratio(1, 3)?;
        if at != first && !is_last && from.ratio(1, 2)? {
            continue;
        }
        if at != first && !is_iso {
            text += from.choose(&["", " ", ", "])?;
        }
        let whole = from.arbitrary::<u32>()? % if has_days { 1_000_000 } else { u32::MAX };
        text += &whole.to_string();
        nanos += u128::from(whole) * unit;
        let may_have_point = (2..=3_600_000_000_000).contains(unit);
        if is_last && may_have_point && from.ratio(1, 2)? {
            let (digits, fraction) = digits(from)?;
            text += &format!(".{digits}");
            // Fractions of a nanosecond are cut off.
            nanos += fraction * unit / 1_000_000_000;
        }
        if is_iso {
            text += &names[0].to_ascii_uppercase();
        } else {
            text += from.choose(&["", " "])?;
            text += from.choose(names)?;
        }
        if is_last {
            break;
        }
    }
    Ok((text, nanos))
}

/// Returns up to nine digits after a point, and their value in billionths.
fn digits(from: &mut Unstructured<'_>) -> Result<(String, u128)> {
    let places = from.int_in_range(1..=9)?;
    let fraction = from.int_in_range(0..=10_u32.pow(places) - 1)?;
    let digits = format!("{fraction:0width$}", width = places as usize);
    Ok((digits, u128::from(fraction) * 10_u128.pow(9 - places)))
}

/// Reads any text as a time. A plain number means seconds, with the precision of a double. Any
/// valid time can be written and read back without the loss of a nanosecond.
pub(super) fn read(text: &str) {
    let read = fuzz_api::duration(text);
    if let Some((number, scale)) = decimal(text) {
        let nanos = number * 1_000_000_000 / scale;
        let read = read.unwrap_or_else(|said| panic!("{text:?}: {said}")).as_nanos();
        assert!(is_about(read, nanos), "{text:?}: {read}, not {nanos}");
    }
    match read {
        Ok(time) => {
            assert!(text.contains(|char: char| char.is_ascii_digit()), "{text:?}");
            assert!(!text.trim_start().starts_with('-') || time.is_zero(), "{text:?}: {time:?}");
            let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
            // Longer times cannot be written in units.
            if i64::try_from(seconds).is_ok() {
                for again in [format!("{seconds}s {nanos}ns"), format!("PT{seconds}.{nanos:09}S")] {
                    assert_eq!(fuzz_api::duration(&again), Ok(time), "{text:?} as {again:?}");
                }
            }
        }
        Err(said) => assert!(!said.is_empty(), "{text:?}"),
    }
}

/// Reads a rate per second, minute or hour, with the precision of a double.
pub(super) fn rate(text: &str) {
    let read = fuzz_api::rate(text);
    let units = [("/s", 1), ("/m", 60), ("/h", 3_600), ("", 1)];
    let (digits, unit) = units
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
        .unwrap_or((text, 1));
    let Some((number, scale)) = decimal(digits) else {
        assert!(read.map_or_else(|said| !said.is_empty(), |_| digits.parse::<f64>().is_ok()));
        return;
    };
    let nanos = (unit * 1_000_000_000 * scale).checked_div(number);
    // Near the longest duration, a double is too imprecise to check the result.
    let most = Duration::MAX.as_nanos();
    match (read, nanos) {
        (Ok(every), Some(nanos)) => {
            assert!(is_about(every.as_nanos(), nanos), "{text:?}: {every:?}, not {nanos}");
        }
        (Err(_), Some(nanos)) => assert!(nanos > most - (most >> 40), "{text:?}"),
        (Err(said), None) => assert!(!said.is_empty()),
        (Ok(every), None) => panic!("{text:?}: none in {every:?}"),
    }
}

/// Parses a number with an optional point, as a fraction. Returns `None` for a number that is too
/// long.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    if whole.len() > 15 || places.len() > 15 || places.starts_with('+') {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(places.len()).ok()?);
    Some((number(whole)? * scale + number(places)?, scale))
}

fn is_about(one: u128, other: u128) -> bool {
    one.abs_diff(other) <= 1 + (one.max(other) >> 50)
}

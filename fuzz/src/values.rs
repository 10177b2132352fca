//! Fuzzes the values of flags.

mod list;
mod time;

use std::net::Ipv6Addr;
use std::ops::RangeInclusive;

use requeue_cli::fuzz_api;

/// The first byte selects the kind of flag for the other bytes.
///
/// Oracle: for numbers, lists and escapes, a second parser determines the value of each text, or
/// refuses it. A time is written in one of many formats, and must be read back as the same time.
pub fn values(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    if kind == b'T' {
        return time::written(data);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    match kind {
        b't' => time::read(text),
        b'p' => time::rate(text),
        b'j' => jobs_are_expected(text),
        b'r' => same(text, &fuzz_api::retries(text), retries(text)),
        b'd' => same(text, &fuzz_api::delimiter(text), delimiter(text)),
        b'c' => list::codes(text),
        b'h' => same(text, &fuzz_api::halt(text), list::halt(text)),
        b'a' => same(text, &fuzz_api::address(text), address(text)),
        _ => {}
    }
}

/// Checks that a text is read as the expected value, or refused with a message.
fn same<T: PartialEq + std::fmt::Debug>(text: &str, read: &Result<T, &str>, expected: Option<T>) {
    assert_eq!(read.as_ref().ok(), expected.as_ref(), "{text:?}");
    assert!(read.as_ref().err().is_none_or(|said| !said.is_empty()), "{text:?}");
}

/// Parses digits with an optional plus sign. Numbers that are too large saturate.
fn number(text: &str) -> Option<u128> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    digits.chars().try_fold(0_u128, |number, digit| {
        Some(number.saturating_mul(10).saturating_add(digit.to_digit(10)?.into()))
    })
}

/// Checks that a number of jobs is the expected number, or refused with a message.
fn jobs_are_expected(text: &str) {
    let (read, expected) = (fuzz_api::jobs(text), jobs(text));
    let is_expected = match (&read, &expected) {
        (Ok(read), Some(expected)) => expected.contains(read),
        (Err(said), None) => !said.is_empty(),
        _ => false,
    };
    assert!(is_expected, "{text:?}: {read:?}, not {expected:?}");
}

fn jobs(text: &str) -> Option<RangeInclusive<usize>> {
    let (digits, is_percent) =
        text.strip_suffix('%').map_or((text, false), |percent| (percent, true));
    let number = u32::try_from(number(digits)?).ok()? as usize;
    match (number, is_percent) {
        // The number depends on the limit of open files.
        (0, false) => Some(1..=1000),
        (0, true) => None,
        (_, false) => Some(number..=number),
        (_, true) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let share = (cores.saturating_mul(number) / 100).max(1);
            Some(share..=share)
        }
    }
}

fn retries(text: &str) -> Option<Option<u32>> {
    match text {
        "inf" => Some(None),
        text => u32::try_from(number(text)?).ok().map(Some),
    }
}

/// Parses a byte, or one of the ways to write it.
fn delimiter(text: &str) -> Option<u8> {
    let is = |byte: &u8| {
        let letter = match byte {
            0x07 => "\\a",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0b => "\\v",
            0x0c => "\\f",
            b'\r' => "\\r",
            b'\\' => "\\\\",
            _ => "",
        };
        // Each number may have any number of leading zeros.
        let digits = |text: &str, digits: String| {
            !text.is_empty()
                && match digits.as_str() {
                    "0" => text.chars().all(|zero| zero == '0'),
                    digits => text.trim_start_matches('0').eq_ignore_ascii_case(digits),
                }
        };
        let escape = text.strip_prefix('\\');
        let hex = escape.and_then(|escape| escape.strip_prefix('x'));
        (byte.is_ascii() && text.as_bytes() == [*byte])
            || (!letter.is_empty() && text == letter)
            || hex.is_some_and(|hex| digits(hex, format!("{byte:x}")))
            || escape.is_some_and(|octal| digits(octal, format!("{byte:o}")))
    };
    (0..=u8::MAX).find(is)
}

fn address(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return (!path.is_empty()).then(|| format!("Unix({path:?})"));
    }
    let at = text.rfind(':');
    let port = at.map_or(text, |at| &text[at + 1..]);
    if port.starts_with('+') {
        return None;
    }
    let port = u16::try_from(number(port)?).ok()?;
    let host = match &text[..at.unwrap_or(0)] {
        "" => None,
        host => match host.strip_prefix('[') {
            None if host.contains(['[', ']', ':', '/', '@']) => return None,
            None => Some(host),
            Some(address) => {
                let address = address.strip_suffix(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                Some(address)
            }
        },
    };
    Some(format!("Tcp {{ host: {host:?}, port: {port} }}"))
}

//! Parses durations that users write, formats durations for messages, and computes the pauses between attempts.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use requeue::wait::{Backoff, jitter_source};

/// Parses a duration such as "1.5s", "2m", "1h 30m", "1d" or "2w", or a number of seconds. A day has 24 hours.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str =
        "expected a time like 1.5s, 500ms, 2m, 1h30m, 1d or 2w, or a number of seconds";
    // A number without a unit is parsed first, because jiff requires a unit.
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| WRONG);
    }
    // `SignedDuration` accepts no days or weeks, so the text is parsed again as a `Span`. Months and years are
    // refused, because their lengths vary.
    let duration = text
        .parse::<SignedDuration>()
        .or_else(|_| text.parse::<Span>()?.to_duration(SpanRelativeTo::days_are_24_hours()));
    Duration::try_from(duration.map_err(|_| WRONG)?).map_err(|_| WRONG)
}

/// Returns a function that returns the pauses between the attempts of a request. The pauses double from `least` to `most`,
/// and are random, so that the attempts of many processes are spread.
pub(crate) fn growing_pauses(least: Duration, most: Duration) -> impl FnMut() -> Duration {
    // The jitter doubles a pause at most.
    let mut backoff =
        Backoff { duration: least, factor: 2.0, jitter: 1.0, steps: i32::MAX, cap: most / 2 };
    let mut source = jitter_source();
    move || backoff.step(&mut source)
}

/// The quiet time of a debounced add, and the longest time for which adds can postpone the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Debounce {
    pub(crate) quiet: Duration,
    pub(crate) most: Duration,
}

/// Parses "300ms" or "300ms,5s": the quiet time, and the longest time for which adds can postpone the run. The default
/// of the second value is ten times the first.
pub(crate) fn parse_debounce(text: &str) -> Result<Debounce, String> {
    let (quiet, most) =
        text.split_once(',').map_or((text, None), |(quiet, most)| (quiet, Some(most)));
    let quiet = parse_duration(quiet)?;
    let most = most.map(parse_duration).transpose()?.unwrap_or(quiet.saturating_mul(10));
    if most < quiet {
        return Err("the longest wait, after the comma, is shorter than the quiet time".to_owned());
    }
    Ok(Debounce { quiet, most })
}

/// Formats a measured time, for example as "1.2s", "1m 1s" or "1h 2m 3s".
pub(crate) fn shown(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{:.1}s", elapsed.as_secs_f64()),
        (0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes}m {}s", seconds % 60),
    }
}

/// Formats the duration of a wait or a run. Short durations are in milliseconds.
pub(crate) fn format_length(length: Duration) -> String {
    match (length.as_secs_f64() * 1e3).round() {
        millis if millis < 1e3 => format!("{millis}ms"),
        _ => shown(length),
    }
}

/// Formats a quantile of measured times, for example as "120µs", "85ms" or "5.9s". The value is exact to within 12 %.
pub(crate) fn format_quantile(time: Duration) -> String {
    match time.as_millis() {
        0..10 => format!("{}µs", time.as_micros()),
        10..1000 => format!("{}ms", time.as_millis()),
        _ => shown(time),
    }
}

/// Formats a configured time without rounding, for example as "500ms", "1m 30s" or "1h".
pub(crate) fn format_exact(limit: Duration) -> String {
    match SignedDuration::try_from(limit) {
        Ok(limit) => format!("{limit:#}"),
        // Only a time of more than 292 billion years cannot be converted.
        Err(_) => format!("{}s", limit.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debounce_is_a_quiet_time_and_a_longest_wait() {
        let millis = Duration::from_millis;
        for (text, quiet, most) in
            [("300ms", 300, 3_000), ("300ms,5s", 300, 5_000), ("2,2", 2_000, 2_000)]
        {
            let expected = Debounce { quiet: millis(quiet), most: millis(most) };
            assert_eq!(parse_debounce(text), Ok(expected), "{text}");
        }
        for wrong in ["", "a", "1s,", ",1s", "1s,2s,3s", "2s,1s"] {
            assert!(parse_debounce(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, millis) in [
            ("1.5s", 1_500),
            ("2", 2_000),
            ("0.25", 250),
            ("500ms", 500),
            ("5m", 300_000),
            ("0", 0),
            ("1h30m", 5_400_000),
            ("1h 30m 5.5s", 5_405_500),
            ("1d", 86_400_000),
            ("1 day, 2 hours", 93_600_000),
            ("2w3d12h", 1_512_000_000),
            ("P1DT1H", 90_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1s", "-1", "1 parsec", "NaN", "inf", "1e300", "1mo", "1y", "-1d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_shown_with_units() {
        for (millis, text) in [(1_240, "1.2s"), (61_900, "1m 1s"), (3_723_000, "1h 2m 3s")] {
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
        for (micros, text) in [(0, "0µs"), (1_234, "1234µs"), (85_400, "85ms"), (5_905_580, "5.9s")]
        {
            assert_eq!(format_quantile(Duration::from_micros(micros)), text);
        }
        for (millis, text) in [(500, "500ms"), (1_000, "1s"), (90_000, "1m 30s"), (0, "0s")] {
            assert_eq!(format_exact(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_exact(Duration::MAX), "18446744073709551615s");
    }
}

//! The maximum rate of starts in a queue or in a group, as a setting.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The default burst is the number of starts that the rate permits in this time.
const DEFAULT_BURST: Duration = Duration::from_millis(200);
/// The maximum product of the burst and the period of a rate, in microseconds: about 35 years. Up to this product, the
/// arithmetic of each engine is exact, even with the doubles of Redis. An unused rate then permits its whole burst.
const MOST: u128 = 1 << 50;

/// Limits the rate at which all processes together start runs: at most `starts` in each period `per`, and a burst.
///
/// In every window of the engine's clock, at most `window × starts / per + burst` deliveries start. While keys are
/// ready and workers wait for them, at least 95 % of the permitted starts happen. Each delivery counts as a start,
/// including a retry and a delivery after an expired lease. If a key is delivered and returns to the store without a
/// run, this delivery also counts.
///
/// The burst is the number of starts that can follow each other without delay after a time without starts. The default
/// burst is the number of starts in 200 ms, rounded up, so that slow claims do not lower the rate. With a burst of 1,
/// each claim delivers one key, and the latency of each claim delays all later starts.
///
/// If the engine's clock is set back, the rate permits the starts of the repeated period again.
///
/// The algorithm is the generic cell rate algorithm of ITU-T I.371, which stores one time for each rate.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use requeue_store::Rate;
///
/// let rate = Rate::new(10, Duration::from_secs(1)).burst(3);
/// assert_eq!("10/s".parse(), Ok(rate.burst(2)));
/// assert_eq!(rate.to_string(), "10/s with a burst of 3");
/// assert_eq!((rate.starts(), rate.per(), rate.burst_size()), (10, Duration::from_secs(1), 3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Rate {
    starts: u32,
    /// The period in microseconds. It is rounded up, so that the rate is never higher than requested.
    per: i64,
    burst: u32,
}

impl Rate {
    /// Creates the rate of `starts` in each period `per`, with the default burst.
    ///
    /// Calls that set a rate refuse a rate of 0 starts, a period or a burst of 0, and a rate whose period times burst
    /// exceeds 35 years.
    #[must_use]
    pub fn new(starts: u32, per: Duration) -> Self {
        let per = i64::try_from(per.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX);
        let burst =
            (u128::from(starts) * DEFAULT_BURST.as_micros()).div_ceil(as_wide(per).max(1)).max(1);
        Self { starts, per, burst: u32::try_from(burst).unwrap_or(u32::MAX) }
    }

    /// Sets the number of starts that can follow each other without delay.
    #[must_use]
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// Returns the number of starts in each period [`per`](Self::per).
    #[must_use]
    pub const fn starts(&self) -> u32 {
        self.starts
    }

    /// Returns the period, in whole microseconds.
    #[must_use]
    pub const fn per(&self) -> Duration {
        Duration::from_micros(self.per.unsigned_abs())
    }

    /// Returns the number of starts that can follow each other without delay.
    #[must_use]
    pub const fn burst_size(&self) -> u32 {
        self.burst
    }

    /// Returns an error with the reason if the rate is invalid.
    pub(crate) fn check(self) -> Result<(), String> {
        let refuse = |what: &str| Err(format!("invalid rate {self}: use {what}"));
        if self.starts == 0 {
            return refuse("at least 1 start, or pause the queue or group");
        }
        if self.per == 0 {
            return refuse("a time above 0");
        }
        if self.burst == 0 {
            return refuse("a burst of at least 1");
        }
        if as_wide(self.per) * u128::from(self.burst) > MOST {
            return refuse("a smaller burst, or fewer starts in a shorter time");
        }
        Ok(())
    }

    /// Returns the number of starts, their period in microseconds, and the burst.
    pub(crate) const fn parts(self) -> [i64; 3] {
        [self.starts as i64, self.per, self.burst as i64]
    }

    /// Returns the rate with these parts, or `None` if it is not valid.
    pub(crate) fn from_parts(parts: &[i64]) -> Option<Self> {
        let &[starts, per, burst] = parts else { return None };
        let (starts, burst) = (starts.try_into().ok()?, burst.try_into().ok()?);
        let rate = Self { starts, per: per.max(0), burst };
        rate.check().is_ok().then_some(rate)
    }

    /// Returns the [parts](Self::parts) as text, with spaces between them.
    pub(crate) fn to_stored(self) -> String {
        self.parts().map(|part| part.to_string()).join(" ")
    }

    /// Parses a text that [`to_stored`](Self::to_stored) has returned.
    pub(crate) fn from_stored(text: &str) -> Option<Self> {
        let parts: Result<Vec<_>, _> = text.split(' ').map(str::parse).collect();
        Self::from_parts(&parts.ok()?)
    }
}

/// Parses a rate such as `10/s`, `90/m`, `1000/h` or `0.5/s`: a number of starts in a second, a minute or an hour.
/// Without a unit, the number is per second. The rate has the default burst.
impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        const RANGE: &str = "it is too high or too low; use one such as 10/s, 90/m or 1000/h";
        const SYNTAX: &str = "use a number above 0 per second, or one such as 10/s, 90/m or 1000/h";
        let wrong = |why| ParseRateError { text: text.to_owned(), why };
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let unit = Duration::from_secs(match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong(SYNTAX)),
        });
        let positive = number.parse().ok().filter(|number: &f64| *number > 0.0);
        let number_of_unit =
            positive.filter(|number| number.is_finite()).ok_or_else(|| wrong(SYNTAX))?;
        let rate = match number.parse() {
            Ok(starts) => Self::new(starts, unit),
            Err(_) => {
                let per = Duration::try_from_secs_f64(unit.as_secs_f64() / number_of_unit);
                Self::new(1, per.map_err(|_| wrong(RANGE))?)
            }
        };
        rate.check().map(|()| rate).map_err(|_| wrong(RANGE))
    }
}

/// Writes the rate and its burst. The alternate form, `{:#}`, omits the burst.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { starts, per, burst } = self;
        match per {
            1_000_000 => write!(f, "{starts}/s"),
            60_000_000 => write!(f, "{starts}/m"),
            3_600_000_000 => write!(f, "{starts}/h"),
            _ => write!(f, "{starts}/{:?}", self.per()),
        }?;
        if f.alternate() { Ok(()) } else { write!(f, " with a burst of {burst}") }
    }
}

/// The error about a text that is not a [`Rate`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid rate {text:?}: {why}")]
pub struct ParseRateError {
    text: String,
    why: &'static str,
}

/// A rate, and the time until it permits the next start. The time is zero if the rate permits a start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Throttle {
    pub(crate) rate: Rate,
    pub(crate) next_start: Duration,
}

impl Throttle {
    pub(crate) const fn permits_none(&self) -> bool {
        !self.next_start.is_zero()
    }

    /// Returns a text with the rate and the time until it permits the next start.
    pub(crate) fn explain(&self) -> String {
        let Self { rate, next_start } = self;
        format!("its rate of {rate} permits the next start in {next_start:.1?}")
    }
}

impl Rate {
    /// Returns the time in which the rate permits `starts` starts, in microseconds, rounded up.
    pub(crate) fn time_of(self, starts: usize) -> i64 {
        let time = (as_wide(self.per) * starts as u128).div_ceil(u128::from(self.starts));
        i64::try_from(time).unwrap_or(i64::MAX)
    }
}

/// Converts a number without loss. A negative number becomes 0.
pub(crate) fn as_wide(number: i64) -> u128 {
    u128::from(number.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_is_parsed_checked_and_stored() {
        for (text, rate) in [
            ("10/s", Rate::new(10, SECOND).burst(2)),
            ("10", Rate::new(10, SECOND)),
            ("90/m", Rate::new(90, 60 * SECOND).burst(1)),
            ("1000/h", Rate::new(1000, 3600 * SECOND)),
            ("0.5/s", Rate::new(1, 2 * SECOND)),
            ("1e3/s", Rate::new(1, SECOND / 1000).burst(200)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
            assert_eq!(Rate::from_stored(&rate.to_stored()), Some(rate), "{text}");
        }
        for text in ["", "0/s", "-1/s", "10/d", "x/s", "inf/s", "nan", "0.0/s", "1e-9/h"] {
            let error = text.parse::<Rate>().expect_err(text);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
        for text in ["5000000000/s", "1e300", "1e-9/h"] {
            let error = text.parse::<Rate>().expect_err(text).to_string();
            assert!(
                error.ends_with("too high or too low; use one such as 10/s, 90/m or 1000/h"),
                "{error}"
            );
        }
        for (rate, shown) in [
            (Rate::new(90, 60 * SECOND), "90/m with a burst of 1"),
            (Rate::new(7, 13 * SECOND).burst(2), "7/13s with a burst of 2"),
            (Rate::new(1, SECOND / 3), "1/333.334ms with a burst of 1"),
        ] {
            assert_eq!(rate.to_string(), shown);
            assert_eq!(format!("{rate:#}"), shown.split(' ').next().expect("a word"));
        }
        for (rate, why) in [
            (Rate::new(0, SECOND), "0/s with a burst of 1: use at least 1 start"),
            (Rate::new(1, Duration::ZERO), "a time above 0"),
            (Rate::new(1, SECOND).burst(0), "a burst of at least 1"),
            (Rate::new(1, SECOND * 3_000_000).burst(u32::MAX), "a smaller burst"),
        ] {
            let error = rate.check().expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        for text in ["", "1 2", "0 1 1", "1 -5 1", "1 1 1 1", "a b c", "1 9007199254740992 2"] {
            assert_eq!(Rate::from_stored(text), None, "{text}");
        }
    }
}

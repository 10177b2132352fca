//! Time in the core: a number of nanoseconds that the caller provides.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// Formats a duration for people: `0.0ns`, `1.5s`, `29m 14s`, `3h 5m`, `41d`.
#[doc(hidden)] // Only messages of the other crates need this type.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (first, second) = match seconds {
            // Below two minutes, seconds are easier to read than minutes and seconds.
            0..120 => return write!(f, "{:.1?}", self.0),
            120..3_600 => ((seconds / 60, "m"), (seconds % 60, "s")),
            3_600..172_800 => ((seconds / 3_600, "h"), (seconds / 60 % 60, "m")),
            _ => ((seconds / 86_400, "d"), (seconds / 3_600 % 24, "h")),
        };
        write!(f, "{}{}", first.0, first.1)?;
        match second {
            (0, _) => Ok(()),
            (number, unit) => write!(f, " {number}{unit}"),
        }
    }
}

/// A point in time, in nanoseconds since an origin that the caller chooses.
///
/// Every operation saturates, so no deadline can wrap around and become due early. [`Time::NEVER`]
/// is the latest time, about 584 years after the origin. If a delay is added to `NEVER`, the result
/// is `NEVER`.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::Time;
///
/// let start = Time::from_nanos(5);
/// assert_eq!(start + Duration::from_nanos(7), Time::from_nanos(12));
/// assert_eq!(start + Duration::MAX, Time::NEVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin: zero nanoseconds.
    pub const ZERO: Self = Self(0);
    /// The latest time. A clock never reaches it.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates the time `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the number of nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration from `earlier` to this time. Returns zero if this time is before
    /// `earlier`, which can happen if the clock went back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Time;
    ///
    /// let (a, b) = (Time::from_nanos(3), Time::from_nanos(8));
    /// assert_eq!(b.since(a), Duration::from_nanos(5));
    /// assert_eq!(a.since(b), Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Returns the time after `delay` from this time. If the result is too late to represent,
    /// returns [`Time::NEVER`].
    fn add(self, delay: Duration) -> Self {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NEVER => f.write_str("never"),
            Self(nanos) => write!(f, "{:?}", Duration::from_nanos(nanos)),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use alloc::format;

    #[test]
    fn no_delay_is_so_long_that_it_begins_again() {
        let most = Duration::from_nanos(u64::MAX);
        for nanos in [0, 1, 5, u64::MAX] {
            let later = Time::from_nanos(7) + (most + Duration::from_nanos(nanos));
            assert_eq!(later, Time::NEVER, "{nanos} ns more than 64 bits hold");
        }
    }

    #[test]
    fn a_time_is_shown_as_what_has_passed() {
        let later = Time::ZERO + Duration::from_millis(1_500);
        assert_eq!(later, Time::from_nanos(1_500_000_000));
        assert_eq!(format!("{later:?} {:?}", Time::NEVER), "1.5s never");
    }

    #[test]
    fn a_duration_has_at_most_two_units() {
        for (seconds, text) in [
            (0, "0.0ns"),
            (119, "119.0s"),
            (120, "2m"),
            (1_754, "29m 14s"),
            (3_599, "59m 59s"),
            (3_600, "1h"),
            (172_799, "47h 59m"),
            (172_800, "2d"),
            (36_000_000, "416d 16h"),
        ] {
            assert_eq!(Shown(Duration::from_secs(seconds)).to_string(), text);
        }
        assert_eq!(Shown(Duration::from_millis(1_540)).to_string(), "1.5s");
    }
}

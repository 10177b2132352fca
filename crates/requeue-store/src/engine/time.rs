//! Converts between durations and the times of engines.

use std::time::Duration;

/// A time in microseconds since 1970, by the engine's clock.
pub(crate) type Micros = i64;

/// A time in the future that no clock reaches.
pub(crate) const NEVER: Micros = Micros::MAX;

/// Converts a duration to microseconds. The result is rounded up, so that no key is due early.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(NEVER)
}

/// Returns the time `duration` after `now`, or [`NEVER`] if the sum overflows.
pub(crate) fn after(now: Micros, duration: Duration) -> Micros {
    now.saturating_add(micros(duration))
}

/// Returns the duration from `now` to `at`, or zero if `at` has passed.
pub(crate) fn until(now: Micros, at: Micros) -> Duration {
    Duration::from_micros(at.saturating_sub(now).try_into().unwrap_or(0))
}

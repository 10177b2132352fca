//! Time as engines keep it.

use std::time::Duration;

/// Microseconds since 1970, by the engine's clock.
pub(crate) type Micros = i64;

/// No time that comes.
pub(crate) const NEVER: Micros = Micros::MAX;

/// How long that is, rounded up: nothing comes early.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(NEVER)
}

/// `now` and `duration` later, or [`NEVER`].
pub(crate) fn after(now: Micros, duration: Duration) -> Micros {
    now.saturating_add(micros(duration))
}

/// How long it is from `now` to `at`; nothing if that has passed.
pub(crate) fn until(now: Micros, at: Micros) -> Duration {
    Duration::from_micros(at.saturating_sub(now).try_into().unwrap_or(0))
}

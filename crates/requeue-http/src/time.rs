//! Converts times to the numbers that the API shows.

use std::time::{Duration, SystemTime};

/// Returns a duration in seconds, rounded to microseconds.
pub(crate) fn seconds(duration: Duration) -> f64 {
    // The value is rounded, because more digits would only enlarge the JSON.
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// Returns the present time in seconds since 1970, rounded to milliseconds.
pub(crate) fn unix_time() -> f64 {
    since_1970(SystemTime::now())
}

/// Returns a time in seconds since 1970, rounded to milliseconds.
pub(crate) fn since_1970(at: SystemTime) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1e3).round() / 1e3
}

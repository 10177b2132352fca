//! The rules of the default backoff, which the limiters in memory and the stores share.

use core::time::Duration;

use crate::wait::saturating_nanos;

/// Returns the number of failures that were counted before this failure. Returns `None` if this
/// failure is not counted, because the last backoff has not ended.
///
/// | `now` | this failure |
/// |---|---|
/// | is before `until`, the end of the last backoff | is not counted; the key waits until `until` |
/// | is from `until` to `expires` | is counted, after `counted` other failures |
/// | is after `expires` | is counted as the first failure |
#[inline]
pub fn failures_before<T: Ord>(now: &T, until: &T, expires: &T, counted: u32) -> Option<u32> {
    if now < until {
        None
    } else if now > expires {
        Some(0)
    } else {
        Some(counted)
    }
}

/// Returns the longest delay of a key that has already failed `n` times: min(base · 2ⁿ, max). The
/// calculation does not overflow for any `n`.
#[must_use]
pub fn longest_delay(base: Duration, n: u32, max: Duration) -> Duration {
    let nanos = base.as_nanos();
    if nanos == 0 {
        Duration::ZERO
    // For a larger `n`, the shift would lose bits, and the result would exceed every duration.
    } else if n <= nanos.leading_zeros() {
        saturating_nanos(nanos << n).min(max)
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_bit_is_lost_where_doubling_ends() {
        let nano = Duration::from_nanos(1);
        for n in [93, 94, 126, 127, 128, 129, u32::MAX] {
            let most = if n < 94 { Duration::from_nanos_u128(1 << n) } else { Duration::MAX };
            assert_eq!(longest_delay(nano, n, Duration::MAX), most, "{n}");
        }
    }

    #[test]
    fn a_failure_counts_from_the_end_of_the_backoff() {
        let before = |now| failures_before(&now, &10, &30, 3);
        assert_eq!([9, 10, 30, 31].map(before), [None, Some(3), Some(3), Some(0)]);
    }

    proptest! {
        /// The expected value is computed by doubling the delay `n` times, up to the maximum.
        #[test]
        fn the_longest_delay_doubles(secs: u32, nanos in 0..1_000_000_000_u32, max: u64, n in 0..200_u32) {
            let (base, max) = (Duration::new(secs.into(), nanos), Duration::from_nanos(max));
            let most = max.as_nanos();
            let expected = (0..n).fold(base.as_nanos().min(most), |d, _| (d * 2).min(most));
            prop_assert_eq!(longest_delay(base, n, max).as_nanos(), expected);
            let unlimited = (0..n).fold(base, |d, _| d.saturating_mul(2));
            prop_assert_eq!(longest_delay(base, n, Duration::MAX), unlimited);
        }
    }
}

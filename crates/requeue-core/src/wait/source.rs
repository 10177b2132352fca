//! The only source of random numbers in the core. It starts from a seed, so that every run can be
//! reproduced.

use core::time::Duration;

/// A generator of pseudorandom numbers from a seed (SplitMix64).
///
/// The same seed gives the same numbers on every machine. Do not use the numbers for secrets,
/// because one number reveals all later numbers. In apimachinery's `wait`, the whole process shares
/// one source. In this crate, each limiter and each loop has its own.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::wait::{JitterSource, jitter};
///
/// let delay = |seed| jitter(Duration::from_secs(1), 1.0, &mut JitterSource::new(seed));
/// assert_eq!(delay(42), delay(42));
/// assert_ne!(delay(42), delay(43));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitterSource {
    state: u64,
}

impl JitterSource {
    /// Creates a source that starts from `seed`. Every seed is suitable, including 0.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number. Each of the 2⁶⁴ numbers is equally likely.
    const fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next number from 0 (inclusive) to 1 (exclusive), a multiple of 2⁻⁵³.
    ///
    /// This corresponds to Go's `rand.Float64`.
    const fn next_unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next_number() >> 11) as f64 * STEP
    }

    /// Returns a random duration from half of `longest` (rounded up) to `longest`, both inclusive.
    pub(crate) fn upper_half(&mut self, longest: Duration) -> Duration {
        let longest = longest.as_nanos();
        let span = longest / 2;
        saturating_nanos(longest - span + self.up_to(span))
    }

    /// Returns a random number from 0 to `most`, both inclusive: (most + 1) · chance / 2⁶⁴.
    ///
    /// `most` is the number of nanoseconds of a [`Duration`], so it is below 2⁹⁴. The product is
    /// computed in two parts, so that it does not overflow.
    fn up_to(&mut self, most: u128) -> u128 {
        const LOW: u128 = u64::MAX as u128;
        let chance = u128::from(self.next_number());
        let choices = most.saturating_add(1);
        ((choices >> 64).saturating_mul(chance)) + (((choices & LOW) * chance) >> 64)
    }
}

/// Returns `duration` plus a random part of up to `factor` times `duration`.
///
/// The result is between `duration` and `duration + factor · duration`. If the factor is 0,
/// negative or NaN, 1 is used instead. A result that is too long to represent becomes
/// [`Duration::MAX`]. This is apimachinery's `Jitter`.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::wait::{JitterSource, jitter};
///
/// let second = Duration::from_secs(1);
/// let mut source = JitterSource::new(42);
/// let delay = jitter(second, 0.5, &mut source);
/// assert!(second <= delay && delay <= second.mul_f64(1.5));
/// assert!(jitter(second, 0.0, &mut source) <= 2 * second);
/// ```
#[must_use]
pub fn jitter(duration: Duration, factor: f64, source: &mut JitterSource) -> Duration {
    let factor = if factor.is_nan() || factor <= 0.0 { 1.0 } else { factor };
    duration.saturating_add(scale_duration(duration, source.next_unit() * factor))
}

/// Returns `factor` times `duration`, in whole nanoseconds, rounded down. If the factor is negative
/// or NaN, returns zero. The result equals Go's `time.Duration(float64(d) * factor)`, unless that
/// overflows.
pub(super) fn scale_duration(duration: Duration, factor: f64) -> Duration {
    // A cast from a float to an integer saturates, and turns NaN into zero.
    saturating_nanos((duration.as_nanos() as f64 * factor) as u128)
}

/// Returns a duration of `nanos` nanoseconds. If the number is too large for a duration, returns
/// [`Duration::MAX`].
pub(crate) const fn saturating_nanos(nanos: u128) -> Duration {
    // `Duration::from_nanos_u128` needs Rust 1.93.
    const SECOND: u128 = 1_000_000_000;
    match nanos > Duration::MAX.as_nanos() {
        true => Duration::MAX,
        false => Duration::new((nanos / SECOND) as u64, (nanos % SECOND) as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_source_is_splitmix64() {
        let mut source = JitterSource::new(1_234_567);
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ] {
            assert_eq!(source.next_number(), expected);
        }
    }

    #[test]
    fn a_unit_is_never_one() {
        let most = (u64::MAX >> 11) as f64 / (1_u64 << 53) as f64;
        assert!(most < 1.0);
        let mut source = JitterSource::new(3);
        let mean = (0..10_000).map(|_| source.next_unit()).sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
    }

    #[test]
    fn upper_half_reaches_both_ends_and_no_further() {
        let mut source = JitterSource::new(5);
        let mut seen = [0; 3];
        for _ in 0..300 {
            let delay = source.upper_half(Duration::from_nanos(5));
            seen[usize::try_from(delay.as_nanos()).unwrap() - 3] += 1;
        }
        assert!(seen.iter().all(|&times| times > 60), "{seen:?}");
        assert!((0..64).any(|_| source.upper_half(Duration::MAX) > Duration::MAX / 4 * 3));
        assert_eq!(source.upper_half(Duration::ZERO), Duration::ZERO);
        assert_eq!(source.upper_half(Duration::from_nanos(1)), Duration::from_nanos(1));
    }

    #[test]
    fn jitter_without_a_sensible_factor_takes_one() {
        let second = Duration::from_secs(1);
        for factor in [0.0, -3.0, f64::NEG_INFINITY, f64::NAN] {
            let expected = jitter(second, 1.0, &mut JitterSource::new(9));
            assert_eq!(jitter(second, factor, &mut JitterSource::new(9)), expected);
        }
    }

    #[test]
    fn jitter_of_absurd_values_saturates() {
        let mut source = JitterSource::new(1);
        for _ in 0..100 {
            assert_eq!(jitter(Duration::MAX, 1.0, &mut source), Duration::MAX);
            assert_eq!(jitter(Duration::ZERO, f64::MAX, &mut source), Duration::ZERO);
        }
        assert_eq!(jitter(Duration::from_secs(1), f64::INFINITY, &mut source), Duration::MAX);
        assert_eq!(jitter(Duration::ZERO, f64::INFINITY, &mut source), Duration::ZERO);
    }

    proptest! {
        /// The expected range is the documented one, [d, d + f·d]. Both halves of the range must
        /// occur among the results.
        #[test]
        fn jitter_stays_in_its_range(nanos in 0..u64::MAX >> 11, factor in 0.001..8.0_f64, seed: u64) {
            let duration = Duration::from_nanos(nanos);
            let most = (nanos as f64 * factor) as u128;
            let mut source = JitterSource::new(seed);
            let extra = (jitter(duration, factor, &mut source) - duration).as_nanos();
            prop_assert!(extra <= most);
            // All 64 numbers are in the same half of the range only with a probability of 2⁻⁶³.
            let extras = [(); 64].map(|()| jitter(duration, factor, &mut source) - duration);
            if most > 1_000 {
                prop_assert!(extras.iter().any(|e| e.as_nanos() < most / 2));
                prop_assert!(extras.iter().any(|e| e.as_nanos() > most / 2));
            }
        }

        #[test]
        fn upper_half_stays_in_its_range(secs: u64, nanos in 0..1_000_000_000_u32, seed: u64) {
            let longest = Duration::new(secs, nanos);
            let delay = JitterSource::new(seed).upper_half(longest);
            prop_assert!(delay <= longest);
            prop_assert!(delay.as_nanos() * 2 >= longest.as_nanos());
        }
    }
}

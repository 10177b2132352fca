extern crate std;

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);

fn steps(mut backoff: Backoff, count: usize) -> Vec<u64> {
    let mut source = JitterSource::new(1);
    (0..count).map(|_| backoff.step(&mut source).as_secs()).collect()
}

fn growing(duration: Duration, steps: i32, cap: Duration) -> Backoff {
    Backoff { duration, factor: 2.0, steps, cap, ..Backoff::default() }
}

/// apimachinery's `TestBackoff_Step`. It has a nil backoff, and this test has the default backoff
/// instead.
#[test]
fn test_backoff_step() {
    let secs = Duration::from_secs;
    let plain = |factor, steps| Backoff { duration: SECOND, factor, steps, ..Backoff::default() };
    let jittered = |steps, cap, jitter| Backoff { jitter, ..growing(SECOND, steps, cap) };
    let cases: [(Backoff, &[u64]); 10] = [
        (Backoff::default(), &[0, 0, 0, 0]),
        (plain(0.0, -1), &[1, 1, 1]),
        (plain(0.0, 0), &[1, 1, 1]),
        (plain(0.0, 1), &[1, 1, 1]),
        (plain(1.0, 1), &[1, 1, 1]),
        (growing(SECOND, 3, Duration::ZERO), &[1, 2, 4]),
        (growing(SECOND, 3, secs(3)), &[1, 2, 3]),
        // The original test expects 2, 3, 3. Its comparison is so loose that 1, 2, 3 also passes.
        (jittered(2, secs(3), 0.5), &[1, 2, 3]),
        (Backoff { duration: secs(2), ..jittered(2, secs(3), 0.5) }, &[2, 3, 3]),
        (jittered(6, Duration::ZERO, 4.0), &[1, 2, 4, 8, 16, 32]),
    ];
    for seed in 0..5 {
        for (initial, want) in cases {
            let mut backoff = initial;
            let mut source = JitterSource::new(seed);
            for &want in want {
                let (got, base) = (backoff.step(&mut source), secs(want));
                if initial.jitter > 0.0 {
                    assert_ne!(got, base, "no jitter: {initial:?}");
                    assert!(base < got && got <= base.mul_f64(1.0 + initial.jitter), "{got:?}");
                } else {
                    assert_eq!(got, base, "{initial:?}");
                }
            }
        }
    }
}

#[test]
fn the_last_duration_stays_when_the_steps_are_used_up() {
    assert_eq!(steps(growing(SECOND, 3, Duration::ZERO), 6), [1, 2, 4, 8, 8, 8]);
    assert_eq!(steps(growing(SECOND, 3, 3 * SECOND), 5), [1, 2, 3, 3, 3]);
    assert_eq!(steps(growing(SECOND, 3, 4 * SECOND), 5), [1, 2, 4, 4, 4]);
}

#[test]
fn reaching_the_cap_uses_up_the_steps_and_being_at_it_does_not() {
    let mut source = JitterSource::new(1);
    let mut backoff = growing(SECOND, 9, 3 * SECOND);
    let left = [(); 3].map(|()| {
        backoff.step(&mut source);
        backoff.steps
    });
    assert_eq!(left, [8, 0, 0]);
    let mut backoff = growing(SECOND, 9, 4 * SECOND);
    let left = [(); 3].map(|()| {
        backoff.step(&mut source);
        backoff.steps
    });
    assert_eq!(left, [8, 7, 0]);
}

#[test]
fn the_first_delay_is_not_capped() {
    assert_eq!(steps(growing(5 * SECOND, 9, 3 * SECOND), 3), [5, 3, 3]);
    let still = Backoff { factor: 0.0, ..growing(5 * SECOND, 9, 3 * SECOND) };
    assert_eq!(steps(still, 3), [5, 5, 5]);
}

#[test]
fn a_factor_below_one_shrinks() {
    let shrinking = Backoff { factor: 0.5, ..growing(8 * SECOND, 9, Duration::ZERO) };
    assert_eq!(steps(shrinking, 4), [8, 4, 2, 1]);
}

#[test]
fn a_duration_too_long_to_count_stays_the_longest() {
    let mut source = JitterSource::new(1);
    let mut backoff = growing(Duration::from_secs(u64::MAX / 2), 9, Duration::ZERO);
    backoff.step(&mut source);
    backoff.step(&mut source);
    assert_eq!([(); 3].map(|()| backoff.step(&mut source)), [Duration::MAX; 3]);
}

#[test]
fn a_factor_that_makes_no_sense_leaves_the_duration() {
    for factor in [-2.0, f64::NEG_INFINITY, f64::NAN] {
        let backoff = Backoff { factor, ..growing(SECOND, 9, Duration::ZERO) };
        assert_eq!(steps(backoff, 3), [1, 1, 1]);
    }
}

#[test]
fn the_fewest_steps_there_can_be_are_none() {
    let mut backoff = growing(SECOND, i32::MIN, Duration::ZERO);
    assert_eq!(backoff.step(&mut JitterSource::new(1)), SECOND);
    assert_eq!(backoff.steps, 0);
}

/// The delays of `ExponentialBackoff`, as apimachinery documents them.
#[test]
fn delays_end_with_the_steps_or_at_the_cap() {
    let millis = |steps, cap| {
        let backoff = growing(Duration::from_millis(1), steps, Duration::from_micros(cap));
        backoff.delays(JitterSource::new(1)).map(|d| d.as_millis()).collect::<Vec<_>>()
    };
    assert_eq!(millis(-1, 0), []);
    assert_eq!(millis(0, 0), []);
    assert_eq!(millis(1, 0), [1]);
    assert_eq!(millis(3, 0), [1, 2, 4]);
    assert_eq!(millis(10, 3_000), [1, 2]);
    assert_eq!(millis(10, 4_000), [1, 2, 4]);
    assert_eq!(millis(10, 500), [1]);
    let mut ended = growing(SECOND, 1, Duration::ZERO).delays(JitterSource::new(1));
    assert_eq!([(); 3].map(|()| ended.next()), [Some(SECOND), None, None]);
}

proptest! {
    /// The expected value comes from a closed formula, which has no state, unlike `step`. Its
    /// integers are small enough to be exact as floating-point numbers.
    #[test]
    fn the_nth_delay_follows_from_n(
        nanos in 0..1_u64 << 30,
        factor in 1..4_u32,
        limit in 0..12_i32,
        cap in prop_oneof![Just(0), 0..1_u64 << 50],
        spread in prop_oneof![Just(0.0), 0.01..4.0_f64],
        seed: u64,
    ) {
        let mut backoff = Backoff {
            duration: Duration::from_nanos(nanos),
            factor: f64::from(factor),
            jitter: spread,
            steps: limit,
            cap: Duration::from_nanos(cap),
        };
        let mut source = JitterSource::new(seed);
        for n in 0..16 {
            let grown = u128::from(nanos) * u128::from(factor).pow(n.min(limit as u32));
            let capped = cap > 0 && n > 0 && limit > 0 && grown > u128::from(cap);
            let base = if capped { u128::from(cap) } else { grown };
            let got = backoff.step(&mut source).as_nanos();
            prop_assert!(base <= got, "{got} at {n}, from {base}");
            prop_assert!(got <= base + (base as f64 * spread) as u128, "{got} at {n}");
        }
    }

    #[test]
    fn no_backoff_panics(
        secs: u64, factor: f64, jitter: f64, steps: i32, cap: u64, seed: u64,
    ) {
        let duration = Duration::from_secs(secs);
        let cap = Duration::from_secs(cap);
        let mut backoff = Backoff { duration, factor, jitter, steps, cap };
        let mut source = JitterSource::new(seed);
        for _ in 0..8 {
            backoff.step(&mut source);
        }
    }
}

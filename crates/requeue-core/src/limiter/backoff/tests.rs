extern crate std;

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NANO: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn limiter(base: Duration, cap: Duration) -> BackoffLimiter<u32> {
    BackoffLimiter::new(base, cap).seed(42)
}

/// Returns the delays of a key that fails exactly at the end of each wait.
fn punctual<const N: usize>(limiter: &mut BackoffLimiter<u32>, mut now: Time) -> [Duration; N] {
    [(); N].map(|()| {
        let delay = limiter.delay(&1, now);
        now = now + delay;
        delay
    })
}

#[test]
fn a_key_that_fails_when_its_time_has_come_backs_off_to_the_cap() {
    let delays = punctual::<20>(&mut BackoffLimiter::default().seed(42), Time::ZERO);
    for (n, delay) in delays.into_iter().enumerate() {
        let longest = (SECOND * (1 << n)).min(300 * SECOND);
        assert!(longest / 2 <= delay && delay <= longest, "{delay:?} at {n}");
    }
    assert!(delays[9..].iter().all(|&d| d != 300 * SECOND), "no jitter at the cap: {delays:?}");
}

#[test]
fn triggers_do_not_drive_a_key_to_its_longest_delay() {
    let mut limiter = limiter(SECOND, 300 * SECOND);
    let mut now = Time::ZERO;
    // A run fails every 10 ms, for 10 s.
    for _ in 0..1_000 {
        limiter.delay(&1, now);
        now = now + Duration::from_millis(10);
    }
    // The first four waits take at least 0.5, 1, 2 and 4 s. The fifth wait ends after the 10 s.
    assert!(limiter.num_requeues(&1) <= 5, "{}", limiter.num_requeues(&1));
    assert!(limiter.num_requeues(&1) >= 4);
}

#[test]
fn a_failure_within_the_wait_gets_the_rest_of_it_and_one_at_its_end_counts() {
    let mut limiter = limiter(100 * NANO, SECOND);
    let first = limiter.delay(&1, at(0));
    let end = u64::try_from(first.as_nanos()).unwrap();
    assert_eq!(limiter.delay(&1, at(end - 1)), NANO);
    assert_eq!(limiter.delay(&1, at(10)), first - 10 * NANO);
    assert_eq!(limiter.num_requeues(&1), 1);
    let second = limiter.delay(&1, at(end));
    assert!(100 * NANO <= second && second <= 200 * NANO);
    assert_eq!(limiter.num_requeues(&1), 2);
}

#[test]
fn forget_forgets_one_key_and_not_everything() {
    let mut limiter = limiter(SECOND, 60 * SECOND);
    for key in [1, 2, 3] {
        limiter.delay(&key, at(0));
    }
    limiter.forget(&1);
    assert_eq!([1, 2, 3].map(|key| limiter.num_requeues(&key)), [0, 1, 1]);
    assert!(limiter.delay(&1, at(1)) >= SECOND / 2, "a new wait, not the rest of the old one");
    assert_eq!(limiter.waits.len(), 3);
}

#[test]
fn a_key_starts_afresh_strictly_after_two_caps() {
    let (base, cap) = (100 * NANO, 1_000 * NANO);
    for (beyond, fresh) in [(0, false), (1, true)] {
        let mut limiter = limiter(base, cap);
        let over = punctual::<9>(&mut limiter, at(0)).into_iter().fold(at(0), |t, d| t + d);
        let delay = limiter.delay(&1, over + 2 * cap + beyond * NANO);
        assert_eq!(delay <= base, fresh, "{delay:?}");
        assert_eq!(limiter.num_requeues(&1), if fresh { 1 } else { 10 });
    }
}

#[test]
fn what_has_expired_is_swept_in_steps_and_memory_comes_back() {
    let mut limiter = limiter(SECOND, SECOND);
    for key in 0..10_000 {
        limiter.delay(&key, at(0));
    }
    let late = at(0) + 4 * SECOND;
    let mut before = limiter.waits.len();
    for _ in 0..5_001 {
        limiter.delay(&20_000, late);
        assert!(before - limiter.waits.len() <= LOOKS, "too many entries removed in one step");
        before = limiter.waits.len();
    }
    assert_eq!(limiter.waits.len(), 1);
    let (slots, places) = limiter.waits.capacity();
    assert!(slots <= 512 && places <= 64 * 12, "{slots} {places}");
}

#[test]
fn a_stream_of_new_keys_takes_no_more_memory_than_those_that_count() {
    let mut limiter = limiter(NANO, 100 * NANO);
    for key in 0..100_000_u32 {
        limiter.delay(&key, at(key.into()));
        // About 201 entries have not expired yet, and the sweep may not have reached all others.
        assert!(limiter.waits.len() <= 600, "{} at {key}", limiter.waits.len());
    }
}

#[test]
fn what_has_expired_counts_nothing_before_it_is_swept() {
    let mut limiter = limiter(SECOND, SECOND);
    for key in 0..100 {
        limiter.delay(&key, at(0));
    }
    limiter.delay(&1_000, at(0) + 4 * SECOND);
    assert!(limiter.waits.len() > 50);
    assert!((0..100).all(|key| limiter.num_requeues(&key) == 0));
    assert_eq!(limiter.num_requeues(&1_000), 1);
}

#[test]
fn sweeping_looks_at_no_more_than_it_is_told() {
    let mut limiter = limiter(SECOND, SECOND);
    limiter.sweep(Time::NEVER, usize::MAX);
    for key in 0..10 {
        limiter.delay(&key, at(0));
    }
    let late = at(0) + 4 * SECOND;
    let mut left_after = |now, looks| {
        limiter.sweep(now, looks);
        limiter.waits.len()
    };
    assert_eq!((left_after(at(5), 100), left_after(late, 3), left_after(late, 7)), (10, 7, 0));
    assert!(limiter.is_idle());
}

#[test]
fn when_the_clock_goes_back_a_key_waits_no_longer_than_its_last_delay() {
    let mut limiter = limiter(SECOND, 60 * SECOND);
    let hour = at(0) + 3_600 * SECOND;
    let first = limiter.delay(&1, hour);
    assert_eq!([0, 7].map(|nanos| limiter.delay(&1, at(nanos))), [first; 2]);
    assert_eq!(limiter.num_requeues(&1), 1);
    let second = limiter.delay(&1, hour + first);
    assert!(SECOND <= second && second <= 2 * SECOND);
}

#[test]
fn absurd_parameters_are_defined() {
    let mut zero = limiter(Duration::ZERO, SECOND);
    assert_eq!(punctual(&mut zero, at(0)), [NANO; 9]);
    assert_eq!(zero.longest_delay(), NANO);

    let mut no_cap = limiter(SECOND, Duration::ZERO);
    assert_eq!(punctual(&mut no_cap, at(0)), [NANO; 9]);

    let mut above = limiter(Duration::MAX, SECOND);
    assert!(punctual::<9>(&mut above, at(0)).iter().all(|&d| SECOND / 2 <= d && d <= SECOND));
    assert_eq!(above.longest_delay(), SECOND);

    let mut endless = limiter(Duration::MAX, Duration::MAX);
    assert!(endless.delay(&1, at(0)) >= Duration::MAX / 2);
    assert_eq!(endless.longest_delay(), Duration::MAX);
    assert!(endless.delay(&1, Time::NEVER) >= Duration::MAX / 2);
    assert_eq!(endless.num_requeues(&1), 2, "at the end of time the wait is over");

    let mut late = limiter(SECOND, SECOND);
    late.delay(&1, Time::NEVER);
    assert_eq!(late.delay(&1, at(0)), late.waits.get(&1).unwrap().last);
    late.waits.get_or_default(&2).failures = u32::MAX;
    late.delay(&2, at(0));
    assert_eq!(late.num_requeues(&2), u32::MAX);
}

#[test]
fn one_seed_gives_one_sequence_whatever_the_hasher() {
    let run = || {
        let mut limiter = BackoffLimiter::new(Duration::from_millis(5), SECOND).seed(7);
        let delays: [Duration; 300] =
            core::array::from_fn(|i| limiter.delay(&(i % 90), at(i as u64 * 100_000_000)));
        delays
    };
    assert_eq!(run(), run());
}

/// A literal implementation of the docs of [`BackoffLimiter`]. Unlike the limiter, it keeps expired
/// entries.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u32, (Time, Duration, u32)>,
}

enum Expected {
    Exactly(Duration),
    /// The delay must be between half of this duration and the whole duration, and at least 1 ns.
    Jittered(Duration),
}

impl Model {
    fn expect(&self, base: Duration, cap: Duration, key: u32, now: Time) -> (Expected, u32) {
        let mut n = 0;
        if let Some(&(until, last, counted)) = self.entries.get(&key) {
            if now < until {
                let rest = Duration::from_nanos(until.as_nanos() - now.as_nanos());
                return (Expected::Exactly(rest.min(last)), counted);
            }
            if now <= until + cap + cap {
                n = counted;
            }
        }
        let grown = (0..n).fold(base, |d, _| d.saturating_mul(2));
        (Expected::Jittered(grown.min(cap)), n + 1)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Fail(u32),
    Forget(u32),
    /// Sets the clock to the end of a key's wait or to its expiry: just before that time, exactly
    /// at it, or just after it.
    Until(u32, bool, u64),
    Pass(u64),
    Back(u64),
}

fn op(backwards: bool) -> impl Strategy<Value = Op> {
    let key = || 0..6_u32;
    prop_oneof![
        8 => key().prop_map(Op::Fail),
        1 => key().prop_map(Op::Forget),
        3 => (key(), any::<bool>(), 0..3_u64)
            .prop_map(move |(k, memory, d)| Op::Until(k, memory && !backwards, d)),
        2 => (0..3_000_u64).prop_map(Op::Pass),
        u32::from(backwards) => (0..3_000_u64).prop_map(Op::Back),
    ]
}

fn check(base: u64, cap: u64, seed: u64, ops: &[Op]) -> Result<(), TestCaseError> {
    let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
    let mut limiter = BackoffLimiter::new(base, cap).seed(seed);
    let mut model = Model::default();
    let mut now = 10_000;
    for op in ops {
        match *op {
            Op::Fail(key) => {
                let (expected, failures) = model.expect(base, cap, key, at(now));
                let got = limiter.delay(&key, at(now));
                match expected {
                    Expected::Exactly(rest) => prop_assert_eq!(got, rest),
                    Expected::Jittered(longest) => {
                        prop_assert!(longest.max(NANO) >= got && got >= NANO);
                        prop_assert!(got * 2 >= longest, "{got:?} of {longest:?}");
                        model.entries.insert(key, (at(now) + got, got, failures));
                    }
                }
                prop_assert_eq!(limiter.num_requeues(&key), failures);
            }
            Op::Forget(key) => {
                limiter.forget(&key);
                model.entries.remove(&key);
                prop_assert_eq!(limiter.num_requeues(&key), 0);
            }
            Op::Until(key, memory, offset) => {
                if let Some((until, ..)) = model.entries.get(&key) {
                    let until = if memory { *until + cap + cap } else { *until };
                    now = now.max(until.as_nanos().saturating_add(offset).saturating_sub(1));
                }
            }
            Op::Pass(nanos) => now = now.saturating_add(nanos),
            Op::Back(nanos) => now = now.saturating_sub(nanos),
        }
        prop_assert!(limiter.waits.len() <= model.entries.len(), "more entries than in the model");
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_limiter_does_what_its_design_says(
        base in 0..200_u64,
        cap in 0..2_000_u64,
        seed: u64,
        ops in prop::collection::vec(op(false), 0..200),
    ) {
        check(base, cap, seed, &ops)?;
    }

    /// The maximum delay is so long that no entry expires. The limiter removes expired entries, and
    /// cannot restore them when the clock goes back.
    #[test]
    fn so_it_does_when_the_clock_goes_back(
        base in 0..200_u64,
        seed: u64,
        ops in prop::collection::vec(op(true), 0..200),
    ) {
        check(base, 1 << 62, seed, &ops)?;
    }

    #[test]
    fn no_delay_is_out_of_bounds_at_any_time_with_any_parameters(
        base: u64, cap: u64, seed: u64, times in prop::collection::vec(any::<u64>(), 0..40),
    ) {
        let (base, cap) = (Duration::from_secs(base), Duration::from_nanos(cap));
        let mut limiter = BackoffLimiter::new(base, cap).seed(seed);
        for now in times {
            let delay = limiter.delay(&(now % 3), at(now));
            prop_assert!(NANO <= delay && delay <= limiter.longest_delay());
        }
    }
}

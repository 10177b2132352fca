use super::*;

const NANO: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const START: Time = Time::from_nanos(1_000_000);

fn source() -> JitterSource {
    JitterSource::new(1)
}

fn at(nanos: u64) -> Time {
    START + Duration::from_nanos(nanos)
}

fn nanos(manager: &mut impl BackoffManager, now: Time) -> u128 {
    manager.backoff(now).as_nanos()
}

/// Returns seven delays, in milliseconds. Each delay starts when the previous delay has ended.
fn rounds(manager: &mut impl BackoffManager) -> [u128; 7] {
    let mut now = START;
    [(); 7].map(|()| {
        let delay = manager.backoff(now);
        now = now + delay;
        delay.as_millis()
    })
}

fn exponential(unit: Duration, reset: Duration) -> ExponentialBackoffManager {
    ExponentialBackoffManager::new(unit, 10 * unit, reset, 2.0, 0.0, source())
}

fn backoff(unit: Duration) -> Backoff {
    Backoff { duration: unit, cap: 10 * unit, factor: 2.0, jitter: 0.0, steps: 10 }
}

/// apimachinery's `TestExponentialBackoffManagerGetNextBackoff`.
#[test]
fn test_exponential_backoff_manager_get_next_backoff() {
    let mut manager = exponential(NANO, 10 * NANO);
    assert_eq!([(); 7].map(|()| nanos(&mut manager, START)), [1, 2, 4, 8, 10, 10, 10]);
    assert_eq!(nanos(&mut manager, at(11)), 1, "after the reset");
}

/// apimachinery's `TestExponentialBackoffManagerWithRealClock`, with a clock that advances by each
/// delay.
#[test]
fn test_exponential_backoff_manager_with_real_clock() {
    let milli = Duration::from_millis(1);
    let mut manager = exponential(milli, Duration::from_secs(3_600));
    assert_eq!(rounds(&mut manager), [1, 2, 4, 8, 10, 10, 10]);
}

#[test]
fn an_exponential_manager_starts_over_only_strictly_after_its_reset() {
    let mut manager = exponential(NANO, 10 * NANO);
    assert_eq!([(); 3].map(|()| nanos(&mut manager, START)), [1, 2, 4]);
    assert_eq!(nanos(&mut manager, at(10)), 8);
}

#[test]
fn the_reset_of_an_exponential_manager_counts_from_its_last_backoff() {
    let mut manager = exponential(NANO, 10 * NANO);
    let spread = [0, 6, 12, 18, 24].map(|t| nanos(&mut manager, at(t)));
    assert_eq!(spread, [1, 2, 4, 8, 10]);
    assert_eq!(nanos(&mut manager, at(24 + 11)), 1);
}

#[test]
fn an_exponential_manager_is_as_fresh_at_its_first_backoff_however_late() {
    let mut manager = exponential(NANO, Duration::ZERO);
    assert_eq!(nanos(&mut manager, Time::NEVER), 1);
    assert_eq!(nanos(&mut manager, Time::NEVER), 2, "no time has passed");
}

#[test]
fn a_clock_that_goes_back_starts_nothing_over() {
    let mut manager = exponential(NANO, 10 * NANO);
    assert_eq!([50, 20, 30].map(|t| nanos(&mut manager, at(t))), [1, 2, 4]);
    assert_eq!(nanos(&mut manager, at(41)), 1, "11 ns after the last backoff");

    let mut delays = backoff(NANO).delay_with_reset(10 * NANO, at(50), source());
    assert_eq!([50, 20, 60].map(|t| nanos(&mut delays, at(t))), [1, 2, 4]);
    assert_eq!(nanos(&mut delays, at(61)), 1);
}

#[test]
fn an_exponential_manager_at_its_cap_starts_over_at_the_beginning() {
    let mut manager = exponential(SECOND, 10 * SECOND);
    for _ in 0..100 {
        manager.backoff(START);
    }
    let late = START + 11 * SECOND;
    assert_eq!([(); 3].map(|()| manager.backoff(late).as_secs()), [1, 2, 4]);
}

/// apimachinery's `TestJitteredBackoffManagerGetNextBackoff`.
#[test]
fn test_jittered_backoff_manager_get_next_backoff() {
    let mut manager = JitteredBackoffManager::new(NANO, 1.0, source());
    for _ in 0..5 {
        assert!((1..=2).contains(&nanos(&mut manager, START)));
    }
    let mut manager = JitteredBackoffManager::new(NANO, -1.0, source());
    assert_eq!(nanos(&mut manager, START), 1);
    let mut manager = JitteredBackoffManager::new(NANO, f64::NAN, source());
    assert_eq!(nanos(&mut manager, START), 1);
}

/// apimachinery's `TestJitterBackoffManagerWithRealClock`, with a clock that advances by each
/// delay.
#[test]
fn test_jitter_backoff_manager_with_real_clock() {
    let mut manager = JitteredBackoffManager::new(Duration::from_millis(1), 0.0, source());
    assert_eq!(rounds(&mut manager), [1; 7]);
    assert_eq!(nanos(&mut manager, START), 1_000_000, "no part is random");
}

#[test]
fn a_jittered_manager_jitters() {
    let mut manager = JitteredBackoffManager::new(SECOND, 0.5, source());
    let delays = [(); 8].map(|()| manager.backoff(START));
    assert!(delays.iter().all(|&d| SECOND <= d && d <= SECOND.mul_f64(1.5)));
    assert!(delays.windows(2).all(|pair| pair[0] != pair[1]), "{delays:?}");
}

/// apimachinery's `TestBackoffDelayWithResetExponential`.
#[test]
fn test_backoff_delay_with_reset_exponential() {
    let mut delays = backoff(NANO).delay_with_reset(10 * NANO, START, source());
    assert_eq!([(); 7].map(|()| nanos(&mut delays, START)), [1, 2, 4, 8, 10, 10, 10]);
    assert_eq!(nanos(&mut delays, at(11)), 1, "after the reset");
}

/// apimachinery's `TestBackoffDelayWithResetEmpty`.
#[test]
fn test_backoff_delay_with_reset_empty() {
    let mut delays = backoff(NANO).delay_with_reset(Duration::ZERO, START, source());
    assert_eq!([(); 7].map(|()| nanos(&mut delays, START)), [1; 7]);
    assert_eq!(nanos(&mut delays, at(11)), 1);
}

/// apimachinery's `TestBackoffDelayWithResetJitter`.
#[test]
fn test_backoff_delay_with_reset_jitter() {
    let jittered = Backoff { duration: NANO, jitter: 1.0, ..Backoff::default() };
    let mut delays = jittered.delay_with_reset(Duration::ZERO, START, source());
    for _ in 0..5 {
        assert!((1..=2).contains(&nanos(&mut delays, START)));
    }
    let mut delays = Backoff { jitter: -1.0, ..jittered }.delay_with_reset(NANO, START, source());
    assert_eq!(nanos(&mut delays, START), 1);
}

/// apimachinery's `TestBackoffDelayWithResetWithRealClockJitter`, with a clock that advances by
/// each delay.
#[test]
fn test_backoff_delay_with_reset_with_real_clock_jitter() {
    let plain = Backoff { duration: Duration::from_millis(1), ..Backoff::default() };
    assert_eq!(rounds(&mut plain.delay_with_reset(Duration::ZERO, START, source())), [1; 7]);
}

/// apimachinery's `TestBackoffDelayWithResetWithRealClockExponential`, with a clock that advances
/// by each delay.
#[test]
fn test_backoff_delay_with_reset_with_real_clock_exponential() {
    let hour = Duration::from_secs(3_600);
    let mut delays = backoff(Duration::from_millis(1)).delay_with_reset(hour, START, source());
    assert_eq!(rounds(&mut delays), [1, 2, 4, 8, 10, 10, 10]);
}

#[test]
fn the_reset_of_a_delay_with_reset_counts_from_the_last_one() {
    let mut delays = backoff(NANO).delay_with_reset(10 * NANO, START, source());
    let spread = [6, 10, 11, 17, 21, 22].map(|t| nanos(&mut delays, at(t)));
    assert_eq!(spread, [1, 2, 1, 2, 4, 1]);
}

#[test]
fn managers_nest_in_boxes_and_references() {
    let mut boxed: Box<dyn BackoffManager> = Box::new(exponential(NANO, SECOND));
    assert_eq!(nanos(&mut boxed, START), 1);
    assert_eq!(nanos(&mut &mut boxed, START), 2);
    let mut delays = backoff(NANO).delay_func(source());
    assert_eq!([(); 5].map(|()| nanos(&mut delays, START)), [1, 2, 4, 8, 10]);
}

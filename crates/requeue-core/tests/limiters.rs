//! The requirements that all limiters meet.

use std::time::Duration;

use requeue_core::Time;
use requeue_core::limiter::RateLimiter;
use requeue_core::limiter::{
    BackoffLimiter, Bucket, ExponentialFailure, FastSlow, MaxOf, WithMaxWait,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// If a limiter reports that it is idle, the queue may skip `forget`.
fn is_idle_while_no_failure_is_counted(mut limiter: impl RateLimiter<u8>) {
    assert!(limiter.is_idle());
    limiter.delay(&1, Time::ZERO);
    limiter.delay(&2, Time::ZERO);
    assert!(!limiter.is_idle());
    limiter.forget(&1);
    assert!(!limiter.is_idle());
    limiter.forget(&2);
    assert!(limiter.is_idle());
}

#[test]
fn a_limiter_is_idle_while_it_counts_no_failure() {
    let exponential = || ExponentialFailure::new(MILLI, SECOND);
    is_idle_while_no_failure_is_counted(BackoffLimiter::default().seed(1));
    is_idle_while_no_failure_is_counted(exponential());
    is_idle_while_no_failure_is_counted(FastSlow::new(MILLI, SECOND, 3));
    is_idle_while_no_failure_is_counted(WithMaxWait::new(exponential(), MILLI));
    let boxed: Box<dyn RateLimiter<u8>> = Box::new(exponential());
    is_idle_while_no_failure_is_counted(boxed);
    // The combined limiter is not idle if one of its members has counted a failure.
    let members: Vec<Box<dyn RateLimiter<u8>>> =
        vec![Box::new(Bucket::new(1.0, 1)), Box::new(exponential())];
    is_idle_while_no_failure_is_counted(MaxOf::new(members));
}

#[test]
fn a_bucket_counts_no_key_and_is_always_idle() {
    let mut bucket = Bucket::new(1.0, 1);
    bucket.delay(&1, Time::ZERO);
    bucket.delay(&1, Time::ZERO);
    assert_eq!((bucket.num_requeues(&1), RateLimiter::<u8>::is_idle(&bucket)), (0, true));
}

/// A limiter of a user need not implement `is_idle`. The queue then calls it for every key.
#[test]
fn a_limiter_that_says_nothing_of_itself_is_not_idle_and_gives_up_to_five_minutes() {
    struct Zero;
    impl RateLimiter<u8> for Zero {
        fn delay(&mut self, _: &u8, _: Time) -> Duration {
            Duration::ZERO
        }
        fn forget(&mut self, _: &u8) {}
        fn num_requeues(&self, _: &u8) -> u32 {
            0
        }
    }
    assert_eq!((Zero.is_idle(), Zero.longest_delay()), (false, 300 * SECOND));
    let boxed: Box<dyn RateLimiter<u8>> = Box::new(Zero);
    assert_eq!((boxed.is_idle(), boxed.longest_delay()), (false, 300 * SECOND));
}

#[test]
fn a_limiter_of_several_shows_how_many() {
    let limiter = MaxOf::<u8>::new(vec![Box::new(Bucket::new(1.0, 1))]);
    assert_eq!(format!("{limiter:?}"), "MaxOf { members: 1, .. }");
}

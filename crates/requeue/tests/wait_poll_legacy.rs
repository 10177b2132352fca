//! apimachinery's older `Poll` functions, compared with `wait_test.go`. `Poll` and `PollImmediate`
//! make one more try when their timeout has passed, as [`Polling::last_try`] does.
//!
//! In the original tests, a ticker sends n ticks and closes. In these tests, the interval is 1 ms
//! and the timeout n + ½ ms.
#![cfg(feature = "wait")]

mod wait_support;

use std::future::{pending, ready};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::wait::{Error, Polling, poll_until};
use wait_support::Stop;

type Tried = Result<bool, &'static str>;
type Polled = Result<(), Error<&'static str>>;

const MILLISECOND: Duration = Duration::from_millis(1);
const FAILED: Polled = Err(Error::Condition("fake error"));

const HOLDS: fn(u32) -> Tried = |_| Ok(true);
const NOT_YET: fn(u32) -> Tried = |_| Ok(false);
const FAILS: fn(u32) -> Tried = |_| Err("fake error");

/// Polls `condition`. Returns the result, the number of tries, and the time in milliseconds.
fn poll(polling: Polling, stop: &Stop, condition: impl Fn(u32) -> Tried) -> (Polled, u32, u128) {
    let (clock, mut tries) = (FakeClock::new(), 0);
    let start = clock.now();
    let polled = clock.run(poll_until(&clock, polling, stop.stopped(), || {
        tries += 1;
        ready(condition(tries))
    }));
    assert_eq!(clock.armed(), 0, "the timer is dropped");
    (polled, tries, clock.now().since(start).as_millis())
}

/// Returns the parameters that correspond to a ticker that sends `n` ticks and closes.
fn ticks(n: u32) -> Polling {
    Polling::every(MILLISECOND).timeout(MILLISECOND * n + MILLISECOND / 2).last_try()
}

/// `TestPoller`.
#[test]
fn a_timeout_of_two_intervals_gives_up_to_three_tries() {
    let polling = Polling::every(MILLISECOND).timeout(2 * MILLISECOND).last_try();
    let (polled, tries, elapsed) = poll(polling, &Stop::default(), NOT_YET);
    assert_eq!((polled, elapsed), (Err(Error::Timeout), 2));
    assert!(tries <= 3, "{tries}");
}

/// `TestPoll`.
#[test]
fn poll_tries_after_one_tick() {
    assert_eq!(poll(ticks(1), &Stop::default(), HOLDS), (Ok(()), 1, 1));
}

/// `TestPollError`.
#[test]
fn poll_fails_after_one_tick() {
    assert_eq!(poll(ticks(1), &Stop::default(), FAILS), (FAILED, 1, 1));
}

/// `TestPollImmediate`.
#[test]
fn poll_immediate_tries_before_any_tick() {
    assert_eq!(poll(ticks(0).immediate(), &Stop::default(), HOLDS), (Ok(()), 1, 0));
}

/// `TestPollImmediateError`.
#[test]
fn poll_immediate_fails_before_any_tick() {
    assert_eq!(poll(ticks(0).immediate(), &Stop::default(), FAILS), (FAILED, 1, 0));
}

/// `TestPollForever`.
#[test]
fn a_poll_without_timeout_goes_on_until_the_condition_holds_and_then_ends() {
    let polling = Polling::every(MILLISECOND);
    let (polled, tries, _) = poll(polling, &Stop::default(), |tries| Ok(tries == 12));
    assert_eq!((polled, tries), (Ok(()), 12));
}

/// `Test_waitFor`, `Test_waitForWithContext`.
#[test]
fn when_the_time_is_up_there_is_one_more_try() {
    let go = Stop::default();
    assert_eq!(poll(ticks(2), &go, HOLDS), (Ok(()), 1, 1), "invoked once");
    let (polled, tries, _) = poll(ticks(2), &go, NOT_YET);
    assert_eq!((polled, tries), (Err(Error::Timeout), 3), "invoked and returns a timeout");
    assert_eq!(poll(ticks(2), &go, FAILS), (FAILED, 1, 1), "returns immediately on error");
    let stopped = Stop::stopped_before();
    assert_eq!(poll(ticks(2), &stopped, NOT_YET), (Err(Error::Cancelled), 0, 0));
}

/// `Test_waitForWithEarlyClosing_waitFunc`.
#[test]
fn a_timeout_of_zero_ends_at_once() {
    let polling = Polling::every(MILLISECOND).timeout(Duration::ZERO).last_try();
    assert_eq!(poll(polling, &Stop::default(), NOT_YET), (Err(Error::Timeout), 1, 0));
}

/// `Test_waitForWithClosedChannel`.
#[test]
fn a_stop_that_has_come_ends_at_once_however_long_the_interval() {
    let polling = Polling::every(Duration::from_secs(30));
    let polled = poll(polling, &Stop::stopped_before(), NOT_YET);
    assert_eq!(polled, (Err(Error::Cancelled), 0, 0));
}

/// `Test_waitForWithContextCancelsContext`: the resources of a wait are released when it ends.
#[test]
fn a_poll_that_has_ended_leaves_no_timer_behind() {
    let clock = FakeClock::new();
    let polling = Polling::every(MILLISECOND).timeout(Duration::from_secs(30));
    let condition = async || {
        requeue::clock::sleep_until(&clock, clock.now() + 10 * MILLISECOND).await;
        Ok::<_, ()>(true)
    };
    assert_eq!(clock.run(poll_until(&clock, polling, pending::<()>(), condition)), Ok(()));
    assert_eq!(clock.armed(), 0);
}

/// `TestPollUntil`.
#[test]
fn a_stop_ends_a_poll_without_timeout() {
    let stop = Stop::default();
    let polled = poll(Polling::every(MILLISECOND), &stop, |_| {
        stop.stop();
        Ok(false)
    });
    assert_eq!(polled, (Err(Error::Cancelled), 1, 1));
}

/// `Test_poll`.
#[test]
fn poll_with_every_mix_of_immediate_stop_and_condition() {
    let (go, stopped) = (Stop::default(), Stop::stopped_before());
    let tries = |polling, stop: &Stop, condition| {
        let (polled, tries, _) = poll(polling, stop, condition);
        (polled, tries)
    };
    let none = || ticks(0);
    assert_eq!(tries(none().immediate(), &go, FAILS), (FAILED, 1));
    assert_eq!(tries(none().immediate(), &go, HOLDS), (Ok(()), 1));
    assert_eq!(tries(none().immediate(), &stopped, NOT_YET), (Err(Error::Cancelled), 1));
    assert_eq!(tries(none(), &stopped, NOT_YET), (Err(Error::Cancelled), 0));
    assert_eq!(tries(ticks(5), &go, FAILS), (FAILED, 1));
    assert_eq!(tries(ticks(5), &go, HOLDS), (Ok(()), 1));
    // "ticker channel is closed"
    assert_eq!(tries(none(), &go, HOLDS), (Ok(()), 1));
    assert_eq!(tries(none(), &go, FAILS), (FAILED, 1));
    assert_eq!(tries(none(), &go, NOT_YET), (Err(Error::Timeout), 1));
    // "condition always returns false, timeout error expected"
    assert_eq!(tries(ticks(2), &go, NOT_YET), (Err(Error::Timeout), 3));
    // "context is cancelled after N attempts"
    let (polled, tries, _) = poll(Polling::every(MILLISECOND), &go, |tries| {
        if tries == 2 {
            go.stop();
        }
        Ok(false)
    });
    assert_eq!((polled, tries), (Err(Error::Cancelled), 2));
}

/// `TestInterrupted`, `TestErrorInterrupted`.
#[test]
fn an_error_says_whether_it_was_the_condition() {
    assert!(Error::<&str>::Timeout.is_interrupted());
    assert!(Error::<&str>::Cancelled.is_interrupted());
    assert!(!Error::Condition("failed").is_interrupted());
    assert_eq!(Error::Condition("failed").to_string(), "failed");
    assert_eq!(Error::<&str>::Timeout.to_string(), "timed out waiting for the condition");
    assert_ne!(Error::<&str>::Timeout.to_string(), Error::<&str>::Cancelled.to_string());
}

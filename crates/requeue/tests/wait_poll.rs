//! The `Poll` family, compared with apimachinery's `loop_test.go` and `wait_test.go`.
#![cfg(feature = "wait")]
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

mod wait_support;

use std::cell::RefCell;
use std::future::{pending, ready};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use requeue::Time;
use requeue::clock::{FakeClock, sleep_until};
use requeue::wait::{Backoff, BackoffManager, Error, Polling, jitter_source, poll_until};
use wait_support::Stop;

type Tried = Result<bool, &'static str>;
type Polled = Result<(), Error<&'static str>>;

const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);
const FAILED: Polled = Err(Error::Condition("condition failed"));

/// `Test_loopConditionWithContextImmediateDelay`.
#[test]
fn a_poll_that_is_not_immediate_waits_its_first_interval_out() {
    let (clock, tries) = (FakeClock::new(), RefCell::new(0));
    let polling = Polling::every(SECOND).sliding();
    let mut polled = pin!(poll_until(&clock, polling, pending::<()>(), || {
        *tries.borrow_mut() += 1;
        ready(Err("expected"))
    }));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(polled.as_mut().poll(&mut cx).is_pending());
    assert_eq!(clock.armed(), 1);
    clock.advance(SECOND - Duration::from_millis(1));
    assert!(polled.as_mut().poll(&mut cx).is_pending());
    assert_eq!(*tries.borrow(), 0);
    clock.advance(Duration::from_millis(2));
    assert_eq!(clock.run(polled), Err(Error::Condition("expected")));
    assert_eq!(*tries.borrow(), 1);
}

struct Case {
    name: &'static str,
    immediate: bool,
    sliding: bool,
    stop: fn() -> Stop,
    timeout: Duration,
    interval: Duration,
    jitter: f64,
    /// The time that each try of the condition takes.
    takes: Duration,
    condition: fn(u32) -> Tried,
    cancel_after: u32,
    tries: u32,
    result: Polled,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "",
            immediate: false,
            sliding: false,
            stop: Stop::default,
            timeout: Duration::MAX,
            interval: MICROSECOND,
            jitter: 0.0,
            takes: Duration::ZERO,
            condition: |_| Ok(false),
            cancel_after: 0,
            tries: 1,
            result: Ok(()),
        }
    }
}

impl Case {
    fn check(&self) {
        let (clock, stop, mut tries) = (FakeClock::new(), (self.stop)(), 0);
        let backoff =
            Backoff { duration: self.interval, jitter: self.jitter, ..Backoff::default() };
        let mut polling = Polling::with(backoff.delay_func(jitter_source())).timeout(self.timeout);
        if self.immediate {
            polling = polling.immediate();
        }
        if self.sliding {
            polling = polling.sliding();
        }
        let polled = clock.run(poll_until(&clock, polling, stop.stopped(), || {
            tries += 1;
            if tries == self.cancel_after {
                stop.stop();
            }
            let (tried, end) = ((self.condition)(tries), clock.now() + self.takes);
            let clock = &clock;
            async move {
                sleep_until(clock, end).await;
                tried
            }
        }));
        assert_eq!((polled, tries), (self.result, self.tries), "{}", self.name);
        assert_eq!(clock.armed(), 0, "{}", self.name);
    }
}

/// `Test_loopConditionUntilContext_semantic`.
#[test]
fn poll_until_tries_as_often_as_it_should_and_says_how_it_ended() {
    let fifth = SECOND / 5;
    let cases = [
        Case {
            name: "condition successful is only one attempt",
            condition: |_| Ok(true),
            ..Case::default()
        },
        Case {
            name: "delayed condition successful causes return and attempts",
            condition: |tries| Ok(tries > 1),
            tries: 2,
            ..Case::default()
        },
        Case {
            name: "delayed condition successful causes return and attempts many times",
            condition: |tries| Ok(tries >= 100),
            tries: 100,
            ..Case::default()
        },
        // "condition returns error even if ok is true" cannot be expressed in Rust.
        Case {
            name: "condition exits after an error",
            condition: |_| Err("condition failed"),
            result: FAILED,
            ..Case::default()
        },
        Case {
            name: "context already canceled no attempts expected",
            stop: Stop::stopped_before,
            tries: 0,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "context already canceled condition success and immediate 1 attempt expected",
            stop: Stop::stopped_before,
            condition: |_| Ok(true),
            immediate: true,
            ..Case::default()
        },
        Case {
            name: "context already canceled condition fail and immediate 1 attempt expected",
            stop: Stop::stopped_before,
            condition: |_| Err("condition failed"),
            immediate: true,
            result: FAILED,
            ..Case::default()
        },
        Case {
            name: "context already canceled and immediate 1 attempt expected",
            stop: Stop::stopped_before,
            immediate: true,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "context cancelled after 5 attempts",
            cancel_after: 5,
            tries: 5,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "context cancelled and immediate after 5 attempts",
            immediate: true,
            cancel_after: 5,
            tries: 5,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "context at deadline and immediate 1 attempt expected",
            timeout: Duration::ZERO,
            immediate: true,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "context at deadline no attempts expected",
            timeout: Duration::ZERO,
            tries: 0,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "context canceled before the second execution and immediate",
            immediate: true,
            timeout: SECOND,
            interval: 2 * SECOND,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "immediate and long duration of condition and sliding false",
            immediate: true,
            timeout: SECOND,
            interval: fifth,
            jitter: 0.001,
            takes: fifth,
            condition: |tries| Ok(tries >= 4),
            tries: 4,
            ..Case::default()
        },
        Case {
            name: "immediate and long duration of condition and sliding true",
            immediate: true,
            sliding: true,
            timeout: SECOND,
            interval: fifth,
            jitter: 0.001,
            takes: fifth,
            condition: |tries| Ok(tries >= 4),
            tries: 3,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "cancelled and at the deadline: it was the stop",
            stop: Stop::stopped_before,
            timeout: Duration::ZERO,
            tries: 0,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
    ];
    cases.iter().for_each(Case::check);
}

/// `TestPollImmediateUntilWithContext`.
#[test]
fn an_immediate_poll_tries_before_it_checks_the_stop() {
    let millisecond = Duration::from_millis(1);
    let immediate = || Case { immediate: true, interval: millisecond, ..Case::default() };
    let cases = [
        Case {
            name: "condition throws error on immediate attempt, no retry is attempted",
            condition: |_| Err("condition failed"),
            result: FAILED,
            ..immediate()
        },
        Case {
            name: "condition returns done=true on immediate attempt, no retry is attempted",
            condition: |_| Ok(true),
            ..immediate()
        },
        Case {
            name: "context is already cancelled, no retry is attempted",
            stop: Stop::stopped_before,
            result: Err(Error::Cancelled),
            ..immediate()
        },
        Case {
            name: "context is not cancelled, retry is attempted",
            condition: |tries| Ok(tries > 3),
            tries: 4,
            ..immediate()
        },
        Case {
            name: "condition always returns done=false, context gets cancelled after N attempts",
            cancel_after: 4,
            tries: 4,
            result: Err(Error::Cancelled),
            ..immediate()
        },
    ];
    cases.iter().for_each(Case::check);
}

/// `Test_loopConditionUntilContext_timings`.
#[test]
fn the_delays_asked_for_are_the_delays_waited_for() {
    struct Noted<'a, M>(M, &'a RefCell<Vec<Duration>>);
    impl<M: BackoffManager> BackoffManager for Noted<'_, M> {
        fn backoff(&mut self, now: Time) -> Duration {
            let delay = self.0.backoff(now);
            self.1.borrow_mut().push(delay);
            delay
        }
    }
    let backoff = Backoff { duration: SECOND, factor: 2.0, steps: 2, ..Backoff::default() };
    for (immediate, sliding, asked, waited) in [
        // The manager is called for the next delay when the try starts.
        (false, false, vec![SECOND, 2 * SECOND], SECOND),
        (true, false, vec![SECOND], Duration::ZERO),
        (false, true, vec![SECOND], SECOND),
        (true, true, vec![], Duration::ZERO),
    ] {
        let (clock, delays) = (FakeClock::new(), RefCell::default());
        let start = clock.now();
        let mut polling = Polling::with(Noted(backoff.delay_func(jitter_source()), &delays));
        if immediate {
            polling = polling.immediate();
        }
        if sliding {
            polling = polling.sliding();
        }
        let held = poll_until(&clock, polling, pending::<()>(), || ready(Ok::<_, ()>(true)));
        assert_eq!(clock.run(held), Ok(()));
        assert_eq!((delays.into_inner(), clock.now().since(start)), (asked, waited));
    }
}

/// `Test_loopConditionUntilContext_Elapsed`.
#[test]
fn ten_tries_take_ten_intervals() {
    let ms = Duration::from_millis(1);
    for (name, duration, jitter, expected) in [
        ("variable timer with jitter", ms, 1.0, 10 * ms..=20 * ms),
        ("fixed timer", ms, 0.0, 10 * ms..=10 * ms),
        ("no-op timer", Duration::ZERO, 0.0, Duration::ZERO..=Duration::ZERO),
    ] {
        let (clock, mut tries) = (FakeClock::new(), 0);
        let start = clock.now();
        let backoff = Backoff { duration, jitter, ..Backoff::default() };
        let polling = Polling::with(backoff.delay_func(jitter_source()));
        let polled = clock.run(poll_until(&clock, polling, pending::<()>(), || {
            tries += 1;
            ready(Ok::<_, ()>(tries >= 10))
        }));
        let elapsed = clock.now().since(start);
        assert_eq!((polled, tries), (Ok(()), 10), "{name}");
        assert!(expected.contains(&elapsed), "{name}: {elapsed:?}");
    }
}

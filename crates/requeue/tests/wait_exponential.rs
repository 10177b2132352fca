//! `ExponentialBackoff`, compared with apimachinery's `wait_test.go`.
#![cfg(feature = "wait")]

mod wait_support;

use std::future::{pending, ready};
use std::time::Duration;

use requeue::Time;
use requeue::clock::{FakeClock, sleep_until};
use requeue::wait::{Backoff, Error, exponential_backoff, exponential_backoff_until};
use wait_support::Stop;

type Tried = Result<bool, &'static str>;

const MICROSECOND: Duration = Duration::from_micros(1);

/// `TestExponentialBackoff`.
#[test]
fn exponential_backoff_tries_up_to_steps_and_ends_with_the_condition() {
    let clock = FakeClock::new();
    let run = |steps, condition: fn(u32) -> Tried| {
        let mut tries = 0;
        let backoff = Backoff { factor: 1.0, steps, ..Backoff::default() };
        let tried = clock.run(exponential_backoff(&clock, backoff, || {
            tries += 1;
            ready(condition(tries))
        }));
        (tries, tried)
    };
    assert_eq!(run(0, |_| Ok(false)), (0, Err(Error::Timeout)), "ends at once");
    assert_eq!(run(3, |_| Ok(false)), (3, Err(Error::Timeout)), "waits up to steps");
    assert_eq!(run(3, |_| Ok(true)), (1, Ok(())), "returns at once");
    assert_eq!(run(3, |_| Err("other")), (1, Err(Error::Condition("other"))));
    assert_eq!(run(3, |tries| Ok(tries == 3)), (3, Ok(())), "tries several times");
}

struct Case {
    name: &'static str,
    steps: i32,
    duration: Duration,
    stop: fn() -> Stop,
    /// The time from the start of the wait to its deadline.
    deadline: Duration,
    condition: fn(u32) -> Tried,
    cancel_after: u32,
    tries: u32,
    result: Result<(), Error<&'static str>>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "",
            steps: 5,
            duration: MICROSECOND,
            stop: Stop::default,
            deadline: Duration::MAX,
            condition: |_| Ok(false),
            cancel_after: 0,
            tries: 0,
            result: Ok(()),
        }
    }
}

/// `TestExponentialBackoffWithContext`.
#[test]
fn exponential_backoff_until_tells_timeout_cancellation_and_failure_apart() {
    let cases = [
        Case {
            name: "no attempts expected with zero backoff steps",
            steps: 0,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "condition returns false with single backoff step",
            steps: 1,
            tries: 1,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "condition returns true with single backoff step",
            steps: 1,
            condition: |_| Ok(true),
            tries: 1,
            ..Case::default()
        },
        Case {
            name: "condition always returns false with multiple backoff steps",
            tries: 5,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "condition returns true after certain attempts with multiple backoff steps",
            condition: |tries| Ok(tries == 3),
            tries: 3,
            ..Case::default()
        },
        Case {
            name: "condition returns error no further attempts expected",
            condition: |_| Err("condition failed"),
            tries: 1,
            result: Err(Error::Condition("condition failed")),
            ..Case::default()
        },
        Case {
            name: "context already canceled no attempts expected",
            stop: Stop::stopped_before,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "context at deadline no attempts expected",
            deadline: Duration::ZERO,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "condition always returns false with multiple backoff steps but is cancelled at step 4",
            cancel_after: 4,
            tries: 4,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "condition returns true after certain attempts with multiple backoff steps and zero duration",
            duration: Duration::ZERO,
            condition: |tries| Ok(tries == 3),
            tries: 3,
            ..Case::default()
        },
        Case {
            name: "cancelled and past the deadline: it was the stop",
            stop: Stop::stopped_before,
            deadline: Duration::ZERO,
            result: Err(Error::Cancelled),
            ..Case::default()
        },
        Case {
            name: "cancelled, and no steps: there was nothing to cancel",
            steps: 0,
            stop: Stop::stopped_before,
            result: Err(Error::Timeout),
            ..Case::default()
        },
        Case {
            name: "the deadline comes between two tries",
            deadline: MICROSECOND * 5 / 2,
            tries: 3,
            result: Err(Error::Timeout),
            ..Case::default()
        },
    ];
    for case in cases {
        let (clock, stop, mut tries) = (FakeClock::new(), (case.stop)(), 0);
        let backoff = Backoff {
            duration: case.duration,
            factor: 1.0,
            steps: case.steps,
            ..Backoff::default()
        };
        let deadline = clock.now() + case.deadline;
        let tried = exponential_backoff_until(&clock, backoff, deadline, stop.stopped(), || {
            tries += 1;
            if tries == case.cancel_after {
                stop.stop();
            }
            ready((case.condition)(tries))
        });
        assert_eq!(clock.run(tried), case.result, "{}", case.name);
        assert_eq!(tries, case.tries, "{}", case.name);
        assert_eq!(clock.armed(), 0, "{}", case.name);
    }
}

/// Returns the number of tries, and their total time in milliseconds, of a backoff of 1 ms with the
/// factor 2 and 10 steps.
fn capped(cap: Duration) -> (u32, u128) {
    let (clock, mut tries) = (FakeClock::new(), 0);
    let start = clock.now();
    let duration = Duration::from_millis(1);
    let backoff = Backoff { duration, factor: 2.0, steps: 10, cap, ..Backoff::default() };
    let tried = clock.run(exponential_backoff(&clock, backoff, || {
        tries += 1;
        ready(Ok::<_, ()>(false))
    }));
    assert_eq!(tried, Err(Error::Timeout));
    (tries, clock.now().since(start).as_millis())
}

#[test]
fn reaching_the_cap_ends_it_after_the_delay_before() {
    assert_eq!(capped(Duration::from_millis(3)), (2, 3));
    assert_eq!(capped(Duration::from_millis(4)), (3, 7));
    assert_eq!(capped(Duration::from_micros(500)).0, 1);
    assert_eq!(capped(Duration::ZERO), (10, (1 << 9) - 1), "no cap");
}

#[test]
fn a_stop_during_a_delay_ends_it_at_once() {
    let clock = FakeClock::new();
    let at = clock.now() + Duration::from_secs(90);
    let backoff = Backoff { duration: Duration::from_secs(60), steps: 9, ..Backoff::default() };
    let stop = sleep_until(&clock, at);
    let tried =
        exponential_backoff_until(&clock, backoff, Time::NEVER, stop, async || Ok::<_, ()>(false));
    assert_eq!(clock.run(tried), Err(Error::Cancelled));
    assert_eq!(clock.now(), at);
}

#[test]
fn delays_too_long_to_count_wait_for_the_deadline() {
    let clock = FakeClock::new();
    let deadline = clock.now() + Duration::from_secs(1);
    let backoff = Backoff { duration: Duration::MAX, factor: 2.0, steps: 9, ..Backoff::default() };
    let condition = async || Ok::<_, ()>(false);
    let tried = exponential_backoff_until(&clock, backoff, deadline, pending::<()>(), condition);
    assert_eq!(clock.run(tried), Err(Error::Timeout));
    assert_eq!(clock.now(), deadline);
}

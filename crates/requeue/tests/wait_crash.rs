//! The handling of panics. The handlers are global to the process. These tests are therefore in a
//! separate binary, and run one at a time.
#![cfg(feature = "wait")]
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

mod wait_support;

use std::future::{pending, ready};
use std::panic::{self, AssertUnwindSafe, panic_any};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::wait::{
    Backoff, CrashHandler, Error, Period, Polling, exponential_backoff, jitter_until, on_crash,
    parallelize_until, poll_until, set_really_crash,
};
use wait_support::Stop;

/// The handler of one test, with the panics that it has handled. It can set `really_crash`.
struct Hook {
    handled: Arc<Mutex<Vec<Option<String>>>>,
    _handler: CrashHandler,
    _alone: MutexGuard<'static, ()>,
}

impl Hook {
    fn carrying_on() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let handled = Arc::<Mutex<Vec<_>>>::default();
        let handler = on_crash({
            let handled = Arc::clone(&handled);
            move |crash| handled.lock().unwrap().push(crash.message().map(str::to_owned))
        });
        Self { handled, _handler: handler, _alone: alone }
    }

    fn really_crashing() -> Self {
        let hook = Self::carrying_on();
        set_really_crash(true);
        hook
    }

    fn handled(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.handled.lock().unwrap())
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        set_really_crash(false);
    }
}

/// `TestJitterUntilRecoversPanic`.
#[test]
fn jitter_until_goes_on_after_a_panic() {
    let hook = Hook::carrying_on();
    let (clock, stop, mut called) = (FakeClock::new(), Stop::default(), 0);
    let period = Duration::from_millis(1);
    clock.run(jitter_until(&clock, period, 1.0, Period::Sliding, stop.stopped(), || {
        called += 1;
        if called > 2 {
            stop.stop();
            return ready(());
        }
        panic!("panic {called}");
    }));
    assert_eq!(called, 3);
    let messages = [Some("panic 1".into()), Some("panic 2".into())];
    assert_eq!(hook.handled(), messages);
}

#[test]
fn a_panic_after_an_await_is_handled_as_one_before() {
    let hook = Hook::carrying_on();
    let (clock, stop) = (FakeClock::new(), Stop::default());
    let period = Duration::from_millis(1);
    clock.run(jitter_until(&clock, period, 0.0, Period::NonSliding, stop.stopped(), async || {
        requeue::clock::sleep_until(&clock, clock.now() + period).await;
        stop.stop();
        panic!("late");
    }));
    assert_eq!(hook.handled(), [Some("late".into())]);
}

#[test]
fn really_crash_lets_the_panic_through_and_handlers_see_it_first() {
    let hook = Hook::really_crashing();
    let (clock, mut called) = (FakeClock::new(), 0);
    let looped =
        jitter_until(&clock, Duration::ZERO, 0.0, Period::Sliding, pending::<()>(), || {
            called += 1;
            panic_any(7_u8);
            #[allow(unreachable_code)]
            ready(())
        });
    let crash = panic::catch_unwind(AssertUnwindSafe(|| clock.run(looped))).unwrap_err();
    assert_eq!(crash.downcast_ref::<u8>(), Some(&7));
    assert_eq!((called, hook.handled()), (1, vec![None]));
}

#[test]
fn a_condition_that_panics_does_not_hold_yet() {
    let hook = Hook::carrying_on();
    let (clock, mut tries) = (FakeClock::new(), 0);
    let mut third_time_lucky = || {
        tries += 1;
        assert!(tries % 3 == 0, "only every third try succeeds");
        ready(Ok::<_, ()>(true))
    };
    let polling = Polling::every(Duration::from_secs(1));
    let polled = poll_until(&clock, polling, pending::<()>(), &mut third_time_lucky);
    assert_eq!(clock.run(polled), Ok(()));
    let backoff = Backoff { steps: 3, ..Backoff::default() };
    let tried = clock.run(exponential_backoff(&clock, backoff, &mut third_time_lucky));
    assert_eq!(tried, Ok::<(), Error<()>>(()));
    assert_eq!((tries, hook.handled().len()), (6, 4));
}

#[test]
fn parallelize_until_goes_on_with_the_next_piece() {
    let hook = Hook::carrying_on();
    let done = AtomicUsize::new(0);
    parallelize_until(
        3,
        100,
        7,
        || false,
        |piece| {
            assert!(piece % 10 != 0, "a broken piece");
            done.fetch_add(1, Ordering::Relaxed);
        },
    );
    assert_eq!((done.into_inner(), hook.handled().len()), (90, 10));
}

#[test]
fn parallelize_until_really_crashes_after_all_workers_have_stopped() {
    let hook = Hook::really_crashing();
    // No worker can complete all these pieces, so the other workers must notice the panic.
    let pieces = usize::MAX;
    let work = || {
        parallelize_until(
            3,
            pieces,
            1,
            || false,
            |piece| {
                if piece == 5 {
                    panic!("a broken piece");
                }
            },
        );
    };
    let crash = panic::catch_unwind(AssertUnwindSafe(work)).unwrap_err();
    assert_eq!(crash.downcast_ref::<&str>(), Some(&"a broken piece"));
    assert_eq!(hook.handled(), [Some("a broken piece".into())]);
}

#[test]
fn handlers_are_called_in_order_until_dropped_and_may_panic_or_use_the_hook() {
    let hook = Hook::carrying_on();
    let order = Arc::<Mutex<Vec<_>>>::default();
    let log = |name: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(name)
    };
    let (first, second, third) = (log("first"), log("second"), log("third"));
    let first = on_crash(move |_| {
        first();
        panic!("a handler of a test panics");
    });
    let second = on_crash(move |_| {
        second();
        drop(on_crash(|_| ()));
    });
    let third = on_crash(move |_| third());
    crash_once();
    assert_eq!(std::mem::take(&mut *order.lock().unwrap()), ["first", "second", "third"]);
    drop(second);
    crash_once();
    assert_eq!(std::mem::take(&mut *order.lock().unwrap()), ["first", "third"]);
    drop((first, third));
    crash_once();
    assert_eq!(order.lock().unwrap().len(), 0);
    assert_eq!(hook.handled().len(), 3);
}

fn crash_once() {
    parallelize_until(1, 1, 1, || false, |_| panic!("once"));
}

/// The `drop` of the payload panics, which must not stop the loop.
#[test]
fn a_payload_that_panics_when_dropped_does_no_harm() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload of a test panics");
        }
    }
    let hook = Hook::carrying_on();
    parallelize_until(1, 2, 1, || false, |_| panic_any(Bomb));
    assert_eq!(hook.handled(), [None, None]);
}

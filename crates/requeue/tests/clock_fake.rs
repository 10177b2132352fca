//! The behaviour of `FakeClock` on which tests can rely.
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use requeue::Time;
use requeue::clock::{Alarm, Clock, FakeClock, sleep_until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_clock_stands_still_until_it_is_moved() {
    let clock = FakeClock::new();
    let start = clock.now();
    assert_eq!(clock.now(), start);
    clock.advance(SECOND);
    assert_eq!(clock.now().since(start), SECOND);
    clock.set(start);
    assert_eq!(clock.now(), start, "the clock can be moved back");
}

#[test]
fn clones_and_arcs_are_the_same_clock() {
    let clock = FakeClock::new();
    let other: Arc<dyn Clock> = Arc::new(clock.clone());
    clock.advance(SECOND);
    assert_eq!(Clock::now(&other), clock.now());
    let _alarm = Clock::arm(&other, Time::NEVER, Waker::noop());
    assert_eq!(clock.armed(), 0, "never is not armed");
    let _alarm = Clock::arm(&other, clock.now() + SECOND, Waker::noop());
    assert_eq!(clock.armed(), 1);
    assert!(!other.is_real_time());
}

#[test]
fn an_alarm_wakes_at_its_time_and_not_before() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let alarm = clock.arm(clock.now() + SECOND, &log.waker("a"));
    assert_eq!(clock.next_alarm(), Some(clock.now() + SECOND));
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(log.taken(), [""; 0]);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(log.taken(), ["a"]);
    assert_eq!((clock.armed(), clock.next_alarm()), (0, None));
    drop(alarm);
}

#[test]
fn what_is_due_already_wakes_at_once() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let _now = clock.arm(clock.now(), &log.waker("now"));
    let _past = clock.arm(Time::ZERO, &log.waker("past"));
    assert_eq!(log.taken(), ["now", "past"]);
    assert_eq!(clock.armed(), 0);
}

#[test]
fn dropping_an_alarm_disarms_it() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let at = clock.now() + SECOND;
    let kept = clock.arm(at, &log.waker("kept"));
    drop(clock.arm(at, &log.waker("dropped")));
    assert_eq!(clock.armed(), 1);
    clock.set(at);
    assert_eq!(log.taken(), ["kept"]);
    drop(kept);
}

#[test]
fn wakers_go_by_deadline_and_equal_ones_by_order_of_arming() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let at = |seconds| clock.now() + SECOND * seconds;
    let _alarms = [
        clock.arm(at(2), &log.waker("2 first")),
        clock.arm(at(1), &log.waker("1")),
        clock.arm(at(2), &log.waker("2 second")),
        clock.arm(at(3), &log.waker("3")),
    ];
    clock.advance(SECOND * 2);
    assert_eq!(log.taken(), ["1", "2 first", "2 second"]);
}

/// A waker that runs a closure.
struct OnWake<F: Fn() + Send + Sync>(F);

impl<F: Fn() + Send + Sync> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn on_wake(run: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(OnWake(run)))
}

#[test]
fn a_waker_may_arm_disarm_and_move_the_clock() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let at = clock.now() + SECOND;
    let victim = Arc::new(Mutex::new(Some(Alarm::none())));
    let waker = on_wake({
        let (clock, log, victim) = (clock.clone(), log.clone(), Arc::clone(&victim));
        move || {
            drop(victim.lock().unwrap().take());
            let late = clock.arm(clock.now(), &log.waker("armed while it steps"));
            drop(late);
            clock.advance(SECOND);
        }
    });
    let _first = clock.arm(at, &waker);
    *victim.lock().unwrap() = Some(clock.arm(at, &log.waker("disarmed by the first")));
    let _later = clock.arm(at + SECOND, &log.waker("due after the waker's own move"));
    clock.set(at);
    assert_eq!(log.taken(), ["armed while it steps", "due after the waker's own move"]);
    assert_eq!(clock.now(), at + SECOND);
}

#[test]
fn a_waker_whose_drop_uses_the_clock_does_not_hang() {
    struct OnDrop(FakeClock);
    impl Wake for OnDrop {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.armed();
        }
    }
    let clock = FakeClock::new();
    let alarm = clock.arm(clock.now() + SECOND, &Waker::from(Arc::new(OnDrop(clock.clone()))));
    drop(alarm);
    assert_eq!(clock.armed(), 0);
}

#[test]
fn a_waker_that_panics_leaves_the_others_armed() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let at = clock.now() + SECOND;
    let _bad = clock.arm(at, &on_wake(|| panic!("a waker of a test panics")));
    let _good = clock.arm(at, &log.waker("good"));
    let moved = panic::catch_unwind(AssertUnwindSafe(|| clock.set(at)));
    assert!(moved.is_err());
    clock.set(at);
    assert_eq!(log.taken(), ["good"]);
}

#[test]
fn wait_armed_returns_when_others_have_armed() {
    let clock = FakeClock::new();
    let at = clock.now() + SECOND;
    let armers: Vec<_> = (0..3)
        .map(|_| {
            let clock = clock.clone();
            thread::spawn(move || clock.arm(at, Waker::noop()))
        })
        .collect();
    clock.wait_armed(3);
    assert_eq!(clock.armed(), 3);
    let alarms: Vec<_> = armers.into_iter().map(|armer| armer.join().unwrap()).collect();
    drop(alarms);
    assert_eq!(clock.armed(), 0);
}

/// The alarm may be armed before or after the time changes. In apimachinery's fake clock, the two
/// operations race.
#[test]
fn an_alarm_armed_while_the_clock_moves_is_not_missed() {
    for _ in 0..200 {
        let clock = FakeClock::new();
        let at = clock.now() + SECOND;
        thread::scope(|scope| {
            scope.spawn(|| {
                let this = thread::current();
                let _alarm = clock.arm(at, &on_wake(move || this.unpark()));
                while clock.now() < at {
                    thread::park();
                }
            });
            clock.advance(SECOND);
        });
    }
}

#[test]
fn sleep_until_is_never_ready_early() {
    let clock = FakeClock::new();
    let at = clock.now() + SECOND * 10;
    let sleeper = async {
        let mut sleep = sleep_until(&clock, at);
        let spurious = clock.arm(clock.now() + SECOND, Waker::noop());
        (&mut sleep).await;
        drop(spurious);
        let first = clock.now();
        sleep.reset(at + SECOND);
        sleep.await;
        (first, clock.now())
    };
    assert_eq!(clock.run(sleeper), (at, at + SECOND));
    assert_eq!(clock.armed(), 0);
}

#[test]
fn a_sleep_that_is_dropped_disarms() {
    let clock = FakeClock::new();
    let mut sleep = Box::pin(sleep_until(&clock, clock.now() + SECOND));
    let mut cx = std::task::Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        assert_eq!(clock.armed(), 1, "it has one alarm, however often it is polled");
    }
    drop(sleep);
    assert_eq!(clock.armed(), 0);
}

#[test]
#[should_panic(expected = "no alarm of its clock is armed")]
fn run_panics_rather_than_wait_for_ever() {
    FakeClock::new().run(std::future::pending::<()>());
}

/// A log of the wakes of several wakers.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn waker(&self, name: &'static str) -> Waker {
        let log = self.clone();
        on_wake(move || log.0.lock().unwrap().push(name))
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

//! The guarantees of `TokioClock`.
#![cfg(feature = "tokio")]
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::panic;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use requeue::Time;
use requeue::clock::{Alarm, Clock, FakeClock, SystemClock, TokioClock, sleep_until};
use tokio::runtime::{Builder, Handle};
use tokio::task::coop;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn now_obeys_a_paused_runtime() {
    let clock = TokioClock::current();
    let start = clock.now();
    assert!(start > Time::ZERO);
    assert!(!clock.is_real_time());
    tokio::time::advance(SECOND).await;
    assert_eq!(clock.now().since(start), SECOND);
}

#[tokio::test(start_paused = true)]
async fn now_is_the_runtimes_on_a_plain_thread_and_in_another_runtime() {
    let clock = TokioClock::current();
    let start = clock.now();
    tokio::time::advance(SECOND).await;
    let seen = thread::spawn(move || {
        let plain = clock.now();
        let other = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        (plain, other.block_on(async { clock.now() }))
    });
    assert_eq!(seen.join().unwrap(), (start + SECOND, start + SECOND));
}

#[tokio::test(start_paused = true)]
async fn an_alarm_wakes_no_earlier_than_its_time_and_no_task_is_spawned_for_it() {
    let clock = TokioClock::current();
    let at = clock.now() + SECOND;
    let (to, from) = channel();
    let _alarm = clock.arm(at, &Tell::waker(&to));
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    tokio::time::advance(SECOND - MILLISECOND).await;
    assert!(from.try_recv().is_err());
    tokio::time::advance(MILLISECOND * 2).await;
    assert!(from.try_recv().is_ok(), "the driver woke it, nothing was polled");
}

#[tokio::test(start_paused = true)]
async fn what_is_due_wakes_at_once_and_never_is_not_armed() {
    let clock = TokioClock::current();
    let (to, from) = channel();
    let _due = clock.arm(clock.now(), &Tell::waker(&to));
    assert!(from.try_recv().is_ok());
    let never = clock.arm(Time::NEVER, &Tell::waker(&to));
    assert_eq!(format!("{never:?}"), "Alarm(none)");
}

#[tokio::test(start_paused = true)]
async fn dropping_an_alarm_disarms_it() {
    let clock = TokioClock::current();
    let (to, from) = channel();
    drop(clock.arm(clock.now() + SECOND, &Tell::waker(&to)));
    tokio::time::advance(SECOND * 2).await;
    drop(to);
    assert!(from.recv().is_err(), "the waker is neither woken nor kept");
}

#[tokio::test(start_paused = true)]
async fn far_deadlines_are_armed_an_hour_ahead_and_a_sleeper_goes_on_waiting() {
    let clock = TokioClock::current();
    let (to, from) = channel();
    let start = clock.now();
    let _far = clock.arm(Time::from_nanos(u64::MAX - 1), &Tell::waker(&to));
    sleep_until(&clock, start + SECOND * 3600 * 5).await;
    assert_eq!(clock.now().since(start).as_secs(), 3600 * 5);
    assert!(from.try_recv().is_ok(), "an early wake is allowed");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_spent_its_budget_can_arm() {
    let clock = TokioClock::current();
    let (to, from) = channel();
    while coop::has_budget_remaining() {
        coop::consume_budget().await;
    }
    let _alarm = clock.arm(clock.now() + SECOND, &Tell::waker(&to));
    tokio::time::advance(SECOND / 2).await;
    assert!(from.try_recv().is_err());
    tokio::time::advance(SECOND).await;
    assert!(from.try_recv().is_ok());
}

#[test]
fn a_plain_thread_is_woken_by_a_runtime_that_runs_elsewhere() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let clock = TokioClock::new(runtime.handle().clone());
    let (to, from) = channel();
    let at = clock.now() + MILLISECOND;
    let _alarm = clock.arm(at, &Tell::waker(&to));
    from.recv().unwrap();
    assert!(clock.now() >= at);
}

#[test]
fn outside_a_runtime_there_is_no_clock() {
    assert!(panic::catch_unwind(TokioClock::current).is_err());
}

/// A waker that arms a new alarm if it is woken too early, as a queue does.
struct Rearm {
    clock: TokioClock,
    at: Time,
    alarms: Mutex<Vec<Alarm>>,
}

impl Wake for Rearm {
    fn wake(self: Arc<Self>) {
        let alarm = self.clock.arm(self.at, &Waker::from(Arc::clone(&self)));
        self.alarms.lock().unwrap().push(alarm);
    }
}

/// A runtime that shuts down fires all its timers, and panics if it must create a new one.
#[test]
fn what_waits_is_armed_anew_when_its_runtime_shuts_down_and_nothing_panics() {
    let panics = panics_of_this_thread();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let clock = TokioClock::new(runtime.handle().clone());
    let at = clock.now() + SECOND * 3000;
    let rearm = Arc::new(Rearm { clock: clock.clone(), at, alarms: Mutex::default() });
    let _alarm = clock.arm(at, &Waker::from(Arc::clone(&rearm)));
    drop(runtime);
    assert_eq!(format!("{:?}", rearm.alarms.lock().unwrap()), "[Alarm(armed)]");
    wakes_from_the_system_timer(&clock);
    assert_eq!(panics_of_this_thread(), panics);
}

/// Returns the number of panics on this thread since the first call of this function, including
/// caught panics.
fn panics_of_this_thread() -> usize {
    thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _ = COUNT.try_with(|count| count.set(count.get() + 1));
            usual(info);
        }));
    });
    COUNT.get()
}

#[test]
fn an_alarm_armed_after_the_end_of_the_runtime_goes_off() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let clock = TokioClock::new(runtime.handle().clone());
    drop(runtime);
    wakes_from_the_system_timer(&clock);
}

#[test]
fn a_runtime_without_a_timer_driver_will_do() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let clock = TokioClock::new(runtime.handle().clone());
    wakes_from_the_system_timer(&clock);
}

fn wakes_from_the_system_timer(clock: &TokioClock) {
    let (mut wait, mut times) = (MILLISECOND, 0);
    while times < 2 {
        let (to, from) = channel();
        let at = clock.now() + wait;
        let _alarm = clock.arm(at, &Tell::waker(&to));
        // If the time of an alarm has come when it is armed, its waker is woken immediately.
        let was_early_enough = clock.now() < at;
        let woken_by = from.recv().unwrap();
        if was_early_enough {
            assert_eq!(woken_by.as_deref(), Some("requeue-timer"));
            times += 1;
        }
        wait *= 2;
    }
}

#[test]
fn a_thread_that_ends_can_still_use_the_clock() {
    struct OnExit(TokioClock, Sender<Option<String>>);
    impl Drop for OnExit {
        fn drop(&mut self) {
            let at = self.0.now() + MILLISECOND;
            let alarm = self.0.arm(at, &Tell::waker(&self.1));
            std::mem::forget(alarm);
        }
    }
    thread_local!(static ON_EXIT: Cell<Option<OnExit>> = const { Cell::new(None) });
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let clock = TokioClock::new(runtime.handle().clone());
    let (to, from) = channel();
    let thread = thread::spawn(move || {
        // The value that is set last is dropped first: before the thread-local values of the
        // runtime.
        ON_EXIT.set(Some(OnExit(clock.clone(), to)));
        clock.now()
    });
    thread.join().unwrap();
    assert!(from.recv().is_ok());
}

#[test]
fn clocks_and_their_futures_are_send_and_sync() {
    fn check<T: Send + Sync>(_: T) {}
    check(FakeClock::new());
    check(SystemClock);
    check(sleep_until(&SystemClock, Time::NEVER));
    check(Alarm::none());
    fn tokio<T: Send + Sync>() {}
    tokio::<TokioClock>();
}

struct Tell(Sender<Option<String>>);

impl Tell {
    fn waker(to: &Sender<Option<String>>) -> Waker {
        Waker::from(Arc::new(Self(to.clone())))
    }
}

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        self.0.send(thread::current().name().map(str::to_owned)).unwrap();
    }
}

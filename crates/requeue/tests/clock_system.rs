//! The guarantees of `SystemClock`. Its thread is global to the process. This file is therefore a
//! separate binary with one test.
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use requeue::Time;
use requeue::clock::{Alarm, Clock, SystemClock};

/// A waker that reports the time of its wake, and the thread that has woken it.
struct Tell {
    to: Sender<(Option<String>, Time)>,
    then_panic: bool,
}

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        let woken_by = thread::current().name().map(str::to_owned);
        self.to.send((woken_by, SystemClock.now())).unwrap();
        assert!(!self.then_panic, "a waker of a test panics");
    }
}

/// Returns the number of timer threads in the process.
#[cfg(target_os = "linux")]
fn timer_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    tasks.map(name).filter(|name| name.trim() == "requeue-timer").count()
}

#[cfg(not(target_os = "linux"))]
fn timer_threads() -> usize {
    1
}

#[test]
fn one_thread_from_the_first_alarm_on_wakes_in_time_and_survives_wakers_that_panic() {
    let (to, from) = channel();
    let waker = |then_panic| Waker::from(Arc::new(Tell { to: to.clone(), then_panic }));
    let soon = || SystemClock.now() + Duration::from_millis(1);

    // A call that does not have to wait does not start the thread.
    let start = SystemClock.now();
    assert!(start > Time::ZERO);
    assert!(SystemClock.is_real_time());
    drop(SystemClock.arm(Time::NEVER, &waker(false)));
    drop(SystemClock.arm(start, &waker(false)));
    let (woken_by, _) = from.recv().unwrap();
    assert_eq!(woken_by.as_deref(), thread::current().name(), "what is due wakes at once");
    #[cfg(target_os = "linux")]
    assert_eq!(timer_threads(), 0);

    // The first alarm starts the thread. The thread wakes the waker, and not before its time.
    let mut wait = Duration::from_millis(1);
    let (at, (woken_by, when)) = loop {
        let at = SystemClock.now() + wait;
        let _alarm = SystemClock.arm(at, &waker(false));
        let was_early_enough = SystemClock.now() < at;
        let woken = from.recv().unwrap();
        if was_early_enough {
            break (at, woken);
        }
        wait *= 2;
    };
    assert_eq!(woken_by.as_deref(), Some("requeue-timer"));
    assert!(when >= at, "woken at {when:?}, asked for {at:?}");

    // A late alarm does not delay an earlier one that is armed after it.
    let far = SystemClock.arm(Time::from_nanos(u64::MAX - 1), &waker(false));
    let near = SystemClock.arm(soon(), &waker(false));
    from.recv().unwrap();
    drop((far, near));

    // A waker that panics does not stop the thread. All wakers that are due together are woken.
    let at = soon();
    // If the time of an alarm has come when it is armed, `arm` wakes the waker on this thread,
    // where it panics.
    let arm = |waker: Waker| {
        catch_unwind(|| SystemClock.arm(at, &waker)).unwrap_or_else(|_| Alarm::none())
    };
    let alarms: Vec<_> = (0..200).map(|i| arm(waker(i % 50 == 0))).collect();
    for _ in &alarms {
        from.recv().unwrap();
    }
    assert_eq!(timer_threads(), 1);

    // Disarming an alarm drops its waker. After that, only the test has an end of the channel.
    drop(alarms);
    drop(SystemClock.arm(start + Duration::from_secs(3600), &waker(false)));
    drop(to);
    let end = from.recv_timeout(Duration::from_secs(3600));
    assert_eq!(end, Err(RecvTimeoutError::Disconnected), "kept, or woken twice");
}

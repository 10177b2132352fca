//! A queue has no thread, task or timer. The test counts the threads of the process, so it is the
//! only test of this binary.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use requeue::Queue;
use requeue::clock::{FakeClock, SystemClock};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits until the process has this number of threads. Threads that were joined may still be listed
/// for a moment.
fn wait_for_threads(count: usize) {
    while threads() != count {
        thread::yield_now();
    }
}

#[test]
fn no_thread_exists_for_a_queue() {
    let before = threads();

    // An idle queue has no thread. Nor does a queue with waiting keys and without getters.
    let queues: Vec<Queue<u32>> =
        (0..100).map(|_| Queue::builder().clock(SystemClock).build().unwrap()).collect();
    for queue in &queues {
        queue.add(1);
        queue.add_after(2, Duration::from_millis(1));
        queue.add_rate_limited(3);
    }
    assert_eq!(threads(), before);

    // Blocked getters need no other thread, because one of them wakes itself at the next deadline.
    let queue = &queues[0];
    thread::scope(|scope| {
        let taken = [(); 3]
            .map(|()| scope.spawn(|| queue.get().blocking().map(|item| item.into_parts().0)));
        let mut keys = taken.map(|thread| thread.join().unwrap());
        keys.sort_unstable();
        assert_eq!(keys, [Some(1), Some(2), Some(3)]);
    });
    wait_for_threads(before);

    // With a fake clock, a waiting task needs an alarm, but no thread.
    let clock = FakeClock::new();
    let fake: Queue<u32> = Queue::builder().clock(clock.clone()).build().unwrap();
    assert_eq!(clock.armed(), 0);
    {
        fake.add_after(1, Duration::from_secs(1));
        assert_eq!(clock.armed(), 0, "no getter waits");
        let mut get = pin!(fake.get());
        assert!(get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(clock.armed(), 1);
        clock.advance(Duration::from_secs(1));
        assert!(get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    assert_eq!((clock.armed(), threads()), (0, before));

    // If tasks wait by the clock of the machine without a runtime, one thread serves all queues of
    // the process.
    let mut gets: Vec<_> = queues[1..].iter().map(|queue| Box::pin(queue.get_many(2))).collect();
    for get in &mut gets {
        assert!(get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    for queue in &queues[1..] {
        queue.add_after(9, Duration::from_secs(1000 * 3600));
    }
    let mut gets: Vec<_> = queues[1..].iter().map(|queue| Box::pin(queue.get())).collect();
    for get in &mut gets {
        while get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {}
    }
    assert!(threads() <= before + 1);
    #[cfg(feature = "tokio")]
    no_task_exists_for_a_queue();
}

/// The driver of the runtime serves the timers, and no task is spawned.
#[cfg(feature = "tokio")]
fn no_task_exists_for_a_queue() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = threads();
        let clock = requeue::clock::TokioClock::current();
        let queue: Queue<u32> = Queue::builder().clock(clock).build().unwrap();
        queue.add_after(1, Duration::from_millis(1));
        queue.get().await.unwrap().retry();
        queue.get().await.unwrap().succeed();
        assert_eq!((metrics.num_alive_tasks(), threads()), (0, before));
    });
}

//! The promises of `ThreadWorkers`, which needs no feature.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::workers::{Action, Context, Error, ThreadWorkers};
use requeue::{Added, Drained, Queue};

const S: Duration = Duration::from_secs(1);

/// Returns a queue on a fake clock. Its failed keys are retried immediately.
fn queue() -> (Queue<u32>, FakeClock) {
    let clock = FakeClock::new();
    let limiter = ExponentialFailure::new(Duration::ZERO, Duration::ZERO);
    (Queue::builder().clock(clock.clone()).limiter(limiter).build().unwrap(), clock)
}

/// Records the key and the attempt of each run.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(u32, u32)>>>);

impl Log {
    fn note(&self, key: u32, context: &Context) {
        self.0.lock().unwrap().push((key, context.attempt()));
    }

    fn seen(&self) -> Vec<(u32, u32)> {
        let mut seen = self.0.lock().unwrap().clone();
        seen.sort_unstable();
        seen
    }
}

/// Advances the clock until `run` returns, and returns its result.
fn while_time_passes(
    clock: &FakeClock,
    run: impl FnOnce() -> Drained<u32> + Send + 'static,
) -> Drained<u32> {
    let thread = thread::spawn(run);
    while !thread.is_finished() {
        clock.advance(S);
        thread::yield_now();
    }
    thread.join().unwrap()
}

#[test]
fn an_error_is_retried_until_it_succeeds() {
    let ((queue, _clock), log) = (queue(), Log::default());
    queue.add_all([1, 2]);
    queue.close();
    let handler = {
        let log = log.clone();
        move |key, context: Context| {
            log.note(key, &context);
            if context.attempt() < 3 { Err("not yet".into()) } else { Ok(Action::succeed()) }
        }
    };
    let drained = ThreadWorkers::new(queue.clone(), handler).threads(2).run();
    assert!(drained.finished);
    assert_eq!(log.seen(), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
    assert_eq!((queue.totals().failures, queue.records()), (4, 0));
}

#[test]
fn a_panic_is_a_failure_and_the_thread_lives_on() {
    let ((queue, _clock), log) = (queue(), Log::default());
    queue.add_all([1, 2]);
    queue.close();
    let handler = {
        let log = log.clone();
        move |key, context: Context| {
            log.note(key, &context);
            assert!(context.attempt() > 1, "on purpose");
            Ok(Action::succeed())
        }
    };
    assert!(ThreadWorkers::new(queue.clone(), handler).run().finished);
    assert_eq!(log.seen(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
    assert_eq!((queue.sample().panics, queue.totals().failures), (2, 2));
}

#[test]
fn past_its_retries_or_with_a_terminal_error_a_key_is_given_up() {
    let (queue, _clock) = queue();
    queue.add_all([1, 2]);
    queue.close();
    let given_up = Arc::new(Mutex::new(Vec::new()));
    let finished = Arc::new(Mutex::new(0));
    let handler = |key, context: Context| {
        assert_eq!(context.is_last_attempt(), context.attempt() == 3);
        Err::<Action, _>(if key == 1 { "never".into() } else { Error::terminal("invalid") })
    };
    ThreadWorkers::new(queue.clone(), handler)
        .max_retries(2)
        .on_give_up({
            let given_up = Arc::clone(&given_up);
            move |key, error| {
                given_up.lock().unwrap().push((key, error.to_string()));
                panic!("ignored");
            }
        })
        .on_finish({
            let finished = Arc::clone(&finished);
            move |_| *finished.lock().unwrap() += 1
        })
        .run();
    let mut given_up = given_up.lock().unwrap().clone();
    given_up.sort_unstable();
    assert_eq!(given_up, [(1, "never".to_owned()), (2, "invalid".to_owned())]);
    assert_eq!((*finished.lock().unwrap(), queue.sample().given_up, queue.records()), (4, 2, 0));
}

#[test]
fn a_shutdown_drops_what_waits_and_finishes_the_rest() {
    let ((queue, _clock), log) = (queue(), Log::default());
    queue.add_all([1, 2]);
    queue.add_after(3, S);
    let (begun, begins) = mpsc::channel();
    let handler = {
        let (log, queue) = (log.clone(), queue.clone());
        move |key, context: Context| {
            let _ = begun.send(());
            while !queue.shutting_down() {
                thread::yield_now();
            }
            log.note(key, &context);
            Ok(Action::requeue_after(S))
        }
    };
    let workers = ThreadWorkers::new(queue.clone(), handler);
    let drained = workers.run_until(move || begins.recv().unwrap());
    assert_eq!(log.seen(), [(1, 1), (2, 1)]);
    let mut dropped = drained.dropped;
    dropped.sort_unstable();
    assert_eq!((drained.finished, dropped), (true, vec![1, 2, 3]));
}

#[test]
fn a_queue_that_ends_first_needs_no_shutdown() {
    let (queue, _clock) = queue();
    queue.add(1);
    queue.close();
    let (_never, shutdown) = mpsc::channel::<()>();
    let workers = ThreadWorkers::new(queue, |_, _| Ok(Action::succeed()));
    assert!(workers.run_until(move || _ = shutdown.recv()).finished);
}

#[test]
fn past_the_drain_timeout_runs_are_cancelled_and_nothing_new_is_begun() {
    let ((queue, clock), log) = (queue(), Log::default());
    queue.add_all([1, 2]);
    let (begun, begins) = mpsc::channel();
    let handler = {
        let log = log.clone();
        move |key, context: Context| {
            log.note(key, &context);
            begun.send(()).unwrap();
            while !context.is_cancelled() {
                thread::yield_now();
            }
            Ok(Action::succeed())
        }
    };
    // Before the thread of the handler runs again, the clock may advance beyond any finite grace
    // period.
    let workers = ThreadWorkers::new(queue.clone(), handler).drain_timeout(20 * S);
    let workers = workers.grace(Duration::MAX);
    let drained =
        while_time_passes(&clock, move || workers.run_until(move || begins.recv().unwrap()));
    assert_eq!((drained.finished, drained.ready, drained.in_flight), (false, 1, 0));
    assert_eq!(log.seen(), [(1, 1)]);
}

#[test]
fn a_run_that_ignores_its_cancellation_completes_after_the_workers_have_returned() {
    let (queue, clock) = queue();
    queue.add(1);
    let (begun, begins) = mpsc::channel();
    let (go, gone): (_, Receiver<()>) = mpsc::channel();
    let gone = Mutex::new(gone);
    let handler = move |_, _: Context| {
        begun.send(()).unwrap();
        let _ = gone.lock().unwrap().recv();
        Ok(Action::succeed())
    };
    let workers = ThreadWorkers::new(queue.clone(), handler).drain_timeout(S).grace(S);
    let drained =
        while_time_passes(&clock, move || workers.run_until(move || begins.recv().unwrap()));
    assert_eq!((drained.finished, drained.in_flight), (false, 1));
    drop(go);
    assert!(queue.shut_down_with_drain().blocking().finished);
}

#[test]
fn the_drain_timeout_holds_while_another_worker_has_a_dirty_key() {
    let (queue, clock) = queue();
    queue.add(1);
    let held = queue.try_get().map(requeue::Item::into_owned).unwrap();
    assert_eq!(queue.add(1), Added::Dirty);
    let workers = ThreadWorkers::new(queue.clone(), |_, _| Ok(Action::succeed()));
    let workers = workers.threads(3).grace(Duration::MAX).drain_timeout(S);
    // Threads that wait for a key stop immediately, so no grace period passes.
    let drained = while_time_passes(&clock, move || workers.run_until(|| {}));
    assert_eq!((drained.finished, drained.in_flight), (false, 1));
    held.succeed();
    assert!(queue.try_get().is_some(), "the key is still pending");
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn in_a_runtime_they_block_its_thread_and_do_not_panic() {
    let queue = Queue::new();
    queue.add(1);
    queue.close();
    let drained = ThreadWorkers::new(queue, |_, _| Ok(Action::succeed())).run();
    assert!(drained.finished);
}

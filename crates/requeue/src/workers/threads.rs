//! Workers on threads, for code without a runtime.
//!
//! A thread cannot be stopped from outside. If a handler ignores its cancellation, its thread
//! continues after the shutdown.

use std::fmt;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{self, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Context;
use super::catch_panic::call_caught;
use super::options::{Options, panic_pause};
use super::outcome::{Action, Error};
use super::source::WorkQueue;
use super::span::AttemptSpan;
use super::token::{RunToken, Token};
use crate::clock::Clock;
use crate::sync::{drop_quietly, quietly, waker_fn};
use crate::{Drained, Item, Key, Queue};

/// Runs a handler for each key of a queue, on threads.
///
/// Each thread takes a key, runs the handler, and completes the delivery with the result. An
/// [`Action`] is a success. An [`Error`] is a failure, and the key is retried with the backoff of
/// the queue. A panic of the handler is a failure, and its thread continues. No runtime is needed.
/// In a tokio runtime, use `Workers`.
///
/// # Examples
///
/// ```
/// use requeue::Queue;
/// use requeue::workers::{Action, Context, Error, ThreadWorkers};
/// use std::time::Duration;
///
/// fn reconcile(key: &'static str, context: Context) -> Result<Action, Error> {
///     if key == "flaky" && context.attempt() == 1 {
///         return Err("the first time fails".into());
///     }
///     Ok(Action::succeed())
/// }
///
/// let (base, max) = (Duration::from_millis(10), Duration::from_secs(300));
/// let queue = Queue::builder().backoff(base, max).build()?;
/// queue.add_all(["steady", "flaky"]);
/// queue.close();
/// ThreadWorkers::new(queue.clone(), reconcile).threads(4).max_retries(20).run();
/// assert_eq!((queue.totals().deliveries, queue.totals().failures), (3, 1));
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[must_use = "workers do nothing until they are run"]
pub struct ThreadWorkers<K: Key, S, H> {
    queue: Queue<K, S>,
    handler: H,
    options: Options<K>,
    threads: usize,
    drain_timeout: Option<Duration>,
}

impl<K, S, H> ThreadWorkers<K, S, H>
where
    K: Key + fmt::Debug,
    S: BuildHasher + Send + Sync + 'static,
    H: Fn(K, Context) -> Result<Action, Error> + Send + Sync + 'static,
{
    /// Creates workers with one thread, and with an unlimited number of retries.
    pub fn new(queue: Queue<K, S>, handler: H) -> Self {
        Self { queue, handler, options: Options::new(), threads: 1, drain_timeout: None }
    }

    /// Sets the number of threads, which is the maximum number of keys that they have in flight.
    ///
    /// The default is 1, and 0 is treated as 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Gives up a key when it has failed `retries` times after its first run, and then calls
    /// [`on_give_up`](Self::on_give_up).
    ///
    /// If the key was added during its last run, it runs again immediately, and its failures are
    /// forgotten.
    ///
    /// By default, the number of retries is unlimited. Choose a number whose backoffs together are
    /// longer than the outages that a key must survive. With the [default
    /// backoff](crate::Builder::backoff), 5 retries take 16 to 31 s, 7 retries 1 to 2 min, and 10
    /// retries 7 to 14 min.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.options.max_retries = Some(retries);
        self
    }

    /// Limits the time for which [`run_until`](Self::run_until) waits after the shutdown, measured
    /// by the clock of the queue.
    ///
    /// When `timeout` has passed, no more runs start. The runs in flight are
    /// [cancelled](Context::is_cancelled), and have the [grace period](Self::grace) to stop. By
    /// default, the time is unlimited.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = Some(timeout);
        self
    }

    /// Sets the time within which cancelled runs must stop. After this time,
    /// [`run_until`](Self::run_until) returns without them.
    ///
    /// The default is 10 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Calls `f` with each key that is given up, before its delivery is completed.
    ///
    /// A panic of `f` is ignored.
    pub fn on_give_up(mut self, f: impl Fn(K, Error) + Send + Sync + 'static) -> Self {
        self.options.on_give_up = Some(Arc::new(f));
        self
    }

    /// Calls `f` with the key of each run, after its delivery is completed.
    ///
    /// A panic of `f` is ignored.
    pub fn on_finish(mut self, f: impl Fn(K) + Send + Sync + 'static) -> Self {
        self.options.on_finish = Some(Arc::new(f));
        self
    }

    /// Runs the workers until the queue is closed or shut down, and delivers no more keys.
    ///
    /// Returns the numbers of remaining keys, and the dropped keys.
    ///
    /// # Panics
    ///
    /// Panics if the operating system refuses to start a thread.
    #[track_caller]
    pub fn run(self) -> Drained<K> {
        self.run_workers(None::<fn()>)
    }

    /// Runs the workers until `shutdown` returns, and then shuts the queue down. Returns the
    /// numbers of remaining keys, and the dropped keys.
    ///
    /// Waiting keys are dropped. Within the [drain timeout](Self::drain_timeout), ready keys are
    /// still delivered, and runs in flight complete.
    ///
    /// `shutdown` runs on a separate thread and may block, for example on a channel. If the queue
    /// stops delivering keys before, `shutdown` does not have to return.
    ///
    /// A thread cannot be stopped from outside. If a handler ignores its cancellation for longer
    /// than the grace period, it continues after this method has returned. It then completes its
    /// delivery when it returns.
    ///
    /// # Panics
    ///
    /// Panics if the operating system refuses to start a thread.
    #[track_caller]
    pub fn run_until(self, shutdown: impl FnOnce() + Send + 'static) -> Drained<K> {
        self.run_workers(Some(shutdown))
    }

    #[track_caller]
    fn run_workers(self, shutdown: Option<impl FnOnce() + Send + 'static>) -> Drained<K> {
        let (queue, threads, grace) = (self.queue.clone(), self.threads, self.options.grace);
        let (drain_timeout, stop) = (self.drain_timeout, Token::new());
        let worker = Arc::new(Worker { workers: self, stop: stop.clone() });
        let (events, received) = mpsc::channel();
        let started = (0..threads).map(|_| {
            let (worker, events) = (Arc::clone(&worker), events.clone());
            thread::spawn(move || {
                worker.run_worker();
                // If `run_until` has returned without this thread, the receiver no longer exists.
                let _ = events.send(Event::Ended);
            })
        });
        let started: Vec<JoinHandle<()>> = started.collect();
        let mut waiting =
            Waiting { clock: &*queue.shared.clock, received, events, running: threads };
        if let Some(shutdown) = shutdown {
            let events = waiting.events.clone();
            thread::spawn(move || {
                quietly(shutdown);
                let _ = events.send(Event::ShutDown);
            });
        }
        waiting.wait_until_ended(None, true);
        if waiting.running > 0 {
            WorkQueue::shut_down(&queue);
            waiting.wait_until_ended(drain_timeout, false);
        }
        if waiting.running > 0 {
            // The flag is set before the unpark, so a thread that is unparked reads the new value.
            stop.cancel();
            started.iter().for_each(|thread| thread.thread().unpark());
            waiting.wait_until_ended(Some(grace), false);
        }
        queue.take_left()
    }
}

impl<K: Key + fmt::Debug, S, H> fmt::Debug for ThreadWorkers<K, S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadWorkers")
            .field("threads", &self.threads)
            .field("max_retries", &self.options.max_retries)
            .finish_non_exhaustive()
    }
}

/// An event that the waiting thread receives.
enum Event {
    /// A worker has stopped.
    Ended,
    ShutDown,
    /// The clock has woken the waker of the alarm.
    Alarm,
}

/// The thread that waits for the workers to stop.
struct Waiting<'q> {
    clock: &'q dyn Clock,
    received: Receiver<Event>,
    events: Sender<Event>,
    /// The number of workers that have not stopped yet.
    running: usize,
}

impl Waiting<'_> {
    /// Waits until all workers have stopped, for at most `timeout`. If `or_shut_down` is true, also
    /// returns when `shutdown` has returned.
    fn wait_until_ended(&mut self, timeout: Option<Duration>, or_shut_down: bool) {
        let deadline = timeout.map(|timeout| self.clock.now() + timeout);
        let events = self.events.clone();
        let waker = waker_fn(move || _ = events.send(Event::Alarm));
        while self.running > 0 && deadline.is_none_or(|deadline| self.clock.now() < deadline) {
            // Each iteration arms a new alarm, because an alarm may be early.
            let alarm = deadline.map(|deadline| self.clock.arm(deadline, &waker));
            match self.received.recv() {
                Ok(Event::Ended) => self.running -= 1,
                Ok(Event::ShutDown) if or_shut_down => return,
                Ok(Event::ShutDown | Event::Alarm) => {}
                // This is impossible, because `self` also owns a sender.
                Err(_) => return,
            }
            drop(alarm);
        }
    }
}

/// The data that all worker threads share.
struct Worker<K: Key, S, H> {
    workers: ThreadWorkers<K, S, H>,
    stop: Token,
}

impl<K, S, H> Worker<K, S, H>
where
    K: Key + fmt::Debug,
    S: BuildHasher + Send + Sync + 'static,
    H: Fn(K, Context) -> Result<Action, Error>,
{
    /// Takes keys until the queue delivers no more. After a panic, the worker continues.
    fn run_worker(&self) {
        let mut panics = 0u32;
        loop {
            match call_caught(|| self.run_round()) {
                Ok(true) => panics = 0,
                Ok(false) => return,
                Err(error) => {
                    self.workers.queue.note_panic();
                    drop_quietly(error);
                    // If the worker had no item, the call for the next key has panicked. In every
                    // case, the worker waits before it continues.
                    thread::park_timeout(panic_pause(panics));
                    panics = panics.saturating_add(1);
                }
            }
        }
    }

    /// Takes a key, runs the handler, and completes the delivery. Returns true if the queue may
    /// deliver another key.
    ///
    /// If this method panics, it drops the item, so the run fails.
    fn run_round(&self) -> bool {
        let Some(mut item) = self.next_item() else { return false };
        let token = RunToken::new(&self.stop);
        let context = self.workers.options.new_context(&item, token.clone());
        let run = token.clone();
        let watch = item.on_cancel(move |reason| run.cancel(reason));
        let key = item.key().clone();
        let on_finish = self.workers.options.on_finish.as_ref().map(|f| (f, key.clone()));
        let attempt = context.attempt();
        let span = AttemptSpan::start(&item);
        let result = span.in_scope(|| call_caught(|| (self.workers.handler)(key, context)));
        let result = result.unwrap_or_else(|panic| {
            self.workers.queue.note_panic();
            Options::after_panic(&item, panic, &token)
        });
        span.end_with(Some(&result));
        // The handler has returned, so a later cancellation must not cancel its token.
        drop(watch);
        let completion = self.workers.options.choose_completion(&mut item, attempt, result, &token);
        item.complete(completion);
        if let Some((on_finish, key)) = on_finish {
            quietly(|| on_finish(key));
        }
        true
    }

    /// Waits for the next key. Returns `None` if no more keys will come, or if the workers were
    /// stopped.
    fn next_item(&self) -> Option<Item<'static, K>> {
        // The thread polls a future instead of blocking in a getter. A blocked getter could not be
        // stopped while it waits for a dirty key in flight.
        let mut next = pin!(self.workers.queue.next_item());
        let thread = thread::current();
        let waker = waker_fn(move || thread.unpark());
        let mut cx = task::Context::from_waker(&waker);
        loop {
            if self.stop.is_cancelled() {
                return None;
            }
            match next.as_mut().poll(&mut cx) {
                Poll::Ready(item) => return item,
                Poll::Pending => thread::park(),
            }
        }
    }
}

//! Runs Python handlers on the workers of `requeue`.
//!
//! The workers are Rust tasks, which take keys, retry them and complete their deliveries. For each key, a worker sends
//! a `Run` to the event loop, and waits for its result. The event loop receives all pending runs in one call, so the
//! runs share the cost of a switch between threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use requeue::clock::Clock;
use requeue::workers::{Action, Context, Error, WorkQueue, Workers};
use requeue::{Completion, Drained};
use requeue_store::Key;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::bridge::{promise, runtime};
use crate::convert::{
    Arguments, DeliveryFields, PyKey, ReasonFields, Seconds, name_cancel_reason, parse_completion,
    reason_fields,
};
use crate::memory::{DrainedFields, MemoryQueue};
use crate::store::StoreQueue;

/// The maximum number of events that the event loop receives in one call.
const MAX_EVENTS: usize = 1024;

/// An event for the event loop.
#[derive(IntoPyObject)]
enum Event {
    Run(Run),
    /// The run with this number is cancelled.
    Cancel(u64),
    /// A key was given up, with the text of its error.
    GivenUp((PyKey, String)),
    /// The workers have stopped.
    Ended(DrainedFields),
}

type Answer = Result<Action, Error>;

/// One run of a handler.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct Run {
    #[pyo3(get)]
    number: u64,
    key: PyKey,
    context: Context,
    answer: Mutex<Option<oneshot::Sender<Answer>>>,
}

#[pymethods]
impl Run {
    #[getter]
    fn key(&self) -> PyKey {
        self.key.clone()
    }

    fn delivery(&self) -> DeliveryFields {
        let context = &self.context;
        (
            context.attempt(),
            context.adds(),
            context.flags(),
            context.priority(),
            context.queued().map(Seconds),
            context.fencing_token(),
        )
    }

    fn is_last_attempt(&self) -> bool {
        self.context.is_last_attempt()
    }

    fn reasons(&self) -> Vec<ReasonFields> {
        reason_fields(self.context.reasons())
    }

    fn cancel_reason(&self) -> Option<&'static str> {
        self.context.cancel_reason().map(name_cancel_reason)
    }

    /// Completes the run without a failure.
    fn succeed(&self) {
        self.send(Ok(Action::succeed()));
    }

    /// Completes the run. With an error, the run has failed.
    #[pyo3(signature = (completion, delay=None, error=None, priority=None))]
    fn finish(
        &self,
        completion: &str,
        delay: Option<Seconds>,
        error: Option<String>,
        priority: Option<i32>,
    ) -> PyResult<()> {
        let error = error.unwrap_or_else(|| "the run failed".to_owned());
        let answer = match parse_completion(completion, delay)? {
            Completion::Succeed => Ok(Action::succeed()),
            Completion::RequeueAfter(delay) => Ok(Action::requeue_after(delay)),
            Completion::Release => Ok(Action::release()),
            Completion::ReleaseAfter(delay) => Ok(Action::release_after(delay)),
            Completion::Cancelled => Ok(Action::cancelled()),
            Completion::RetryAfter(delay) => Err(Error::retry_after(delay, error)),
            Completion::GiveUp => Err(Error::terminal(error)),
            // `Retry`, and completions that later versions may add.
            _ => Err(Error::from(error)),
        };
        self.send(match priority {
            Some(priority) => answer
                .map(|action| action.priority(priority))
                .map_err(|error| error.priority(priority)),
            None => answer,
        });
        Ok(())
    }
}

impl Run {
    fn send(&self, answer: Answer) {
        let sender = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // After the grace period, the worker no longer waits.
            let _ = sender.send(answer);
        }
    }
}

/// The workers of one queue, and the events that they send to the event loop.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct Runs {
    /// The receiver is locked for the duration of `next`, which is not called concurrently.
    events: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>>,
    tokens: Tokens,
}

#[derive(Clone, Default)]
struct Tokens {
    /// Shuts the queue down, as a request of the user.
    shut_down: CancellationToken,
    /// Stops the workers after their runs in flight, and leaves the queue unchanged.
    stop: CancellationToken,
}

#[pymethods]
impl Runs {
    /// Starts the workers.
    #[new]
    fn new(queue: &Bound<'_, PyAny>, arguments: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let tokens = Tokens::default();
        let arguments = Arguments(arguments);
        if let Ok(queue) = queue.cast::<MemoryQueue>() {
            start(queue.get().queue.clone(), arguments, sender, tokens.clone())?;
        } else if let Ok(queue) = queue.cast::<StoreQueue>() {
            start(queue.get().queue.clone(), arguments, sender, tokens.clone())?;
        } else {
            return Err(PyTypeError::new_err("the first argument is no queue"));
        }
        Ok(Self { events: Arc::new(tokio::sync::Mutex::new(receiver)), tokens })
    }

    /// Waits for events, and returns all that are pending.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let events = Arc::clone(&self.events);
        promise(py, async move {
            let mut received = Vec::new();
            events.lock().await.recv_many(&mut received, MAX_EVENTS).await;
            Ok(received)
        })
    }

    fn shut_down(&self) {
        self.tokens.shut_down.cancel();
    }

    fn stop(&self) {
        self.tokens.stop.cancel();
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        // The event loop has stopped, so no run would get a result.
        self.tokens.stop.cancel();
    }
}

fn start<Q: WorkQueue<Key = Key>>(
    queue: Q,
    arguments: Arguments<'_, '_>,
    sender: mpsc::UnboundedSender<Event>,
    tokens: Tokens,
) -> PyResult<()> {
    let numbers = Arc::new(AtomicU64::new(0));
    let runs = sender.clone();
    let handler = move |key: Key, context: Context| {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        run_in_python(runs.clone(), number, PyKey(key), context)
    };
    let stoppable = Stoppable { queue, stop: tokens.stop };
    let concurrency = arguments.get("concurrency")?;
    let mut workers = Workers::new(stoppable, handler).concurrency(concurrency);
    if let Some(retries) = arguments.get("max_retries")? {
        workers = workers.max_retries(retries);
    }
    if let Some(timeout) = arguments.seconds("timeout")? {
        workers = workers.timeout(timeout);
    }
    if let Some(grace) = arguments.seconds("grace")? {
        workers = workers.grace(grace);
    }
    if let Some(timeout) = arguments.seconds("drain_timeout")? {
        workers = workers.drain_timeout(timeout);
    }
    if arguments.get("reports_given_up")? {
        let sender = sender.clone();
        workers = workers.on_give_up(move |key, error| {
            // The event loop may have stopped.
            let _ = sender.send(Event::GivenUp((PyKey(key), error.to_string())));
        });
    }
    runtime().spawn(async move {
        let shutdown = tokens.shut_down.cancelled_owned();
        let drained = workers.run_until(shutdown).await;
        let _ = sender.send(Event::Ended(drained.into()));
    });
    Ok(())
}

/// Sends a run to the event loop, and waits for its result.
async fn run_in_python(
    runs: mpsc::UnboundedSender<Event>,
    number: u64,
    key: PyKey,
    context: Context,
) -> Answer {
    let (sender, mut answer) = oneshot::channel();
    let run = Run { number, key, context: context.clone(), answer: Mutex::new(Some(sender)) };
    // If the event loop has stopped, the run is dropped, and with it the sender of its answer.
    let _ = runs.send(Event::Run(run));
    let answered = tokio::select! {
        biased;
        answered = &mut answer => Some(answered),
        _ = context.cancelled() => None,
    };
    let answered = match answered {
        Some(answered) => answered,
        None => {
            let _ = runs.send(Event::Cancel(number));
            answer.await
        }
    };
    // The event loop has stopped without an answer: the handler has not completed its work.
    answered.unwrap_or_else(|_| Ok(Action::release()))
}

/// A queue whose workers can be stopped without a shutdown of the queue.
#[derive(Clone)]
struct Stoppable<Q> {
    queue: Q,
    stop: CancellationToken,
}

impl<Q: WorkQueue<Key = Key>> WorkQueue for Stoppable<Q> {
    type Key = Key;
    type Item = Q::Item;

    async fn next_item(&self) -> Option<Q::Item> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            item = self.queue.next_item() => item,
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.queue.clock()
    }

    fn shut_down(&self) {
        self.queue.shut_down();
    }

    async fn wait_settled(&self) {
        // A store settles only after its shutdown. The queue of stopped workers stays open.
        if !self.stop.is_cancelled() {
            self.queue.wait_settled().await;
        }
    }

    fn take_left(&self) -> Drained<Key> {
        self.queue.take_left()
    }

    fn note_panic(&self) {
        self.queue.note_panic();
    }
}

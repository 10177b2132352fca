//! Queues that threads or tasks share, and the latency of a key between them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::keys::Key;
use crate::meter::{Meter, nanos};
use crate::protocol::{Answer, Quantiles, Request};

/// A queue that threads share.
pub(super) trait Shared<K>: Clone + Send + Sync + 'static {
    /// Adds a key, which is delivered once.
    fn add(&self, key: &K);
    /// Takes keys, calls `each` and completes them, until the queue is closed and empty.
    fn work(&self, each: impl FnMut(&K));
    /// Closes the queue after the last add.
    fn close(&self);
}

/// A queue that tasks share.
pub(super) trait Tasks<K>: Shared<K> {
    /// Works like [`work`](Shared::work), but as a task.
    fn work_as_task(&self, each: impl FnMut(&K) + Send) -> impl Future<Output = ()> + Send;
}

/// A queue of delayed keys that threads share.
pub(super) trait SharedDelays<K>: Shared<K> {
    /// Adds a key, which is delivered after the delay.
    fn add_after(&self, key: &K, delay: Duration);
}

/// The time in which threads start and begin to wait for keys.
pub(super) const SETTLE: Duration = Duration::from_millis(2);

/// Creates a runtime with a thread for each processor, as in most programs.
pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_time().build().expect("threads can be started")
}

/// A stopwatch that two threads share.
struct Stopwatch {
    origin: Instant,
    started: AtomicU64,
}

impl Stopwatch {
    fn new() -> Self {
        Self { origin: Instant::now(), started: AtomicU64::new(0) }
    }

    fn start(&self) {
        self.started.store(nanos(self.origin.elapsed()), Ordering::Release);
    }

    fn read(&self) -> u64 {
        nanos(self.origin.elapsed()) - self.started.load(Ordering::Acquire)
    }
}

/// Measures the latency from one thread to another that waits.
pub(super) fn hand_over<K: Key>(queue: &impl Shared<K>, request: &Request) -> Answer {
    let (keys, stopwatch) = (K::some(request.n), Stopwatch::new());
    let (taken, next) = mpsc::channel();
    thread::scope(|scope| {
        let stopwatch = &stopwatch;
        let worker = scope.spawn(move || {
            let mut latencies = Vec::new();
            queue.work(|_| {
                latencies.push(stopwatch.read());
                // The send fails if the receiver was dropped.
                _ = taken.send(());
            });
            latencies
        });
        let meter = Meter::start();
        for key in &*keys {
            thread::sleep(SETTLE / 20);
            stopwatch.start();
            queue.add(key);
            next.recv().expect("the worker goes on until the queue is closed");
        }
        queue.close();
        let latencies = worker.join().expect("gets do not panic");
        let answer = meter.stop(latencies.len());
        Answer { latency_ns: Some(Quantiles::of(latencies)), ..answer }
    })
}

/// Measures the latency from one task to another that waits in the same runtime.
pub(super) fn hand_over_to_task<K: Key, Q: Tasks<K>>(
    make: impl FnOnce() -> Q,
    request: &Request,
) -> Answer {
    let (keys, stopwatch) = (K::some(request.n), Arc::new(Stopwatch::new()));
    let taken = Arc::new(Notify::new());
    runtime().block_on(async {
        let queue = make();
        let worker = {
            let (queue, stopwatch) = (queue.clone(), Arc::clone(&stopwatch));
            let taken = Arc::clone(&taken);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                let work = queue.work_as_task(|_| {
                    latencies.push(stopwatch.read());
                    // Both tasks are on one thread, so the other task continues when this task
                    // waits again.
                    taken.notify_one();
                });
                work.await;
                latencies
            })
        };
        tokio::time::sleep(SETTLE).await;
        let meter = Meter::start();
        let producer = tokio::spawn(async move {
            for key in &*keys {
                stopwatch.start();
                queue.add(key);
                taken.notified().await;
            }
            queue.close();
        });
        producer.await.expect("adds do not panic");
        let latencies = worker.await.expect("gets do not panic");
        let answer = meter.stop(latencies.len());
        Answer { latency_ns: Some(Quantiles::of(latencies)), ..answer }
    })
}

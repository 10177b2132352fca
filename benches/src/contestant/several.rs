//! Queues that threads or tasks share, and how long a key takes from one to the other.

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

/// What threads share.
pub(super) trait Shared<K>: Clone + Send + Sync + 'static {
    /// The key comes out once, later.
    fn add(&self, key: &K);
    /// Takes keys, calls `each`, and is done with them, until it is closed and empty.
    fn work(&self, each: impl FnMut(&K));
    /// No more keys.
    fn close(&self);
}

/// What tasks share.
pub(super) trait Tasks<K>: Shared<K> {
    /// As [`work`](Shared::work), as a task.
    fn work_as_task(&self, each: impl FnMut(&K) + Send) -> impl Future<Output = ()> + Send;
}

/// What keys wait in for their time.
pub(super) trait SharedDelays<K>: Shared<K> {
    /// The key comes out after that.
    fn add_after(&self, key: &K, delay: Duration);
}

/// Time for threads that were started to wait for keys.
pub(super) const SETTLE: Duration = Duration::from_millis(2);

/// A runtime with a thread for each processor, as most programs have.
pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_time().build().expect("threads can be started")
}

/// A clock for two.
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

/// From one thread to another that waits.
pub(super) fn hand_over<K: Key>(queue: &impl Shared<K>, request: &Request) -> Answer {
    let (keys, stopwatch) = (K::some(request.n), Stopwatch::new());
    let (taken, next) = mpsc::channel();
    thread::scope(|scope| {
        let stopwatch = &stopwatch;
        let worker = scope.spawn(move || {
            let mut latencies = Vec::new();
            queue.work(|_| {
                latencies.push(stopwatch.read());
                // It fails if nobody wants to know.
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

/// From one task to another of the same runtime that waits.
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
                    // The other task goes on when this one waits again: both are on one thread.
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

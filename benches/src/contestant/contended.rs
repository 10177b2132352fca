//! Contended scenarios: producers add keys while workers take them.
//!
//! Each key is added once. A round counts only if each key was delivered once.

use std::fs;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::several::{SETTLE, Shared, Tasks, runtime};
use crate::busy::Busy;
use crate::meter::Meter;
use crate::protocol::{Answer, Keys, Request};

/// The producers, the workers and the work of a round.
#[derive(Clone, Copy, Debug)]
struct Plan {
    keys: u64,
    producers: u64,
    busy: Busy,
}

impl Plan {
    /// Creates a plan, or returns `None` unless keys are integers, which a worker can sum.
    fn new(request: &Request) -> Option<Self> {
        (request.keys == Keys::U64).then(|| Self {
            keys: request.n as u64,
            producers: request.producers as u64,
            busy: Busy::calibrated(Duration::from_nanos(request.work_ns)),
        })
    }

    /// Returns the keys that each producer adds.
    fn parts(self) -> impl Iterator<Item = Range<u64>> {
        let at = move |producer| producer * self.keys / self.producers;
        (0..self.producers).map(move |producer| at(producer)..at(producer + 1))
    }

    /// Checks the deliveries since the meter was started, and returns the figures.
    fn answer(self, meter: Meter, workers: &[Worker]) -> Answer {
        let delivered: u64 = workers.iter().map(|worker| worker.keys).sum();
        let sum = workers.iter().fold(0, |sum: u64, worker| sum.wrapping_add(worker.sum));
        let added = (0..self.keys).fold(0, u64::wrapping_add);
        if delivered != self.keys {
            return Answer::error(format!("{delivered} keys of {} were delivered", self.keys));
        }
        if sum != added {
            return Answer::error("some keys were delivered twice, and others never");
        }
        let end = workers.iter().map(|worker| worker.end).max().unwrap_or_else(Instant::now);
        let sleeps = workers.iter().map(|worker| worker.sleeps).sum();
        Answer { sleeps, ..meter.stop_at(end, self.keys as usize) }
    }
}

/// The result of a worker after the last key.
#[derive(Clone, Copy, Debug)]
struct Worker {
    keys: u64,
    /// The sum of the worker's keys. The sum over all workers shows whether each key was delivered.
    sum: u64,
    /// The time at which there were no more keys.
    end: Instant,
    sleeps: Option<u64>,
}

impl Worker {
    fn new() -> Self {
        Self { keys: 0, sum: 0, end: Instant::now(), sleeps: None }
    }

    #[inline]
    fn take(&mut self, key: u64, busy: Busy) {
        self.keys += 1;
        self.sum = self.sum.wrapping_add(key);
        busy.work();
    }
}

/// Returns the number of times that this thread has slept, where the system counts them.
fn sleeps() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Runs producers and workers as threads.
pub(super) fn threads(queue: &impl Shared<u64>, request: &Request) -> Option<Answer> {
    let plan = Plan::new(request)?;
    let start = Barrier::new(request.producers + 1);
    Some(thread::scope(|scope| {
        let work = || {
            let (mut worker, before) = (Worker::new(), sleeps());
            queue.work(|&key| worker.take(key, plan.busy));
            worker.end = Instant::now();
            worker.sleeps = sleeps().zip(before).map(|(after, before)| after - before);
            worker
        };
        let workers: Vec<_> = (0..request.workers).map(|_| scope.spawn(work)).collect();
        let add = |part: Range<u64>| {
            start.wait();
            part.for_each(|key| queue.add(&key));
        };
        let producers: Vec<_> = plan.parts().map(|part| scope.spawn(move || add(part))).collect();
        thread::sleep(SETTLE);
        let meter = Meter::start();
        start.wait();
        producers.into_iter().for_each(|producer| producer.join().expect("adds do not panic"));
        queue.close();
        let workers = workers.into_iter().map(|worker| worker.join().expect("gets do not panic"));
        plan.answer(meter, &workers.collect::<Vec<_>>())
    }))
}

/// Runs producers and workers as tasks of one runtime, in which the queue is created.
pub(super) fn tasks<Q: Tasks<u64>>(make: impl FnOnce() -> Q, request: &Request) -> Option<Answer> {
    let plan = Plan::new(request)?;
    Some(runtime().block_on(async {
        let queue = make();
        let work = |queue: Q| async move {
            let mut worker = Worker::new();
            queue.work_as_task(|&key| worker.take(key, plan.busy)).await;
            worker.end = Instant::now();
            worker
        };
        let tasks: Vec<_> =
            (0..request.workers).map(|_| tokio::spawn(work(queue.clone()))).collect();
        tokio::time::sleep(SETTLE).await;
        let meter = Meter::start();
        let add = |queue: Q, part: Range<u64>| async move {
            for key in part {
                queue.add(&key);
                // Lets other tasks run periodically, as a producer that reads keys from a stream
                // would.
                tokio::task::coop::consume_budget().await;
            }
        };
        let producers: Vec<_> =
            plan.parts().map(|part| tokio::spawn(add(queue.clone(), part))).collect();
        for producer in producers {
            producer.await.expect("adds do not panic");
        }
        queue.close();
        let mut workers = Vec::new();
        for task in tasks {
            workers.push(task.await.expect("gets do not panic"));
        }
        plan.answer(meter, &workers)
    }))
}

#[cfg(test)]
mod tests {
    use async_channel::{Receiver, Sender, unbounded};

    use super::*;
    use crate::protocol::Scenario;

    /// A queue that delivers the keys that `adds` returns for each key.
    #[derive(Clone)]
    struct Faulty {
        ends: (Sender<u64>, Receiver<u64>),
        adds: fn(u64) -> Vec<u64>,
    }

    impl Faulty {
        fn new(adds: fn(u64) -> Vec<u64>) -> Self {
            Self { ends: unbounded(), adds }
        }
    }

    impl Shared<u64> for Faulty {
        fn add(&self, &key: &u64) {
            for key in (self.adds)(key) {
                self.ends.0.try_send(key).expect("the channel is open");
            }
        }

        fn work(&self, mut each: impl FnMut(&u64)) {
            while let Ok(key) = self.ends.1.recv_blocking() {
                each(&key);
            }
        }

        fn close(&self) {
            self.ends.0.close();
        }
    }

    impl Tasks<u64> for Faulty {
        async fn work_as_task(&self, mut each: impl FnMut(&u64) + Send) {
            while let Ok(key) = self.ends.1.recv().await {
                each(&key);
            }
        }
    }

    /// Runs a round with threads, and a round with tasks.
    fn rounds(adds: fn(u64) -> Vec<u64>, request: &Request) -> [Answer; 2] {
        let threads = threads(&Faulty::new(adds), request);
        let tasks = tasks(|| Faulty::new(adds), request);
        [threads, tasks].map(|answer| answer.expect("keys are integers"))
    }

    #[test]
    fn only_rounds_count_in_which_each_key_is_delivered_once() {
        for (producers, workers) in [(1, 1), (1, 16), (16, 1), (7, 5)] {
            let request = Request { producers, workers, ..Request::new(Scenario::Threads, 100) };
            for answer in rounds(|key| vec![key], &request) {
                assert_eq!((answer.error, answer.ops), (None, 100));
            }
            let lost: fn(u64) -> Vec<u64> = |key| if key == 7 { vec![] } else { vec![key] };
            let twice: fn(u64) -> Vec<u64> = |key| vec![key; if key == 99 { 2 } else { 1 }];
            let another: fn(u64) -> Vec<u64> = |key| vec![if key == 50 { 51 } else { key }];
            for (adds, error) in [
                (lost, "99 keys of 100 were delivered"),
                (twice, "101 keys of 100 were delivered"),
                (another, "some keys were delivered twice, and others never"),
            ] {
                for answer in rounds(adds, &request) {
                    assert_eq!(answer.error.as_deref(), Some(error));
                }
            }
        }
    }

    #[test]
    fn producers_share_all_keys() {
        for (n, producers) in [(100, 1), (100, 16), (3, 16), (1_000_003, 7)] {
            let request = Request { producers, ..Request::new(Scenario::Threads, n) };
            let parts: Vec<_> = Plan::new(&request).unwrap().parts().collect();
            assert_eq!(parts.len(), producers);
            assert!(parts.into_iter().flatten().eq(0..n as u64));
        }
    }
}

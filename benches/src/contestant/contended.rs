//! Contended scenarios: producers add keys while workers take them.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;

use super::several::{SETTLE, Shared, Tasks, runtime};
use crate::keys::Key;
use crate::meter::Meter;
use crate::protocol::{Answer, Request};

/// Some add, some take.
pub(super) fn threads<K: Key>(queue: &impl Shared<K>, request: &Request) -> Answer {
    let keys = K::some(request.n);
    let parts: Vec<&[K]> = keys.chunks(request.n.div_ceil(request.producers)).collect();
    let start = Barrier::new(parts.len() + 1);
    thread::scope(|scope| {
        let work = || {
            let mut count = 0;
            queue.work(|key| {
                black_box(key);
                count += 1;
            });
            count
        };
        let workers: Vec<_> = (0..request.workers).map(|_| scope.spawn(work)).collect();
        let producers: Vec<_> = parts
            .iter()
            .map(|part| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    part.iter().for_each(|key| queue.add(key));
                })
            })
            .collect();
        thread::sleep(SETTLE);
        let meter = Meter::start();
        start.wait();
        producers.into_iter().for_each(|producer| producer.join().expect("adds do not panic"));
        queue.close();
        meter.stop(workers.into_iter().map(|worker| worker.join().expect("nor do gets")).sum())
    })
}

/// Some add, some take, on one runtime, within which the queue is made.
pub(super) fn tasks<K: Key, Q: Tasks<K>>(make: impl FnOnce() -> Q, request: &Request) -> Answer {
    let keys = K::some(request.n);
    let each = request.n.div_ceil(request.producers);
    runtime().block_on(async {
        let queue = make();
        let workers: Vec<_> = (0..request.workers)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut count = 0;
                    let work = queue.work_as_task(|key| {
                        black_box(key);
                        count += 1;
                    });
                    work.await;
                    count
                })
            })
            .collect();
        tokio::time::sleep(SETTLE).await;
        let meter = Meter::start();
        let producers: Vec<_> = (0..request.n)
            .step_by(each)
            .map(|from| {
                let (queue, keys) = (queue.clone(), Arc::clone(&keys));
                tokio::spawn(async move {
                    for key in keys[from..].iter().take(each) {
                        queue.add(key);
                        // As whatever it reads its keys from would do.
                        tokio::task::coop::consume_budget().await;
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await.expect("adds do not panic");
        }
        queue.close();
        let mut count = 0;
        for worker in workers {
            count += worker.await.expect("nor do gets");
        }
        meter.stop(count)
    })
}

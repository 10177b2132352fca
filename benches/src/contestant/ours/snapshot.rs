//! A snapshot of many keys, while other keys are added.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use requeue::{Cursor, Queue};

use crate::keys::Key;
use crate::meter::{Meter, nanos};
use crate::protocol::{Answer, Quantiles, Request};

/// The number of keys on one page.
const PAGE: usize = 100;

pub(super) fn page<K: Key>(request: &Request) -> Answer {
    let (keys, queue) = (K::some(request.depth.max(1)), Queue::new());
    queue.add_all(keys.iter().cloned());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for key in keys.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                queue.add_ref(key);
            }
        });
        let mut latencies = Vec::with_capacity(request.n);
        let meter = Meter::start();
        for _ in 0..request.n {
            let start = Instant::now();
            black_box(queue.snapshot(Cursor::default(), PAGE));
            latencies.push(nanos(start.elapsed()));
        }
        let answer = meter.stop(request.n);
        over.store(true, Ordering::Relaxed);
        Answer { latency_ns: Some(Quantiles::of(latencies)), ..answer }
    })
}

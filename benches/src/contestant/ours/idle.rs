//! Idle queues.

use std::thread;
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::Queue;
use requeue::metrics::Metrics;

use super::with_metrics;
use crate::heap::cost_of;
use crate::keys::Key;
use crate::meter::Meter;
use crate::protocol::{Answer, Request};

pub(super) fn memory<K: Key>(request: &Request) -> Answer {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let make = |number| {
        if request.metrics { with_metrics::<K>(&metrics, number) } else { Queue::new() }
    };
    let (queues, bytes) = cost_of(|| (0..request.n).map(make).collect::<Vec<_>>());
    Answer { bytes: Some(bytes as f64 / queues.len() as f64), ..Answer::default() }
}

pub(super) fn cpu<K: Key>(request: &Request) -> Answer {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let queues: Vec<Queue<K>> = (0..request.n).map(|n| with_metrics(&metrics, n)).collect();
    let meter = Meter::start();
    thread::sleep(Duration::from_secs_f64(request.seconds));
    meter.stop(queues.len())
}

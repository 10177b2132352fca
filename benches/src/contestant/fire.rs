//! Scenarios in which keys become due.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::several::{SharedDelays, Tasks, runtime};
use crate::meter::{Meter, nanos};
use crate::protocol::{Answer, Keys, Quantiles, Request, Scenario};

/// The due time of each key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    first: Instant,
    gap: Duration,
    n: usize,
}

impl Plan {
    /// Creates a plan that begins after the time to add all keys. Returns `None` unless keys are
    /// integers.
    pub(super) fn new(request: &Request) -> Option<Self> {
        if request.keys != Keys::U64 {
            return None;
        }
        let gap = match request.scenario {
            Scenario::SparseTimers => Duration::from_millis(10),
            _ => Duration::from_secs_f64(request.seconds / request.n as f64),
        };
        let lead = Duration::from_millis(50) + Duration::from_micros(5) * request.n as u32;
        Some(Self { first: Instant::now() + lead, gap, n: request.n })
    }

    /// Returns the due times in order.
    pub(super) fn times(self) -> impl Iterator<Item = Instant> {
        (0..self.n as u64).map(move |key| self.due(key))
    }

    fn due(self, key: u64) -> Instant {
        self.first + Duration::from_nanos(nanos(self.gap) * key)
    }

    /// Adds all keys in random order.
    pub(super) fn add_all(self, mut add_after: impl FnMut(u64, Duration)) {
        let mut keys: Vec<u64> = (0..self.n as u64).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut keys);
        for key in keys {
            add_after(key, self.due(key).saturating_duration_since(Instant::now()));
        }
    }

    /// Starts the measured section, or returns `None` if the first key is already due.
    pub(super) fn begin(self) -> Option<Meter> {
        (Instant::now() < self.first).then(Meter::start)
    }
}

/// The lateness of each key that was delivered.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    plan: Plan,
    lateness: Vec<u64>,
}

impl Arrivals {
    /// Creates an empty list.
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, lateness: Vec::with_capacity(plan.n) }
    }

    /// Records the arrival of a key. Returns true if this key is the last.
    pub(super) fn note(&mut self, key: u64) -> bool {
        self.note_due(self.plan.due(key))
    }

    /// Records the arrival of a key with this due time. Returns true if this key is the last.
    pub(super) fn note_due(&mut self, due: Instant) -> bool {
        self.lateness.push(nanos(Instant::now().saturating_duration_since(due)));
        self.lateness.len() == self.plan.n
    }

    /// Returns the figures of the section, if it was started in time.
    pub(super) fn answer(self, meter: Option<Meter>) -> Answer {
        let Some(meter) = meter else {
            return Answer::error("the first key was due before the last was added");
        };
        let answer = meter.stop(self.lateness.len());
        Answer { lateness_ns: Some(Quantiles::of(self.lateness)), ..answer }
    }
}

/// Measures a worker that is a thread.
pub(super) fn to_thread(queue: &impl SharedDelays<u64>, request: &Request) -> Option<Answer> {
    let plan = Plan::new(request)?;
    Some(thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut arrivals = Arrivals::new(plan);
            queue.work(|&key| {
                if arrivals.note(key) {
                    queue.close();
                }
            });
            arrivals
        });
        plan.add_all(|key, delay| queue.add_after(&key, delay));
        let begun = plan.begin();
        let arrivals = worker.join().expect("gets do not panic");
        arrivals.answer(begun)
    }))
}

/// Measures a worker that is a task.
pub(super) fn to_task<Q>(make: impl FnOnce() -> Q, request: &Request) -> Option<Answer>
where
    Q: SharedDelays<u64> + Tasks<u64>,
{
    let plan = Plan::new(request)?;
    Some(runtime().block_on(async {
        let queue = make();
        let arrivals = Arc::new(Mutex::new(Arrivals::new(plan)));
        let worker = {
            let (queue, arrivals) = (queue.clone(), Arc::clone(&arrivals));
            tokio::spawn(async move {
                let work = queue.work_as_task(|&key| {
                    // The lock has no contention, because no other task locks the arrivals before
                    // the end.
                    if arrivals.lock().unwrap_or_else(PoisonError::into_inner).note(key) {
                        queue.close();
                    }
                });
                work.await;
            })
        };
        plan.add_all(|key, delay| queue.add_after(&key, delay));
        let begun = plan.begin();
        worker.await.expect("gets do not panic");
        let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        arrivals.answer(begun)
    }))
}

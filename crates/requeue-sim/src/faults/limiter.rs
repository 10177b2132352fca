//! A limiter that says whatever comes to its mind.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use requeue::RateLimiter;
use requeue_core::Time;

/// What the limiter said last, and what it does next.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) delay: Duration,
    rng: fastrand::Rng,
    /// Whether it still says nonsense.
    pub(super) faulty: bool,
}

/// Says delays of nothing, of a moment, of minutes, and for ever; and panics.
pub(super) struct Extreme(pub(super) Arc<Mutex<Said>>);

/// What it says where it has panicked.
const LONGEST: Duration = Duration::from_secs(77);

thread_local! {
    /// Whether what panics is meant to.
    pub(super) static ON_PURPOSE: Cell<bool> = const { Cell::new(false) };
}

impl Said {
    pub(super) fn new(rng: fastrand::Rng) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { delay: Duration::ZERO, rng, faulty: true }))
    }
}

impl RateLimiter<u32> for Extreme {
    fn delay(&mut self, _: &u32, _: Time) -> Duration {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let choice = if said.faulty { said.rng.u8(..20) } else { 1 };
        said.delay = match choice {
            0 => LONGEST,
            1..5 => Duration::from_millis(said.rng.u64(1..50)),
            5..9 => Duration::ZERO,
            9 => Duration::from_nanos(1),
            10 => Duration::MAX,
            _ => Duration::from_secs(said.rng.u64(1..300)),
        };
        let delay = said.delay;
        drop(said);
        if choice == 0 {
            ON_PURPOSE.set(true);
            panic!("a limiter that panics");
        }
        delay
    }

    fn forget(&mut self, _: &u32) {}

    fn num_requeues(&self, _: &u32) -> u32 {
        0
    }

    fn longest(&self) -> Duration {
        LONGEST
    }
}

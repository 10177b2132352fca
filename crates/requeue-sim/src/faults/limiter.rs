//! A limiter that returns arbitrary delays, and panics.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::limiter::RateLimiter;
use requeue_core::Time;

/// The last delay that the limiter returned, and the state that determines the next delay.
pub(super) struct Said {
    pub(super) delay: Duration,
    rng: fastrand::Rng,
    /// True while the limiter returns extreme delays or panics.
    pub(super) faulty: bool,
    /// True if the limiter panicked in its last call. The call that panicked counted no failure.
    pub(super) panicked: bool,
    /// The failures that the limiter has counted, by key.
    counts: BTreeMap<u32, u32>,
    /// True if the limiter reports when it is idle.
    tells: bool,
    /// Called once, before the limiter returns the next delay. The function may use the queue, like
    /// any limiter.
    pub(super) before: Option<Box<dyn FnOnce() + Send>>,
}

/// A limiter with delays of zero, 1 ns, milliseconds, minutes and `Duration::MAX`, and with panics.
pub(super) struct Extreme(pub(super) Arc<Mutex<Said>>);

/// The delay that a queue uses when the limiter has panicked.
const LONGEST: Duration = Duration::from_secs(77);

thread_local! {
    /// True if the panic is intended.
    pub(super) static ON_PURPOSE: Cell<bool> = const { Cell::new(false) };
}

impl Said {
    pub(super) fn new(mut rng: fastrand::Rng) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            delay: Duration::ZERO,
            tells: rng.bool(),
            rng,
            faulty: true,
            panicked: false,
            counts: BTreeMap::new(),
            before: None,
        }))
    }
}

impl Extreme {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateLimiter<u32> for Extreme {
    fn delay(&mut self, key: &u32, _: Time) -> Duration {
        let before = self.said().before.take();
        if let Some(before) = before {
            before();
        }
        let mut said = self.said();
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
        said.panicked = choice == 0;
        if !said.panicked {
            *said.counts.entry(*key).or_default() += 1;
        }
        drop(said);
        if choice == 0 {
            ON_PURPOSE.set(true);
            panic!("a limiter that panics");
        }
        delay
    }

    fn forget(&mut self, key: &u32) {
        self.said().counts.remove(key);
    }

    fn num_requeues(&self, key: &u32) -> u32 {
        self.said().counts.get(key).copied().unwrap_or(0)
    }

    fn is_idle(&self) -> bool {
        let said = self.said();
        said.tells && said.counts.is_empty()
    }

    fn longest_delay(&self) -> Duration {
        LONGEST
    }
}

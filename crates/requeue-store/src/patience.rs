//! Trying again what an engine could not be reached for.

use std::time::Duration;

/// Waits that grow from 10 ms to 5 s, drawn from the half of each to the whole.
#[derive(Debug)]
pub(crate) struct Patience {
    next: Duration,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { next: Duration::from_millis(10) }
    }

    pub(crate) fn wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(Duration::from_secs(5));
        wait
    }
}

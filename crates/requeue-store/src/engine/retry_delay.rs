//! The delay between attempts to reach an engine, or to change a locked key.

use std::time::Duration;

/// Delays that double from 10 ms, each drawn from half of it to all of it.
#[derive(Debug)]
pub(crate) struct RetryDelay {
    next: Duration,
    most: Duration,
}

impl RetryDelay {
    pub(crate) const fn new() -> Self {
        Self::up_to(Duration::from_secs(5))
    }

    pub(crate) const fn up_to(most: Duration) -> Self {
        Self { next: Duration::from_millis(10), most }
    }

    pub(crate) fn wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.most);
        wait
    }
}

//! Trying again what an engine could not be reached for, or what somebody has locked.

use std::time::Duration;

/// Waits that grow from 10 ms, drawn from the half of each to the whole.
#[derive(Debug)]
pub(crate) struct Patience {
    next: Duration,
    most: Duration,
}

impl Patience {
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

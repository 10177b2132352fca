//! Computes the delay between two attempts to reach an engine, or to change a locked key.

use std::time::Duration;

use requeue::wait::{Backoff, JitterSource, jitter_source};

/// A sequence of delays that double from 10 ms up to a maximum, which is 5 s by default. Each delay is random, between
/// half of this duration and the whole duration.
#[derive(Debug)]
pub(crate) struct RetryDelay {
    backoff: Backoff,
    source: JitterSource,
}

impl RetryDelay {
    pub(crate) fn new() -> Self {
        Self::up_to(Duration::from_secs(5))
    }

    pub(crate) fn up_to(most: Duration) -> Self {
        // The jitter at most doubles a duration. Therefore, the durations in `Backoff` are half of the maximum delays.
        let duration = Duration::from_millis(5);
        let backoff =
            Backoff { duration, factor: 2.0, jitter: 1.0, steps: i32::MAX, cap: most / 2 };
        Self { backoff, source: jitter_source() }
    }

    pub(crate) fn wait(&mut self) -> Duration {
        self.backoff.step(&mut self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut delay = RetryDelay::up_to(Duration::from_millis(50));
        for longest in [10, 20, 40, 50, 50].map(Duration::from_millis) {
            let wait = delay.wait();
            assert!((longest / 2..=longest).contains(&wait), "{wait:?} of {longest:?}");
        }
    }
}

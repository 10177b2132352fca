//! Busy work, which a worker performs for each key.
//!
//! The work is a number of steps and not a period, so that a preempted thread still has to do all
//! of its work. `peers-go/busy.go` takes the same steps and calibrates them in the same way.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// The steps of a trial, which takes about 0.1 ms.
const STEPS: u32 = 50_000;
/// The number of trials. The fastest trial counts, because other load can only make a trial slower.
const TRIALS: u32 = 50;

/// A computation that takes a given time on an idle processor.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    steps: u64,
}

impl Busy {
    /// Measures how fast this machine is now, unless `time` is zero.
    #[must_use]
    pub fn calibrated(time: Duration) -> Self {
        if time.is_zero() {
            return Self { steps: 0 };
        }
        let trial = |_| {
            let start = Instant::now();
            spin(STEPS.into());
            start.elapsed()
        };
        let fastest = (0..TRIALS).map(trial).min().unwrap_or_default();
        Self::of(time, fastest)
    }

    /// Returns the work for a machine whose fastest trial takes `fastest`.
    fn of(time: Duration, fastest: Duration) -> Self {
        let trials = time.as_secs_f64() / fastest.max(Duration::from_nanos(1)).as_secs_f64();
        Self { steps: (trials * f64::from(STEPS)).round() as u64 }
    }

    /// Computes.
    #[inline]
    pub fn work(self) {
        spin(self.steps);
    }
}

/// Performs steps of a xorshift generator, each of which needs the result of the previous step.
#[inline(never)]
fn spin(steps: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_from_the_time_and_the_speed_of_the_machine() {
        let steps = |time, fastest| {
            Busy::of(Duration::from_nanos(time), Duration::from_nanos(fastest)).steps
        };
        assert_eq!(steps(1_000, 100_000), 500);
        assert_eq!(steps(10_000, 100_000), 5_000);
        assert_eq!(steps(10_000, 50_000), 10_000);
        assert_eq!(steps(1, 0), u64::from(STEPS), "a clock too coarse to see a trial");
    }

    #[test]
    fn no_time_is_no_work() {
        assert_eq!(Busy::calibrated(Duration::ZERO).steps, 0);
    }
}

//! Measures the wall-clock time and the processor time of a section.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::protocol::Answer;

/// A section that is being measured.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    wall: Instant,
    cpu: Duration,
}

impl Meter {
    /// Starts the section.
    #[must_use]
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu() }
    }

    /// Ends the section, in which `ops` operations were done.
    #[must_use]
    pub fn stop(self, ops: usize) -> Answer {
        self.stop_at(Instant::now(), ops)
    }

    /// Ends the section, in which `ops` operations were done, at `end`.
    #[must_use]
    pub fn stop_at(self, end: Instant, ops: usize) -> Answer {
        let (cpu, wall) = (cpu().saturating_sub(self.cpu), end.duration_since(self.wall));
        Answer { ops: ops as u64, wall_ns: nanos(wall), cpu_ns: nanos(cpu), ..Answer::default() }
    }
}

/// Returns the processor time of the whole process, user and system.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns the nanoseconds. The number saturates after centuries.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

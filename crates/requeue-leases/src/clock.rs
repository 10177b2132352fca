//! A monotonic clock whose time also advances while the machine is suspended.

use std::time::Duration;

use requeue::Time;

use crate::simulation::is_simulated;

/// The maximum duration of one sleep of a waiting task. The timers of the runtime stand still while the machine is
/// suspended. A task that sleeps in short steps notices the resumption within this time.
const MAX_SLEEP: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The time since the start of the machine.
    #[cfg(unix)]
    Boot,
    /// The time that has passed since the stored moment. On the systems that use this variant, `Instant` also advances
    /// during a suspension.
    #[cfg(not(unix))]
    Since(std::time::Instant),
    /// The runtime's clock, which a test can pause, plus the simulated time of suspension in nanoseconds.
    Runtime(tokio::time::Instant, std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    pub(crate) fn new() -> Self {
        if is_simulated() {
            return Self::Runtime(tokio::time::Instant::now(), std::sync::Arc::default());
        }
        #[cfg(unix)]
        return Self::Boot;
        #[cfg(not(unix))]
        return Self::Since(std::time::Instant::now());
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            #[cfg(unix)]
            Self::Boot => boot_time(),
            #[cfg(not(unix))]
            Self::Since(start) => Time::ZERO + start.elapsed(),
            Self::Runtime(start, suspended) => {
                let suspended = suspended.load(std::sync::atomic::Ordering::Relaxed);
                Time::from_nanos(suspended) + start.elapsed()
            }
        }
    }

    /// Waits until the clock has reached `at`. If the machine is suspended during the wait, the function returns at
    /// most [`MAX_SLEEP`] too late.
    pub(crate) async fn sleep_until(&self, at: Time) {
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            // The runtime's timers stand still during a suspension. The loop therefore sleeps in short steps, and reads
            // this clock after each step. A simulated machine is never suspended, and short steps would slow the
            // simulation down.
            let longest = if is_simulated() { left } else { MAX_SLEEP };
            tokio::time::sleep(left.min(longest)).await;
        }
    }
}

#[cfg(unix)]
fn boot_time() -> Time {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // On Apple's systems, this clock advances while the machine sleeps, and the clock of `Instant` does not.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let time = clock_gettime(CLOCK);
    // The kernel returns the time since the start of the machine, which is never negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Time::ZERO + Duration::new(seconds, nanos)
}

/// Returns the name of the host, which is the first part of an elector's identity.
pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    // Two hosts may have the same name. The identity is unique because of the UUID that follows.
    if name.is_empty() { "unknown".to_owned() } else { name }
}

//! A monotonic clock that also counts while the machine is suspended.

use std::time::Duration;

use requeue::Time;

use crate::simulation::is_simulated;

/// The longest time until a timer notices that a suspended machine has resumed. Timers stop during a suspension, so a
/// waiting task reads the clock at this interval.
const MAX_SLEEP: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The clock that counts from the start of the machine.
    #[cfg(unix)]
    Boot,
    /// The time since this moment. On these systems, `Instant` also counts during a suspension.
    #[cfg(not(unix))]
    Since(std::time::Instant),
    /// The runtime's clock, which a test can pause, and the simulated time of suspension.
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

    /// Waits until this time. A suspension of the machine delays the result by at most
    /// [`MAX_SLEEP`].
    pub(crate) async fn sleep_until(&self, at: Time) {
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            // The runtime's timers stand still during a suspension, so this clock is read after each short sleep. A
            // simulated machine is never suspended, and short sleeps would slow the simulation.
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
    // On Apple's systems, this clock also counts while the machine sleeps. The clock of `Instant`
    // does not.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let time = clock_gettime(CLOCK);
    // The kernel never returns a negative time since the start of the machine.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Time::ZERO + Duration::new(seconds, nanos)
}

/// Returns the host's name, which is part of the identity.
pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    // The host's name may be ambiguous, because a UUID follows it.
    if name.is_empty() { "unknown".to_owned() } else { name }
}

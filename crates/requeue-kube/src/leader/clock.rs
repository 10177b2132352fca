//! A clock that goes on while the machine is suspended.

use std::time::Duration;

use requeue::Time;

/// How late it is noticed at most that a suspended machine has come back: timers stand still in
/// between, so that they look at the clock this often.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// The machine's, since it was started.
    #[cfg(unix)]
    Boot,
    /// Since this moment. Elsewhere it goes on in a suspended machine.
    #[cfg(not(unix))]
    Since(std::time::Instant),
    /// The runtime's, which a test can pause; and how long the machine was suspended.
    #[cfg(test)]
    Test(tokio::time::Instant, std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    pub(super) fn new() -> Self {
        #[cfg(unix)]
        return Self::Boot;
        #[cfg(not(unix))]
        return Self::Since(std::time::Instant::now());
    }

    pub(super) fn now(&self) -> Time {
        match self {
            #[cfg(unix)]
            Self::Boot => boot_time(),
            #[cfg(not(unix))]
            Self::Since(start) => Time::ZERO + start.elapsed(),
            #[cfg(test)]
            Self::Test(start, suspended) => {
                let suspended = suspended.load(std::sync::atomic::Ordering::Relaxed);
                Time::from_nanos(suspended) + start.elapsed()
            }
        }
    }

    /// Waits for this time, and not much longer should the machine be suspended meanwhile.
    pub(super) async fn reach(&self, at: Time) {
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }
}

#[cfg(unix)]
fn boot_time() -> Time {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // Of Apple's systems this one goes on while they sleep, where the one of `Instant` stands.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Time::ZERO + Duration::new(seconds, nanos)
}

/// The host's name, for an identity that says where its holder runs.
pub(super) fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

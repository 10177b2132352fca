//! A clock that reads the processor's counter. [`SystemClock`]'s thread wakes its alarms.

use std::sync::LazyLock;
use std::task::Waker;
use std::time::Duration;

use super::{Alarm, Clock, SystemClock};
use crate::Time;

/// The processor's time-stamp counter, which is read without a system call.
///
/// Reading the counter takes less than half the time of reading [`SystemClock`]. A queue with metrics reads the clock
/// in each operation, so reading the clock is a considerable part of the operation's cost. A queue with neither metrics
/// nor delays reads the clock so rarely that this clock saves no noticeable time.
///
/// **Accuracy.** The first [`TscClock::new`] measures the counter's rate once, by the system's clock. The error of this
/// measurement is permanent. It was 1 to 15 parts per million on the tested machines, which is up to 55 ms per hour.
/// NTP corrects the system's clock, but does not correct this error. Measured by the system's clock, delays are longer
/// or shorter by that error. Measured by this clock, no wait is too short, because a caller that is woken early reads
/// the clock, and continues to wait.
///
/// **Between threads.** All clocks of this type count from the same moment soon after the start of the process. This
/// moment is time 1 (in nanoseconds). In each thread, time never goes back. The times that two threads read at the same
/// time can differ by some tens of nanoseconds, because a processor may read its counter a few instructions ahead.
///
/// **Platforms.** The clock uses the counter on `x86_64` with an invariant counter, whose rate does not depend on the
/// processor's frequency, and on `aarch64` (except iOS). On other platforms, it reads the system's monotonic clock, at
/// the cost of that clock. The clock trusts the processor's description of its counter. If the kernel has found that
/// the counters of several processors differ, choose [`SystemClock`]. On Linux, the kernel has found such a difference
/// if `/sys/devices/system/clocksource/clocksource0/available_clocksource` does not list `tsc`.
///
/// **Suspend.** While a machine is suspended, the counter may stand still, continue, or restart from zero. A clock that
/// goes back makes callers wait longer. Use this clock only on servers. Do not use it in virtual machines that migrate
/// to hosts with another rate, unless their counter is scaled.
///
/// The thread of [`SystemClock`] wakes its alarms, at most an hour ahead.
///
/// # Examples
///
/// ```
/// use requeue::Queue;
/// use requeue::clock::TscClock;
///
/// let queue = Queue::builder().clock(TscClock::new()).build()?;
/// queue.add("default/web");
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TscClock {
    counter: quanta::Clock,
    /// The value of the counter at time 1.
    origin: u64,
}

impl TscClock {
    /// The longest time ahead for which an alarm is armed, because the two clocks drift apart.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// Returns the clock.
    ///
    /// The first call in a process measures the counter's rate, which takes about 1 ms of processor
    /// time, and at most 200 ms.
    #[must_use]
    pub fn new() -> Self {
        static FIRST: LazyLock<TscClock> = LazyLock::new(|| {
            let counter = quanta::Clock::new();
            let origin = counter.raw();
            TscClock { counter, origin }
        });
        FIRST.clone()
    }
}

impl Default for TscClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TscClock {
    fn now(&self) -> Time {
        // The difference is zero if this processor's counter is slightly behind the counter of the origin.
        let nanos = self.counter.delta_as_nanos(self.origin, self.counter.raw());
        Time::from_nanos(nanos.saturating_add(1))
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        // `left` is zero if `at` has come. The alarm then goes off immediately.
        let left = at.since(self.now()).min(Self::FARTHEST);
        SystemClock.arm(SystemClock.now() + left, waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

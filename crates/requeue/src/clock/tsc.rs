//! A clock that reads the counter of the processor. The thread of [`SystemClock`] wakes the wakers
//! of its alarms.

use std::sync::LazyLock;
use std::task::Waker;
use std::time::Duration;

use super::{Alarm, Clock, SystemClock};
use crate::Time;

/// A clock that reads the time-stamp counter of the processor, without a system call.
///
/// Reading this clock takes less than half the time of reading [`SystemClock`]. A queue with
/// metrics reads the clock in each operation, so the clock is a considerable part of the cost of an
/// operation. A queue with neither metrics nor delays reads the clock so rarely that this clock
/// saves no noticeable time.
///
/// **Accuracy.** The first [`TscClock::new`] measures the rate of the counter once, by the system's
/// clock. The error of this measurement is permanent. It was 1 to 15 parts per million on the
/// tested machines, which is up to 55 ms per hour. NTP corrects the system's clock, but not this
/// error. Measured by the system's clock, delays are longer or shorter by that error. Measured by
/// this clock, no delay is too short: a caller that is woken early reads this clock, and continues
/// to wait.
///
/// **Between threads.** All clocks of this type return the same time, which is 1 ns at the
/// first call of [`TscClock::new`] in the process. Within a thread, time never goes back. Two
/// threads that read the clock simultaneously can get times that differ by some tens of
/// nanoseconds, because a processor may read its counter a few instructions early.
///
/// **Platforms.** On `x86_64`, the clock uses the counter if it is invariant: its rate does not
/// depend on the frequency of the processor. On `aarch64` (except iOS), it always uses the counter.
/// On other platforms, it reads the system's monotonic clock, at the cost of that clock. The clock
/// trusts what the processor says about its counter. If the kernel has found that the counters of
/// several processors differ, use [`SystemClock`]. On Linux, this is the case if
/// `/sys/devices/system/clocksource/clocksource0/available_clocksource` does not list `tsc`.
///
/// **Suspend.** While a machine is suspended, the counter may stand still, continue, or restart
/// from zero. If the clock goes back, callers wait for longer. Use this clock only on servers. Do
/// not use it in virtual machines that migrate to hosts with a counter of a different rate, unless
/// the hosts scale the counter.
///
/// The thread of [`SystemClock`] wakes the wakers of this clock, at most an hour ahead.
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
    /// The value of the counter when the time of this clock is 1 ns.
    origin: u64,
}

impl TscClock {
    /// The longest time ahead for which an alarm is armed. It is limited, because this clock and
    /// `SystemClock` drift apart.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// Returns the clock. All calls in a process return the same clock.
    ///
    /// The first call in a process measures the rate of the counter. This takes about 1 ms of
    /// processor time, and at most 200 ms.
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
        // The difference is zero if the counter of this processor is slightly behind the counter
        // that was read first.
        let nanos = self.counter.delta_as_nanos(self.origin, self.counter.raw());
        Time::from_nanos(nanos.saturating_add(1))
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        // `left` is zero if `at` has already come. The alarm then wakes its waker immediately.
        let left = at.since(self.now()).min(Self::FARTHEST);
        SystemClock.arm(SystemClock.now() + left, waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

//! The processor's counter, and `SystemClock`'s thread.

use std::sync::LazyLock;
use std::task::Waker;
use std::time::Duration;

use super::{Alarm, Clock, SystemClock};
use crate::Time;

/// The processor's time-stamp counter, which is read without asking the system.
///
/// A look at it takes less than half of one at [`SystemClock`]. For a queue that looks at the clock
/// in each operation, as one with metrics does, this is a good part of what it costs; a queue that
/// has neither metrics nor delays hardly looks at it, and gains nothing.
///
/// **How exact.** The counter's rate is measured once, beside the system's clock, by the first
/// [`TscClock::new`]. What is missing to the true rate stays: 1 to 15 millionths where we tried it,
/// which is up to 55 ms an hour, and nobody corrects it as NTP does the system's clock. Delays are
/// longer or shorter by that much than they would be by the system's clock. By this clock itself
/// nothing is ever early: whoever is woken early looks at it, and waits for the rest.
///
/// **Between threads.** All clocks of this type agree and count from the same moment early in the
/// process's life, which is the time 1. Each thread sees time that never goes back; what two threads
/// read at once can differ by some tens of nanoseconds, because a processor may read its counter
/// a few instructions ahead.
///
/// **Where it works.** On `x86_64` with an invariant counter, which runs at one rate whatever the
/// processor's clock does, and on `aarch64` (but not iOS). Elsewhere this is the system's monotonic
/// clock, with its cost. What the processor says of itself is believed: where the kernel has found
/// that the counters of several processors differ, as Linux has where
/// `/sys/devices/system/clocksource/clocksource0/available_clocksource` does not list `tsc`, take
/// [`SystemClock`].
///
/// **Suspend.** While a machine is suspended the counter may stand still, go on, or start anew from
/// zero. A clock that goes back makes what waits wait longer, so this one is for servers and not for
/// laptops; and not for virtual machines that move to hosts of another rate, unless their counter is
/// scaled.
///
/// Alarms are [`SystemClock`]'s, at most an hour ahead, and its thread wakes.
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
    /// What the counter said at the time 1.
    origin: u64,
}

impl TscClock {
    /// How far ahead an alarm is armed at most: the two clocks drift apart.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// The clock, ready for use.
    ///
    /// The first one in a process measures the counter's rate, which takes about a millisecond of
    /// processor time, and at most 200.
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
        // Zero where another processor's counter is a little behind that of the origin.
        let nanos = self.counter.delta_as_nanos(self.origin, self.counter.raw());
        Time::from_nanos(nanos.saturating_add(1))
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        // What is left is nothing where `at` has come: that wakes at once.
        let left = at.since(self.now()).min(Self::FARTHEST);
        SystemClock.arm(SystemClock.now() + left, waker)
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

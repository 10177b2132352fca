//! Backoffs with an unlimited number of delays, and the rules by which they restart.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::time::Duration;

use super::Backoff;
use super::source::JitterSource;
use crate::types::Time;

/// Computes the delay of a loop before each iteration.
///
/// This is apimachinery's `BackoffManager`. That interface returns a timer. This trait returns the
/// delay, and the caller provides the timer.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::Time;
/// use requeue::wait::BackoffManager;
///
/// /// Returns the time since the start, so that the iterations become rarer.
/// struct AsLongAgain;
///
/// impl BackoffManager for AsLongAgain {
///     fn backoff(&mut self, now: Time) -> Duration {
///         now.since(Time::ZERO)
///     }
/// }
///
/// let mut manager: Box<dyn BackoffManager> = Box::new(AsLongAgain);
/// assert_eq!(manager.backoff(Time::from_nanos(5)), Duration::from_nanos(5));
/// ```
pub trait BackoffManager {
    /// Returns the time for which the loop must wait from `now` on.
    fn backoff(&mut self, now: Time) -> Duration;
}

impl<M: BackoffManager + ?Sized> BackoffManager for Box<M> {
    fn backoff(&mut self, now: Time) -> Duration {
        (**self).backoff(now)
    }
}

impl<M: BackoffManager + ?Sized> BackoffManager for &mut M {
    fn backoff(&mut self, now: Time) -> Duration {
        (**self).backoff(now)
    }
}

impl Backoff {
    /// Returns an unlimited number of delays: when the steps are used up, the last delay repeats.
    ///
    /// This is apimachinery's `Backoff.DelayFunc`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Time;
    /// use requeue::wait::{Backoff, BackoffManager, JitterSource};
    ///
    /// let backoff = Backoff {
    ///     duration: Duration::from_secs(1),
    ///     factor: 2.0,
    ///     steps: 2,
    ///     ..Backoff::default()
    /// };
    /// let mut delays = backoff.delay_func(JitterSource::new(42));
    /// assert_eq!([(); 4].map(|()| delays.backoff(Time::ZERO).as_secs()), [1, 2, 4, 4]);
    /// ```
    #[must_use]
    pub const fn delay_func(self, source: JitterSource) -> impl BackoffManager + Clone + Debug {
        DelayFunc { backoff: self, source }
    }

    /// Returns an unlimited number of delays, which restart at the first delay when more than
    /// `reset` has passed.
    ///
    /// The restart happens at the first call that is more than `reset` after the last restart.
    /// Before the first restart, the time is measured from `now`. If `reset` is zero, every delay
    /// is the first delay. If the clock goes back, the next restart is later by that time. This is
    /// apimachinery's `Backoff.DelayWithReset`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Time;
    /// use requeue::wait::{Backoff, BackoffManager, JitterSource};
    ///
    /// let second = Duration::from_secs(1);
    /// let backoff = Backoff { duration: second, factor: 2.0, steps: 9, ..Backoff::default() };
    /// let start = Time::ZERO;
    /// let mut delays = backoff.delay_with_reset(10 * second, start, JitterSource::new(42));
    /// assert_eq!(delays.backoff(start + 9 * second), second);
    /// assert_eq!(delays.backoff(start + 10 * second), 2 * second);
    /// assert_eq!(delays.backoff(start + 11 * second), second);
    /// ```
    #[must_use]
    pub const fn delay_with_reset(
        self,
        reset: Duration,
        now: Time,
        source: JitterSource,
    ) -> impl BackoffManager + Clone + Debug {
        DelayWithReset { backoff: self, initial: self, reset, last_reset: now, source }
    }
}

/// The result of [`Backoff::delay_func`].
#[derive(Clone, Debug)]
struct DelayFunc {
    backoff: Backoff,
    source: JitterSource,
}

impl BackoffManager for DelayFunc {
    fn backoff(&mut self, _now: Time) -> Duration {
        self.backoff.step(&mut self.source)
    }
}

/// The result of [`Backoff::delay_with_reset`].
#[derive(Clone, Debug)]
struct DelayWithReset {
    backoff: Backoff,
    initial: Backoff,
    reset: Duration,
    last_reset: Time,
    source: JitterSource,
}

impl BackoffManager for DelayWithReset {
    fn backoff(&mut self, now: Time) -> Duration {
        if self.reset.is_zero() || now.since(self.last_reset) > self.reset {
            self.backoff = self.initial;
            self.last_reset = now;
        }
        self.backoff.step(&mut self.source)
    }
}

/// A backoff with an unlimited number of delays, up to a maximum delay. It restarts after a quiet
/// time.
///
/// The backoff restarts at a call of [`backoff`](BackoffManager::backoff) that is more than `reset`
/// after the previous call, which is when the previous delay *started*. If the clock goes back, the
/// quiet time is zero. This is apimachinery's `NewExponentialBackoffManager`.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::Time;
/// use requeue::wait::{BackoffManager, ExponentialBackoffManager, JitterSource};
///
/// let second = Duration::from_secs(1);
/// let mut manager = ExponentialBackoffManager::new(
///     second,
///     10 * second,
///     60 * second,
///     2.0,
///     0.0,
///     JitterSource::new(42),
/// );
/// let mut now = Time::ZERO;
/// let mut round = || {
///     let delay = manager.backoff(now);
///     now = now + delay;
///     delay.as_secs()
/// };
/// assert_eq!([(); 6].map(|()| round()), [1, 2, 4, 8, 10, 10]);
/// assert_eq!(manager.backoff(now + 51 * second), second);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ExponentialBackoffManager {
    backoff: Backoff,
    initial: Duration,
    reset: Duration,
    /// The time at which the last delay started, or `None` before the first delay.
    last_start: Option<Time>,
    source: JitterSource,
}

impl ExponentialBackoffManager {
    /// Creates a backoff that starts at `initial`, and grows by `factor` up to `max`.
    ///
    /// Each delay gets a random part of up to `jitter` times the delay, like [`Backoff::jitter`].
    /// If `max` is zero, there is no maximum.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Time;
    /// use requeue::wait::{BackoffManager, ExponentialBackoffManager, JitterSource};
    ///
    /// let (second, reset) = (Duration::from_secs(1), Duration::from_secs(60));
    /// let source = JitterSource::new(42);
    /// let mut manager =
    ///     ExponentialBackoffManager::new(second, 10 * second, reset, 2.0, 1.0, source);
    /// assert!((second..=2 * second).contains(&manager.backoff(Time::ZERO)));
    /// ```
    pub const fn new(
        initial: Duration,
        max: Duration,
        reset: Duration,
        factor: f64,
        jitter: f64,
        source: JitterSource,
    ) -> Self {
        let backoff = Backoff { duration: initial, factor, jitter, steps: i32::MAX, cap: max };
        Self { backoff, initial, reset, last_start: None, source }
    }
}

impl BackoffManager for ExponentialBackoffManager {
    fn backoff(&mut self, now: Time) -> Duration {
        if self.last_start.is_some_and(|last| now.since(last) > self.reset) {
            self.backoff.steps = i32::MAX;
            self.backoff.duration = self.initial;
        }
        // The quiet time begins at the start of the delay, as in apimachinery.
        self.last_start = Some(now);
        self.backoff.step(&mut self.source)
    }
}

/// A constant period with jitter: each delay is the period plus a random part of up to `jitter`
/// times the period.
///
/// This is apimachinery's `NewJitteredBackoffManager`.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::Time;
/// use requeue::wait::{BackoffManager, JitterSource, JitteredBackoffManager};
///
/// let second = Duration::from_secs(1);
/// let mut manager = JitteredBackoffManager::new(second, 0.1, JitterSource::new(42));
/// assert!((second..=second.mul_f64(1.1)).contains(&manager.backoff(Time::ZERO)));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct JitteredBackoffManager(DelayFunc);

impl JitteredBackoffManager {
    /// Creates a manager with the period `duration`. If `jitter` is 0, negative or NaN, there is no
    /// jitter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Time;
    /// use requeue::wait::{BackoffManager, JitterSource, JitteredBackoffManager};
    ///
    /// let second = Duration::from_secs(1);
    /// let mut exact = JitteredBackoffManager::new(second, 0.0, JitterSource::new(42));
    /// assert_eq!(exact.backoff(Time::ZERO), second);
    /// ```
    pub const fn new(duration: Duration, jitter: f64, source: JitterSource) -> Self {
        // Without steps, the duration stays the same.
        let period = Backoff { duration, factor: 0.0, jitter, steps: 0, cap: Duration::ZERO };
        Self(DelayFunc { backoff: period, source })
    }
}

impl BackoffManager for JitteredBackoffManager {
    fn backoff(&mut self, now: Time) -> Duration {
        self.0.backoff(now)
    }
}

#[cfg(test)]
mod tests;

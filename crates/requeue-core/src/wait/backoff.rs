//! A backoff: delays that grow by a factor, up to a cap.

use core::iter::FusedIterator;
use core::time::Duration;

use super::source::{JitterSource, jitter, scaled};
use super::{DelayFunc, DelayWithReset};
use crate::types::time::Time;

/// Delays that grow by a factor, for a number of steps, up to a cap, each with jitter on top.
///
/// apimachinery's `Backoff`, to the letter where its delays can be had at all: there a delay that
/// grows too long to count becomes negative, here it stays at [`Duration::MAX`]. The default is
/// all zeros: no delay, ever, which is what a nil `Backoff` gives there.
///
/// Nothing panics, whatever the fields are.
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::wait::{Backoff, JitterSource};
///
/// let mut source = JitterSource::new(42);
/// let mut backoff = Backoff {
///     duration: Duration::from_secs(1),
///     factor: 2.0,
///     steps: 5,
///     cap: Duration::from_secs(3),
///     ..Backoff::default()
/// };
/// assert_eq!([(); 4].map(|()| backoff.step(&mut source).as_secs()), [1, 2, 3, 3]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backoff {
    /// The next delay, without its jitter. The first is not held to the cap.
    pub duration: Duration,
    /// What the duration is multiplied by at each step. At 0 the duration stays as it is; so it
    /// does when this makes no sense (below 0, or NaN).
    pub factor: f64,
    /// Each delay is its duration and a random part of `jitter · duration` on top. It is added
    /// after the cap, so a delay may be longer than that, and never feeds back into the duration.
    /// None at 0, below, and NaN.
    pub jitter: f64,
    /// How often the duration may still change. At 0 and below it stays as it is.
    pub steps: i32,
    /// The longest duration that the factor leads to; once it would lead further, the duration
    /// stays here and `steps` becomes 0. No cap when zero.
    pub cap: Duration,
}

impl Backoff {
    /// The delay to wait now; the backoff moves on to the next. apimachinery's `Backoff.Step`.
    ///
    /// It never ends: with the steps used up, it gives the last duration again and again.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::wait::{Backoff, JitterSource};
    ///
    /// let mut source = JitterSource::new(42);
    /// let second = Duration::from_secs(1);
    /// let mut backoff = Backoff { duration: second, factor: 2.0, steps: 3, ..Backoff::default() };
    /// assert_eq!([(); 6].map(|()| backoff.step(&mut source).as_secs()), [1, 2, 4, 8, 8, 8]);
    ///
    /// let mut jittered = Backoff { duration: second, jitter: 0.5, ..Backoff::default() };
    /// assert!((second..=second.mul_f64(1.5)).contains(&jittered.step(&mut source)));
    /// ```
    pub fn step(&mut self, source: &mut JitterSource) -> Duration {
        let duration = self.duration;
        if self.steps < 1 {
            self.steps = 0;
        } else {
            self.steps -= 1;
            self.grow();
        }
        if self.jitter > 0.0 { jitter(duration, self.jitter, source) } else { duration }
    }

    fn grow(&mut self) {
        // A factor of 0 leaves even a duration above the cap alone.
        if self.factor > 0.0 {
            self.duration = scaled(self.duration, self.factor);
            if !self.cap.is_zero() && self.duration > self.cap {
                self.duration = self.cap;
                self.steps = 0;
            }
        }
    }

    /// The delays, until the steps are used up: `steps` of them, or fewer, because reaching the cap
    /// uses up the steps.
    ///
    /// One attempt before each delay and one after the last makes `steps` + 1 attempts, or fewer.
    /// apimachinery's `ExponentialBackoff` makes one less: it ends with the last delay, and leaves
    /// even that out unless a cap ended it early.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::wait::{Backoff, JitterSource};
    ///
    /// let backoff = Backoff {
    ///     duration: Duration::from_millis(1),
    ///     factor: 2.0,
    ///     steps: 3,
    ///     ..Backoff::default()
    /// };
    /// let delays = backoff.delays(JitterSource::new(42)).map(|delay| delay.as_millis());
    /// assert!(delays.eq([1, 2, 4]));
    /// ```
    pub const fn delays(self, source: JitterSource) -> Delays {
        Delays { backoff: self, source }
    }

    /// The delays, without end. apimachinery's `Backoff.DelayFunc`.
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
    pub const fn delay_func(self, source: JitterSource) -> DelayFunc {
        DelayFunc::new(self, source)
    }

    /// The delays, without end, starting over when strictly more than `reset` has passed since it
    /// last did, or since `now`, when it is made. apimachinery's `Backoff.DelayWithReset`.
    ///
    /// With a `reset` of zero every delay is a first one.
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
    pub const fn delay_with_reset(
        self,
        reset: Duration,
        now: Time,
        source: JitterSource,
    ) -> DelayWithReset {
        DelayWithReset::new(self, reset, now, source)
    }
}

/// The delays of a [`Backoff`], until its steps are used up; see [`Backoff::delays`].
///
/// ```
/// # use requeue_core as requeue;
/// use requeue::wait::{Backoff, JitterSource};
///
/// let mut none = Backoff::default().delays(JitterSource::new(42));
/// assert_eq!(none.next(), None);
/// ```
#[derive(Clone, Debug)]
#[must_use = "iterators are lazy: without a call of `next` there is no delay"]
pub struct Delays {
    backoff: Backoff,
    source: JitterSource,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        (self.backoff.steps > 0).then(|| self.backoff.step(&mut self.source))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = usize::try_from(self.backoff.steps).unwrap_or(0);
        (most.min(1), Some(most))
    }
}

impl FusedIterator for Delays {}

#[cfg(test)]
mod tests;

//! A backoff: delays that grow by a factor, up to a cap.

use core::time::Duration;

use super::source::{JitterSource, jitter, scale_duration};

/// Delays that grow by a factor for a number of steps, up to a cap. Jitter is added to each delay.
///
/// This is apimachinery's `Backoff`, with the same delays except on overflow. In apimachinery, a delay that is too long
/// to represent becomes negative. In this crate, such a delay stays at [`Duration::MAX`]. All fields of the default are
/// zero, so the default gives no delay, like a nil `Backoff` in apimachinery.
///
/// No value of a field makes a method panic.
///
/// # Examples
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
    /// The next delay, without its jitter. The cap does not apply to the first delay.
    pub duration: Duration,
    /// The factor by which each step multiplies the duration. If the factor is 0, negative or NaN, the duration does
    /// not change.
    pub factor: f64,
    /// The maximum random part of a delay, as a multiple of its duration. Jitter is added after the cap, so a delay may
    /// be longer than the cap. Jitter never changes the duration itself. If this value is 0, negative or NaN, there is
    /// no jitter.
    pub jitter: f64,
    /// The number of times that the duration may still change. At 0 and below, the duration does
    /// not change.
    pub steps: i32,
    /// The maximum duration that the factor can lead to. When a step would exceed the maximum, the
    /// duration becomes `cap` and `steps` becomes 0. Zero means no cap.
    pub cap: Duration,
}

impl Backoff {
    /// Returns the present delay, and advances the backoff to the next delay.
    ///
    /// This is apimachinery's `Backoff.Step`. The number of delays is unlimited: when the steps are
    /// used up, each call returns the last duration.
    ///
    /// # Examples
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
            self.grow_duration();
        }
        // Jitter is not part of the next duration, and is added after the cap, as in apimachinery.
        if self.jitter > 0.0 { jitter(duration, self.jitter, source) } else { duration }
    }

    fn grow_duration(&mut self) {
        // A factor of 0 does not shorten a duration above the cap.
        if self.factor > 0.0 {
            self.duration = scale_duration(self.duration, self.factor);
            if !self.cap.is_zero() && self.duration > self.cap {
                self.duration = self.cap;
                self.steps = 0;
            }
        }
    }

    /// Returns the delays until the steps are used up.
    ///
    /// There are at most `steps` delays. There are fewer if a delay reaches the cap, which uses up the steps. A caller
    /// that makes one attempt before each delay, and one attempt after the last delay, makes at most `steps` + 1
    /// attempts. apimachinery's `ExponentialBackoff` makes no attempt after the last delay. apimachinery also omits the
    /// last delay, unless the cap ended the delays early.
    ///
    /// # Examples
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
    pub fn delays(mut self, mut source: JitterSource) -> impl Iterator<Item = Duration> {
        core::iter::from_fn(move || (self.steps > 0).then(|| self.step(&mut source)))
    }
}

#[cfg(test)]
mod tests;

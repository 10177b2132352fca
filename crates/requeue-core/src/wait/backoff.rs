//! A backoff: delays that grow by a factor up to a maximum (cap).

use core::time::Duration;

use super::source::{JitterSource, jitter, scale_duration};

/// Delays that grow by a factor for a number of steps, up to a cap. Each delay also gets jitter, a
/// random part.
///
/// This is apimachinery's `Backoff`. The delays are the same except on overflow: a delay that is
/// too long to represent becomes negative in apimachinery, and [`Duration::MAX`] in this crate. All
/// fields of the default value are zero, so every delay is zero, as with a nil `Backoff` in
/// apimachinery.
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
    /// The next delay, without jitter. The first delay may be longer than the cap.
    pub duration: Duration,
    /// The factor by which each step multiplies `duration`. If it is 0, negative or NaN, `duration`
    /// does not change.
    pub factor: f64,
    /// The maximum random part of a delay, as a multiple of `duration`. Jitter is added after the
    /// cap is applied, so a delay may be longer than the cap. Jitter does not change `duration`. If
    /// this field is 0, negative or NaN, there is no jitter.
    pub jitter: f64,
    /// The number of steps that can still change `duration`. If it is 0 or negative, `duration`
    /// does not change.
    pub steps: i32,
    /// The maximum of `duration` after a step. If a step would exceed it, `duration` becomes `cap`,
    /// and `steps` becomes 0. Zero means no maximum.
    pub cap: Duration,
}

impl Backoff {
    /// Returns the next delay, and advances the backoff by one step.
    ///
    /// This is apimachinery's `Backoff.Step`. The method can be called any number of times: when
    /// the steps are used up, `duration` stays the same.
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
        // Jitter is added after the cap is applied, and does not become part of the next duration,
        // as in apimachinery.
        if self.jitter > 0.0 { jitter(duration, self.jitter, source) } else { duration }
    }

    fn grow_duration(&mut self) {
        // With a factor of 0, even a duration above the cap does not change.
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
    /// The iterator returns at most `steps` delays. It returns fewer if a delay reaches the cap,
    /// which uses up the steps. A caller that makes one attempt before each delay, and one after
    /// the last delay, makes at most `steps` + 1 attempts.
    ///
    /// apimachinery's `ExponentialBackoff` makes no attempt after the last delay. It also omits the
    /// last delay, unless a delay reached the cap.
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

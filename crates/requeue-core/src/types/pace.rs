//! The pace: a limit on how often one key runs.

use core::time::Duration;

/// A limit on how often one key runs: at most `runs` starts in every window of the length `per`.
///
/// Every run counts, including a run that succeeds. A run that would exceed the pace waits until the pace permits it.
/// Further adds of the key become part of that run, so no add is dropped. Other keys do not wait.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::Pace;
///
/// let second = Duration::from_secs(1);
/// assert_ne!(Pace::new(10, 60 * second), Pace::min_interval(6 * second));
/// assert_eq!(Pace::min_interval(second), Pace::new(1, second));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Pace {
    runs: u32,
    per: Duration,
}

impl Pace {
    /// The largest number of runs of a pace. The queue keeps the time of each start in a window, and
    /// this limit bounds that memory to 8 kB per key.
    pub const MAX_RUNS: u32 = 1000;

    /// Creates the pace of at most `runs` starts of one key in every window of the length `per`.
    ///
    /// `runs` must be between 1 and [`MAX_RUNS`](Self::MAX_RUNS), and `per` must be above zero. Building a queue with
    /// any other pace is an error.
    #[must_use]
    pub const fn new(runs: u32, per: Duration) -> Self {
        Self { runs, per }
    }

    /// Creates the pace of at most one start of a key in every window of the length `interval`: the
    /// time between two starts is at least `interval`.
    #[must_use]
    pub const fn min_interval(interval: Duration) -> Self {
        Self::new(1, interval)
    }

    /// Returns the number of starts that one window permits.
    // The methods that return these values are hidden, because a user knows the values and only
    // `requeue` needs the methods.
    #[doc(hidden)]
    #[must_use]
    pub const fn runs(&self) -> u32 {
        self.runs
    }

    /// Returns the length of a window.
    #[doc(hidden)]
    #[must_use]
    pub const fn per(&self) -> Duration {
        self.per
    }

    /// Returns true if a queue can have this pace, which requires that both values are in their ranges.
    // This method is hidden, because users get the error of `Builder::build` of `requeue`.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.runs >= 1 && self.runs <= Self::MAX_RUNS && !self.per.is_zero()
    }
}

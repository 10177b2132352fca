//! The pace: a limit on how often one key runs.

use core::time::Duration;

/// A limit on how often one key runs: at most `runs` starts in every window of the length `per`.
///
/// Every run is included, even a run that succeeds. If a run would exceed the limit, it waits until
/// the pace permits its start. Further adds of the key become part of this run, so no add is
/// dropped. Other keys do not wait.
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
    /// The maximum number of runs of a pace. The queue stores the time of each start in the window.
    /// This maximum limits that memory to 8 kB per key.
    pub const MAX_RUNS: u32 = 1000;

    /// Creates the pace of at most `runs` starts of one key in every window of the length `per`.
    ///
    /// `runs` must be between 1 and [`MAX_RUNS`](Self::MAX_RUNS), and `per` must not be zero. With
    /// other values, building the queue fails.
    #[must_use]
    pub const fn new(runs: u32, per: Duration) -> Self {
        Self { runs, per }
    }

    /// Creates the pace of at most one start of a key in every window of the length `interval`. The
    /// time between two starts of a key is then at least `interval`.
    #[must_use]
    pub const fn min_interval(interval: Duration) -> Self {
        Self::new(1, interval)
    }

    /// Returns the maximum number of starts in one window.
    // The two getters are hidden: users know the values that they passed, and only `requeue` calls
    // the getters.
    #[doc(hidden)]
    #[must_use]
    pub const fn runs(&self) -> u32 {
        self.runs
    }

    /// Returns the length of one window.
    #[doc(hidden)]
    #[must_use]
    pub const fn per(&self) -> Duration {
        self.per
    }

    /// Returns true if both values are in their ranges, so that a queue can have this pace.
    // This method is hidden: users get the error of `Builder::build` of `requeue`.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.runs >= 1 && self.runs <= Self::MAX_RUNS && !self.per.is_zero()
    }
}

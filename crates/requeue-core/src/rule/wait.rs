//! The wait of a key for its due time, and the bound of debounced adds.

use crate::types::Merge;

/// The wait of a key for its due time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait<T> {
    /// The due time of the pending run.
    pub due: T,
    /// The latest time to which debounced adds can postpone the run, if the key waits for such
    /// adds.
    pub bound: Option<T>,
}

impl<T: Copy + Ord> Wait<T> {
    /// Returns the latest time to which a debounced add may postpone the run. A due time without a bound counts as the
    /// bound.
    #[inline]
    pub fn latest(self) -> T {
        self.bound.unwrap_or(self.due)
    }

    /// Returns the wait after a delayed add that is due at `due`.
    ///
    /// | merge | due time | bound |
    /// |---|---|---|
    /// | `Earliest` | the earlier due time | the earlier of the old bound and `due` |
    /// | `Latest`, `due` is later | `due` | none |
    /// | `Latest`, otherwise | no change | no change |
    /// | `Exactly` | `due` | none |
    #[inline(always)]
    #[must_use]
    pub fn merged(self, due: T, merge: Merge) -> Self {
        match merge {
            Merge::Earliest => {
                Self { due: self.due.min(due), bound: self.bound.map(|bound| bound.min(due)) }
            }
            Merge::Latest if due <= self.due => self,
            Merge::Latest | Merge::Exactly => Self { due, bound: None },
        }
    }

    /// Returns the wait after a debounced add that is due at `due` and has a `bound`.
    ///
    /// [`permit`](super::permit) ensures that `due` is at most [`latest`](Self::latest), or the end
    /// of a later backoff.
    #[inline]
    #[must_use]
    pub fn debounced(self, due: T, bound: T) -> Self {
        Self { due, bound: Some(self.latest().min(bound)) }
    }

    /// Returns the wait after an add that is due at `due`: a debounced add if it has a `bound`.
    #[inline(always)]
    #[must_use]
    pub fn with_add(self, due: T, merge: Merge, bound: Option<T>) -> Self {
        match bound {
            Some(bound) => self.debounced(due, bound),
            None => self.merged(due, merge),
        }
    }

    /// Returns the wait after a flush of the debounced adds: the run may start at `permitted`.
    #[inline]
    #[must_use]
    pub fn flushed(self, permitted: T) -> Self {
        Self { due: self.due.min(permitted), bound: None }
    }
}

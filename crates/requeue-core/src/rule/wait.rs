//! The wait of a key for its due time, and the bound of debounced adds.

use crate::types::Merge;

/// The due time of a waiting key, with the bound of its debounced adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait<T> {
    /// The due time of the pending run.
    pub due: T,
    /// The latest time to which further debounced adds can postpone the run. `None` if the key
    /// waits for no debounced adds.
    pub bound: Option<T>,
}

impl<T: Copy + Ord> Wait<T> {
    /// Returns the latest time to which a debounced add may postpone the run: the bound. If there
    /// is no bound, this is the due time.
    #[inline]
    pub fn latest(self) -> T {
        self.bound.unwrap_or(self.due)
    }

    /// Returns the wait after a delayed add whose due time is `due`.
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

    /// Returns the wait after a debounced add with the due time `due` and the bound `bound`.
    ///
    /// [`permit`](super::permit) has made sure that `due` is at most [`latest`](Self::latest), or
    /// is the end of a backoff that ends later.
    #[inline]
    #[must_use]
    pub fn debounced(self, due: T, bound: T) -> Self {
        Self { due, bound: Some(self.latest().min(bound)) }
    }

    /// Returns the wait after an add with the due time `due`. The add is debounced if `bound` is
    /// present.
    #[inline(always)]
    #[must_use]
    pub fn with_add(self, due: T, merge: Merge, bound: Option<T>) -> Self {
        match bound {
            Some(bound) => self.debounced(due, bound),
            None => self.merged(due, merge),
        }
    }

    /// Returns the wait after a flush, which ends the wait for debounced adds. The run may start at
    /// `permitted`.
    #[inline]
    #[must_use]
    pub fn flushed(self, permitted: T) -> Self {
        Self { due: self.due.min(permitted), bound: None }
    }
}

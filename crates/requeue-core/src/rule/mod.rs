//! The rules: pure functions that decide what an add, a completion, a cancel or a due time changes
//! in the state of a key.
//!
//! The parameters of a rule are the state of a key, the settings of its queue and a time. The queue
//! in memory applies the result to its slab, heap and lists. A store in SQLite applies it to a row.
//! The stores in PostgreSQL and Redis implement the same rules in SQL and Lua. The conformance
//! suite compares all of them.
//!
//! | decision | rule |
//! |---|---|
//! | the phase after an operation | [`table`] |
//! | the time at which the run that an add requests may start | [`permit`] |
//! | the effect of an add with a due time: it joins the pending run, or waits | [`later`] |
//! | the due time after two adds, and the bound of debounced adds | [`Wait`] |
//! | the pending run after an add that reports a failure: it may have to wait | [`postpones`] |
//! | the failures, adds and runs after a completion | [`complete`] |
//! | the failures that the backoff counts, and the length of the backoff | [`backoff`] |
//! | the priority of the pending run | [`priority`] |
//! # Differences between the queue in memory and a store
//!
//! These differences are methods of [`KeyState`] with a default, which is the value in a store.
//! A store has no pace, and is never shut down. [`ReaddPolicy::KeepBoth`] and [`How::Restarted`]
//! exist only in memory. [`How::Park`] exists only in a store.
//!
//! A rule that applies only in memory, or only in a store, is in another module. Only a store has
//! leases, claims, and the return of claimed keys that no worker took. Only the queue in memory has
//! restarts, groups, and the starts that count toward the pace. The jitter also differs: a limiter
//! draws a random number for each delay, and a store draws one number for a batch of delays.

mod add;
pub mod backoff;
mod completion;
mod phase;
mod wait;

pub use self::add::{Later, Permit, Wish, later, permit, postpones, priority};
pub use self::completion::{Adds, Failures, How, Plan, Start, complete};
pub use self::phase::{Cell, Row, table};
pub use self::wait::Wait;
use crate::types::{Ending, Phase};

#[cfg(doc)]
use crate::types::ReaddPolicy;

/// The part of a key's state that the rules read.
///
/// Some of the methods look up a value in a table. A rule therefore calls a method only if it needs
/// the result.
pub trait KeyState {
    /// A point in time. The rules do nothing with times but compare them.
    type Time: Copy + Ord;

    /// Returns the phase of the key.
    fn phase(&self) -> Phase;

    /// Returns the due time of the key and its bound, if the key waits.
    fn wait(&self) -> Option<Wait<Self::Time>>;

    /// Returns true if the key has a due time.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.wait().is_some()
    }

    /// Returns the end of the backoff. If the key does not back off, returns any time that has
    /// passed.
    fn not_before(&self) -> Self::Time;

    /// Returns the time before which the pace permits no start, if this time is after `now`.
    #[inline]
    fn paced(&self, _now: Self::Time) -> Option<Self::Time> {
        None
    }

    /// Returns the lifecycle state of the queue.
    #[inline]
    fn ending(&self) -> Ending {
        Ending::Open
    }

    /// Returns true if the queue or the group of the key is paused.
    #[inline]
    fn is_stopped(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;

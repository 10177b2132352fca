//! The rules of a key: the effects of an add, a completion, a cancel, and a due time.
//!
//! Each rule is a pure function of the state of a key, the settings of its queue and a time. The queue
//! in memory applies the results to its slab, heap and lists, and a store in SQLite to a row.
//! PostgreSQL and Redis have the same rules in SQL and Lua, which the conformance suite compares.
//!
//! | decision | rule |
//! |---|---|
//! | the phase after an operation | [`table`] |
//! | the time at which the run of an add may start | [`permit`] |
//! | whether an add joins the pending run, or waits | [`later`] |
//! | the due time after two adds, and the bound of debounced adds | [`Wait`] |
//! | whether an add that reports a failure postpones the pending run | [`postpones`] |
//! | the failures, adds and runs after a completion | [`complete`] |
//! | whether a failure counts for the backoff, and the length of the backoff | [`backoff`] |
//! | the priority of the pending run | [`priority`] |
//!
//! # Differences between the queue in memory and a store
//!
//! [`KeyState`] expresses these differences as methods with a default, which is the value for a store. A store has no
//! pace, and is not shut down. [`ReaddPolicy::KeepBoth`] and [`How::Restarted`] exist only in memory, and [`How::Park`]
//! only in a store.
//!
//! Rules that apply only in memory or only in a store are in other modules. Only a store has leases, claims, and the
//! return of claimed keys that no worker took. Only the queue in memory has restarts, groups, and the starts that the
//! pace counts. The jitter also differs: a limiter draws a number for each delay, and a store draws one number for a
//! batch.

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

/// The part of a key's state that the rules need.
///
/// A rule calls a method only if it needs the result, because some results need a lookup.
pub trait KeyState {
    /// A point in time. The rules only compare times.
    type Time: Copy + Ord;

    /// Returns the phase.
    fn phase(&self) -> Phase;

    /// Returns the wait of the key for its due time, if any.
    fn wait(&self) -> Option<Wait<Self::Time>>;

    /// Returns true if the key has a due time.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.wait().is_some()
    }

    /// Returns the end of the backoff, or any time that has passed if the key does not back off.
    fn not_before(&self) -> Self::Time;

    /// Returns the time until which the pace permits no start, if this time is after `now`.
    #[inline]
    fn paced(&self, _now: Self::Time) -> Option<Self::Time> {
        None
    }

    /// Returns the lifecycle state of the queue.
    #[inline]
    fn ending(&self) -> Ending {
        Ending::Open
    }

    /// Returns true if the queue or the key's group is paused.
    #[inline]
    fn is_stopped(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;

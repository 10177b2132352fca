//! The deliberate differences from client-go. The table is in docs/reference/conformance.md.

use std::collections::BTreeMap;
use std::fmt;

/// A deliberate difference. The replay accepts and counts the difference only in the intended case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Difference {
    DoneNeedsADelivery,
    DroppedItemHasFailed,
    DrainWaitsForWhatIsReady,
    EveryDrainIsWoken,
    ShutDownEndsEveryDrain,
    WhatWaitsAtAShutdownIsReturned,
    EqualDeadlinesComeInOrderOfArrival,
    RefusedAddIsNoFailure,
    DroppedKeyIsForgotten,
    LongestDelayIsNever,
    GaugesAreRightWhenAsked,
    QueuedFromWhenItWasSeenDue,
    BackoffSaturates,
    PollCountsFromItsLastTry,
    StopWinsOverATimeout,
}

impl Difference {
    pub(crate) const ALL: [Self; 15] = [
        Self::DoneNeedsADelivery,
        Self::DroppedItemHasFailed,
        Self::DrainWaitsForWhatIsReady,
        Self::EveryDrainIsWoken,
        Self::ShutDownEndsEveryDrain,
        Self::WhatWaitsAtAShutdownIsReturned,
        Self::EqualDeadlinesComeInOrderOfArrival,
        Self::RefusedAddIsNoFailure,
        Self::DroppedKeyIsForgotten,
        Self::LongestDelayIsNever,
        Self::GaugesAreRightWhenAsked,
        Self::QueuedFromWhenItWasSeenDue,
        Self::BackoffSaturates,
        Self::PollCountsFromItsLastTry,
        Self::StopWinsOverATimeout,
    ];
}

/// Prints the name, which is the same in the table and of the test: `DoneNeedsADelivery` is `done_needs_a_delivery`.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, letter) in format!("{self:?}").chars().enumerate() {
            if at > 0 && letter.is_uppercase() {
                f.write_str("_")?;
            }
            write!(f, "{}", letter.to_lowercase())?;
        }
        Ok(())
    }
}

/// The number of occurrences of each difference.
#[derive(Default, Debug)]
pub(crate) struct Met(pub(crate) BTreeMap<Difference, u64>);

impl Met {
    pub(crate) fn note(&mut self, difference: Difference) {
        *self.0.entry(difference).or_default() += 1;
    }
}

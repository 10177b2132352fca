//! The failed runs of a key, as engines store them.
//!
//! An engine stores the n-th consecutive failure in the slot n mod [`SLOTS`]. Therefore, a new failure replaces the
//! oldest failure without a search. Slots can still contain failures from before the last success. They can be
//! recognized by their numbers, which are greater than the key's number of failures: a new failure replaces any failure
//! with a lower number.

use std::sync::Arc;

use crate::engine::Failure;
use crate::engine::row::Row;
use crate::engine::time::{Micros, micros, until};
use crate::types::inspect::Attempt;

/// The maximum number of failures that an engine stores for a key.
pub(crate) const SLOTS: u32 = 3;
/// The maximum number of failures that an engine stores for a queue. In Redis, the number applies to each shard.
/// `rows.lua` and `attempts.sql` repeat the value.
#[allow(dead_code, reason = "only some engines use it")]
pub(crate) const MOST: i64 = 10_000;

/// A failed run, as engines store it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    /// The number of consecutive failures, including this one.
    pub(crate) number: u32,
    /// The time at which the run ended.
    pub(crate) at: Micros,
    pub(crate) took: Micros,
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) error: String,
    pub(crate) output: String,
}

impl Failed {
    /// Returns the failure of the run that the key of `row` has in flight.
    #[allow(dead_code, reason = "only some engines use it")]
    pub(crate) fn of_run(row: &Row, failure: &Failure, now: Micros) -> Self {
        let since = row.run.map_or(now, |run| run.since);
        Self {
            number: row.failures.saturating_add(1),
            at: now,
            took: failure.took.map_or_else(|| now.saturating_sub(since).max(0), micros),
            worker: row.worker.clone(),
            exit_status: failure.exit_status,
            error: failure.error.clone(),
            output: failure.output.clone(),
        }
    }

    /// Returns the slot of the failure.
    #[allow(dead_code, reason = "only some engines use it")]
    pub(crate) const fn slot(&self) -> u32 {
        self.number % SLOTS
    }

    fn into_attempt(self, now: Micros) -> Attempt {
        Attempt {
            number: self.number,
            ended: until(self.at, now),
            took: until(0, self.took),
            worker: self.worker.as_deref().filter(|name| !name.is_empty()).map(str::to_owned),
            exit_status: self.exit_status,
            error: self.error,
            output: Some(self.output).filter(|output| !output.is_empty()),
        }
    }
}

/// Returns the last `failures` consecutive failures of a key, the newest first, as far as `kept` contains them.
pub(crate) fn last_attempts(mut kept: Vec<Failed>, failures: u32, now: Micros) -> Vec<Attempt> {
    kept.retain(|failed| {
        failed.number <= failures && failed.number > failures.saturating_sub(SLOTS)
    });
    kept.sort_by_key(|failed| std::cmp::Reverse(failed.number));
    kept.into_iter().map(|failed| failed.into_attempt(now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_an_earlier_row_is_not_shown() {
        let failed = |number| Failed {
            number,
            at: 5,
            took: 1,
            worker: None,
            exit_status: None,
            error: "no".to_owned(),
            output: String::new(),
        };
        let numbers = |kept: &[u32], failures| -> Vec<u32> {
            let kept = kept.iter().copied().map(failed).collect();
            last_attempts(kept, failures, 9).into_iter().map(|attempt| attempt.number).collect()
        };
        for earlier in 0..8 {
            let mut slots = [0; SLOTS as usize];
            let mut fail = |number: u32| slots[(number % SLOTS) as usize] = number;
            (1..=earlier).for_each(&mut fail);
            for failures in 1..8 {
                slots[(failures % SLOTS) as usize] = failures;
                let kept: Vec<_> = slots.into_iter().filter(|&number| number > 0).collect();
                let last: Vec<_> = (1..=failures).rev().take(SLOTS as usize).collect();
                assert_eq!(numbers(&kept, failures), last, "{failures} after {earlier}");
            }
        }
        assert_eq!(numbers(&[1, 2, 3], 0), []);
    }
}

//! Adds up the activity of all processes, for dashboards and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use requeue::metrics;

use crate::types::activity::{Activity, Tally};

/// The period of activity that each read covers. If a process reads less often than once in this period, the sums miss
/// some minutes.
pub(crate) const WINDOW: Duration = Duration::from_secs(3600);
/// The number of latest minutes whose numbers may still change.
const MINUTES: i64 = 60;

/// The activity of all processes since the first read, plus the activity of this process before that read.
///
/// Therefore, the sums begin at the numbers of this process, and never decrease.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// The sum at the first read, without the activity of this process. It is `None` before that read.
    before: Option<Tally>,
    /// The sum of all minutes before the minutes in `minutes`.
    past: Tally,
    minutes: BTreeMap<i64, Tally>,
    /// The first minute that is not in `past`.
    first: i64,
    workers: usize,
    longest_running: Duration,
}

impl Fleet {
    /// Includes the result of a read in the sums. `own` is the part of the read that is activity of this process.
    pub(crate) fn note(&mut self, read: &Activity, own: &Tally) {
        self.workers = read.workers.len();
        let running = read.workers.iter().flat_map(|worker| &worker.running);
        self.longest_running = running.filter_map(|entry| entry.since).max().unwrap_or_default();
        for minute in read.minutes.iter().filter(|minute| minute.number >= self.first) {
            self.minutes.insert(minute.number, minute.tally.clone());
        }
        let last = self.minutes.last_key_value().map_or(self.first, |(&last, _)| last);
        self.first = self.first.max(last - MINUTES);
        let recent = self.minutes.split_off(&self.first);
        for past in std::mem::replace(&mut self.minutes, recent).into_values() {
            self.past.merge(&past);
        }
        if self.before.is_none() {
            self.before = Some(self.sum().since(own));
        }
    }

    fn sum(&self) -> Tally {
        let mut sum = self.past.clone();
        self.minutes.values().for_each(|minute| sum.merge(minute));
        sum
    }

    /// Returns the sums. Returns `None` before the first read.
    pub(crate) fn total(&self) -> Option<metrics::Fleet> {
        let total = self.sum().since(self.before.as_ref()?);
        let mut fleet = metrics::Fleet::default();
        fleet.adds = total.adds;
        fleet.coalesced = total.coalesced;
        fleet.starts = total.starts;
        fleet.successes = total.successes;
        fleet.failures = total.failures;
        fleet.given_up = total.given_up;
        (fleet.queued, fleet.worked) = (total.queued, total.worked);
        (fleet.workers, fleet.longest_running) = (self.workers, self.longest_running);
        Some(fleet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::activity::Minute;

    fn read(minutes: &[(i64, u64)]) -> Activity {
        let minute = |&(number, adds)| {
            let tally = Tally { adds, ..Tally::default() };
            Minute { number, ago: Duration::ZERO, tally }
        };
        Activity { minutes: minutes.iter().map(minute).collect(), ..Activity::default() }
    }

    #[test]
    fn the_sums_begin_with_the_work_of_this_process_and_never_go_back() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.total(), None);
        let own = Tally { adds: 3, ..Tally::default() };
        let mut adds = Vec::new();
        for minutes in [
            &[(100, 10), (159, 7)][..],
            &[(100, 10), (159, 9), (160, 1)],
            // Minute 100 is now in `past`. A later read that still returns this minute must not count it twice.
            &[(100, 10), (161, 2)],
            &[(100, 10), (161, 3)],
            // After hours without a read, only the last hour is known.
            &[(900, 5)],
            &[],
        ] {
            fleet.note(&read(minutes), &own);
            adds.extend(fleet.total().map(|total| total.adds));
        }
        assert_eq!(adds, [3, 6, 8, 9, 14, 14]);
    }
}

//! Counts the activity of this process on a queue, for metrics.

use std::sync::Mutex;
use std::time::Duration;

use requeue::metrics::Sample;

use crate::engine::{Ask, Delivery, Finish, lock};
use crate::types::activity::Tally;
use crate::types::add::{Added, repeat_answer};
use crate::types::inspect::StateCounts;

/// The counters of this process for one queue.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Counted>);

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// The values that this process counts or measures. They do not include the number of keys, which the store counts.
    sample: Sample,
    successes: u64,
}

impl Counters {
    /// Counts the adds that the store has answered.
    pub(crate) fn count_adds(&self, asks: &[Ask], answers: &[Option<Added>]) {
        let counts = &mut lock(&self.0).sample.totals;
        for (ask, answer) in asks.iter().zip(answers) {
            let Some(mut added) = *answer else { continue };
            for _ in 0..ask.adds {
                counts.adds += 1;
                match added {
                    Added::New | Added::Dirty | Added::Revived => counts.enqueued += 1,
                    // A key that backs off also has a pending run, with which the add is coalesced.
                    Added::Coalesced | Added::BackingOff => counts.coalesced += 1,
                    _ => {}
                }
                added = repeat_answer(added);
            }
            if ask.add.after > Duration::ZERO {
                counts.retries += u64::from(ask.adds);
            }
        }
    }

    /// Counts the delivery of keys. `queued` has the time for which each key was ready.
    pub(crate) fn count_deliveries(&self, queued: impl Iterator<Item = Duration>) {
        let done = &mut lock(&self.0).sample;
        for queued in queued {
            done.totals.deliveries += 1;
            done.times.queued.observe(queued);
        }
    }

    /// Counts the completion of a delivery. `worked` is the time for which the worker has processed the key.
    pub(crate) fn count_completion(&self, worked: Duration, how: &Finish, out: &Delivery) {
        let counted = &mut *lock(&self.0);
        let done = &mut counted.sample;
        done.times.worked.observe(worked);
        match how {
            Finish::Succeed => counted.successes += 1,
            Finish::RequeueAfter(..) => {
                counted.successes += 1;
                done.totals.adds += 1;
                done.totals.retries += 1;
            }
            how if how.failure().is_some() => {
                let failures = out.failures.saturating_add(1);
                done.totals.failures += 1;
                done.consecutive.observe(failures);
                if how.parks(failures) {
                    done.given_up += 1;
                } else {
                    done.totals.retries += 1;
                }
            }
            _ => {}
        }
    }

    /// Counts the completion of a delivery whose lease had expired. The store counts the expiry as a failure, even if
    /// the run succeeded. A cancelled run is not a failure. If the expiry parks the key, the process whose claim finds
    /// the expired lease counts the parked key.
    pub(crate) fn lost(&self, worked: Duration, out: &Delivery, is_cancelled: bool) {
        let done = &mut lock(&self.0).sample;
        done.times.worked.observe(worked);
        if !is_cancelled {
            done.totals.failures += 1;
            done.consecutive.observe(out.failures.saturating_add(1));
        }
    }

    /// Counts keys that claims of this process have parked, because their leases expired.
    pub(crate) fn count_parked(&self, keys: u64) {
        lock(&self.0).sample.given_up += keys;
    }

    pub(crate) fn count_panic(&self) {
        lock(&self.0).sample.panics += 1;
    }

    /// Returns the part of the counters that the store adds up over all processes.
    pub(crate) fn tally(&self) -> Tally {
        let Counted { sample, successes } = *lock(&self.0);
        let totals = &sample.totals;
        Tally {
            adds: totals.adds,
            coalesced: totals.coalesced,
            starts: totals.deliveries,
            successes,
            failures: totals.failures,
            given_up: sample.given_up,
            queued: sample.times.queued,
            worked: sample.times.worked,
        }
    }

    /// Returns the values of the metrics. `counts` are the numbers of keys, which the store counted `ago` before now.
    /// `held` has the time for which this process has held each of its keys.
    pub(crate) fn sample(&self, counts: StateCounts, ago: Duration, held: Vec<Duration>) -> Sample {
        // The function works on a copy, so that it does not hold the lock during the loop over the keys in flight.
        let mut sample = lock(&self.0).sample;
        let number = |keys: u64| usize::try_from(keys).unwrap_or(usize::MAX);
        sample.depth = number(counts.ready + counts.dirty);
        sample.waiting = number(counts.waiting);
        sample.in_flight = number(counts.in_flight);
        sample.parked = Some(number(counts.parked));
        sample.counts_age = Some(ago);
        if counts.ready > 0 {
            sample.times.oldest_ready = counts.oldest_ready + ago;
        }
        for time in held {
            sample.times.unfinished_work += time;
            sample.times.longest_running = sample.times.longest_running.max(time);
        }
        sample
    }
}

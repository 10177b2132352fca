//! What this process has done with a queue, for metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::metrics::Sample;

use crate::engine::{Ask, Finish, HandOut};
use crate::types::add::Added;
use crate::types::inspect::Counts;

/// Of one queue in one process.
#[derive(Debug, Default)]
pub(crate) struct Counters(
    /// Only what is counted or measured here; not how many keys there are.
    Mutex<Sample>,
);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked for, as far as it was done.
    pub(crate) fn added(&self, asks: &[Ask], answers: &[Option<Added>]) {
        let counts = &mut self.lock().counts;
        for (ask, answer) in asks.iter().zip(answers) {
            let Some(mut added) = *answer else { continue };
            for _ in 0..ask.adds {
                match added {
                    Added::New | Added::Dirty | Added::Revived => counts.adds += 1,
                    // What holds it is a run that waits.
                    Added::Coalesced | Added::Held => counts.coalesced += 1,
                    Added::Parked => {}
                }
                added = added.again();
            }
            if ask.add.after > Duration::ZERO {
                counts.retries += u64::from(ask.adds);
            }
        }
    }

    /// Keys are delivered that were ready for so long.
    pub(crate) fn delivered(&self, queued: impl Iterator<Item = Duration>) {
        let done = &mut self.lock();
        for queued in queued {
            done.counts.hand_outs += 1;
            done.times.queued.observe(queued);
        }
    }

    /// A hand-out ends after the worker has had it for `worked`. Of one that was lost, others say how
    /// it has ended.
    pub(crate) fn ended(&self, worked: Duration, how: Option<(&Finish, &HandOut)>) {
        let done = &mut self.lock();
        done.times.worked.observe(worked);
        match how {
            Some((Finish::RequeueAfter(..), _)) => done.counts.retries += 1,
            Some((how, out)) if how.failure().is_some() => {
                done.counts.failures += 1;
                if how.parks(out.failures.saturating_add(1)) {
                    done.given_up += 1;
                } else {
                    done.counts.retries += 1;
                }
            }
            Some(_) | None => {}
        }
    }

    /// Claims have parked keys whose leases have expired.
    pub(crate) fn parked(&self, keys: u64) {
        self.lock().given_up += keys;
    }

    pub(crate) fn panicked(&self) {
        self.lock().panics += 1;
    }

    /// With the keys of the store as they were counted that long ago. `held` says how long this
    /// process has had each of its keys.
    pub(crate) fn sample(&self, counts: Counts, ago: Duration, held: Vec<Duration>) -> Sample {
        let mut sample = *self.lock();
        let number = |keys: u64| usize::try_from(keys).unwrap_or(usize::MAX);
        sample.depth = number(counts.ready + counts.dirty);
        sample.waiting = number(counts.waiting);
        sample.processing = number(counts.processing);
        sample.parked = Some(number(counts.parked));
        if counts.ready > 0 {
            sample.oldest_ready = counts.oldest_ready + ago;
        }
        for time in held {
            sample.unfinished_work += time;
            sample.longest_running = sample.longest_running.max(time);
        }
        sample
    }
}

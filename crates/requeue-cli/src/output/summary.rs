//! The counters of the program's work, and the summary at its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use requeue::Totals;
use serde::{Serialize, Serializer};

use crate::duration::shown;
use crate::exit::Exit;

/// A counter that several tasks can increase.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one, and returns the new value.
    pub(crate) fn one_more(&self) -> u64 {
        // No other data depends on the counters, and the summary is written after all tasks have stopped. `Relaxed` is
        // therefore sufficient.
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// The durations of runs in microseconds, with two significant digits.
#[derive(Debug)]
pub(crate) struct Durations(Mutex<Histogram<u64>>);

/// A longer duration is recorded as this duration. The histogram takes 40 kB.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Default for Durations {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(LONGEST.as_micros() as u64, 2);
        Self(Mutex::new(histogram.expect("at most 5 digits are allowed")))
    }
}

impl Durations {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().saturating_record(micros);
    }
}

impl Serialize for Durations {
    /// Serializes the quantiles and the maximum, in seconds.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let took = self.0.lock();
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];
        let quantiles = quantiles.map(|(name, quantile)| (name, took.value_at_quantile(quantile)));
        let all = quantiles.into_iter().chain([("max", took.max())]);
        serializer.collect_map(all.map(|(name, micros)| (name, micros as f64 / 1e6)))
    }
}

/// The number of adds, from the input and from clients of the dashboard.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Adds {
    #[serde(rename = "adds")]
    pub(crate) accepted: Count,
    /// Adds that became part of a pending run.
    pub(crate) coalesced: Count,
    /// Adds that revived a parked key in a store.
    pub(crate) revived: Count,
}

/// The number of runs, by result.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Runs {
    #[serde(rename = "runs")]
    pub(crate) started: Count,
    #[serde(rename = "done")]
    pub(crate) succeeded: Count,
    #[serde(rename = "failures")]
    pub(crate) failed: Count,
    /// Runs that exceeded `--timeout`. They are also included in `failed`.
    pub(crate) timed_out: Count,
    /// Runs that were terminated because their key was added again. They are neither successes nor failures.
    pub(crate) restarted: Count,
    #[serde(rename = "run_seconds")]
    pub(crate) durations: Durations,
}

/// All counters of the program. The JSON summary has a property for each.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Tally {
    #[serde(flatten)]
    pub(crate) adds: Adds,
    #[serde(flatten)]
    pub(crate) runs: Runs,
    pub(crate) given_up: Count,
    pub(crate) bad_input: Count,
    /// Keys whose pending run was cancelled.
    pub(crate) cancelled: Count,
    /// Keys that had not completed when the program ended.
    pub(crate) unfinished: Count,
    /// True if the limit of `--halt` has stopped the program.
    pub(crate) halted: AtomicBool,
    /// True if the program itself has failed, for a reason that is neither a command nor the user.
    #[serde(skip)]
    failed: AtomicBool,
}

impl Tally {
    /// Copies the numbers of adds from a queue in memory. The summary then agrees with the API and the metrics.
    pub(crate) fn take_adds(&self, counts: &Totals) {
        self.adds.accepted.set(counts.adds);
        self.adds.coalesced.set(counts.coalesced);
    }

    /// Records that the program itself has failed, for a reason that is neither a command nor the user.
    pub(crate) fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn exit_code(&self) -> Exit {
        // The most serious result is checked first.
        if self.failed.load(Ordering::Relaxed) {
            Exit::Failure
        } else if self.halted.load(Ordering::Relaxed) {
            Exit::Halted
        } else if self.given_up.get() > 0 {
            Exit::GivenUp
        } else if self.bad_input.get() > 0 {
            Exit::BadInput
        } else {
            Exit::Done
        }
    }

    pub(crate) fn text_summary(&self, elapsed: Duration) -> String {
        let Self { adds, runs, given_up, bad_input, cancelled, unfinished, .. } = self;
        let mut text = format!(
            "{}, {}, {} coalesced, {}, {} given up",
            counted(adds.accepted.get(), "add"),
            counted(runs.started.get(), "run"),
            adds.coalesced.get(),
            counted(runs.failed.get(), "failure"),
            given_up.get()
        );
        if bad_input.get() > 0 {
            text += &format!(", {}", counted(bad_input.get(), "bad record"));
        }
        for (count, what) in [
            (&adds.revived, "revived"),
            (&runs.timed_out, "timed out"),
            (&runs.restarted, "restarted"),
            (cancelled, "cancelled"),
            (unfinished, "unfinished"),
        ] {
            if count.get() > 0 {
                text += &format!(", {} {what}", count.get());
            }
        }
        text + " in " + &shown(elapsed)
    }

    pub(crate) fn json_summary(&self, elapsed: Duration) -> String {
        /// The counters, and the time since the start of the program in seconds.
        #[derive(Serialize)]
        struct Report<'a> {
            #[serde(flatten)]
            tally: &'a Tally,
            elapsed: f64,
        }
        let elapsed = elapsed.as_millis() as f64 / 1000.0;
        // Numbers can always be serialized.
        serde_json::to_string(&Report { tally: self, elapsed }).unwrap_or_default()
    }
}

/// Formats a number and a noun. The noun is in the plural unless the number is 1.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_reported_in_seconds_from_microseconds_to_days() {
        let durations = Durations::default();
        for (count, took) in [(90, 0.000_002), (9, 1.5), (1, 100_000.0)] {
            (0..count).for_each(|_| durations.add(Duration::from_secs_f64(took)));
        }
        durations.add(Duration::MAX);
        let json = serde_json::to_value(&durations).unwrap();
        for (name, seconds) in
            [("p50", 0.000_002), ("p90", 1.5), ("p99", 100_000.0), ("max", LONGEST.as_secs_f64())]
        {
            let found = json[name].as_f64().unwrap();
            assert!((found / seconds - 1.0).abs() < 0.01, "{name}: {found}, not {seconds}");
        }
    }
}

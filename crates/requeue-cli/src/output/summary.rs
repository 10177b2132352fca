//! The counts of a run, and the summary that shows them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use crate::duration::shown;
use crate::exit::Exit;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one, and says how many there are now.
    pub(crate) fn one_more(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
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

/// How long runs took, to two digits.
#[derive(Debug)]
pub(crate) struct Durations(Mutex<Histogram<u64>>);

impl Default for Durations {
    fn default() -> Self {
        // It fails for more than five.
        Self(Mutex::new(Histogram::new(2).expect("two digits are few enough")))
    }
}

impl Durations {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros);
    }
}

/// In seconds: those that so many percent of the runs did not exceed.
#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Serialize for Durations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let took = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = |micros: u64| micros as f64 / 1e6;
        let [p50, p90, p99] =
            [0.5, 0.9, 0.99].map(|quantile| seconds(took.value_at_quantile(quantile)));
        Percentiles { p50, p90, p99, max: seconds(took.max()) }.serialize(serializer)
    }
}

/// The counts of a run. The JSON summary has these names.
#[derive(Debug, Serialize)]
pub(crate) struct Tally {
    #[serde(skip)]
    pub(crate) started: Instant,
    /// Keys read.
    pub(crate) adds: Count,
    /// Those that became part of a run that was pending already.
    pub(crate) coalesced: Count,
    /// Those that revived a parked key, which only a store has.
    pub(crate) revived: Count,
    /// Commands started.
    pub(crate) runs: Count,
    /// Those that were done.
    pub(crate) done: Count,
    /// Those that failed.
    pub(crate) failures: Count,
    /// Those of them that took too long.
    pub(crate) timed_out: Count,
    /// How long all of them took, in seconds.
    pub(crate) run_seconds: Durations,
    pub(crate) given_up: Count,
    pub(crate) bad_input: Count,
    /// Keys that were held, and taken back.
    pub(crate) cancelled: Count,
    /// Keys that had not run, or not to the end, when the run was ended.
    pub(crate) unfinished: Count,
    /// `--halt` has ended it.
    pub(crate) halted: AtomicBool,
    /// Something failed that is neither a command's nor the user's.
    #[serde(skip)]
    failed: AtomicBool,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            adds: Count::default(),
            coalesced: Count::default(),
            revived: Count::default(),
            runs: Count::default(),
            done: Count::default(),
            failures: Count::default(),
            timed_out: Count::default(),
            run_seconds: Durations::default(),
            given_up: Count::default(),
            bad_input: Count::default(),
            cancelled: Count::default(),
            unfinished: Count::default(),
            halted: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Notes a failure that is neither a command's nor the user's.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn exit(&self) -> Exit {
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

    pub(crate) fn text(&self) -> String {
        let Self {
            adds,
            runs,
            coalesced,
            revived,
            failures,
            given_up,
            timed_out,
            cancelled,
            bad_input,
            unfinished,
            ..
        } = self;
        let mut text = format!(
            "{}, {}, {} coalesced, {}, {} given up",
            counted(adds.get(), "add"),
            counted(runs.get(), "run"),
            coalesced.get(),
            counted(failures.get(), "failure"),
            given_up.get()
        );
        if bad_input.get() > 0 {
            text += &format!(", {}", counted(bad_input.get(), "bad record"));
        }
        for (count, what) in [
            (revived, "revived"),
            (timed_out, "timed out"),
            (cancelled, "cancelled"),
            (unfinished, "unfinished"),
        ] {
            if count.get() > 0 {
                text += &format!(", {} {what}", count.get());
            }
        }
        text + " in " + &shown(self.started.elapsed())
    }

    pub(crate) fn json(&self) -> String {
        /// The counts, and how long it took, in seconds.
        #[derive(Serialize)]
        struct Report<'a> {
            #[serde(flatten)]
            tally: &'a Tally,
            elapsed: f64,
        }
        let elapsed = self.started.elapsed().as_millis() as f64 / 1000.0;
        // Numbers under names can't fail.
        serde_json::to_string(&Report { tally: self, elapsed }).unwrap_or_default()
    }
}

/// A count of things, in the plural unless it is 1.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

//! The counters of a controller's runs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

/// The result of a run, in controller-runtime's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Success,
    Error,
    Terminal,
    Panic,
    Timeout,
    Requeue,
    RequeueAfter,
}

impl Outcome {
    /// Returns the name of the result in traces.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Terminal => "terminal",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }

    /// Returns the index of the label `result` in [`RESULTS`].
    pub(super) const fn result_label(self) -> usize {
        match self {
            Self::Success => 0,
            Self::Error | Self::Terminal | Self::Panic | Self::Timeout => 1,
            Self::Requeue => 2,
            Self::RequeueAfter => 3,
        }
    }
}

pub(super) const RESULTS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];

/// The upper bounds of the buckets for the durations of runs, in milliseconds.
const BOUNDS: [u64; 40] = [
    5, 10, 25, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000, 1250,
    1500, 1750, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 6000, 7000, 8000, 9000, 10_000, 15_000,
    20_000, 25_000, 30_000, 40_000, 50_000, 60_000,
];

/// Counters that only grow, and the number of runs in flight.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(super) results: [AtomicU64; RESULTS.len()],
    pub(super) terminal: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) timeouts: AtomicU64,
    /// Deliveries that waited for an event of an own write, and (`stale_starts`) runs that started without such an
    /// event after the time limit.
    pub(super) stale_skips: AtomicU64,
    pub(super) stale_starts: AtomicU64,
    /// Keys that run again after a delay.
    pub(super) retries: AtomicU64,
    pub(super) active: AtomicUsize,
    pub(super) times: Times,
}

/// The durations of runs.
#[derive(Debug)]
pub(super) struct Times(pub(super) Histogram);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new(BOUNDS.map(|millis| millis as f64 / 1e3)))
    }
}

impl Meters {
    /// Counts a run in flight until the returned value is dropped.
    pub(crate) fn count_run(&self) -> Active<'_> {
        self.active.fetch_add(1, Relaxed);
        Active(self)
    }

    pub(crate) fn count_end(&self, outcome: Outcome, took: Duration) {
        // Relaxed operations suffice, because a scrape may read one counter before and another
        // after a change.
        self.results[outcome.result_label()].fetch_add(1, Relaxed);
        let of_a_kind = match outcome {
            Outcome::Terminal => Some(&self.terminal),
            Outcome::Panic => Some(&self.panics),
            Outcome::Timeout => Some(&self.timeouts),
            Outcome::Success | Outcome::Error | Outcome::Requeue | Outcome::RequeueAfter => None,
        };
        if let Some(count) = of_a_kind {
            count.fetch_add(1, Relaxed);
        }
        self.times.0.observe(took.as_secs_f64());
    }

    /// Counts a delivery that was skipped. A watch has not shown one of the controller's writes yet.
    pub(crate) fn skipped_stale(&self) {
        self.stale_skips.fetch_add(1, Relaxed);
    }

    /// Counts a run that started although a watch has not shown one of the controller's writes.
    pub(crate) fn started_stale(&self) {
        self.stale_starts.fetch_add(1, Relaxed);
    }

    /// Counts a key that runs again after `delay`. As in controller-runtime, only a completion with a delay counts as a
    /// retry.
    pub(crate) fn comes_back(&self, delay: Duration) {
        self.retries.fetch_add(u64::from(!delay.is_zero()), Relaxed);
    }
}

#[must_use = "the run ends when it is dropped"]
pub(crate) struct Active<'a>(&'a Meters);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

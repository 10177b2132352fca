//! The counters of a controller's runs, which the runs update.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

/// The result of a run, as controller-runtime classifies it.
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
    /// Returns the name of the result in a tracing span.
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

    /// Returns the index in [`RESULTS`] of the result's value for the label `result`.
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

/// The upper bounds of the buckets for the durations of runs, in milliseconds, as in controller-runtime.
const BOUNDS: [u64; 40] = [
    5, 10, 25, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000, 1250,
    1500, 1750, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 6000, 7000, 8000, 9000, 10_000, 15_000,
    20_000, 25_000, 30_000, 40_000, 50_000, 60_000,
];

/// The counters of one controller, and the number of its runs in flight.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(super) results: [AtomicU64; RESULTS.len()],
    pub(super) terminal: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) timeouts: AtomicU64,
    /// `stale_skips` counts the deliveries after which the run waited for an event of an own write. `stale_starts`
    /// counts the runs that started without such an event, after the time limit.
    pub(super) stale_skips: AtomicU64,
    pub(super) stale_starts: AtomicU64,
    /// The number of completions after which a key runs again with a delay.
    pub(super) retries: AtomicU64,
    pub(super) active: AtomicUsize,
    pub(super) times: Times,
}

/// The histogram of the durations of runs.
#[derive(Debug)]
pub(super) struct Times(pub(super) Histogram);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new(BOUNDS.map(|millis| millis as f64 / 1e3)))
    }
}

impl Meters {
    /// Counts a run as in flight until the returned value is dropped.
    pub(crate) fn count_run(&self) -> Active<'_> {
        self.active.fetch_add(1, Relaxed);
        Active(self)
    }

    pub(crate) fn count_end(&self, outcome: Outcome, took: Duration) {
        // The order `Relaxed` suffices. A scrape during this call may then see some of the counters changed, and others
        // not.
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

    /// Counts a delivery after which the run waits, because a watch has not shown an own write yet.
    pub(crate) fn skipped_stale(&self) {
        self.stale_skips.fetch_add(1, Relaxed);
    }

    /// Counts a run that starts after the time limit, although a watch has not shown an own write yet.
    pub(crate) fn started_stale(&self) {
        self.stale_starts.fetch_add(1, Relaxed);
    }

    /// Counts a key that runs again after `delay`. A delay of zero is not counted, as in controller-runtime.
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

//! The samples of the queue: one per second, for the last 15 minutes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::MissedTickBehavior;

use crate::site::Inner;
use crate::source::Gauges;

const EVERY: Duration = Duration::from_secs(1);
/// The number of samples that are kept: 15 minutes.
const KEPT: usize = 900;

/// The counts at a point in time. Counters start at the creation of the queue.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) t: f64,
    /// The number of all keys.
    pub(crate) keys: usize,
    pub(crate) ready: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) failing: Option<usize>,
    pub(crate) parked: Option<usize>,
    pub(crate) adds: u64,
    pub(crate) coalesced: u64,
    pub(crate) runs: u64,
    pub(crate) failures: u64,
    /// The number of deliveries, and the sum of the times for which their keys had been ready.
    pub(crate) queued: u64,
    pub(crate) queued_seconds: f64,
    /// The number of completed runs, and the sum of their durations.
    pub(crate) worked: u64,
    pub(crate) worked_seconds: f64,
}

impl Sample {
    pub(crate) fn of(gauges: &Gauges) -> Self {
        let Gauges { counts, .. } = gauges;
        let times = gauges.times.unwrap_or_default();
        let summed = |sum: u128| sum as f64 / 1e9;
        Self {
            t: unix_time(),
            keys: gauges.keys,
            ready: gauges.ready,
            waiting: gauges.waiting,
            running: gauges.running,
            failing: gauges.failing,
            parked: gauges.parked,
            adds: counts.adds,
            coalesced: counts.coalesced,
            runs: counts.deliveries,
            failures: counts.failures,
            queued: times.queued.count(),
            queued_seconds: summed(times.queued.sum),
            worked: times.worked.count(),
            worked_seconds: summed(times.worked.sum),
        }
    }
}

/// Returns the seconds since 1970, rounded to milliseconds.
pub(crate) fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs_f64() * 1e3).round() / 1e3
}

/// Events per second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Rates {
    adds: f64,
    coalesced: f64,
    runs: f64,
    failures: f64,
}

/// The last samples, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<VecDeque<Sample>>);

impl Samples {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.lock();
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    pub(crate) fn all(&self) -> Vec<Sample> {
        self.lock().iter().copied().collect()
    }

    /// Returns the rates over the last ten seconds.
    pub(crate) fn rates(&self) -> Rates {
        let samples = self.lock();
        let Some(last) = samples.back() else { return Rates::default() };
        let before = samples[samples.len().saturating_sub(11)];
        let took = last.t - before.t;
        if took <= 0.0 {
            return Rates::default();
        }
        let rate = |before: u64, last: u64| {
            (last.saturating_sub(before) as f64 / took * 1e3).round() / 1e3
        };
        Rates {
            adds: rate(before.adds, last.adds),
            coalesced: rate(before.coalesced, last.coalesced),
            runs: rate(before.runs, last.runs),
            failures: rate(before.failures, last.failures),
        }
    }
}

/// Returns the samples by column, so that the JSON has each name once.
pub(crate) fn columns(samples: &[Sample]) -> BTreeMap<String, Vec<Value>> {
    let fields = |sample: &Sample| match serde_json::to_value(sample) {
        Ok(Value::Object(fields)) => fields,
        // Not reached: a sample is an object of numbers.
        _ => Map::new(),
    };
    let empty = fields(&Sample::default()).into_iter().map(|(name, _)| (name, Vec::new()));
    let mut columns: BTreeMap<_, _> = empty.collect();
    for (name, value) in samples.iter().flat_map(fields) {
        columns.entry(name).or_default().push(value);
    }
    columns
}

/// Samples the site each second, until its end or until no handle is left.
pub(crate) async fn keep_sampling(site: Weak<Inner>) {
    let mut interval = tokio::time::interval(EVERY);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        let Some(site) = site.upgrade().filter(|site| !site.has_ended()) else { return };
        site.tick();
    }
}

impl Inner {
    /// Takes a sample, and sends it to event streams.
    pub(crate) fn tick(self: &Arc<Self>) {
        // Code of the user that shows keys may panic. Then this second has no sample.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let gauges = self.source.gauges();
            self.samples.push(Sample::of(&gauges));
            if self.ticks.receiver_count() > 0 {
                self.ticks.send_replace(self.summary_json().into());
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(t: f64, runs: u64) -> Sample {
        Sample { t, runs, ..Sample::of(&Gauges::default()) }
    }

    #[test]
    fn the_last_quarter_of_an_hour_is_kept() {
        let samples = Samples::default();
        for second in 0..2 * KEPT as u64 {
            samples.push(sample(second as f64, second * second));
        }
        let kept = samples.all();
        assert_eq!((kept.len(), kept[0].t), (KEPT, KEPT as f64));
    }

    #[test]
    fn columns_have_the_values_of_all_samples() {
        let two = columns(&[sample(1.5, 7), sample(2.5, 8)]);
        assert_eq!(
            (&two["t"], &two["runs"]),
            (&vec![json!(1.5), json!(2.5)], &vec![json!(7), json!(8)])
        );
        let none = columns(&[]);
        assert_eq!(none.keys().collect::<Vec<_>>(), two.keys().collect::<Vec<_>>());
        assert!(none["t"].is_empty());
    }

    #[test]
    fn rates_are_over_the_last_ten_seconds() {
        let samples = Samples::default();
        assert_eq!(samples.rates().runs, 0.0);
        samples.push(sample(100.0, 7));
        assert_eq!(samples.rates().runs, 0.0);
        samples.push(sample(102.0, 17));
        assert_eq!(samples.rates().runs, 5.0);
        for second in 103..120 {
            samples.push(sample(f64::from(second), 17));
        }
        assert_eq!(samples.rates().runs, 0.0);
        // The clock went back.
        samples.push(sample(3.0, 20));
        assert_eq!(samples.rates().runs, 0.0);
    }
}

//! The samples of a queue in the last 15 minutes, one per second.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use requeue::Histogram;
use requeue::metrics::Times;
use serde_json::{Map, Value};

use crate::api::{LastMinute, Rates, Sample};
use crate::source::Gauges;
use crate::time::{seconds, unix_time};

/// The number of samples that are kept. At one sample per second, this is 15 minutes.
const KEPT: usize = 900;

impl LastMinute {
    pub(crate) fn from_histograms(queued: &Histogram, worked: &Histogram) -> Self {
        let summed_up = |times: &Histogram| {
            let quantile = |q| times.quantile(q).map(seconds);
            let count = times.count();
            let mean = (count > 0).then(|| (times.sum as f64 / count as f64).round() / 1e9);
            [mean, quantile(0.5), quantile(0.95), quantile(0.99)]
        };
        let [queued_mean, queued_p50, queued_p95, queued_p99] = summed_up(queued);
        let [worked_mean, worked_p50, worked_p95, worked_p99] = summed_up(worked);
        Self {
            queued_mean,
            queued_p50,
            queued_p95,
            queued_p99,
            worked_mean,
            worked_p50,
            worked_p95,
            worked_p99,
        }
    }
}

impl Sample {
    pub(crate) fn new(gauges: &Gauges, last_minute: LastMinute) -> Self {
        let Gauges { counts, process, .. } = gauges;
        let others = [counts.backing_off, counts.parked, counts.damaged].into_iter().flatten();
        let (totals, times) = (process.totals, process.times);
        let summed = |sum: u128| sum as f64 / 1e9;
        Self {
            t: unix_time(),
            keys: counts.ready + counts.waiting + counts.running + others.sum::<usize>(),
            adds: totals.adds,
            coalesced: totals.coalesced,
            runs: totals.deliveries,
            failures: totals.failures,
            queued: times.queued.count(),
            queued_seconds: summed(times.queued.sum),
            worked: times.worked.count(),
            worked_seconds: summed(times.worked.sum),
            last_minute,
            ..*counts
        }
    }
}

/// The last samples of a queue, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    samples: Mutex<VecDeque<Sample>>,
    /// The histograms at intervals of [`STEP`] in the last minute, the oldest first. Each has
    /// the time at which it was stored.
    times: Mutex<VecDeque<(Instant, Times)>>,
}

/// The time between two stored histograms, and the period that the stored histograms cover.
const STEP: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

impl Samples {
    /// Returns the mean and the quantiles of the times in the last minute. If the site is
    /// younger than a minute, the period begins with its start.
    pub(crate) fn last_minute(&self, gauges: &Gauges) -> LastMinute {
        if !gauges.keeps_times {
            return LastMinute::default();
        }
        let now = gauges.process.times;
        let mut times = self.times.lock();
        while times.get(1).is_some_and(|(at, _)| at.elapsed() >= MINUTE) {
            times.pop_front();
        }
        if times.back().is_none_or(|(at, _)| at.elapsed() >= STEP) {
            times.push_back((Instant::now(), now));
        }
        let before = times.front().map(|&(_, before)| before).unwrap_or_default();
        drop(times);
        let queued = now.queued.since(&before.queued);
        LastMinute::from_histograms(&queued, &now.worked.since(&before.worked))
    }

    pub(crate) fn push(&self, sample: Sample) {
        let mut samples = self.samples.lock();
        // The oldest sample is removed before the new one is inserted, so that the allocation
        // does not grow.
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    pub(crate) fn all(&self) -> Vec<Sample> {
        self.samples.lock().iter().copied().collect()
    }

    /// Returns the numbers of events per second, averaged over the last ten seconds.
    pub(crate) fn rates(&self) -> Rates {
        let samples = self.samples.lock();
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

/// Converts samples to one list of values for each field, so that the JSON contains the name
/// of each field only once.
pub(crate) fn columns(samples: &[Sample]) -> BTreeMap<String, Vec<Value>> {
    let fields = |sample: &Sample| match serde_json::to_value(sample) {
        Ok(Value::Object(fields)) => fields,
        // This case does not occur, because a sample is serialized as an object.
        _ => Map::new(),
    };
    let empty = fields(&Sample::default()).into_iter().map(|(name, _)| (name, Vec::new()));
    let mut columns: BTreeMap<_, _> = empty.collect();
    for (name, value) in samples.iter().flat_map(fields) {
        columns.entry(name).or_default().push(value);
    }
    columns
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(t: f64, runs: u64) -> Sample {
        Sample { t, runs, ..Sample::new(&Gauges::default(), LastMinute::default()) }
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
        // The clock was set back, so no rate can be computed.
        samples.push(sample(3.0, 20));
        assert_eq!(samples.rates().runs, 0.0);
    }
}

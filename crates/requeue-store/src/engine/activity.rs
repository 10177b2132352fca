//! The activity of a queue in each minute, as engines store it.
//!
//! Each open queue of a process has a row for each minute, and each write replaces that row with the current sums.
//! Therefore, no two processes write the same row, and a repeated write is counted once. The rows of an earlier minute
//! are later merged into one row.
//!
//! All minutes are minutes of the engine's clock. A row can be written until the end of the next minute, and is merged
//! at least one minute after that. Therefore, a process that was suspended cannot write a row that was already merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use requeue::Histogram;

use super::time::Micros;
use super::{Engine, Place};
use crate::types::activity::Tally;
use crate::types::error::Answer;

/// The duration of a minute.
pub(crate) const MINUTE: Micros = 60_000_000;
/// The number of minutes for which the store keeps rows: seven days.
pub(crate) const KEPT: i64 = 7 * 24 * 60;
/// The maximum number of rows of processes that one merge reads.
pub(crate) const MERGED: i64 = 1_000;

/// Returns the minute that contains a time.
pub(crate) const fn minute_of(time: Micros) -> i64 {
    time.div_euclid(MINUTE)
}

/// Returns true if a process may write the row of `minute` when the current minute is `now`.
pub(crate) const fn is_writable(minute: i64, now: i64) -> bool {
    minute.abs_diff(now) <= 1
}

/// Returns the first minute whose rows must not be merged yet when the current minute is `now`.
pub(crate) const fn first_kept_apart(now: i64) -> i64 {
    now.saturating_sub(2)
}

/// A row that a process writes.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The minute of the row, or `None` for the engine's current minute.
    pub(crate) minute: Option<i64>,
    /// Identifies the handle with which a process has opened the queue. The text is not empty.
    pub(crate) instance: Arc<str>,
    /// The name of the worker, or an empty text if the process claims no keys.
    pub(crate) worker: Arc<str>,
    pub(crate) tally: Tally,
}

/// The answer to a [`Record`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    /// The engine's current minute.
    pub(crate) minute: i64,
    /// False if the engine wrote nothing, because the minute of the row is over.
    pub(crate) is_written: bool,
    /// True if there are rows that can be merged.
    pub(crate) has_old: bool,
}

/// A row in the store. A row with an empty `instance` has the sums of all processes in its minute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) minute: i64,
    pub(crate) instance: String,
    pub(crate) worker: String,
    /// The time of the last write. Each write of a row has a later time than the write before.
    pub(crate) at: Micros,
    pub(crate) tally: Tally,
}

/// Selects the rows that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// The rows of all minutes that end less than this time before now.
    Since(Micros),
    /// Some of the rows that can be merged, and the merged rows of the same minutes.
    Old,
    /// No rows, because the caller only needs the engine's time. An engine need not check that the queue exists.
    Nothing,
}

/// Rows, and the engine's time at which they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) now: Micros,
    pub(crate) parts: Vec<Part>,
}

/// A request to replace rows of a minute with one merged row.
#[derive(Clone, Debug)]
pub(crate) struct Merging {
    pub(crate) minute: i64,
    /// The instance and the time of the last write of each row.
    pub(crate) parts: Vec<(String, Micros)>,
    pub(crate) tally: Tally,
}

impl Merging {
    /// Returns true if the merged row would be empty, so that no row of the minute remains.
    pub(crate) fn is_empty(&self) -> bool {
        self.tally == Tally::default()
    }

    pub(crate) fn has_merged_row(&self) -> bool {
        self.parts.iter().any(|(instance, _)| instance.is_empty())
    }
}

/// Merges the rows of earlier minutes. Several processes may do this at the same time.
pub(crate) async fn merge_old(engine: &dyn Engine, queue: &Place) -> Answer<()> {
    let mut by_minute: BTreeMap<i64, Merging> = BTreeMap::new();
    for part in engine.read_activity(queue, Which::Old).await?.parts {
        let Part { minute, instance, worker: _, at, tally } = part;
        let new = || Merging { minute, parts: Vec::new(), tally: Tally::default() };
        let merging = by_minute.entry(minute).or_insert_with(new);
        merging.parts.push((instance, at));
        merging.tally.merge(&tally);
    }
    for merging in by_minute.into_values() {
        // If the answer is false, another process has merged the same rows, so no retry is needed.
        engine.merge_activity(queue, merging).await?;
    }
    Ok(())
}

/// Returns the sum of the rows of each minute.
pub(crate) fn by_minute(parts: &[Part]) -> BTreeMap<i64, Tally> {
    let mut minutes: BTreeMap<i64, Tally> = BTreeMap::new();
    for part in parts.iter().filter(|part| part.tally != Tally::default()) {
        minutes.entry(part.minute).or_default().merge(&part.tally);
    }
    minutes
}

/// Returns the name of each worker that was alive after the time `after`, and the time of its last sign of life.
pub(crate) fn live_workers(parts: &[Part], after: Micros) -> BTreeMap<String, Micros> {
    // The last row of a worker that has shut down has an empty name.
    let mut last: BTreeMap<&str, &Part> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.instance.is_empty()) {
        let known = last.entry(&part.instance).or_insert(part);
        if known.at < part.at {
            *known = part;
        }
    }
    let mut workers = BTreeMap::new();
    for part in last.values().filter(|part| !part.worker.is_empty() && part.at > after) {
        let at = workers.entry(part.worker.clone()).or_insert(part.at);
        *at = part.at.max(*at);
    }
    workers
}

/// The version of the encoding of histograms.
const ENCODING: u8 = 1;

/// Encodes both histograms. For each of them, the encoding has the sum and the number of buckets that are not empty.
/// For each bucket that is not empty, two numbers follow: the number of empty buckets before it, and its count.
pub(crate) fn encode_times(tally: &Tally) -> Vec<u8> {
    let mut to = vec![ENCODING];
    for times in [&tally.queued, &tally.worked] {
        push_number(&mut to, times.sum);
        push_number(&mut to, times.buckets().filter(|&count| count > 0).count() as u128);
        let mut gap = 0;
        for count in times.buckets() {
            if count == 0 {
                gap += 1;
                continue;
            }
            push_number(&mut to, gap);
            push_number(&mut to, count.into());
            gap = 0;
        }
    }
    to
}

/// Appends a number in groups of seven bits, the lowest bits first.
fn push_number(to: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Decodes both histograms. If they are damaged, or a later version encoded them, both are empty.
pub(crate) fn decode_times(bytes: &[u8]) -> [Histogram; 2] {
    let decode = || {
        let mut bytes = bytes.strip_prefix(&[ENCODING])?;
        let times = [read_histogram(&mut bytes)?, read_histogram(&mut bytes)?];
        bytes.is_empty().then_some(times)
    };
    decode().unwrap_or_default()
}

fn read_histogram(from: &mut &[u8]) -> Option<Histogram> {
    let sum = read_number(from)?;
    let count = read_number(from)?;
    let length = Histogram::default().buckets().count();
    let mut buckets = Vec::with_capacity(length);
    for _ in 0..count {
        let gap = usize::try_from(read_number(from)?).ok()?;
        let next = buckets.len().checked_add(gap).filter(|&next| next < length)?;
        buckets.resize(next, 0);
        buckets.push(u64::try_from(read_number(from)?).ok()?);
    }
    Some(Histogram::from_buckets(sum, buckets))
}

fn read_number(from: &mut &[u8]) -> Option<u128> {
    let mut number = 0;
    for shift in (0..u128::BITS).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        number |= u128::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Converts a count for an engine whose integers are signed.
pub(crate) fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the instances of rows as one list, and the times of their last writes as another.
pub(crate) fn unzip_parts(parts: &[(String, Micros)]) -> (Vec<&str>, Vec<Micros>) {
    parts.iter().map(|(instance, at)| (&**instance, *at)).unzip()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn times_are_decoded_as_they_were(nanos in prop::collection::vec(0..u64::MAX, 0..50)) {
            let mut tally = Tally::default();
            for (n, &nanos) in nanos.iter().enumerate() {
                let times = if n % 3 == 0 { &mut tally.queued } else { &mut tally.worked };
                times.observe(Duration::from_nanos(nanos >> (n % 64)));
            }
            prop_assert_eq!(decode_times(&encode_times(&tally)), [tally.queued, tally.worked]);
        }

        #[test]
        fn damaged_times_are_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(first) = bytes.first_mut() {
                *first = ENCODING;
            }
            decode_times(&bytes);
        }
    }
}

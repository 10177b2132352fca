//! The last completed runs of a key, in a compact form that is stored in the key's row.
//!
//! When a run completes and the row stays, the run is written before the earlier runs. The bytes above the maximum
//! length are dropped. Therefore, a key whose first run succeeds costs nothing. `rows.sql` and `rows.lua` write the
//! same form, but only this module reads it.
//!
//! The form begins with the time at which the newest run ended: milliseconds since 1970, in 6 bytes. Three numbers in
//! LEB128 follow for each run:
//!
//! 1. 16 times the number of its adds, plus a digit for the way in which the run ended;
//! 2. its duration;
//! 3. 1 plus the time for which the key was ready before it, or 0 if this time is unknown.
//!
//! The time between the ends of two runs stands between their numbers. Times and durations are in milliseconds.

use std::sync::Arc;
use std::time::Duration;

use requeue::history::Ended;

use crate::engine::time::Micros;
use crate::types::inspect::CompletedRun;

/// The maximum length of the form, in bytes. With this limit, the form takes less than a tenth of the write-ahead log
/// that a retry of a key writes. `rows.sql` and `rows.lua` repeat the limit.
pub(crate) const MOST: usize = 64;
/// The length of the time at the beginning of the form.
const START: usize = 6;
/// The number that is added to the digit of a run if its lease expired.
const EXPIRED: u64 = 8;

/// The ways in which a run can end. The position of a way is its digit.
const WAYS: [Ended; 7] = [
    Ended::Succeeded,
    Ended::Requeued,
    Ended::Retried,
    Ended::Parked,
    Ended::Released,
    Ended::Cancelled,
    Ended::GivenUp,
];

/// A completed run that is added to the past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ending {
    pub(crate) how: Ended,
    pub(crate) lease_expired: bool,
    pub(crate) adds: u32,
    pub(crate) at: Micros,
    pub(crate) took: Micros,
    /// The time for which the key was ready before the run, or `None` if it is unknown.
    pub(crate) queued: Option<Micros>,
}

/// Returns the form of the runs in `past` and of `ending` after them. Damaged bytes of `past` are copied.
pub(crate) fn append(past: Option<&[u8]>, ending: Ending) -> Arc<[u8]> {
    let Ending { how, lease_expired, adds, at, took, queued } = ending;
    let end = millis(at);
    let digit = WAYS.iter().position(|&way| way == how).unwrap_or_default() as u64;
    let digit = if lease_expired { digit + EXPIRED } else { digit };
    let mut bytes = end.to_be_bytes()[2..].to_vec();
    push(&mut bytes, u64::from(adds) * 16 + digit);
    push(&mut bytes, millis(took));
    push(&mut bytes, queued.map_or(0, |queued| millis(queued) + 1));
    if let Some((last, rest)) = past.and_then(split_start) {
        push(&mut bytes, end.saturating_sub(last));
        bytes.extend(rest);
    }
    bytes.truncate(MOST);
    bytes.into()
}

/// Returns the runs as of the time `now`, the oldest first. Omits a damaged run and all runs before it.
pub(crate) fn read_runs(past: &[u8], now: Micros) -> Vec<CompletedRun> {
    let mut runs = Vec::new();
    // Another program may have written more bytes than the maximum.
    let Some((mut end, mut rest)) = split_start(&past[..past.len().min(MOST)]) else { return runs };
    let now = millis(now);
    while let Some(run) = take_run(&mut rest, now.saturating_sub(end)) {
        runs.push(run);
        let before = take(&mut rest).and_then(|between| end.checked_sub(between));
        let Some(before) = before else { break };
        end = before;
    }
    runs.reverse();
    runs
}

/// Separates the time at the beginning from the runs. Returns `None` if the time is incomplete.
fn split_start(past: &[u8]) -> Option<(u64, &[u8])> {
    let (start, rest) = past.split_first_chunk::<START>()?;
    let end = start.iter().fold(0, |end, &byte| end << 8 | u64::from(byte));
    Some((end, rest))
}

fn take_run(rest: &mut &[u8], ended: u64) -> Option<CompletedRun> {
    let (first, took, queued) = (take(rest)?, take(rest)?, take(rest)?);
    let digit = first % 16;
    Some(CompletedRun {
        how: *WAYS.get(usize::try_from(digit % EXPIRED).ok()?)?,
        lease_expired: digit >= EXPIRED,
        adds: u32::try_from(first / 16).ok()?,
        ended: Duration::from_millis(ended),
        took: Duration::from_millis(took),
        queued: queued.checked_sub(1).map(Duration::from_millis),
    })
}

fn millis(time: Micros) -> u64 {
    time.max(0).unsigned_abs() / 1000
}

/// Appends a number in LEB128.
fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 128 {
        bytes.push((number % 128) as u8 | 128);
        number /= 128;
    }
    bytes.push(number as u8);
}

/// Removes a number from the beginning, and returns it. Returns `None` if the number is incomplete or longer than 56
/// bits.
fn take(rest: &mut &[u8]) -> Option<u64> {
    let length = rest.iter().take(8).position(|&byte| byte < 128)? + 1;
    let (number, after) = rest.split_at(length);
    *rest = after;
    Some(number.iter().rev().fold(0, |number, &byte| number << 7 | u64::from(byte % 128)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endings() -> impl Strategy<Value = Vec<Ending>> {
        let times = || 0_i64..1 << 40;
        let ending = (0..WAYS.len(), any::<bool>(), any::<u32>(), times(), times(), any::<bool>());
        let ending = ending.prop_map(|(way, lease_expired, adds, took, queued, is_known)| Ending {
            how: WAYS[way],
            lease_expired,
            adds: adds >> (adds % 32),
            at: 0,
            took: took >> (took % 40),
            queued: is_known.then_some(queued >> (queued % 40)),
        });
        let gaps = prop::collection::vec((ending, times()), 0..20);
        gaps.prop_map(|gaps| {
            let mut at = 1_000_000_000_000_000;
            let mut next = |(ending, gap): (Ending, i64)| {
                at += gap;
                Ending { at, ..ending }
            };
            gaps.into_iter().map(&mut next).collect()
        })
    }

    fn expected(ending: Ending, now: Micros) -> CompletedRun {
        let Ending { how, lease_expired, adds, at, took, queued } = ending;
        let short = |time| Duration::from_millis(millis(time));
        CompletedRun {
            how,
            lease_expired,
            adds,
            ended: Duration::from_millis(millis(now) - millis(at)),
            took: short(took),
            queued: queued.map(short),
        }
    }

    proptest! {
        #[test]
        fn the_last_runs_are_read_as_they_were_written(endings in endings()) {
            let mut past: Option<Arc<[u8]>> = None;
            for ending in &endings {
                past = Some(append(past.as_deref(), *ending));
            }
            let now = endings.last().map_or(0, |last| last.at) + 5_000_000;
            let runs = past.as_deref().map(|past| read_runs(past, now)).unwrap_or_default();
            prop_assert!(past.is_none_or(|past| past.len() <= MOST));
            // The longest form of a run has 6, 6, 6 and 5 bytes, so two runs always fit.
            prop_assert!(runs.len() >= endings.len().min(2), "{runs:?}");
            let last = endings[endings.len() - runs.len()..].iter().map(|&ending| expected(ending, now));
            prop_assert_eq!(runs, last.collect::<Vec<_>>());
        }

        #[test]
        fn damaged_bytes_cost_runs_only(bytes in prop::collection::vec(any::<u8>(), 0..100), now: i64, endings in endings()) {
            let runs = read_runs(&bytes, now);
            prop_assert!(runs.len() <= MOST / 4);
            let Some(&ending) = endings.first() else { return Ok(()) };
            let past = append(Some(&bytes), ending);
            prop_assert!(past.len() <= MOST);
            let runs = read_runs(&past, ending.at);
            prop_assert_eq!(runs.last(), Some(&expected(ending, ending.at)));
        }
    }

    #[test]
    fn a_usual_run_has_eight_bytes() {
        let mut past = None;
        for n in 0..20 {
            let at = 1_900_000_000_000_000 + n * 60_000_000;
            let (how, took, queued) = (Ended::Retried, 250_000, Some(1_500_000));
            let ending = Ending { how, lease_expired: false, adds: 1, at, took, queued };
            past = Some(append(past.as_deref(), ending));
        }
        let runs = read_runs(&past.expect("runs"), 1_900_000_000_000_000);
        assert_eq!(runs.len(), 7, "{runs:?}");
    }
}

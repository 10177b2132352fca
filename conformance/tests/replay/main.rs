//! Replays the recordings of client-go. requeue must make the same deliveries in the same order at the same times, and
//! report the same lengths, counts, durations and delays.
//!
//! A deliberate difference in `docs/reference/conformance.md` is accepted only in its case, and counted. `README.md` of
//! this crate describes the format of a trace.

#![allow(clippy::unwrap_used, reason = "a trace that can't be read is a failure, and says where")]

mod compare;
mod differences;
mod drains;
mod limiters;
mod queue;
mod seen;
mod waits;

use std::fmt;
use std::time::Duration;

use requeue_conformance::{Sequence, recorded, sequences};

use crate::differences::{Difference, Met};

/// The environment variable with the seed of the only sequence to replay.
const ONLY: &str = "CONFORMANCE_SEED";

/// The description of a difference that is not deliberate.
pub(crate) struct Mismatch(String);

/// Parses nanoseconds.
pub(crate) fn nanos(text: &str) -> Duration {
    Duration::from_nanos(text.parse().unwrap())
}

/// Compares a recorded value with the observed one.
pub(crate) fn same(
    sequence: &Sequence<'_>,
    at: usize,
    name: &str,
    expected: impl fmt::Display,
    got: impl fmt::Display,
) -> Result<(), Mismatch> {
    let (expected, got) = (expected.to_string(), got.to_string());
    if expected == got {
        return Ok(());
    }
    let before = sequence.steps[at.saturating_sub(12)..=at].iter().map(|step| step.line);
    Err(Mismatch(format!(
        "sequence {}\n    …\n    {}\n  step {} of seed {}: {name}\n    expected: {expected}\n    got:      {got}\n",
        sequence.head,
        before.collect::<Vec<_>>().join("\n    "),
        at + 1,
        sequence.seed,
    )))
}

/// Replays all sequences of the given kinds.
fn replay(
    kinds: &[&str],
    met: &mut Met,
    how: impl Fn(&Sequence<'_>, &mut Met) -> Result<(), Mismatch>,
) -> usize {
    let text = recorded().expect("the file with the traces can be read");
    let all = sequences(&text).expect("the file holds traces");
    let only =
        std::env::var(ONLY).ok().map(|seed| seed.parse::<u64>().expect("a seed is a number"));
    let mut count = 0;
    let mut mismatches = Vec::new();
    for sequence in &all {
        if !kinds.contains(&sequence.kind) || only.is_some_and(|seed| seed != sequence.seed) {
            continue;
        }
        count += 1;
        if let Err(Mismatch(mismatch)) = how(sequence, met) {
            mismatches.push(mismatch);
        }
    }
    let shown = mismatches.iter().take(3).map(String::as_str).collect::<String>();
    assert!(
        mismatches.is_empty(),
        "{} of {count} sequences went another way; the first:\n{shown}",
        mismatches.len()
    );
    assert!(count > 0 || only.is_some(), "no sequences of {kinds:?}");
    println!("{count} sequences of {kinds:?} went as recorded");
    count
}

/// This is a single test, because it checks which differences occurred in all recordings together.
#[test]
fn what_client_go_did_is_done_here() {
    let mut met = Met::default();
    let queues = replay(&["queue", "ties"], &mut met, queue::replay);
    replay(&["limiter"], &mut met, limiters::replay);
    replay(&["backoff"], &mut met, waits::backoffs);
    replay(&["manager"], &mut met, waits::managers);
    replay(&["loop"], &mut met, waits::loops);

    println!("met, of what we do otherwise on purpose:");
    for difference in Difference::ALL {
        println!("{:8} {difference}", met.0.get(&difference).unwrap_or(&0));
    }
    if std::env::var_os(ONLY).is_none() {
        assert!(queues >= 1000, "only {queues} sequences of queues");
        let unmet: Vec<_> = Difference::ALL.iter().filter(|d| !met.0.contains_key(d)).collect();
        assert!(unmet.is_empty(), "in the table, and never met: {unmet:?}");
    }
}

#[test]
fn the_table_and_the_tests_name_the_same_differences() {
    let page = include_str!("../../../docs/reference/conformance.md");
    let (_, page) =
        page.split_once("\n## Deliberate differences\n").expect("the table has a heading");
    let tests = include_str!("../differences.rs");
    let rows: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, rest)| (name.to_owned(), rest.starts_with(" replayed |")))
        .collect();
    let mut replayed: Vec<_> = rows.iter().filter(|row| row.1).map(|row| row.0.clone()).collect();
    let mut known: Vec<_> = Difference::ALL.iter().map(ToString::to_string).collect();
    replayed.sort_unstable();
    known.sort_unstable();
    assert_eq!(
        replayed, known,
        "what the table says is met in the traces, and what the replay accepts"
    );

    let mut rows: Vec<_> = rows.into_iter().map(|row| row.0).collect();
    let mut tested: Vec<_> = tests
        .split("#[test]\nfn ")
        .skip(1)
        .filter_map(|test| Some(test.split_once('(')?.0.to_owned()))
        .collect();
    rows.sort_unstable();
    tested.sort_unstable();
    assert_eq!(rows, tested, "the rows of the table, and the tests of differences.rs");
}

#[test]
fn the_trace_that_the_page_shows_is_one_of_them() {
    let page = include_str!("../../README.md");
    let (_, shown) = page.split_once("```text\nsequence ").expect("the page shows a trace");
    let (shown, _) = shown.split_once("```").expect("which ends");
    assert!(recorded().unwrap().contains(&format!("\nsequence {shown}")), "{shown}");
}

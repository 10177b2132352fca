//! Compares the activity that an engine stores with a plain map. Three processes write and merge rows, some of them
//! late, while the clock is set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{BEGIN, Rig};
use crate::engine::activity::{
    KEPT, MINUTE, Merging, Part, Parts, Record, Recorded, Which, by_minute, merge_old, minute_of,
};
use crate::engine::time::Micros;
use crate::engine::{Engine, Place, Settings};
use crate::types::activity::Tally;
use crate::types::error::Kind;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A process writes its row for a minute. The minute is relative to the current minute, or `None` for the current
    /// minute.
    Record(usize, Option<i64>, u64),
    /// A process reads the rows that can be merged.
    Read,
    /// A process merges the rows that it has read before.
    MergeRead,
    /// A process reads rows and merges them.
    Merge,
    /// Advances the time. A negative value sets the clock back.
    Pass(Micros),
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let record = (0..3usize, prop::option::weighted(0.8, -4..=2i64), 1..1_000u64);
    let step = prop_oneof![
        10 => record.prop_map(|(process, minute, n)| Step::Record(process, minute, n)),
        3 => Just(Step::Read),
        3 => Just(Step::MergeRead),
        2 => Just(Step::Merge),
        5 => (1..2 * MINUTE).prop_map(Step::Pass),
        2 => (3 * MINUTE..9 * MINUTE).prop_map(Step::Pass),
        1 => (-3 * MINUTE..0).prop_map(Step::Pass),
        1 => (KEPT / 2 * MINUTE..2 * KEPT * MINUTE).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..most)
}

struct Model<'a> {
    rig: &'a dyn Rig,
    engine: Arc<dyn Engine>,
    place: Place,
    now: Micros,
    rows: BTreeMap<(i64, String), Part>,
    read: Vec<Merging>,
}

/// Returns a tally that depends on `n`.
fn tally(n: u64) -> Tally {
    let mut tally = Tally::new([n, n / 2, 2 * n, n + 1, n / 3, n % 2], Default::default());
    tally.queued.observe(Duration::from_micros(n));
    tally.worked.observe(Duration::from_millis(n));
    tally
}

fn instance(process: usize) -> &'static str {
    ["a:1", "b/{ü}", "c"][process]
}

/// Applies `steps` to a new queue of the engine.
pub(crate) async fn check(rig: &dyn Rig, queue: &str, steps: &[Step]) {
    let engine = rig.engine();
    let place = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let (rows, read) = Default::default();
    let mut model = Model { rig, engine, place, now: BEGIN, rows, read };
    for step in steps {
        model.apply(step).await;
        for since in [0, 90_000_000, (KEPT - 1) * MINUTE] {
            model.check_since(since).await;
        }
    }
    model.check_drop(queue).await;
}

impl Model<'_> {
    async fn apply(&mut self, step: &Step) {
        match *step {
            Step::Record(process, minute, n) => self.record(process, minute, n).await,
            Step::Read => {
                let old = self.engine.read_activity(&self.place, Which::Old).await.expect("read");
                assert_eq!(sorted(old.parts.clone()), self.old());
                self.read = to_mergings(old.parts);
            }
            Step::MergeRead => {
                for merging in std::mem::take(&mut self.read) {
                    self.merge(merging).await;
                }
            }
            Step::Merge => {
                let before = self.sums().await;
                merge_old(&*self.engine, &self.place).await.expect("merged");
                assert_eq!(self.sums().await, before, "a merge changes no sum");
                for merging in to_mergings(self.old()) {
                    self.merge_rows(&merging);
                }
            }
            Step::Pass(time) if time > 0 || self.rig.goes_back() => {
                self.now += time;
                self.rig.set_time(self.now).await;
            }
            Step::Pass(_) => {}
        }
    }

    async fn record(&mut self, process: usize, minute: Option<i64>, n: u64) {
        let current = minute_of(self.now);
        let minute = minute.map(|minute| current + minute);
        let worker = if n.is_multiple_of(3) { "" } else { "w:1" };
        let record = Record {
            minute,
            instance: instance(process).into(),
            worker: worker.into(),
            tally: tally(n),
        };
        let recorded = self.engine.record_activity(&self.place, record).await.expect("written");
        let minute = minute.unwrap_or(current);
        let is_written = (minute - current).abs() <= 1;
        if is_written {
            let key = (minute, instance(process).to_owned());
            let at = self.rows.get(&key).map_or(self.now, |last| self.now.max(last.at + 1));
            let (worker, tally) = (worker.to_owned(), tally(n));
            self.rows.insert(key.clone(), Part { minute, instance: key.1, worker, at, tally });
        }
        let has_old = !self.old().is_empty();
        assert_eq!(recorded, Recorded { minute: current, is_written, has_old });
    }

    async fn merge(&mut self, merging: Merging) {
        let is_merged = self.merge_rows(&merging);
        let merged = self.engine.merge_activity(&self.place, merging).await.expect("answered");
        assert_eq!(merged, is_merged);
    }

    fn merge_rows(&mut self, merging: &Merging) -> bool {
        let row = |instance: &str| self.rows.get(&(merging.minute, instance.to_owned()));
        let is_same =
            |(instance, at): &(String, Micros)| row(instance).is_some_and(|row| row.at == *at);
        if !merging.parts.iter().all(is_same) || row("").is_some() && !merging.has_merged_row() {
            return false;
        }
        let mut at = self.now;
        for (instance, last) in &merging.parts {
            self.rows.remove(&(merging.minute, instance.clone()));
            at = at.max(last + 1);
        }
        let (minute, tally) = (merging.minute, merging.tally.clone());
        let (instance, worker) = <(String, String)>::default();
        self.rows.insert((minute, String::new()), Part { minute, instance, worker, at, tally });
        self.rows.retain(|(minute, _), _| *minute >= minute_of(self.now) - KEPT);
        true
    }

    /// Returns the rows that can be merged, and the merged rows of their minutes.
    fn old(&self) -> Vec<Part> {
        let is_old = |row: &Part| row.minute < minute_of(self.now) - 2;
        let has_parts = |row: &Part| {
            self.rows.values().any(|part| part.minute == row.minute && !part.instance.is_empty())
        };
        self.rows.values().filter(|row| is_old(row) && has_parts(row)).cloned().collect()
    }

    async fn sums(&self) -> BTreeMap<i64, Tally> {
        let which = Which::Since((KEPT - 1) * MINUTE);
        by_minute(&self.engine.read_activity(&self.place, which).await.expect("read").parts)
    }

    async fn check_since(&self, since: Micros) {
        let read = self.engine.read_activity(&self.place, Which::Since(since)).await.expect("read");
        let first = minute_of(self.now - since);
        let expected: Vec<Part> =
            self.rows.values().filter(|row| row.minute >= first).cloned().collect();
        assert_eq!(
            Parts { parts: sorted(read.parts), ..read },
            Parts { now: self.now, parts: expected }
        );
        let read = self.engine.read_activity(&self.place, Which::Nothing).await.expect("read");
        assert_eq!(read, Parts { now: self.now, parts: Vec::new() });
    }

    async fn check_drop(&self, queue: &str) {
        self.engine.drop_queue(queue, true).await.expect("dropped");
        let record = || Record {
            minute: None,
            instance: "late".into(),
            worker: "w".into(),
            tally: tally(1),
        };
        let settings = Settings::default();
        let late = self.engine.record_activity(&self.place, record()).await;
        assert_eq!(late.expect_err("the queue was dropped").kind, Kind::Dropped);
        let again = self.engine.open_queue(queue, settings).await.expect("the queue opens");
        let late = self.engine.record_activity(&self.place, record()).await;
        assert_eq!(late.expect_err("the queue was dropped").kind, Kind::Dropped);
        let which = Which::Since((KEPT - 1) * MINUTE);
        assert_eq!(self.engine.read_activity(&again, which).await.expect("read").parts, []);
        let late = self.engine.read_activity(&self.place, which).await;
        assert_eq!(late.expect_err("the queue was dropped").kind, Kind::Dropped);
    }
}

fn sorted(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by(|a, b| (a.minute, &a.instance).cmp(&(b.minute, &b.instance)));
    parts
}

/// Returns a request to merge for each minute of these rows.
fn to_mergings(parts: Vec<Part>) -> Vec<Merging> {
    let mut by_minute: BTreeMap<i64, Merging> = BTreeMap::new();
    for Part { minute, instance, at, tally, .. } in parts {
        let new = || Merging { minute, parts: Vec::new(), tally: Tally::default() };
        let merging = by_minute.entry(minute).or_insert_with(new);
        merging.parts.push((instance, at));
        merging.tally.merge(&tally);
    }
    by_minute.into_values().collect()
}

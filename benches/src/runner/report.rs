//! The results of a run.

use std::collections::BTreeMap;

use super::growth::Series;
use super::heat::{Answers, Heat, Row};
use super::machine::Machine;
use super::metric::{Limit, Metric};
use super::stats::Spread;
use crate::protocol::{Answer, Hello, Keys};

/// All results of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The machine that was used.
    pub machine: Machine,
    /// The contestants and their versions.
    pub contestants: BTreeMap<String, String>,
    /// The lines of the table.
    pub lines: Vec<Line>,
    /// The growth of costs with the number of keys, if requested.
    pub growth: Vec<Series>,
    /// The reasons for missing rows, with the number of rows that each affects.
    pub missing: BTreeMap<String, usize>,
}

impl Report {
    /// Creates an empty report.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            contestants: BTreeMap::new(),
            lines: Vec::new(),
            growth: Vec::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Records the contestants that took part.
    pub fn note<'h>(&mut self, hellos: impl Iterator<Item = &'h Hello>) {
        self.contestants
            .extend(hellos.map(|hello| (hello.contestant.clone(), hello.version.clone())));
    }

    /// Records a missing figure.
    pub fn miss(&mut self, why: String) {
        *self.missing.entry(why).or_default() += 1;
    }

    /// Adds the lines for the rows of a heat.
    pub fn add(&mut self, heat: &Heat, answers: &Answers) {
        for row in &heat.rows {
            match Line::new(heat, row, answers) {
                Ok(line) => self.lines.push(line),
                Err(why) => self.miss(why),
            }
        }
    }

    /// Returns the number of targets that are met, and the number of targets.
    #[must_use]
    pub fn met(&self) -> (usize, usize) {
        let judged = || self.lines.iter().filter_map(|line| line.met);
        (judged().filter(|&met| met).count(), judged().count())
    }
}

/// The figure of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The contestant.
    pub who: String,
    /// The figure in nanoseconds, in bytes, or as a fraction.
    pub spread: Spread,
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Line {
    pub path: String,
    pub keys: Keys,
    pub metric: Metric,
    pub ours: Figure,
    pub peer: Option<Figure>,
    /// The ratio over the rounds.
    pub ratio: Option<Spread>,
    /// The upper limit for requeue.
    pub limit: Option<Limit>,
    pub met: Option<bool>,
}

impl Line {
    fn new(heat: &Heat, row: &Row, answers: &Answers) -> Result<Self, String> {
        let figures = |tag: &str| -> Result<Vec<f64>, String> {
            let answers: &Vec<Answer> = match answers.get(tag) {
                Some(Ok(answers)) => answers,
                Some(Err(why)) => return Err(why.clone()),
                None => return Err(format!("{tag} was not asked")),
            };
            let figures: Option<Vec<f64>> = answers.iter().map(|a| row.metric.of(a)).collect();
            figures.ok_or_else(|| format!("{tag} has no such figure: {}", row.path))
        };
        let ours = figures(row.ours)?;
        let peer = match (row.peer.map(figures), row.limit) {
            (None, _) => None,
            (Some(Ok(figures)), _) => Some(figures),
            // An absolute limit needs no peer.
            (Some(Err(_)), Some(Limit::Figure(_))) => None,
            (Some(Err(why)), _) => return Err(why),
        };
        let ratios = peer.iter().flatten().zip(&ours).map(|(peer, ours)| ours / peer).collect();
        let figure = |who: &str, figures| {
            let spread = Spread::of(figures).ok_or_else(|| format!("{who} had no rounds"))?;
            Ok::<_, String>(Figure { who: who.to_owned(), spread })
        };
        let peer = row.peer.zip(peer).map(|(who, figures)| figure(who, figures)).transpose()?;
        let (ours, ratio) = (figure(row.ours, ours)?, Spread::of(ratios));
        let met = match row.limit {
            None => None,
            Some(Limit::Ratio(most)) => ratio.map(|ratio| ratio.median <= most),
            Some(Limit::Figure(most)) => Some(ours.spread.median <= most),
        };
        let (path, metric, limit) = (row.path.clone(), row.metric, row.limit);
        Ok(Self { path, keys: heat.keys, metric, ours, peer, ratio, limit, met })
    }
}

#[cfg(test)]
mod tests {
    use super::super::heat::of;
    use super::*;
    use crate::protocol::Scenario;

    fn took(nanos: &[u64]) -> Result<Vec<Answer>, String> {
        Ok(nanos.iter().map(|&cpu_ns| Answer { ops: 1, cpu_ns, ..Answer::default() }).collect())
    }

    fn heat() -> Heat {
        let cycle = of(Scenario::Cycle, 1);
        let heat = Heat::new("in and out", Keys::U64).side("a", cycle).side("client-go", cycle);
        heat.row("a", "client-go")
    }

    fn report(heat: &Heat, a: &[u64], b: Result<Vec<Answer>, String>) -> Report {
        let mut report = Report::new(Machine::here());
        report.add(heat, &Answers::from([("a", took(a)), ("client-go", b)]));
        report
    }

    #[test]
    fn a_ratio_is_the_median_of_the_ratios_of_the_rounds() {
        // In the second round, the machine is slow for both sides.
        let report = report(&heat(), &[10, 500, 12], took(&[40, 1000, 20]));
        let line = &report.lines[0];
        assert_eq!(line.ratio.unwrap().median, 0.5);
        assert_eq!((line.ours.spread.median, line.met), (12.0, Some(true)));
        assert_eq!(report.met(), (1, 1));
    }

    #[test]
    fn what_is_above_its_limit_is_not_met() {
        let met = |ours| {
            let report = report(&heat(), &[ours], took(&[1000]));
            (report.lines[0].met, report.met())
        };
        assert_eq!(met(1101), (Some(false), (0, 1)));
        assert_eq!(met(1099), (Some(true), (1, 1)));
    }

    #[test]
    fn without_the_peer_there_is_no_line_unless_ours_is_judged_by_itself() {
        let nobody = || Err("client-go was not built".to_owned());
        let without = report(&heat(), &[10], nobody());
        assert_eq!((without.lines.len(), without.missing["client-go was not built"]), (0, 1));
        let alone = report(&heat().at_most(11.0), &[10], nobody());
        assert_eq!((&alone.lines[0].peer, alone.lines[0].met), (&None, Some(true)));
    }
}

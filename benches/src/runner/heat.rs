//! Heats, in which contestants take turns, and the rows that are computed from the answers.

use std::collections::BTreeMap;

use super::child::{Program, Running};
use super::metric::{Limit, Metric};
use crate::protocol::{Answer, Hello, Keys, Request, Scenario};

/// The libraries from which users migrate.
pub(super) const LIBRARIES: [&str; 3] = ["client-go", "controller-runtime", "kube-runtime"];

/// The highest ratio of requeue's time to a library's time. A user who migrates must not lose
/// speed. The tenth above 1 allows for noise, because the ratios of the same code differ
/// by that much between runs.
pub const NO_MORE: f64 = 1.1;

/// A contestant with its request.
#[derive(Clone, PartialEq, Debug)]
pub struct Side {
    /// The name of the side in rows.
    pub tag: &'static str,
    /// The name of the contestant.
    pub contestant: &'static str,
    /// The request for a round.
    pub request: Request,
}

/// A comparison of requeue with a peer.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The name of the operation.
    pub path: String,
    /// The tag of requeue's side.
    pub ours: &'static str,
    /// The tag of the peer.
    pub peer: Option<&'static str>,
    /// The figure.
    pub metric: Metric,
    /// The upper limit for requeue.
    pub limit: Option<Limit>,
}

impl Row {
    /// Returns all names of the row, for `--only`.
    #[must_use]
    pub fn id(&self, keys: Keys) -> String {
        let keys = match keys {
            Keys::U64 => "u64",
            Keys::Name => "name",
        };
        let peer = self.peer.unwrap_or_default();
        format!("{}, {keys}, {}, {:?}, {peer}", self.path, self.ours, self.metric).to_lowercase()
    }
}

/// Sides that take turns.
#[derive(Clone, PartialEq, Debug)]
pub struct Heat {
    /// The kind of keys of all sides.
    pub keys: Keys,
    /// The sides in the order of their first turns.
    pub sides: Vec<Side>,
    /// The rows that are computed.
    pub rows: Vec<Row>,
    /// The greatest number of rounds, for rounds that take long.
    pub rounds: usize,
    /// True if contestants are started again for each round.
    pub fresh: bool,
    path: String,
}

impl Heat {
    /// Creates a heat without sides.
    pub fn new(path: impl Into<String>, keys: Keys) -> Self {
        let (sides, rows) = (Vec::new(), Vec::new());
        Self { keys, sides, rows, rounds: usize::MAX, fresh: false, path: path.into() }
    }

    /// Limits the number of rounds.
    #[must_use]
    pub const fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Starts contestants again for each round, because earlier rounds would affect later rounds.
    #[must_use]
    pub const fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// Adds a side.
    #[must_use]
    pub fn side(self, contestant: &'static str, request: Request) -> Self {
        self.side_as(contestant, contestant, request)
    }

    /// Adds a side with a tag, for a contestant with several sides.
    #[must_use]
    pub fn side_as(
        mut self,
        tag: &'static str,
        contestant: &'static str,
        request: Request,
    ) -> Self {
        let request = Request { keys: self.keys, ..request };
        self.sides.push(Side { tag, contestant, request });
        self
    }

    /// Adds a row of processor time.
    #[must_use]
    pub fn row(self, ours: &'static str, peer: &'static str) -> Self {
        self.row_of(Metric::Cpu, ours, peer)
    }

    /// Adds a row. The target is [`NO_MORE`] if the figure is a time and the peer is a library.
    #[must_use]
    pub fn row_of(mut self, metric: Metric, ours: &'static str, peer: &'static str) -> Self {
        let path = match metric {
            Metric::Cpu => self.path.clone(),
            Metric::Wall => format!("{}: wall time", self.path),
            Metric::LatenessP50 => format!("{}: lateness, p50", self.path),
            Metric::LatenessP99 => format!("{}: lateness, p99", self.path),
            Metric::LatencyP50 => format!("{}: p50", self.path),
            Metric::LatencyP99 => format!("{}: p99", self.path),
            Metric::Bytes | Metric::Longest | Metric::CpuPerSecond => self.path.clone(),
            Metric::Sleeps => format!("{}: wake-ups of workers", self.path),
            Metric::Kept => format!("{}: kept once they are gone", self.path),
        };
        let judged = metric.is_steady_time() && LIBRARIES.contains(&peer);
        let limit = judged.then_some(Limit::Ratio(NO_MORE));
        self.rows.push(Row { path, ours, peer: Some(peer), metric, limit });
        self
    }

    /// Removes the peer from the last row.
    #[must_use]
    pub fn alone(mut self) -> Self {
        if let Some(row) = self.rows.last_mut() {
            row.peer = None;
        }
        self
    }

    /// Sets an absolute limit for the last row, instead of a ratio.
    #[must_use]
    pub fn at_most(mut self, figure: f64) -> Self {
        if let Some(row) = self.rows.last_mut() {
            row.limit = Some(Limit::Figure(figure));
        }
        self
    }

    /// Drops the rows that are not wanted, and the sides that no row needs.
    pub fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let keys = self.keys;
        self.rows.retain(|row| wanted(&row.id(keys)));
        let rows = &self.rows;
        self.sides.retain(|side| {
            rows.iter().any(|row| row.ours == side.tag || row.peer == Some(side.tag))
        });
    }
}

/// The answers of each side by tag, one answer per round, or the reason why there are no answers.
pub type Answers = BTreeMap<&'static str, Result<Vec<Answer>, String>>;

/// All contestants: the running contestants, and the programs that start the other contestants.
#[derive(Debug, Default)]
pub struct Field {
    programs: Vec<Program>,
    running: BTreeMap<String, Result<Running, String>>,
}

impl Field {
    /// Creates a field in which no contestant runs yet.
    #[must_use]
    pub const fn new(programs: Vec<Program>) -> Self {
        Self { programs, running: BTreeMap::new() }
    }

    /// Returns the first messages of the contestants that have run.
    pub fn hellos(&self) -> impl Iterator<Item = &Hello> {
        self.running.values().flatten().map(|running| &running.hello)
    }

    /// Runs the rounds of all sides: first to last, then last to first, and so on.
    pub fn run(&mut self, heat: &Heat, rounds: usize) -> Answers {
        let mut answers: Answers =
            heat.sides.iter().map(|side| (side.tag, Ok(Vec::new()))).collect();
        for round in 0..rounds.min(heat.rounds) {
            for at in turns(round, heat.sides.len()) {
                let side = &heat.sides[at];
                let Some(so_far) = answers.get_mut(side.tag) else { continue };
                if let Ok(list) = so_far {
                    if heat.fresh && self.running.get(side.contestant).is_some_and(Result::is_ok) {
                        self.running.remove(side.contestant);
                    }
                    match self.ask(side) {
                        Ok(answer) => list.push(answer),
                        Err(why) => *so_far = Err(why),
                    }
                }
            }
        }
        answers
    }

    fn ask(&mut self, side: &Side) -> Result<Answer, String> {
        let name = side.contestant;
        let programs = &self.programs;
        let running = self.running.entry(name.to_owned()).or_insert_with(|| {
            let program = programs.iter().find(|program| program.name == name);
            let program = program.ok_or_else(|| format!("{name} was not built"))?;
            Running::start(program).map_err(|error| error.to_string())
        });
        let running = running.as_mut().map_err(|why| why.clone())?;
        let scenario = side.request.scenario.name();
        if !running.hello.scenarios.contains(&scenario) {
            return Err(format!("{name} has no {scenario}"));
        }
        let mut answer = running.ask(&side.request);
        // On a busy machine, the plan of due times may have been too fast. Other errors are not
        // retried, because they are faults of the contestant, such as a lost key.
        let timers = matches!(side.request.scenario, Scenario::Fire | Scenario::SparseTimers);
        for _ in 0..3 {
            if timers && answer.as_ref().is_ok_and(|answer| answer.error.is_some()) {
                answer = running.ask(&side.request);
            }
        }
        match answer {
            Ok(Answer { unsupported: Some(why), .. }) => Err(format!("{name}: {why}")),
            Ok(Answer { error: Some(what), .. }) => Err(format!("{name}, {scenario}: {what}")),
            Ok(answer) => Ok(answer),
            Err(error) => {
                let why = format!("{error}, when asked for {scenario}");
                self.running.insert(name.to_owned(), Err(why.clone()));
                Err(why)
            }
        }
    }
}

/// Returns the order of the sides in a round. No side always follows the same side.
pub fn turns(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |at| if round.is_multiple_of(2) { at } else { sides - 1 - at })
}

/// Returns a request for `n` operations of a scenario.
#[must_use]
pub const fn of(scenario: Scenario, n: usize) -> Request {
    Request::new(scenario, n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat() -> Heat {
        Heat::new("in and out", Keys::U64)
            .side("a", of(Scenario::Cycle, 1))
            .side("b", of(Scenario::Cycle, 1))
            .side("c", of(Scenario::Cycle, 1))
            .row("a", "b")
            .row("a", "c")
    }

    #[test]
    fn every_other_round_is_the_other_way_round() {
        let order: Vec<usize> = (0..4).flat_map(|round| turns(round, 2)).collect();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(turns(1, 3).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn only_what_is_wanted_is_run() {
        let mut heat = heat();
        heat.keep(|id| id.ends_with("c"));
        let tags: Vec<_> = heat.sides.iter().map(|side| side.tag).collect();
        assert_eq!((heat.rows.len(), tags), (1, vec!["a", "c"]));
    }

    #[test]
    fn a_contestant_that_is_not_there_has_a_reason() {
        let answers = Field::default().run(&heat(), 3);
        assert_eq!(answers["b"], Err("b was not built".to_owned()));
    }

    #[test]
    fn a_program_that_ends_at_once_has_a_reason() {
        let program = Program { name: "a".into(), path: "true".into(), args: Vec::new() };
        let answers = Field::new(vec![program]).run(&heat(), 1);
        assert_eq!(answers["a"], Err("a ended without an answer".to_owned()));
    }
}

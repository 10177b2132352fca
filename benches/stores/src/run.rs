//! Lets contestants take turns.

use std::collections::BTreeMap;
use std::path::PathBuf;

use requeue_bench::protocol::Answer;
use requeue_bench::runner::child::{Program, Running};
use requeue_bench::runner::heat::turns;

use crate::ground::{Ground, Place};
use crate::protocol::{Request, Scenario};
use crate::table::{Engine, Heat, Metric, Scale, Side};

/// The answers of a side, one answer per round, or the reason why there are no answers.
pub(crate) type Figures = Result<Vec<Answer>, String>;

/// All contestants, by engine and role.
pub(crate) struct Field<'a> {
    ground: &'a Ground,
    programs: Vec<Program>,
    /// The running contestants, by engine and tag.
    running: BTreeMap<(&'static str, &'static str), Result<Contender<'a>, String>>,
    /// The number of places that were created, by engine.
    places: BTreeMap<&'static str, usize>,
    /// The versions of the contestants that have run.
    pub(crate) versions: BTreeMap<String, String>,
}

struct Contender<'a> {
    running: Running,
    place: Place<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn new(ground: &'a Ground, programs: Vec<Program>) -> Self {
        let (running, places, versions) = Default::default();
        Self { ground, programs, running, places, versions }
    }

    /// Runs the rounds: first side to last, then last to first, and so on. The first turn of each
    /// side does not count, because it warms up the side, and finds a number of keys that suffices
    /// for the other turns.
    pub(crate) fn run(&mut self, heat: &Heat, scale: Scale) -> Vec<Figures> {
        let mut figures: Vec<Figures> =
            heat.sides.iter().map(|side| self.warm(heat.engine, side)).collect();
        let enough: Vec<Option<usize>> = figures
            .iter_mut()
            .map(|figures| {
                let first = figures.as_mut().ok()?.pop()?;
                let keys = rate(&first)? * scale.seconds;
                Some((keys as usize).clamp(500, 300_000))
            })
            .collect();
        for round in 0..scale.rounds {
            for at in turns(round, heat.sides.len()) {
                let side = &heat.sides[at];
                let Ok(so_far) = &mut figures[at] else { continue };
                let n = enough[at].filter(|_| side.request.scenario == Scenario::Work);
                let request = Request { n: n.unwrap_or(side.request.n), ..side.request };
                match self.turn(heat.engine, side, request) {
                    Ok(answer) => so_far.push(answer),
                    Err(why) => figures[at] = Err(why),
                }
            }
        }
        // Sides with many keys are not used by other heats.
        for side in heat.sides.iter().filter(|side| side.depth > 0) {
            self.dismiss(heat.engine, side);
        }
        figures
    }

    fn warm(&mut self, engine: Engine, side: &Side) -> Figures {
        let mut request = side.request;
        match request.scenario {
            Scenario::Work => request.n = 1000,
            Scenario::Latency => request.n = 10,
            _ => request.seconds = request.seconds.min(0.5),
        }
        if side.depth > 0 {
            self.of(engine, side)?.place.clear();
            self.ask(engine, side, &Request { n: side.depth, ..Request::of(Scenario::Fill) })?;
        }
        Ok(vec![self.turn(engine, side, request)?])
    }

    fn turn(&mut self, engine: Engine, side: &Side, request: Request) -> Result<Answer, String> {
        if side.depth == 0 {
            if engine == Engine::Sqlite {
                // A process with an open file would continue to use the file after its removal.
                self.dismiss(engine, side);
            } else {
                self.of(engine, side)?.place.clear();
            }
        }
        if request.scenario == Scenario::Work {
            self.ask(engine, side, &Request { n: request.n, ..Request::of(Scenario::Fill) })?;
        }
        self.of(engine, side)?.place.settle();
        self.ask(engine, side, &request)
    }

    /// Stops a side, and removes its place.
    fn dismiss(&mut self, engine: Engine, side: &Side) {
        if let Some(Ok(contender)) = self.running.remove(&(engine.name(), side.tag)) {
            let Contender { running, place } = contender;
            drop(running);
            place.clear();
        }
    }

    fn of(&mut self, engine: Engine, side: &Side) -> Result<&mut Contender<'a>, String> {
        let at = (engine.name(), side.tag);
        if !self.running.contains_key(&at) {
            let started = self.start(engine, side);
            if let Ok(Contender { running, .. }) = &started {
                let hello = &running.hello;
                self.versions.insert(hello.contestant.clone(), hello.version.clone());
            }
            self.running.insert(at, started);
        }
        match self.running.get_mut(&at) {
            Some(Ok(running)) => Ok(running),
            Some(Err(why)) => Err(why.clone()),
            None => unreachable!("the entry was just added"),
        }
    }

    fn start(&mut self, engine: Engine, side: &Side) -> Result<Contender<'a>, String> {
        let name = side.contestant;
        let program = self.programs.iter().find(|program| program.name == name);
        let mut program = program.ok_or_else(|| format!("{name} was not built"))?.clone();
        let number = self.places.entry(engine.name()).or_default();
        *number += 1;
        let place = self.ground.place(engine, name, *number);
        let place = place.ok_or_else(|| format!("there is no {} server here", engine.name()))?;
        program.args.push(place.address().into());
        let running = Running::start(&program).map_err(|error| error.to_string())?;
        Ok(Contender { running, place })
    }

    fn ask(&mut self, engine: Engine, side: &Side, request: &Request) -> Result<Answer, String> {
        let name = side.contestant;
        let Contender { running, .. } = self.of(engine, side)?;
        let scenario = request.scenario.name();
        if !running.hello.scenarios.contains(&scenario) {
            return Err(format!("{name} has no {scenario}"));
        }
        let answer = running.ask(request).map_err(|error| error.to_string());
        let why = match answer {
            Ok(Answer { error: None, .. }) => return answer,
            Ok(Answer { error: Some(what), .. }) => format!("{name}, {scenario}: {what}"),
            Err(error) => format!("{error}, when asked for {scenario}"),
        };
        self.running.insert((engine.name(), side.tag), Err(why.clone()));
        Err(why)
    }
}

/// Returns the program for requeue, with this name, and the programs of the peers.
pub(crate) fn programs(
    peers: Vec<(String, PathBuf, Vec<String>)>,
) -> std::io::Result<Vec<Program>> {
    let ours = Program {
        name: crate::table::OURS.to_owned(),
        path: std::env::current_exe()?,
        args: vec!["contestant".into()],
    };
    let others = peers.into_iter().map(|(name, path, args)| {
        let args = args.into_iter().map(Into::into).collect();
        Program { name, path, args }
    });
    Ok(std::iter::once(ours).chain(others).collect())
}

fn rate(answer: &Answer) -> Option<f64> {
    (answer.wall_ns > 0).then(|| answer.ops as f64 * 1e9 / answer.wall_ns as f64)
}

impl Metric {
    /// Returns keys per second, or milliseconds.
    pub(crate) fn of(self, answer: &Answer) -> Option<f64> {
        match self {
            Self::Rate => rate(answer),
            Self::P50 => Some(answer.latency_ns?.p50 / 1e6),
            Self::P99 => Some(answer.latency_ns?.p99 / 1e6),
        }
    }
}

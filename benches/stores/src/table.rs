//! The heats and their targets.

use crate::protocol::{Request, Scenario};

/// The store of a heat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Postgres,
    /// PostgreSQL whose commits do not wait for the disk, so that only the cost of the work itself
    /// remains.
    PostgresUnsynced,
    Redis,
    Sqlite,
}

impl Engine {
    pub(crate) const ALL: [Self; 4] =
        [Self::Postgres, Self::PostgresUnsynced, Self::Redis, Self::Sqlite];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::PostgresUnsynced => "PostgreSQL, fsync=off",
            Self::Redis => "Redis",
            Self::Sqlite => "SQLite",
        }
    }

    /// Returns the peers on this engine.
    fn peers(self) -> Vec<Peer> {
        match self {
            Self::Postgres | Self::PostgresUnsynced => vec![
                Peer {
                    batched: Some(2.0),
                    work: Some(2.0),
                    work_alike: Some(2.0),
                    ..Peer::of("river", 1000)
                },
                Peer::of("graphile-worker", 24),
                // Its adds are the same as the adds of `graphile-worker`.
                Peer { adds: false, work: Some(5.0), ..Peer::of("graphile-worker-local", 100) },
            ],
            Self::Redis => vec![Peer {
                add: Some(5.0),
                batched: Some(5.0),
                work: Some(3.0),
                work_alike: Some(3.0),
                ..Peer::of("bullmq", 1000)
            }],
            Self::Sqlite => Vec::new(),
        }
    }

    /// Returns the number of keys that requeue processes at the same time, at its best setting.
    const fn at_once(self) -> usize {
        match self {
            Self::Postgres | Self::PostgresUnsynced => 1000,
            Self::Redis => 256,
            Self::Sqlite => ALIKE,
        }
    }
}

/// A queue of another project.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// The number of keys that the peer processes at the same time, at its best setting.
    at_once: usize,
    /// True if the adds of the peer are measured.
    adds: bool,
    /// The targets, as multiples of the peer's rate: adds of one key, adds of a hundred, work, and
    /// work with the same number of keys at the same time.
    add: Option<f64>,
    batched: Option<f64>,
    work: Option<f64>,
    work_alike: Option<f64>,
}

impl Peer {
    const fn of(name: &'static str, at_once: usize) -> Self {
        let (add, batched, work, work_alike) = (None, None, None, None);
        Self { name, at_once, adds: true, add, batched, work, work_alike }
    }
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// The seconds of each turn.
    pub(crate) seconds: f64,
    /// The number of waiting keys, in heats with many waiting keys.
    pub(crate) many: usize,
    /// The number of adds whose latency is measured.
    pub(crate) latencies: usize,
}

impl Scale {
    pub(crate) const FULL: Self = Self { rounds: 3, seconds: 2.0, many: 1_000_000, latencies: 200 };
    pub(crate) const QUICK: Self = Self { rounds: 1, seconds: 0.5, many: 20_000, latencies: 30 };
}

/// A figure of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// Keys per second.
    Rate,
    P50,
    P99,
}

/// A contestant with its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// The name of the side in rows.
    pub(crate) tag: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) request: Request,
    /// The number of keys that are always in the queue. If this number is not zero, the keys are
    /// added only once.
    pub(crate) depth: usize,
}

/// A lower limit for requeue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Times(f64),
    Rate(f64),
}

/// A comparison of the first side with another side, or the first side alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) metric: Metric,
    pub(crate) peer: Option<&'static str>,
    pub(crate) target: Option<Target>,
}

/// Sides that take turns.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    pub(crate) engine: Engine,
    pub(crate) what: &'static str,
    /// The sides. The first is requeue.
    pub(crate) sides: Vec<Side>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) const OURS: &str = "requeue";
/// Another build of requeue, with the same settings.
pub(crate) const BEFORE: &str = "requeue before";
/// The number of keys in flight, in heats in which all sides have the same number.
const ALIKE: usize = 64;

pub(crate) fn heats(scale: Scale) -> Vec<Heat> {
    Engine::ALL.into_iter().flat_map(|engine| of_engine(engine, scale)).collect()
}

fn of_engine(engine: Engine, scale: Scale) -> Vec<Heat> {
    let peers = engine.peers();
    let adders: Vec<Peer> = peers.iter().copied().filter(|peer| peer.adds).collect();
    // The rate of graphile-worker alone depends on the number of its workers: see `few_workers`.
    let workers: Vec<Peer> = peers.iter().copied().filter(|peer| peer.work.is_some()).collect();
    let alike = |peer: &Peer| Peer { at_once: ALIKE, ..*peer };
    let alike: Vec<Peer> =
        peers.iter().filter(|peer| peer.work_alike.is_some()).map(alike).collect();
    let seconds = scale.seconds;
    let add = |tasks, batch| Request { tasks, batch, seconds, ..Request::of(Scenario::Add) };
    let work = |tasks| Request { tasks, seconds, ..Request::of(Scenario::Work) };
    let latency = Request { n: scale.latencies, tasks: ALIKE, ..Request::of(Scenario::Latency) };
    let heat = |what, request, peers: &[Peer]| Heat::new(engine, what, request, peers);
    let mut heats = vec![
        heat("adds a second, one at a time", add(1, 1), &adders).rows(
            Metric::Rate,
            &adders,
            |peer| peer.add,
        ),
        heat("adds a second, 64 tasks", add(64, 1), &adders)
            .rows(Metric::Rate, &adders, |peer| peer.add),
        heat("adds a second, 100 at once", add(1, 100), &adders).rows(
            Metric::Rate,
            &adders,
            |peer| peer.batched,
        ),
        heat("work, keys a second", work(engine.at_once()), &workers).rows(
            Metric::Rate,
            &workers,
            |peer| peer.work,
        ),
        heat("work on 64 at once, keys a second", work(ALIKE), &alike).rows(
            Metric::Rate,
            &alike,
            |peer| peer.work_alike,
        ),
        heat("from add to start", latency, &peers).rows(Metric::P50, &peers, |_| None).rows(
            Metric::P99,
            &peers,
            |_| None,
        ),
        growing(engine, scale),
    ];
    if engine == Engine::Sqlite {
        // This heat is removed, because it would repeat the heat before it.
        heats.remove(3);
        heats[3].rows[0].target = Some(Target::Rate(10_000.0));
    }
    heats
}

/// The numbers of keys in flight, in comparisons of few workers.
const FEW: [(usize, &str); 5] = [
    (1, "work by one worker, keys a second"),
    (4, "work by 4, keys a second"),
    (16, "work by 16, keys a second"),
    (64, "work by 64, keys a second"),
    (256, "work by 256, keys a second"),
];

/// Compares sides with the same number of workers, to show the benefit of not waiting for the disk.
pub(crate) fn few_workers(scale: Scale) -> Vec<Heat> {
    let of = |engine: Engine, (tasks, what): (usize, &'static str)| {
        let names: &[&'static str] = match engine {
            Engine::Postgres => &["river", "graphile-worker"],
            Engine::Redis => &["bullmq"],
            Engine::PostgresUnsynced | Engine::Sqlite => &[],
        };
        let peers: Vec<Peer> = names.iter().map(|name| Peer::of(name, tasks)).collect();
        let peers = &peers[..];
        let request = Request { tasks, seconds: scale.seconds, ..Request::of(Scenario::Work) };
        Heat::new(engine, what, request, peers).rows(Metric::Rate, peers, |_| Some(1.0))
    };
    let engines = [Engine::Postgres, Engine::Redis, Engine::Sqlite];
    engines.into_iter().flat_map(|engine| FEW.map(|few| of(engine, few))).collect()
}

/// Compares this build with another build, to show the cost of a change.
pub(crate) fn builds(scale: Scale) -> Vec<Heat> {
    let of = |engine: Engine| {
        let heat = |what, scenario, tasks| {
            let request = Request { tasks, seconds: scale.seconds, ..Request::of(scenario) };
            let before = [Peer::of(BEFORE, tasks)];
            Heat::new(engine, what, request, &before).rows(Metric::Rate, &before, |_| Some(0.97))
        };
        [
            heat("adds a second, 64 tasks", Scenario::Add, ALIKE),
            heat("work, keys a second", Scenario::Work, engine.at_once()),
            heat("work on 64 at once, keys a second", Scenario::Work, ALIKE),
        ]
    };
    Engine::ALL.into_iter().flat_map(of).collect()
}

impl Heat {
    /// Creates a heat of requeue and peers, each with its best number of keys at a time.
    fn new(engine: Engine, what: &'static str, request: Request, peers: &[Peer]) -> Self {
        let works = matches!(request.scenario, Scenario::Work | Scenario::Latency);
        let side = |tag, tasks| {
            let request = Request { tasks, ..request };
            Side { tag, contestant: tag, request, depth: 0 }
        };
        let tasks = |peer: &Peer| if works { peer.at_once } else { request.tasks };
        let peers = peers.iter().map(|peer| side(peer.name, tasks(peer)));
        let sides = std::iter::once(side(OURS, request.tasks)).chain(peers).collect();
        Self { engine, what, sides, rows: Vec::new() }
    }

    /// Adds a row that compares requeue with each peer, or a row of requeue alone.
    fn rows(mut self, metric: Metric, peers: &[Peer], target: fn(&Peer) -> Option<f64>) -> Self {
        if peers.is_empty() {
            self.rows.push(Row { metric, peer: None, target: None });
        }
        self.rows.extend(peers.iter().map(|peer| Row {
            metric,
            peer: Some(peer.name),
            target: target(peer).map(Target::Times),
        }));
        self
    }
}

/// Compares requeue with many keys and requeue with a thousand keys.
fn growing(engine: Engine, scale: Scale) -> Heat {
    let request = Request { tasks: ALIKE, seconds: scale.seconds, ..Request::of(Scenario::Cycle) };
    let side = |tag, depth| Side { tag, contestant: OURS, request, depth };
    let target = Some(Target::Times(0.8));
    Heat {
        engine,
        what: "work and adds, keys a second, a million waiting",
        sides: vec![side("requeue, many", scale.many), side("requeue, a thousand", 1000)],
        rows: vec![Row { metric: Metric::Rate, peer: Some("requeue, a thousand"), target }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_of_sides_that_are_there() {
        for heat in [heats, few_workers, builds].iter().flat_map(|heats| heats(Scale::FULL)) {
            assert!(!heat.rows.is_empty());
            for row in &heat.rows {
                let there = |tag| heat.sides[1..].iter().any(|side| side.tag == tag);
                assert!(row.peer.is_none_or(there), "{row:?}");
            }
        }
    }
}

//! What is measured, and what ours is held to.

use crate::protocol::{Request, Scenario};

/// Where keys are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Postgres,
    /// The same, where commits wait for no disk: what is left is what the work takes.
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

    /// Who takes keys there besides ours.
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
                // It adds as the other does.
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

    /// How many keys ours works on at once there: what it does best with.
    const fn at_once(self) -> usize {
        match self {
            Self::Postgres | Self::PostgresUnsynced => 1000,
            Self::Redis => 256,
            Self::Sqlite => ALIKE,
        }
    }
}

/// Somebody else's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// How many keys it works on at once: what it does best with.
    at_once: usize,
    /// Whether its adds are measured.
    adds: bool,
    /// How many times as quick ours is to be: in adds of a key, of a hundred, in work, and where
    /// both work on as many keys at once.
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

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// For which time each has its turn.
    pub(crate) seconds: f64,
    /// How many keys wait where it is many.
    pub(crate) many: usize,
    /// How many adds are waited for.
    pub(crate) latencies: usize,
}

impl Scale {
    pub(crate) const FULL: Self = Self { rounds: 3, seconds: 2.0, many: 1_000_000, latencies: 200 };
    pub(crate) const QUICK: Self = Self { rounds: 1, seconds: 0.5, many: 20_000, latencies: 30 };
}

/// Which figure of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// Keys a second.
    Rate,
    P50,
    P99,
}

/// A contestant with what it has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// What rows call it.
    pub(crate) tag: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) request: Request,
    /// How many keys there are all the time: where there are any, they are put there once.
    pub(crate) depth: usize,
}

/// What ours is to be at least.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Times(f64),
    Rate(f64),
}

/// The first side beside another, or alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) metric: Metric,
    pub(crate) peer: Option<&'static str>,
    pub(crate) target: Option<Target>,
}

/// What is compared.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    pub(crate) engine: Engine,
    pub(crate) what: &'static str,
    /// The first is ours.
    pub(crate) sides: Vec<Side>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) const OURS: &str = "requeue";
/// How many keys are worked on at once, where nobody has what is best for it.
const ALIKE: usize = 64;

pub(crate) fn heats(scale: Scale) -> Vec<Heat> {
    Engine::ALL.into_iter().flat_map(|engine| of_engine(engine, scale)).collect()
}

fn of_engine(engine: Engine, scale: Scale) -> Vec<Heat> {
    let peers = engine.peers();
    let adders: Vec<Peer> = peers.iter().copied().filter(|peer| peer.adds).collect();
    // How quick graphile-worker is by itself depends on how many workers there are: see `few_workers`.
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
        // It is the same once more.
        heats.remove(3);
        heats[3].rows[0].target = Some(Target::Rate(10_000.0));
    }
    heats
}

/// How many keys are worked on at once, where they are few.
const FEW: [(usize, &str); 5] = [
    (1, "work by one worker, keys a second"),
    (4, "work by 4, keys a second"),
    (16, "work by 16, keys a second"),
    (64, "work by 64, keys a second"),
    (256, "work by 256, keys a second"),
];

/// Ours beside those who have as many workers, to see what it is worth not to wait for the disk.
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

impl Heat {
    /// Ours and those, each of whom works on as many keys at once as is best for it.
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

    /// Ours beside each of those, or alone.
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

/// Ours with many keys beside ours with a thousand.
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
        for heat in heats(Scale::FULL).into_iter().chain(few_workers(Scale::FULL)) {
            assert!(!heat.rows.is_empty());
            for row in &heat.rows {
                let there = |tag| heat.sides[1..].iter().any(|side| side.tag == tag);
                assert!(row.peer.is_none_or(there), "{row:?}");
            }
        }
    }
}

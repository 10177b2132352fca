//! Lets the contestants take turns.

use std::collections::BTreeMap;
use std::process::Command;

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::api::PostParams;
use kube::{Api, Client};
use requeue_bench::runner::machine::Machine;
use requeue_e2e::Server;

use crate::Result;
use crate::kinds::{Task, TaskSpec, install};
use crate::protocol::{Answer, Memory, Patches, Request, Who, Work};
use crate::table::{Metric, Row, show};

/// A piece of work, with the answers of each contestant in the order of the rounds.
struct Heat {
    name: String,
    work: Work,
    answers: BTreeMap<Who, Vec<Answer>>,
}

impl Heat {
    fn new(name: String, work: Work, sides: &[Who]) -> Self {
        let answers = sides.iter().map(|who| (*who, Vec::new())).collect();
        Self { name, work, answers }
    }

    fn of(&self, who: Who) -> &[Answer] {
        self.answers.get(&who).map_or(&[], Vec::as_slice)
    }

    /// Compares requeue with kube.
    fn row(&self, metric: Metric) -> Row {
        Row::new(&self.name, metric, ("kube", self.of(Who::Kube)), self.of(Who::Ours))
    }

    /// Compares a contestant with itself on less work.
    fn row_beside(&self, less: &Self, who: Who, metric: Metric) -> Row {
        let side = match who {
            Who::Ours => "ours",
            Who::Kube => "kube",
            Who::Store => "the store alone",
        };
        let peer = format!("the same, {}", less.name);
        let row = Row::new(
            &format!("{}: {side}", self.name),
            metric,
            (&peer, less.of(who)),
            self.of(who),
        );
        if who == Who::Ours { row } else { row.untold() }
    }
}

/// Runs the same work on all contestants in rounds, and reverses their order in each round.
pub(crate) async fn run() -> Result<()> {
    let quick = std::env::var("QUICK").is_ok_and(|quick| !quick.is_empty());
    let rounds = match std::env::var("ROUNDS") {
        Ok(rounds) if !rounds.is_empty() => {
            rounds.parse().map_err(|error| format!("ROUNDS={rounds:?}: {error}"))?
        }
        _ if quick => 2,
        _ => 7,
    };
    let part = if quick { 10 } else { 1 };
    let machine = Machine::here();
    let Some(server) = Server::start().await else { return Err("there is no API server".into()) };
    let client = server.client().await;
    install(&client).await;

    let mut patches = Vec::new();
    for objects in [1000 / part, 10_000 / part] {
        let namespace = server.namespace("bench").await;
        create(&client, &namespace, objects).await?;
        patches.extend([4, 32].map(|concurrency| {
            let name = format!("{objects} objects, {concurrency} at once");
            let work = Patches { namespace: namespace.clone(), objects, concurrency, number: 0 };
            Heat::new(name, Work::Patches(work), &[Who::Ours, Who::Kube])
        }));
    }
    let mut memory = [1000, 100_000].map(|objects| {
        let passes = 500_000 / part / objects;
        let name = format!("{objects} objects from memory");
        let work = Work::Memory(Memory { objects, passes: passes.max(1) });
        Heat::new(name, work, &[Who::Ours, Who::Kube, Who::Store])
    });

    let mut number = 0;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut turns: Vec<_> = patches.iter_mut().chain(&mut memory).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for heat in turns {
            let mut order: Vec<_> = heat.answers.keys().copied().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for who in order {
                number += 1;
                if let Work::Patches(patches) = &mut heat.work {
                    patches.number = number;
                }
                let request = Request { who, work: heat.work.clone() };
                let answer = ask(&server, &request)?;
                heat.answers.entry(who).or_default().push(answer);
            }
        }
    }

    let on_server = [Metric::PerSecond, Metric::Cpu, Metric::Peak];
    let mut rows: Vec<_> =
        patches.iter().flat_map(|heat| on_server.map(|metric| heat.row(metric))).collect();
    let [few, many] = &memory;
    let alone = [Metric::Wall, Metric::Cpu];
    rows.extend(alone.map(|metric| few.row(metric)));
    rows.extend([Metric::Wall, Metric::Cpu, Metric::Peak].map(|metric| many.row(metric)));
    let sides = [Who::Ours, Who::Kube, Who::Store];
    rows.extend(
        sides.iter().flat_map(|who| alone.map(|metric| many.row_beside(few, *who, metric))),
    );
    print!("{}", show(&machine, rounds, quick, &rows));
    Ok(())
}

async fn create(client: &Client, namespace: &str, objects: usize) -> Result<()> {
    eprintln!("making {objects} objects");
    let tasks: &Api<Task> = &Api::namespaced(client.clone(), namespace);
    stream::iter(0..objects)
        .map(async |number| {
            let task = Task::new(&format!("object-{number}"), TaskSpec { wanted: 1 });
            tasks.create(&PostParams::default(), &task).await
        })
        .buffer_unordered(32)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    Ok(())
}

/// Starts a process for each run, so that only the contestant uses the measured time and memory.
fn ask(server: &Server, request: &Request) -> Result<Answer> {
    let output = Command::new(std::env::current_exe()?)
        .arg(serde_json::to_string(request)?)
        .env("KUBECONFIG", server.kubeconfig())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{request:?}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

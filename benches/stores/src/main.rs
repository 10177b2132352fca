//! `make bench-store`: compares requeue with its peers on servers of this machine, in one run.

mod bloat;
mod contestant;
mod ground;
mod groups;
mod protocol;
mod run;
mod table;
mod text;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use regex::Regex;
use requeue_bench::runner::machine::Machine;

use crate::ground::Ground;
use crate::run::Field;
use crate::table::{BEFORE, Scale};
use crate::text::Report;

type Failed = Box<dyn Error + Send + Sync>;

/// Compares stores
#[derive(Parser)]
#[command(name = "requeue-bench-stores")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one contestant, which answers requests on standard input
    Contestant {
        /// The address of the store
        address: String,
    },
    /// Let contestants take turns, and print a table
    Run(Run),
    /// Compare queues with groups with queues without, and print the ratios
    Groups {
        /// Run few rounds with few keys, to check that everything works
        #[arg(long)]
        quick: bool,
        /// The number of rounds
        #[arg(long)]
        rounds: Option<usize>,
        /// Only the cases whose engine and name, in lower case, match
        #[arg(long)]
        only: Option<Regex>,
    },
    /// Pass many keys through requeue's stores, and print the disk space that they occupy
    Bloat {
        /// The number of keys
        #[arg(long, default_value_t = 10_000_000)]
        keys: usize,
    },
}

#[derive(clap::Args)]
struct Run {
    /// Run few rounds with few keys, to check that everything works
    #[arg(long)]
    quick: bool,
    /// The number of rounds per contestant
    #[arg(long)]
    rounds: Option<usize>,
    /// Only the heats whose engine and name, in lower case, match
    #[arg(long)]
    only: Option<Regex>,
    /// Compare few workers instead, on a disk whose syncs take N microseconds: preload
    /// `steady-disk.c`
    #[arg(long, value_name = "N")]
    sync_micros: Option<u64>,
    /// Compare only with another build of this program
    #[arg(long, value_name = "PATH", conflicts_with_all = ["sync_micros", "peers"])]
    before: Option<PathBuf>,
    /// A contestant of another program, as NAME=PATH or NAME=PATH:ARGUMENT:ARGUMENT
    #[arg(long = "peer", value_parser = peer)]
    peers: Vec<(String, PathBuf, Vec<String>)>,
}

fn peer(arg: &str) -> Result<(String, PathBuf, Vec<String>), String> {
    let (name, command) = arg.split_once('=').ok_or("it must be NAME=PATH")?;
    let mut words = command.split(':').map(str::to_owned);
    let path = words.next().unwrap_or_default().into();
    Ok((name.to_owned(), path, words.collect()))
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Contestant { address } => on_runtime(contestant::serve(&address)),
        Command::Run(run) => measure(run),
        Command::Groups { quick, rounds, only } => {
            let scale = groups::Scale {
                rounds: rounds.unwrap_or(if quick { 3 } else { 15 }).max(1),
                keys: if quick { 1000 } else { 10_000 },
            };
            on_runtime(groups::measure(scale, only.as_ref()))
        }
        Command::Bloat { keys } => bloat::measure(keys),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("requeue-bench-stores: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_runtime(future: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
}

fn measure(run: Run) -> Result<(), Failed> {
    let scale = if run.quick { Scale::QUICK } else { Scale::FULL };
    let scale = Scale { rounds: run.rounds.unwrap_or(scale.rounds).max(1), ..scale };
    let machine = Machine::here();
    let ground = Ground::start_with(run.sync_micros.map(Duration::from_micros))?;
    let is_build = run.before.is_some();
    let before = run.before.map(|path| (BEFORE.to_owned(), path, vec!["contestant".to_owned()]));
    let programs = run::programs(run.peers.into_iter().chain(before).collect())?;
    let mut field = Field::new(&ground, programs);
    let mut report = Report::default();
    let heats = match run.sync_micros {
        Some(_) => table::few_workers(scale),
        None if is_build => table::builds(scale),
        None => table::heats(scale),
    };
    for heat in heats {
        let name = format!("{}, {}", heat.engine.name(), heat.what).to_lowercase();
        if run.only.as_ref().is_none_or(|only| only.is_match(&name)) {
            eprintln!("{name}");
            let figures = field.run(&heat, scale);
            report.add(&heat, &figures);
        }
    }
    let versions = field.versions.iter().map(|(who, version)| format!("{who} {version}"));
    print!("{machine}");
    println!("versions  {}", versions.collect::<Vec<_>>().join(", "));
    println!("servers   {}", ground.versions().join("; "));
    if let Some(sync) = run.sync_micros {
        let found = ground.sync_took()?;
        println!("disk      a sync is a sleep of {sync} us; PostgreSQL's took {found:.0} us");
    }
    println!(
        "figures   medians of {} rounds. A ratio is ours to the peer's in the same round: its\n          \
         median, and its quartiles in brackets",
        scale.rounds
    );
    print!("{}", report.show());
    Ok(())
}

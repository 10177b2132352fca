//! `make bench`: compares requeue with its peers on this machine, in one run.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use regex::Regex;
use requeue_bench::contestant;
use requeue_bench::runner::child::Program;
use requeue_bench::runner::heat::Field;
use requeue_bench::runner::table::Scale;
use requeue_bench::runner::{Plan, text, write};

/// Compares queues
#[derive(Parser)]
#[command(name = "requeue-bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one contestant, which answers requests on standard input
    Contestant {
        /// The name of the contestant
        name: String,
    },
    /// Let contestants take turns, and print a table
    Run(Run),
}

#[derive(clap::Args)]
struct Run {
    /// Run few rounds with few keys, to check that everything works
    #[arg(long)]
    quick: bool,
    /// The number of rounds per contestant
    #[arg(long)]
    rounds: Option<usize>,
    /// Only the rows that match: path, kind of key, own tag, figure and peer
    #[arg(long)]
    only: Option<Regex>,
    /// Also measure how costs grow, from a thousand keys to ten million
    #[arg(long)]
    growth: bool,
    /// A contestant of another program, as NAME=PATH; it is started as `PATH NAME`
    #[arg(long = "peer", value_parser = peer)]
    peers: Vec<(String, PathBuf)>,
    /// The directory for the results
    #[arg(long)]
    out: Option<PathBuf>,
}

fn peer(arg: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = arg.split_once('=').ok_or("it must be NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Contestant { name } => serve(&name),
        Command::Run(run) => measure(run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("requeue-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(name: &str) -> io::Result<()> {
    let Some(contestant) = contestant::ALL.iter().find(|entry| entry.name == name) else {
        let all: Vec<&str> = contestant::ALL.iter().map(|entry| entry.name).collect();
        let error = format!("no contestant is called {name:?}; there are {}", all.join(", "));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    };
    contestant.serve()
}

fn measure(run: Run) -> io::Result<()> {
    let scale = if run.quick { Scale::QUICK } else { Scale::FULL };
    let plan = Plan {
        scale: Scale { rounds: run.rounds.unwrap_or(scale.rounds).max(1), ..scale },
        only: run.only,
        growth: run.growth,
    };
    let this = env::current_exe()?;
    let ours = contestant::ALL.iter().map(|entry| Program {
        name: entry.name.to_owned(),
        path: this.clone(),
        args: vec!["contestant".into(), entry.name.into()],
    });
    let others = run.peers.into_iter().map(|(name, path)| {
        let args = vec![name.clone().into()];
        Program { name, path, args }
    });
    let report = plan.run(Field::new(ours.chain(others).collect()));
    print!("{}", text::show(&report));
    run.out.map_or(Ok(()), |dir| write(&report, &dir))
}

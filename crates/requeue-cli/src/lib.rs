//! The program `requeue`. It runs a command for each key: of an input stream, of a queue in a store, or for each file
//! or Kubernetes object that changes. The crate is a library only for its tests and fuzz targets, and has no public
//! interface.
//!
//! A module imports only modules from lines above its own line, or from its own folder. No modules import each other
//! in a cycle:
//!
//! 1. `exit`, `key`, `duration`: exit codes and refusals; keys and durations as text
//! 2. `process`: commands, their process groups, signals and time limits
//! 3. `input`: records, and the changes that they describe
//! 4. `output`: standard output and error, and the files that the program writes
//! 5. `serve`: the dashboard
//! 6. `args`: flags, help texts, and the configuration that results from them
//! 7. `client`: the client of `--server`
//! 8. `runner`: takes keys from the queue, runs their commands, and completes them
//! 9. `files`, `store`, `watch`: the subcommands with keys from directories, from a store or from Kubernetes
//! 10. `pages`, `replay`, and this file

// On other platforms, `main.rs` only prints a message.
#![cfg(unix)]

mod args;
mod client;
mod duration;
mod exit;
mod files;
#[doc(hidden)]
pub mod fuzz_api;
mod input;
mod key;
mod output;
mod pages;
mod process;
mod replay;
mod runner;
mod serve;
mod store;
mod tls;
mod token;
mod traces;
#[cfg(feature = "kube")]
mod watch;

use std::process::ExitCode;

use crate::args::config::Config;
use crate::args::{Cli, Subcommand};
use crate::exit::Ended;

/// Runs the program with the arguments of this process, and returns its exit code.
pub fn main() -> ExitCode {
    // The arguments of the guardian are not flags, so this check comes before the arguments are parsed.
    if let Some(code) = process::guardian::guard_if_asked() {
        return code;
    }
    let Cli { command, .. } = match Cli::of_process() {
        Ok(cli) => cli,
        // clap also returns the texts of --help and --version as an error, and prints them to standard output.
        Err(error) => error.exit(),
    };
    let ended = match command {
        Subcommand::Run(flags) if flags.through.store.is_some() => store::work::run(*flags),
        Subcommand::Run(flags) => Config::from_run_flags(*flags)
            .and_then(|(source, config)| runner::launch::run(&source, config)),
        Subcommand::Files(flags) => files::run(*flags),
        #[cfg(feature = "kube")]
        Subcommand::Watch(flags) => watch::run(*flags),
        Subcommand::Add(flags) => store::adder::add(*flags),
        Subcommand::Work(flags) => store::work::work(*flags),
        Subcommand::Queues(flags) => store::look::queues(flags),
        Subcommand::Drop(flags) => store::look::drop_queue(&flags),
        Subcommand::Pause(flags) => store::look::set_paused(flags, true),
        Subcommand::Resume(flags) => store::look::set_paused(flags, false),
        Subcommand::Status(flags) => store::look::status(&flags),
        Subcommand::Keys(flags) => store::keys::keys(&flags),
        Subcommand::Why(flags) => store::why::why(&flags),
        Subcommand::Serve(flags) => store::serve::serve(&flags),
        Subcommand::Parked(flags) => store::keys::parked(&flags),
        Subcommand::Revive(flags) => store::look::revive(&flags),
        Subcommand::Cancel(flags) => store::look::cancel(&flags),
        Subcommand::Groups { command } => store::groups::run(command),
        Subcommand::Store { command } => store::work::init_store(command),
        Subcommand::Schedule { command } => store::schedule::schedule(command),
        Subcommand::Replay { file } => replay::replay(&file),
        Subcommand::Completions { shell } => pages::print_completions(shell),
        Subcommand::Man { dir } => pages::write_manual(&dir),
    };
    match ended {
        Ok(Ended::Exit(exit)) => exit.into(),
        Ok(Ended::Signal(signal)) => process::signals::die_of(signal),
        Err(refusal) => {
            exit::print_refusal(&refusal);
            refusal.exit.into()
        }
    }
}

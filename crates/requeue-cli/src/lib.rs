//! `requeue`: a command per key, from a stream of keys, from a queue in a store that machines share, or
//! per Kubernetes object that changes. A library for the sake of its tests: nothing here is for others
//! to use.

mod args;
mod attempt;
mod capture;
mod codes;
mod command;
mod config;
#[doc(hidden)]
pub mod door;
mod ending;
mod exit;
mod files;
mod given;
mod groups;
mod guardian;
mod halt;
mod heed;
mod input;
mod joblog;
mod json;
mod lent;
mod letters;
mod output;
mod pace;
mod pacing;
mod pages;
mod patient;
mod progress;
mod rate;
mod reader;
mod retries;
mod run;
mod serve;
mod shells;
mod signals;
mod source;
mod spawn;
mod standstill;
#[cfg(feature = "store")]
mod store;
mod summary;
mod template;
mod timeout;
mod values;
#[cfg(feature = "kube")]
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Subcommand};
use crate::config::Config;
use crate::exit::{Ended, Refusal};

/// The program.
pub fn main() -> ExitCode {
    if let Some(code) = guardian::guard_if_asked() {
        return code;
    }
    let Cli { command } = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no errors, and go to standard output; both ends are clap's.
        Err(error) => error.exit(),
    };
    let ended = match command {
        #[cfg(feature = "store")]
        Subcommand::Run(flags) if flags.through.store.is_some() => store::run(*flags),
        Subcommand::Run(flags) => {
            Config::check(*flags).and_then(|(source, config)| run::run(&source, config))
        }
        #[cfg(feature = "kube")]
        Subcommand::Watch(flags) => watch::run(*flags),
        #[cfg(feature = "store")]
        Subcommand::Add(flags) => store::add(*flags),
        #[cfg(feature = "store")]
        Subcommand::Work(flags) => store::work(*flags),
        #[cfg(feature = "store")]
        Subcommand::Queues(flags) => store::queues(&flags),
        #[cfg(feature = "store")]
        Subcommand::Status(flags) => store::status(&flags),
        #[cfg(feature = "store")]
        Subcommand::Parked(flags) => store::parked(&flags),
        #[cfg(feature = "store")]
        Subcommand::Revive(flags) => store::revive(&flags),
        #[cfg(feature = "store")]
        Subcommand::Cancel(flags) => store::cancel(&flags),
        #[cfg(feature = "store")]
        Subcommand::Store { command } => store::command(&command),
        Subcommand::Completions { shell } => pages::completions(shell),
        Subcommand::Man { dir } => pages::man(&dir),
    };
    match ended {
        Ok(Ended::Exit(exit)) => exit.into(),
        Ok(Ended::Signal(signal)) => signals::die_of(signal),
        Err(Refusal { exit, message }) => {
            exit::complain(&message);
            exit.into()
        }
    }
}

//! The command line: flags, their values and help texts, and the configuration that results from them.

pub(crate) mod codes;
pub(crate) mod config;
pub(crate) mod files;
pub(crate) mod groups;
pub(crate) mod groups_command;
pub(crate) mod halt;
pub(crate) mod help;
#[cfg(feature = "kube")]
pub(crate) mod names;
pub(crate) mod pacing;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod store;
pub(crate) mod values;
#[cfg(feature = "kube")]
pub(crate) mod watch;

use std::path::PathBuf;

use clap::builder::styling::Styles;
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;

/// Run a command per key: deduplicated, one at a time, retried with backoff
#[derive(Parser, Debug)]
#[command(
    name = "requeue",
    version,
    styles = Styles::plain(),
    disable_version_flag = true,
    // The options and an empty line are left out, so that the short help fits on 24 lines.
    help_template = "{about-with-newline}Commands:\n{subcommands}{after-help}",
    after_long_help = "Options:\n  -h, --help     Print help\n  -V, --version  Print version"
)]
pub(crate) struct Cli {
    /// Print version
    #[arg(short = 'V', long, action = ArgAction::Version, hide_short_help = true)]
    version: Option<bool>,

    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

impl Cli {
    /// Parses the arguments of this process. The lines of help texts are broken only if the user asks for help,
    /// because this builds the flags of all subcommands.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        Self::try_parse().or_else(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let mut command = Self::command();
                command.build();
                let matches = help::with_wrapped_lines(command).try_get_matches()?;
                Self::from_arg_matches(&matches)
            }
            _ => Err(error),
        })
    }
}

// The flags of a subcommand are built only if the subcommand is used. The program then starts faster.
#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
pub(crate) enum Subcommand {
    /// Run a command for each key of the input
    #[command(long_about = help::RUN)]
    Run(Box<run::Flags>),
    /// Run a command for each file that changes
    #[command(long_about = help::FILES)]
    Files(Box<files::Flags>),
    /// Run a command for each Kubernetes object that changes
    #[cfg(feature = "kube")]
    #[command(long_about = help::WATCH)]
    Watch(Box<watch::Flags>),
    /// Add keys to a queue in a store
    ///
    /// Adds the keys on the command line, or those that are read from standard input. A key that is
    /// already pending is not added twice. A key in flight runs once more after its run.
    ///
    /// An add revives a parked key, which then runs again with its failures reset. In a queue with --parked-add keep,
    /// only adds with --revive do so. The summary counts the adds by their outcome.
    ///
    /// Exits with 0 if all keys are in the store, even if some stay parked. Exits with 2 if the command line is wrong,
    /// with 3 if a record of the input is not a key, and with 125 if the store cannot be reached or has no tables.
    Add(Box<store::AddFlags>),
    /// Run a command for each key of a queue in a store
    #[command(long_about = help::WORK)]
    Work(Box<store::WorkFlags>),
    /// List the queues of a store, and set their rates
    ///
    /// Prints a line for each queue: its name, `empty` or `keys`, `paused` if it is paused, and its rate and groups if
    /// it has any. With --json, prints objects with `queue`, `is_empty`, `is_paused`, and the settings `re_add`,
    /// `parked_add`, `rate`, `group_by` and `group_limit`. `rate` is null, or contains `starts`, `per` in seconds, and
    /// `burst`. `group_by` is null without groups, and empty if each add names the group.
    Queues(store::QueuesFlags),
    /// Remove a queue without keys and schedules from a store
    ///
    /// With --force, also removes keys and schedules. Processes that have the queue open get errors: adds fail, and
    /// workers stop with exit code 125. A command in flight continues until the next renewal, when its worker detects
    /// the loss of the lease, and terminates the command with SIGTERM.
    ///
    /// Exits with 0 if the queue is removed, with 1 if it has keys or schedules and is unchanged, and with 125 if there is
    /// no such queue or the store cannot be reached.
    Drop(store::DropFlags),
    /// Pause a queue: no worker gets a key of it
    ///
    /// The pause is stored, and applies to the workers of all machines until `requeue resume`. Commands in flight continue,
    /// and keys can be added. With --server, pauses the queue of that process.
    ///
    /// Exits with 0 if the queue is then paused, and with 125 if there is no such queue or the store cannot be reached.
    Pause(store::PauseFlags),
    /// Resume a paused queue
    ///
    /// Waiting workers start immediately. With a SQLite file, workers of other processes start within their poll
    /// interval of a second.
    ///
    /// Exits with 0 if the queue is then not paused, and with 125 if there is no such queue or the store cannot be
    /// reached.
    Resume(store::PauseFlags),
    /// Show the number of keys of a queue by state
    ///
    /// With --in-flight, prints a line for each key in flight: the key, its worker, its age, and the time
    /// until its lease expires. With --json, prints an object. Its `in_flight_keys` contain `key` (`key_base64` if it
    /// is not UTF-8), `worker`, `fencing_token`, and in seconds `age` and `lease`.
    Status(store::StatusFlags),
    /// List the keys of a queue, with their states
    ///
    /// Prints a line for each key, sorted by key: its state, the time at which it is due if it waits, the
    /// number of consecutive failed attempts, and the last failure. The keys are read in pages, so that a long list
    /// needs no more memory than a short one. With --json, prints objects with `key` (`key_base64` if it is not UTF-8),
    /// `state`, `at` (the due time), `priority` if it is not 0, `attempts` and `why`.
    Keys(store::KeysFlags),
    /// Say why a key waits or runs, and show its past
    ///
    /// Prints the state of the key with its cause, then its past, the oldest event first: adds, waits with their
    /// causes, runs and actions of operators. The output of its last failures follows. A repeated part is one line. A
    /// process with --serve records all events (--record-events); a store keeps the last runs of a key. With
    /// --json, prints an object with `key`, `state`, `why`, `events` and `runs`.
    ///
    /// Exits with 0 if the queue has the key, with 1 if it does not, and with 125 if there is no such queue or
    /// the store cannot be reached.
    #[command(alias = "explain")]
    Why(store::WhyFlags),
    /// Serve the dashboards of the queues in a store, without a worker
    ///
    /// Without --queue, serves a table of all queues, and the dashboard of each queue at /queues/NAME/.
    ///
    /// Also serves Prometheus metrics at /metrics, and a JSON API, as `requeue work --serve` does. The dashboard has no
    /// password, and is read-only without --serve-admin. SIGINT or SIGTERM stops it.
    Serve(store::ServeFlags),
    /// List the parked keys of a queue, with their last errors
    ///
    /// Prints a line for each key: its attempts, the time at which it was parked, and its last failure. With
    /// --json, prints objects that `requeue add --input json` reads, with `key` (`key_base64` if it is not UTF-8),
    /// `priority` if it is not 0, `attempts`, `why` and `given_up_at`.
    Parked(store::ListFlags),
    /// Make parked keys ready again
    ///
    /// --all revives the keys that are parked now, 1,000 at a time. After an interruption, the other keys are still
    /// parked.
    ///
    /// Exits with 0 if all keys were revived, with 1 if some were not parked, and with 125 if there is no such
    /// queue or the store cannot be reached.
    Revive(store::ReviveFlags),
    /// Remove the pending runs of keys, or stop their runs in flight
    ///
    /// Runs in flight continue, except with --running.
    ///
    /// --all cancels 1,000 keys at a time. After an interruption, the other keys are unchanged.
    ///
    /// Exits with 0 if all keys were cancelled, with 1 if some keys had no such run, and with 125 if there is no such
    /// queue or the store cannot be reached.
    Cancel(store::CancelFlags),
    /// List and change the groups of a queue in a store
    ///
    /// A queue has groups if it was created with --group-by, or by adds with --group. Each setting is stored, and applies to
    /// the workers of all machines.
    ///
    /// The exit code is 2 if the queue has no groups or a value is not valid, and 125 if there is no such queue or the
    /// store cannot be reached.
    #[command(disable_help_subcommand = true)]
    Groups {
        #[command(subcommand)]
        command: groups_command::GroupsCommand,
    },
    /// Add keys again at certain times, which a queue in a store keeps
    ///
    /// The workers of the queue add each key once for each of its times: see `requeue work`. If several times pass
    /// while no worker runs, the key is added once.
    #[command(disable_help_subcommand = true)]
    Schedule {
        #[command(subcommand)]
        command: schedule::ScheduleCommand,
    },
    /// Create or migrate a store
    #[command(disable_help_subcommand = true)]
    Store {
        #[command(subcommand)]
        command: store::StoreCommand,
    },
    /// Replay the recorded events of a queue
    ///
    /// Performs each operation in FILE again at its recorded time, and compares the resulting events. Prints a line for
    /// each event: the key or its hash, the event, and the state of the key after the operation.
    ///
    /// If the queue had dropped old events, the recording begins in the middle. Then the events of a key are replayed
    /// only from the first add that found the key without a state.
    ///
    /// Exits with 0 if there is no difference, with 1 at the first difference, with 3 if FILE is not a recording, and with
    /// 125 if it cannot be read.
    // The command is hidden, because few users need it, and the list of commands must fit on 24 lines.
    #[command(hide = true)]
    Replay {
        /// File of `requeue why --export`
        file: PathBuf,
    },
    /// Print the completion script of a shell
    Completions {
        /// The shell: bash, elvish, fish, powershell, zsh
        #[arg(hide_possible_values = true)]
        shell: Shell,
    },
    /// Write the manual pages to a directory
    Man {
        /// Directory of the pages; it is created
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::config::Config;

    fn config(args: &[&str]) -> Result<Config, String> {
        let words = ["requeue", "run"].iter().chain(args);
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Subcommand::Run(flags) = cli.command else { panic!("not run") };
        Config::from_run_flags(*flags).map(|(_, config)| config).map_err(|refusal| refusal.message)
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused_by_name() {
        for (args, named) in [
            (&["--fail-fast", "--halt", "never", "sh"][..], "--halt"),
            (&["--ungroup", "--output", "group", "sh"], "--output"),
            (&["--burst", "2", "sh"], "--burst"),
            (&["--debounce", "2s,1s", "sh"], "shorter than the quiet time"),
            (&["--debounce", "2s,", "sh"], "--debounce"),
            (&["--order", "fair", "sh"], "--order"),
            (&["--group-limit", "2", "sh"], "--group-limit"),
            (&["--base-delay", "2s", "--max-delay", "1s", "sh"], "--max-delay"),
            (&["--tag", "-u", "sh"], "--tag"),
            (&["--tagstring", "x", "--output", "none", "sh"], "--tag"),
            (&["--input", "json", "-d", ",", "sh"], "--delimiter"),
            (&["-I", "", "sh"], "-I"),
            (&["-c", "true", "sh"], "COMMAND"),
            (&["-c", "echo {}"], "a key inside a script"),
            (&["-I", "@", "sh", "-c", "echo @"], "a key inside a script"),
            (&["requeue-knows-no-such-program"], "not found"),
        ] {
            let refused = config(args).expect_err("refused");
            assert!(refused.contains(named), "{args:?}: {refused}");
        }
    }

    #[test]
    fn a_flag_that_is_not_given_follows_from_the_others() {
        let order = |args: &[&str]| {
            let pacing = format!("{:?}", config(args).unwrap().pacing);
            let order = pacing.split(", ").find_map(|part| part.strip_prefix("order: "));
            order.map(str::to_owned).unwrap()
        };
        assert_eq!(order(&["sh"]), "Fifo");
        assert_eq!(order(&["--input", "json", "sh"]), "Priority");
        assert_eq!(order(&["--input", "json", "--order", "fifo", "sh"]), "Fifo");

        let delays = |args: &[&str]| {
            let failures = config(args).unwrap().failures;
            (failures.base_delay.as_secs(), failures.max_delay.as_secs())
        };
        assert_eq!(delays(&["sh"]), (1, 300));
        assert_eq!(delays(&["--base-delay", "10m", "sh"]), (600, 600));

        let debounce = |args: &[&str]| {
            let debounce = config(args).unwrap().pacing.times.debounce;
            debounce.map(|debounce| (debounce.quiet.as_secs(), debounce.most.as_secs()))
        };
        assert_eq!(debounce(&["--debounce", "2s", "sh"]), Some((2, 20)));
        assert_eq!(debounce(&["--debounce", "2s,5s", "sh"]), Some((2, 5)));
        assert_eq!(debounce(&["--debounce", "0", "sh"]), None);

        let rate = |args: &[&str]| config(args).unwrap().pacing.rate.map(|(_, burst)| burst);
        assert_eq!(rate(&["--rate", "10/s", "sh"]), Some(1));
        assert_eq!(rate(&["--rate", "10/s", "--burst", "3", "sh"]), Some(3));
        let timeout = |args: &[&str]| config(args).unwrap().commands.limits.timeout;
        assert_eq!(timeout(&["--timeout", "0", "sh"]), None);
        let delimiter = |args: &[&str]| config(args).unwrap().input.format.delimiter;
        assert_eq!(delimiter(&["-d", ",", "-0", "sh"]), 0);
        assert_eq!(delimiter(&["-0", "-d", ",", "sh"]), b',');
        let tag = |args: &[&str]| config(args).unwrap().commands.tag.map(|tag| tag.text_for(b"k"));
        assert_eq!(tag(&["--tag", "sh"]).as_deref(), Some(&b"k\t"[..]));
        assert_eq!(tag(&["-I", "@", "--tagstring", "<@>", "sh"]).as_deref(), Some(&b"<k>\t"[..]));
    }
}

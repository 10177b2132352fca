//! The command line as it was typed. What it means is checked in `config`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::{ArgAction, Args, Parser, ValueEnum};
use clap_complete::Shell;
use rustix::process::Signal;

use crate::codes::Codes;
use crate::halt::MayHalt;
use crate::input::Kind;
use crate::rate::Every;
use crate::serve::Address;
use crate::signals::parse_signal;
use crate::values::{Delimiter, Jobs, Retries, parse_duration, parse_size};

// What `run --help` says of stores.
#[cfg(feature = "store")]
macro_rules! through {
    () => {
        "With --store URL keys are kept there until they are done, in the queue
  --queue NAME [default]; that, --lease TIME, --wait[=TIME]: see `requeue work`.\n"
    };
}

#[cfg(not(feature = "store"))]
macro_rules! through {
    () => {
        ""
    };
}

/// Says it all on one screen of 80 columns, which a line for each flag would not. A test holds it to
/// the flags.
const HELP: &str = concat!(include_str!("help.txt"), through!());

/// A work queue of keys: coalesced, exclusive, retried with backoff
#[derive(Parser, Debug)]
#[command(name = "requeue", version, styles = Styles::plain())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Subcommand {
    /// Run a command per key, from a stream of keys
    Run(Box<Flags>),
    /// Run a command per Kubernetes object that changes: a controller
    #[cfg(feature = "kube")]
    Watch(Box<crate::watch::Flags>),
    /// Add keys to a queue in a store
    ///
    /// Those named, or else those read from standard input. A key that waits already is added to what
    /// waits; one that runs is run once more afterwards.
    ///
    /// An add of a parked key revives it: it runs again, and its failures are reset. A queue may keep
    /// parked keys instead (--parked-add keep); then --revive revives them. At the end it says how many
    /// adds had each outcome.
    ///
    /// Exit: 0 all keys are in the store, also those that were left parked; 2 usage; 3 some of the input
    /// was no key; 125 the store can't be reached, or is not prepared.
    #[cfg(feature = "store")]
    Add(Box<crate::store::AddFlags>),
    /// Run a command per key of a queue in a store, here and on other machines
    #[cfg(feature = "store")]
    Work(Box<crate::store::WorkFlags>),
    /// List the queues of a store
    ///
    /// A line each: the name, and `empty` if the queue has no keys, or else `keys`. With --json objects
    /// with `queue`, `is_empty`, and the settings of the queue, `early_add` and `parked_add`.
    #[cfg(feature = "store")]
    Queues(crate::store::QueuesFlags),
    /// Show how many keys of a queue in a store wait, run and are parked
    #[cfg(feature = "store")]
    Status(crate::store::StatusFlags),
    /// List the keys that were given up, and why
    ///
    /// A line each: the key, how often it was tried, since when it is parked, and what the last failure
    /// was. With --json objects with `key`, or `key_base64` where it is no UTF-8, `priority` unless it
    /// is 0, `attempts`, `why` and `given_up_at`.
    #[cfg(feature = "store")]
    Parked(crate::store::ParkedFlags),
    /// Have keys that were given up run again
    ///
    /// With --all, those that are parked now, 1,000 at a time: an interruption leaves the others parked.
    ///
    /// Exit: 0 all of them will; 1 some were not parked; 125 there is no such queue, or the store can't
    /// be reached.
    #[cfg(feature = "store")]
    Revive(crate::store::ReviveFlags),
    /// Take keys back: those that wait, not those that run
    ///
    /// With --all, 1,000 at a time: an interruption leaves the others as they are.
    ///
    /// Exit: 0 all were taken; 1 some were not there to be taken; 125 there is no such queue, or the
    /// store can't be reached.
    #[cfg(feature = "store")]
    Cancel(crate::store::CancelFlags),
    /// Look after a store
    #[cfg(feature = "store")]
    #[command(disable_help_subcommand = true)]
    Store {
        #[command(subcommand)]
        command: crate::store::StoreCommand,
    },
    /// Print what a shell completes a command line with
    Completions { shell: Shell },
    /// Write the manual pages to a directory
    Man { dir: PathBuf },
}

#[derive(Args, Debug)]
#[command(
    help_template = HELP,
    override_usage = "requeue run [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue run [OPTIONS] -c SCRIPT",
    disable_help_flag = true
)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) read: Read,

    /// Keys held at once; further ones wait [1000000]
    #[arg(long, value_name = "N", help_heading = "Input")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_keys: Option<u32>,

    #[command(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    pub(crate) alone: Alone,

    #[cfg(feature = "store")]
    #[command(flatten)]
    pub(crate) through: crate::store::Through,

    /// What a command reads: nothing, or its key [none]
    #[arg(
        long,
        value_enum,
        value_name = "none|key",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Command")]
    pub(crate) stdin: Stdin,

    /// At the end of the input: finish, or abandon the rest
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Ending")]
    pub(crate) at_eof: AtEof,

    /// Write keys that had not run to FILE, as they came
    #[arg(long, value_name = "FILE", help_heading = "Ending")]
    pub(crate) unfinished: Option<PathBuf>,

    /// Nothing is ever run without a key, so this changes nothing; xargs has it.
    #[arg(short = 'r', long, hide = true)]
    pub(crate) no_run_if_empty: bool,

    // What xargs and parallel have and a command per key can't: known, to say why.
    #[arg(short = 'n', long, hide = true, num_args = 0..=1)]
    pub(crate) max_args: Option<Option<OsString>>,
    #[arg(short = 'L', long, hide = true, num_args = 0..=1)]
    pub(crate) max_lines: Option<Option<OsString>>,
    #[arg(short = 'X', long, hide = true)]
    pub(crate) xargs: bool,
    #[arg(short = 'k', long, hide = true)]
    pub(crate) keep_order: bool,
}

// The flags that say how keys are read. No doc comment: it would be the command's text.
#[derive(Args, Debug)]
pub(crate) struct Read {
    /// Read keys from FILE, not from standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) arg_file: Option<PathBuf>,

    /// Keys end with NUL, not with a newline
    #[arg(short = '0', long, overrides_with = "delimiter", help_heading = "Input")]
    pub(crate) null: bool,

    /// Keys end with C, a byte or \t, \x1e, \036
    #[arg(short, long, value_name = "C", overrides_with = "null", help_heading = "Input")]
    pub(crate) delimiter: Option<Delimiter>,

    /// Keys are lines, or JSON objects, one a line: lines, json [lines]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Input")]
    pub(crate) input: Kind,

    /// A longer record is bad input [1M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Input")]
    pub(crate) max_record: Option<usize>,
}

// The flags that do not say where keys come from. No doc comment: it would be the command's text.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", hide = true)]
    pub(crate) command: Vec<OsString>,

    /// The key's place in COMMAND, if not at its end [{}]
    #[arg(short = 'I', value_name = "STR", help_heading = "Command")]
    pub(crate) mark: Option<OsString>,

    /// Run `sh -c SCRIPT` with the key as "$1"
    #[arg(short = 'c', long, value_name = "SCRIPT", help_heading = "Command")]
    pub(crate) shell: Option<OsString>,

    /// Commands at once; 0: no limit; 50%: of cores [100%]
    #[arg(short, long, value_name = "N", help_heading = "Command")]
    #[arg(short_alias = 'P', alias = "max-procs")]
    pub(crate) jobs: Option<Jobs>,

    /// End a command, and fail it, after TIME
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Command")]
    pub(crate) timeout: Option<Duration>,

    /// What its process group is sent then [TERM]
    #[arg(short, long, value_name = "SIG", value_parser = parse_signal, help_heading = "Command")]
    pub(crate) signal: Option<Signal>,

    /// Send SIGKILL that long after a signal [10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Command")]
    pub(crate) kill_after: Option<Duration>,

    /// Show each command on standard error as it starts
    #[arg(short = 't', long, help_heading = "Command")]
    pub(crate) verbose: bool,

    /// Starts at most, of all keys: 10/s, 90/m, 100/h
    #[arg(long, value_name = "N", help_heading = "Pace")]
    pub(crate) rate: Option<Every>,

    /// Starts that --rate lets come at once [1]
    #[arg(long, value_name = "N", help_heading = "Pace")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: Option<u32>,

    /// Runs after the first, or inf; then it is given up [5]
    #[arg(long, value_name = "N", help_heading = "Failure")]
    pub(crate) retries: Option<Retries>,

    /// Wait after a failure, twice as long each time [1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Failure")]
    pub(crate) base_delay: Option<Duration>,

    /// The longest wait [5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Failure")]
    pub(crate) max_delay: Option<Duration>,

    /// A waiting key comes: replace, hold, keep [replace]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    #[arg(help_heading = "Failure")]
    pub(crate) early_add: Option<EarlyAdd>,

    /// Give up at once after these: 2,64-78,SIGSEGV
    #[arg(long, value_name = "CODES", help_heading = "Failure")]
    pub(crate) fatal: Option<Codes>,

    /// Add keys that are given up to FILE, as they came
    #[arg(long, value_name = "FILE", help_heading = "Failure")]
    pub(crate) dead_letter: Option<PathBuf>,

    /// End all: never, or soon or now,fail|success|done=N|N%
    #[arg(long, value_name = "WHEN", help_heading = "Failure")]
    pub(crate) halt: Option<MayHalt>,

    /// The same as --halt now,fail=1
    #[arg(long, conflicts_with = "halt", help_heading = "Failure")]
    pub(crate) fail_fast: bool,

    /// Commands' output: lines, group, inherit, none [lines]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Output")]
    pub(crate) output: Output,

    /// The same as --output inherit
    #[arg(short = 'u', long, conflicts_with = "output", help_heading = "Output")]
    pub(crate) ungroup: bool,

    /// Begin each line with the key and a tab
    #[arg(long, help_heading = "Output")]
    pub(crate) tag: bool,

    /// Begin each line with STR, {} being the key, and a tab
    #[arg(long, value_name = "STR", help_heading = "Output")]
    pub(crate) tagstring: Option<OsString>,

    /// A line for each run in FILE, as GNU parallel has it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) joblog: Option<PathBuf>,

    /// How far it is: auto (on a terminal), always, never
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Output")]
    pub(crate) progress: Progress,

    /// Last on standard error: text, json, none [text]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Output")]
    pub(crate) summary: Summary,

    /// This text
    #[arg(short, long, action = ArgAction::Help, help_heading = "Ending")]
    help: Option<bool>,
}

// The flags of a queue that is this process's own. No doc comment: it would be the command's text.
#[derive(Args, Debug, Default)]
pub(crate) struct Alone {
    /// Show the commands, and run none
    #[arg(long, help_heading = "Command")]
    pub(crate) dry_run: bool,

    /// A key runs no sooner than so long after it came
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    pub(crate) delay: Option<Duration>,

    /// The same, counted anew each time the key comes
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    pub(crate) debounce: Option<Duration>,

    /// But no longer than this [10 x --debounce]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    pub(crate) debounce_max: Option<Duration>,

    /// Least time from start to start of a key
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    pub(crate) min_interval: Option<Duration>,

    /// fifo, priority, fair [fifo; with json priority]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    #[arg(help_heading = "Pace")]
    pub(crate) order: Option<Order>,

    /// A key's group: the first capture, or the match
    #[arg(long, value_name = "REGEX", help_heading = "Pace")]
    pub(crate) group_by: Option<String>,

    /// Commands at once of a group
    #[arg(long, value_name = "N", help_heading = "Pace")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) group_jobs: Option<u32>,

    /// A live page of it at localhost:PORT, or ADDR:PORT
    #[arg(long, value_name = "PORT", help_heading = "Output")]
    pub(crate) serve: Option<Address>,
}

/// Which of the keys that may start does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The one that has been ready longest.
    Fifo,
    /// The one of the highest priority.
    Priority,
    /// Of those of the same priority, one of each group in turn.
    Fair,
}

/// What an early add does to a key that waits for its retry.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EarlyAdd {
    Replace,
    Hold,
    Keep,
}

/// What becomes of keys that have not run when the input ends.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum AtEof {
    /// They run.
    #[default]
    Finish,
    /// They don't.
    Abandon,
}

/// What becomes of what commands write.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Output {
    #[default]
    Lines,
    Group,
    Inherit,
    None,
}

/// What commands have to read.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stdin {
    #[default]
    None,
    Key,
}

/// When a line shows how far the run is.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Progress {
    #[default]
    Auto,
    Always,
    Never,
}

/// What is said at the end.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Summary {
    #[default]
    Text,
    Json,
    None,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_has_every_flag_and_no_other() {
        the_help_has_every_flag_of("run", HELP);
    }

    pub(crate) fn the_help_has_every_flag_of(subcommand: &str, help: &str) {
        let cli = Cli::command();
        let command = cli.find_subcommand(subcommand).unwrap();
        let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
        let flags: BTreeSet<_> = shown()
            .flat_map(|arg| {
                let short = arg.get_short().map(|short| format!("-{short}"));
                short.into_iter().chain(arg.get_long().map(|long| format!("--{long}")))
            })
            // It says what whoever sees it has just typed.
            .filter(|flag| flag != "-h" && flag != "--help")
            .collect();
        let is_flag = |word: &&str| word.starts_with('-') && !word.trim_matches('-').is_empty();
        let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(is_flag);
        let said: BTreeSet<_> = words.map(str::to_owned).collect();
        assert_eq!(said, flags);
    }
}

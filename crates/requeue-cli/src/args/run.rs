//! The flags of `requeue run` as they were typed, and those that other subcommands share with it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use requeue::ReAdd;
use rustix::process::Signal;

use crate::args::codes::Codes;
use crate::args::halt::MayHalt;
#[cfg(feature = "store")]
use crate::args::unsupported::Unsupported;
use crate::args::values::{Delimiter, Every, Jobs, Retries, parse_size};
use crate::duration::parse_duration;
use crate::input::Kind;
use crate::process::signals::parse_signal;
use crate::serve::Address;

// What `run --help` says of stores.
#[cfg(feature = "store")]
macro_rules! through {
    () => {
        "With --store URL keys are kept there until they are done, in the queue
  --queue NAME; that, --lease, --wait and --pass-passwords: see `requeue work`.\n"
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
pub(super) const HELP: &str = concat!(include_str!("run.txt"), through!());

#[derive(Args, Debug)]
#[command(
    help_template = HELP,
    override_usage = "requeue run [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue run [OPTIONS] -c SCRIPT",
    disable_help_flag = true
)]
pub(crate) struct Flags {
    #[cfg(feature = "store")]
    #[command(flatten)]
    pub(crate) unsupported: Unsupported<true>,

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
    pub(crate) through: Through,

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

// The flags of `requeue run --store`. No doc comment: it would be the command's text.
#[cfg(feature = "store")]
#[derive(Args, Clone, Debug)]
pub(crate) struct Through {
    /// Keep the keys there until they are done: sqlite:FILE, postgres://HOST/DATABASE, redis://HOST
    #[arg(long, value_name = "URL", help_heading = "Input")]
    pub(crate) store: Option<String>,

    /// In the queue of this name [default]
    #[arg(long, value_name = "NAME", default_value = "default", hide_default_value = true)]
    #[arg(requires = "store", help_heading = "Input")]
    pub(crate) queue: String,

    /// A dead worker's keys are free again after TIME [30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    #[arg(hide_default_value = true, requires = "store", help_heading = "Input")]
    pub(crate) lease: Duration,

    /// Wait at the start until the store can be reached, for TIME at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = parse_duration, requires = "store", help_heading = "Input")]
    pub(crate) wait: Option<Option<Duration>>,

    #[command(flatten)]
    pub(crate) passwords: Passwords,
}

// No doc comment: it would be the command's text.
#[cfg(feature = "store")]
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Passwords {
    /// Commands see the PGPASSWORD or REDISCLI_AUTH of the store, too
    #[arg(long, requires = "store", help_heading = "Command")]
    pub(crate) pass_passwords: bool,
}

#[cfg(feature = "store")]
impl Passwords {
    /// The variables that this process reads a password from, and commands do not see.
    pub(crate) fn hidden(self, store: &str) -> &'static [&'static str] {
        match store.split_once(':').map_or("", |(scheme, _)| scheme) {
            _ if self.pass_passwords => &[],
            "postgres" | "postgresql" => &["PGPASSWORD"],
            "redis" | "rediss" => &["REDISCLI_AUTH"],
            _ => &[],
        }
    }
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

    /// A waiting key comes: hold, replace, keep-both [hold]
    #[arg(long, value_parser = re_add_policies(), value_name = "HOW", hide_possible_values = true)]
    #[arg(help_heading = "Failure")]
    pub(crate) re_add: Option<ReAdd>,

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

/// The order of the keys that may start.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The one that has been ready longest.
    Fifo,
    /// The one of the highest priority.
    Priority,
    /// Of those of the same priority, one of each group in turn.
    Fair,
}

/// The values of `--re-add`.
pub(crate) fn re_add_policies() -> impl TypedValueParser<Value = ReAdd> {
    PossibleValuesParser::new(["hold", "replace", "keep-both"]).map(|name| match &*name {
        "replace" => ReAdd::Replace,
        "keep-both" => ReAdd::KeepBoth,
        _ => ReAdd::Hold,
    })
}

/// The fate of keys that have not run at the end of the input.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum AtEof {
    /// They run.
    #[default]
    Finish,
    /// They don't.
    Abandon,
}

/// The destination of the output of commands.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Output {
    #[default]
    Lines,
    Group,
    Inherit,
    None,
}

/// The standard input of commands.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stdin {
    #[default]
    None,
    Key,
}

/// When the progress line is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Progress {
    #[default]
    Auto,
    Always,
    Never,
}

/// The form of the summary.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Summary {
    #[default]
    Text,
    Json,
    None,
}

//! The command line as it was typed. What it means is checked in `config`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::styling::Styles;
use clap::{Args, Parser, ValueEnum};

use crate::config::{Jobs, Retries, parse_duration};

const TEMPLATE: &str = "{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}";

/// A work queue of keys: coalesced, exclusive, retried with backoff
#[derive(Parser, Debug)]
#[command(name = "requeue", version, styles = Styles::plain(), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Subcommand {
    /// Run a command per key, from a stream of keys
    Run(Box<Flags>),
}

/// Run a command per key, from a stream of keys.
///
/// A key that comes again before its command has started is run once; one that comes while its
/// command runs is run once more afterwards, never twice at once. A command that fails is retried.
#[derive(Args, Debug)]
#[command(
    help_template = TEMPLATE,
    override_usage = "requeue run [OPTIONS] [--] COMMAND [ARG]...\n       requeue run [OPTIONS] -c SCRIPT",
    after_help = AFTER_HELP,
    args_override_self = true,
    next_line_help = false
)]
pub(crate) struct Flags {
    /// Read keys from FILE instead of standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input: a key per line")]
    pub(crate) arg_file: Option<PathBuf>,

    /// Keys end with NUL, not with a newline
    #[arg(short = '0', long, help_heading = "Input: a key per line")]
    pub(crate) null: bool,

    /// Keys held at once; at the limit a new key waits, one that is held is merged
    #[arg(long, value_name = "N", default_value_t = 1_000_000, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(
        help_heading = "Input: a key per line",
        help = "Keys held at once, more have to wait [1000000]"
    )]
    pub(crate) max_keys: u32,

    /// The command, and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", hide = true)]
    pub(crate) command: Vec<OsString>,

    /// Stands for the key in COMMAND and any ARG; without one, the key is the last [{}]
    #[arg(short = 'I', long = "replace", value_name = "STR", help_heading = "Command")]
    pub(crate) mark: Option<OsString>,

    /// Run `sh -c SCRIPT` with the key as "$1"
    #[arg(short = 'c', long, value_name = "SCRIPT", help_heading = "Command")]
    pub(crate) shell: Option<OsString>,

    /// Commands at once: a number, 0 for no limit, 50% of the cores [all cores]
    #[arg(short, long, value_name = "N", help_heading = "Command")]
    #[arg(visible_short_alias = 'P', visible_alias = "max-procs", hide_short_help = false)]
    pub(crate) jobs: Option<Jobs>,

    /// Runs after the first that fails, before a key is given up; or `inf` [5]
    #[arg(long, value_name = "N", help_heading = "Failure: any exit but 0")]
    pub(crate) retries: Option<Retries>,

    /// What the first failure waits; each further one twice as long [1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = "Failure: any exit but 0")]
    pub(crate) base_delay: Option<std::time::Duration>,

    /// What no failure waits longer than [5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = "Failure: any exit but 0")]
    pub(crate) max_delay: Option<std::time::Duration>,

    /// A key that comes while it waits for its retry
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_possible_values = true)]
    #[arg(hide_default_value = true, help_heading = "Failure: any exit but 0")]
    #[arg(help = "A waiting key comes again: replace (run now), hold, keep (both) [replace]")]
    pub(crate) early_add: EarlyAdd,

    /// What commands write: whole lines, as it comes, or nothing
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_possible_values = true)]
    #[arg(hide_default_value = true, help_heading = "Output")]
    #[arg(help = "What commands write: lines (whole ones), inherit, none [lines]")]
    pub(crate) output: Output,

    /// The same as --output inherit
    #[arg(short = 'u', long, conflicts_with = "output", help_heading = "Output")]
    pub(crate) ungroup: bool,

    /// What is said at the end, on standard error
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_possible_values = true)]
    #[arg(hide_default_value = true, help_heading = "Output")]
    #[arg(help = "What standard error says at the end: text, json, none [text]")]
    pub(crate) summary: Summary,

    /// Nothing is ever run without a key, so this changes nothing; xargs has it
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

/// What an early add does to a key that waits for its retry.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum EarlyAdd {
    #[default]
    Replace,
    Hold,
    Keep,
}

/// What becomes of what commands write.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Output {
    #[default]
    Lines,
    Inherit,
    None,
}

/// What is said at the end.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Summary {
    #[default]
    Text,
    Json,
    None,
}

const AFTER_HELP: &str = "\
The command sees REQUEUE_KEY, _ATTEMPT (from 1), _ADDS (how often the key came), _SLOT (1 to N),
_SEQ (the number of the run), _LAST_EXIT (of the attempt before). Its standard input is empty.

Exit: 0 all done, 1 a key was given up, 2 usage, 3 bad input, 125 requeue failed,
      126 COMMAND can't be executed, 127 COMMAND not found; or the signal that ended it.
Ctrl-C: start no more, let what runs finish; again: end it (SIGTERM); again: kill it.";

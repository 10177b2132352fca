//! The flags of the subcommands that work on a queue in a store.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use requeue::ReAdd;

use crate::args::run::{self as args, Common, Passwords, Read, Stdin, Summary};
use crate::args::unsupported::Unsupported;
use crate::duration::parse_duration;
use crate::serve::Address;

/// As `run`'s: a test holds it to the flags.
pub(super) const HELP: &str = include_str!("work.txt");

// No doc comment, here and below: it would be the command's text.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Where the queue is: sqlite:FILE, postgres://HOST/DATABASE, redis://HOST
    #[arg(long, value_name = "URL", help_heading = "Queue")]
    pub(crate) store: String,

    /// Its name there
    #[arg(long, value_name = "NAME", default_value = "default", help_heading = "Queue")]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) wait: Wait,
}

// No doc comment: it would be the command's text.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Wait at the start until the store can be reached, for TIME at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = parse_duration, help_heading = "Queue")]
    pub(crate) wait: Option<Option<Duration>>,
}

#[derive(Args, Debug)]
#[command(
    help_template = HELP,
    override_usage = "requeue work --store URL [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue work --store URL [OPTIONS] -c SCRIPT",
    disable_help_flag = true
)]
pub(crate) struct WorkFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Create the queue if there is none, and a file for it
    #[arg(long, help_heading = "Queue")]
    pub(crate) create: bool,

    /// A dead worker's keys are free again after TIME [30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    #[arg(hide_default_value = true, help_heading = "Queue")]
    pub(crate) lease: Duration,

    /// Shown with each key that this has in flight [HOST:PID]
    #[arg(long, value_name = "NAME", help_heading = "Queue")]
    pub(crate) worker: Option<String>,

    #[command(flatten)]
    pub(crate) common: Common,

    /// An add of a parked key: revive, keep: the queue's [revive]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    #[arg(help_heading = "Failure")]
    pub(crate) parked_add: Option<ParkedAdd>,

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

    /// A live page of the queue at localhost:PORT, ADDR:PORT or unix:PATH
    #[arg(long, value_name = "PORT", help_heading = "Output")]
    pub(crate) serve: Option<Address>,

    /// End once no key is ready, waiting or running anywhere
    #[arg(long, help_heading = "Ending")]
    pub(crate) until_empty: bool,

    #[command(flatten)]
    pub(crate) passwords: Passwords,

    #[command(flatten)]
    pub(crate) unsupported: Unsupported<false>,
}

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The keys; without any they are read
    #[arg(value_name = "KEY", conflicts_with_all = ["arg_file", "null", "delimiter", "max_record"])]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) place: Place,

    /// Run none sooner than TIME from now
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Adds")]
    pub(crate) after: Option<Duration>,

    /// Which go first
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Adds")]
    pub(crate) priority: Priority,

    /// Revive parked keys also in a queue that keeps them parked
    #[arg(long, help_heading = "Adds")]
    pub(crate) revive: bool,

    /// Whether an add revives a parked key: revive, or not: keep
    ///
    /// Fixed when the queue is first used [revive].
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        hide_possible_values = true,
        help_heading = "Adds"
    )]
    pub(crate) parked_add: Option<ParkedAdd>,

    /// Whether an add of a key that waits for its retry waits, too: hold, or runs it now: replace
    ///
    /// Fixed when the queue is first used [hold].
    #[arg(
        long,
        value_parser = args::re_add_policies(),
        value_name = "HOW",
        hide_possible_values = true,
        help_heading = "Adds"
    )]
    pub(crate) re_add: Option<ReAdd>,

    #[command(flatten)]
    pub(crate) read: Read,

    /// Last on standard error: text, json, none
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Output")]
    pub(crate) summary: Summary,

    #[command(flatten)]
    pub(crate) unsupported: Unsupported<false>,
}

/// The effect of an add on a parked key.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParkedAdd {
    Revive,
    Keep,
}

/// In what order keys go.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

#[derive(Args, Debug)]
pub(crate) struct QueuesFlags {
    /// The store: sqlite:FILE, postgres://HOST/DATABASE, redis://HOST
    #[arg(long, value_name = "URL")]
    pub(crate) store: String,

    /// Print JSON objects
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct DropFlags {
    /// Which
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,

    /// The store: sqlite:FILE, postgres://HOST/DATABASE, redis://HOST
    #[arg(long, value_name = "URL")]
    pub(crate) store: String,

    /// With all its keys, also those that are in flight or parked
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct StatusFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    /// List the keys in flight, too: their workers, for how long, and how long their leases last
    #[arg(long)]
    pub(crate) in_flight: bool,

    /// As a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ParkedFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    /// As JSON objects, which `requeue add --input json` reads
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReviveFlags {
    /// Which
    #[arg(value_name = "KEY", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) keys: Vec<OsString>,

    /// All of them
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Args, Debug)]
pub(crate) struct CancelFlags {
    /// Which
    #[arg(value_name = "KEY", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) keys: Vec<OsString>,

    /// All of them
    #[arg(long)]
    pub(crate) all: bool,

    /// With --all: only those that are ready, waiting, processing or parked
    ///
    /// A key that is processing keeps its run, and loses the run after it.
    #[arg(
        long,
        value_enum,
        requires = "all",
        conflicts_with = "keys",
        hide_possible_values = true
    )]
    pub(crate) state: Option<State>,

    #[command(flatten)]
    pub(crate) place: Place,
}

/// The state of a key, by its name in `requeue status`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Ready,
    Waiting,
    Processing,
    Parked,
    Damaged,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum StoreCommand {
    /// Make the tables, or bring them up to this version
    ///
    /// A file is made and brought up to date by whatever adds to it or works on it; other stores by
    /// this alone, which takes more rights than the rest.
    Init {
        /// Where: sqlite:FILE, postgres://HOST/DATABASE, redis://HOST
        #[arg(long, value_name = "URL")]
        store: String,

        /// Create this queue, too, for workers to start before anything adds to it
        #[arg(long, value_name = "NAME")]
        queue: Vec<String>,

        #[command(flatten)]
        wait: Wait,
    },
}

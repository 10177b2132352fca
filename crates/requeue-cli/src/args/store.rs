//! The flags of the subcommands that work on a queue in a store.
//!
//! As in `run`, structs have no doc comments, because clap would show them as descriptions of the subcommands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, Resettable, TypedValueParser};
use requeue::ReaddPolicy;
use requeue_store::{ParkedAdd, Priority, Rate, State};

use crate::args::groups::GroupFlags;
use crate::args::help::Sections;
use crate::args::run::{
    Common, Dashboard, PageFlags, Passwords, RE_ADD, Read, STORE_VARIABLE, Stdin, Summary,
};
use crate::args::values::{
    Retries, ServerUrl, StoreRate, named_values, parse_retries, parse_server, parse_store_rate,
};
use crate::duration::{Debounce, parse_debounce, parse_duration};
use crate::exit::Refusal;
use crate::serve::{Address, parse_address};

#[derive(Args, Clone, Debug)]
pub(crate) struct StoreUrl {
    /// Store, as in sqlite:jobs.db [default: $REQUEUE_STORE]
    ///
    /// URL is sqlite:FILE, postgres://HOST/DATABASE or redis://HOST. `requeue run` does not read the variable.
    #[arg(long, value_name = "URL", help_heading = "Queue")]
    #[arg(env = STORE_VARIABLE, hide_env = true)]
    pub(crate) store: Option<String>,

    /// At the start, wait until the store is ready, for TIME at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = parse_duration, help_heading = "Queue", hide_short_help = true)]
    pub(crate) wait: Option<Option<Duration>>,
}

impl StoreUrl {
    pub(crate) fn required_url(&self) -> Result<&str, Refusal> {
        // An empty variable is treated as not set.
        self.store.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
            Refusal::usage(
                "no store; pass --store URL, as in --store sqlite:jobs.db, or set REQUEUE_STORE",
            )
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) store: StoreUrl,

    /// Name of the queue [default: default, or that of --server]
    #[arg(long, value_name = "NAME", help_heading = "Queue")]
    pub(crate) queue: Option<String>,
}

impl Place {
    /// Returns the name of the queue in the store.
    pub(crate) fn queue(&self) -> &str {
        self.queue.as_deref().unwrap_or("default")
    }
}

#[derive(Args, Debug)]
#[command(
    after_long_help = Sections::help_text("work"),
    override_usage = "requeue work --store URL [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue work --server URL [OPTIONS] -c SCRIPT",
    disable_help_flag = true,
    mut_arg("re_add", |arg| arg.help("Effect of an add on a key that backs off: see `add --help`")),
    mut_arg("token_file", |arg| arg.requires(Resettable::Reset)
        .help("File with the tokens of --serve-admin, or the token for --server [default: $REQUEUE_TOKEN]")),
    mut_arg("dead_letter", |arg| arg.help("Append keys that this worker parks to FILE, as lines").long_help(None)),
)]
pub(crate) struct WorkFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Process instead of a store: http[s]://HOST:PORT, unix:PATH
    ///
    /// The process is `requeue serve --serve-admin` or `requeue run --serve`. The token needs the role `work`. It is the
    /// content of --token-file, or of the variable REQUEUE_TOKEN. --store is ignored. The server decides about retries,
    /// backoffs, groups and rates.
    #[arg(long, value_name = "URL", value_parser = parse_server, help_heading = "Queue")]
    pub(crate) server: Option<ServerUrl>,

    /// Certificates that verify an https server [default: those of the system]
    #[arg(long, value_name = "FILE", help_heading = "Queue", hide_short_help = true)]
    #[arg(requires = "server")]
    pub(crate) server_ca: Option<PathBuf>,

    /// Create the queue if it does not exist, and its file
    #[arg(long, help_heading = "Queue")]
    pub(crate) create: bool,

    /// Stop when no key is ready, waiting or in flight
    ///
    /// Keys in flight at other workers also count.
    #[arg(long, help_heading = "Queue")]
    pub(crate) until_empty: bool,

    /// Time after which the keys of a dead worker are ready again
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    #[arg(help_heading = "Queue", hide_short_help = true)]
    pub(crate) lease: Duration,

    /// Name of this worker in `requeue status --in-flight` [default: HOST:PID]
    #[arg(long, value_name = "NAME", help_heading = "Queue", hide_short_help = true)]
    pub(crate) worker: Option<String>,

    #[command(flatten)]
    pub(crate) groups: GroupFlags,

    #[command(flatten)]
    pub(crate) common: Common,

    /// Effect of an add on a parked key: see `requeue add --help`
    #[arg(long, value_parser = parked_add_values(), value_name = "HOW", help_heading = "Failure")]
    #[arg(hide_short_help = true)]
    pub(crate) parked_add: Option<ParkedAdd>,

    /// Standard input of the commands
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_short_help = true)]
    #[arg(help_heading = "Command")]
    pub(crate) stdin: Stdin,

    #[command(flatten)]
    pub(crate) dashboard: Dashboard,

    #[command(flatten)]
    pub(crate) passwords: Passwords,
}

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The keys; without any, they are read from standard input
    #[arg(value_name = "KEY", conflicts_with_all = ["arg_file", "null", "delimiter"])]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Run the keys no sooner than TIME from now
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Adds")]
    pub(crate) after: Option<Duration>,

    /// Wait for TIME without adds, at most MAX
    ///
    /// Each add postpones the run of its key. MAX counts from the first add, and is 10 x TIME by default.
    #[arg(long, value_name = "TIME[,MAX]", value_parser = parse_debounce, help_heading = "Adds")]
    #[arg(conflicts_with = "after", hide_short_help = true)]
    pub(crate) debounce: Option<Debounce>,

    /// Priority: low, normal, high
    #[arg(long, value_parser = named_values(&PRIORITIES), value_name = "HOW")]
    #[arg(default_value = "normal", help_heading = "Adds", hide_possible_values = true)]
    pub(crate) priority: Priority,

    /// Group of the keys, in a queue whose adds name their groups
    ///
    /// The command creates a missing queue with this setting. With --input json, the `group` of a record replaces NAME.
    #[arg(long, value_name = "NAME", help_heading = "Adds", conflicts_with = "group_by")]
    #[arg(hide_short_help = true)]
    pub(crate) group: Option<String>,

    #[command(flatten)]
    pub(crate) groups: GroupFlags,

    /// Revive parked keys, even if the queue keeps them parked
    #[arg(long, help_heading = "Adds")]
    pub(crate) revive: bool,

    /// Effect of an add on a parked key [default: revive]
    ///
    /// The effect is a setting of the queue, which its first add or worker fixes.
    #[arg(long, value_parser = parked_add_values(), value_name = "HOW", help_heading = "Adds")]
    #[arg(hide_short_help = true)]
    pub(crate) parked_add: Option<ParkedAdd>,

    /// Effect of an add on a key that backs off: hold or replace [default: hold]
    ///
    /// The effect is a setting of the queue, which its first add or worker fixes. Queues in a store do not support
    /// `keep-both`.
    #[arg(long, value_parser = named_values(&RE_ADD), value_name = "HOW")]
    #[arg(hide_possible_values = true, help_heading = "Adds", hide_short_help = true)]
    pub(crate) re_add: Option<ReaddPolicy>,

    #[command(flatten)]
    pub(crate) read: Read,

    /// Form of the summary, the last line on standard error
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    pub(crate) summary: Summary,
}

/// Returns a parser for the values of `--parked-add`.
fn parked_add_values() -> impl TypedValueParser<Value = ParkedAdd> {
    let revive = PossibleValue::new("revive").help("Run it again, and forget its failures");
    let keep = PossibleValue::new("keep").help("Leave it parked");
    PossibleValuesParser::new([revive, keep])
        .map(|name| if name == "keep" { ParkedAdd::Keep } else { ParkedAdd::Revive })
}

/// The values of `--priority`.
pub(crate) const PRIORITIES: [(&str, Priority); 3] =
    [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)];

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct QueuesFlags {
    #[command(subcommand)]
    pub(crate) command: Option<QueuesCommand>,

    #[command(flatten)]
    pub(crate) store: StoreUrl,

    /// Print a JSON object for each queue
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum QueuesCommand {
    /// Set the rate at which keys of a queue start, over all workers
    ///
    /// The rate is stored, and applies to later claims. The rate is that of `requeue work --rate`. `none` removes it.
    /// On Redis, the queue must have one shard.
    ///
    /// Exits with 0 if the queue then has the rate, with 2 if the rate is not valid, and with 125 if there is no such
    /// queue or the store cannot be reached.
    Rate {
        /// Name of the queue; with --server, that of the process
        #[arg(value_name = "QUEUE")]
        queue: String,

        #[command(flatten)]
        rate: RateFlags,

        #[command(flatten)]
        store: StoreUrl,

        #[command(flatten)]
        server: ServerFlags,

        #[command(flatten)]
        note: NoteFlags,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RateFlags {
    /// The rate, as in 10/s, 90/m or 1000/h; none removes it
    #[arg(value_name = "RATE", value_parser = parse_store_rate)]
    rate: StoreRate,

    /// Keys that may start together after a pause
    ///
    /// The default is the number of starts in 200 ms, rounded up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    burst: Option<u32>,
}

impl RateFlags {
    pub(crate) fn rate(self) -> Result<Option<Rate>, Refusal> {
        match (self.rate.0, self.burst) {
            (rate, None) => Ok(rate),
            (Some(rate), Some(burst)) => Ok(Some(rate.burst(burst))),
            (None, Some(burst)) => Err(Refusal::usage(format!(
                "--burst {burst} requires a rate; `none` removes the rate"
            ))),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct DropFlags {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) store: StoreUrl,

    /// Remove the keys too, even those in flight or parked
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PauseFlags {
    /// Name of the queue
    #[arg(value_name = "QUEUE", required_unless_present = "server")]
    pub(crate) queue: Option<String>,

    #[command(flatten)]
    pub(crate) store: StoreUrl,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

#[derive(Args, Debug)]
pub(crate) struct StatusFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// List the keys in flight, with their workers and leases
    #[arg(long)]
    pub(crate) in_flight: bool,

    /// Add the work of all processes in this time, up to 7d
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub(crate) since: Option<Duration>,

    /// Add the last actions of operators, the newest first
    #[arg(long)]
    pub(crate) actions: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a period for which a store keeps activity.
fn parse_since(text: &str) -> Result<Duration, String> {
    let since = parse_duration(text)?;
    match since.as_secs_f64() {
        seconds if seconds > 7.0 * 24.0 * 3600.0 => {
            Err("a store keeps the numbers of 7 days; use at most 7d".to_owned())
        }
        _ => Ok(since),
    }
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Print a JSON object for each key
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KeysFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Only keys in this state
    ///
    /// STATE is ready, waiting, in_flight, parked or damaged.
    #[arg(long, value_parser = named_values(&STATES), value_name = "STATE")]
    #[arg(hide_possible_values = true)]
    pub(crate) state: Option<State>,

    /// Print JSON objects that `requeue add --input json` reads
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(mut_arg("server", |arg| {
    arg.help("Process instead of a store: http[s]://HOST:PORT, unix:PATH")
        .long_help(None)
        .hide_short_help(false)
}))]
pub(crate) struct WhyFlags {
    /// The key
    #[arg(value_name = "KEY", required_unless_present = "export")]
    pub(crate) key: Option<OsString>,

    /// Only the past of the last TIME, as in 1h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Save the events of all keys of --server to FILE, or to -
    ///
    /// `requeue replay FILE` reads this recording, and a bug report can contain it. FILE has the settings of the queue, and
    /// times, priorities and results of adds and runs. It has no errors, output or commands. It names KEY, the keys that
    /// the queue has, and keys with a failure. Numbers stand for other keys and for groups. - is standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["since", "json"])]
    pub(crate) export: Option<PathBuf>,

    /// Name no key in FILE: numbers stand for keys and groups
    ///
    /// The name of KEY is the word KEY.
    #[arg(long, requires = "export")]
    pub(crate) hash_keys: bool,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ServeFlags {
    /// PORT, ADDR:PORT or unix:PATH
    ///
    /// PORT without an address is on loopback. With 0, the system chooses a free port.
    #[arg(value_name = "PORT", value_parser = parse_address, default_value = "8080")]
    pub(crate) address: Address,

    #[command(flatten)]
    pub(crate) page: PageFlags,

    #[command(flatten)]
    pub(crate) store: StoreUrl,

    /// Name of the queue in the store [default: all queues]
    #[arg(long, value_name = "NAME", help_heading = "Queue")]
    pub(crate) queue: Option<String>,

    /// Retries of a key that workers over HTTP report as failed, or inf [default: 5]
    #[arg(long, value_name = "N", value_parser = parse_retries, help_heading = "Failure")]
    #[arg(default_value = "5", hide_default_value = true, hide_short_help = true)]
    pub(crate) retries: Retries,
}

#[derive(Args, Debug)]
pub(crate) struct ReviveFlags {
    /// The keys
    #[arg(value_name = "KEY", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) keys: Vec<OsString>,

    /// Revive all parked keys
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

#[derive(Args, Debug)]
pub(crate) struct CancelFlags {
    /// The keys
    #[arg(value_name = "KEY", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) keys: Vec<OsString>,

    /// Stop the runs in flight instead
    ///
    /// The pending runs of the keys remain. Workers terminate the commands within a second, or 5 s over HTTP: with SIGTERM
    /// and, after --kill-after, with SIGKILL. A cancelled run counts neither as a success nor as a failure. The key runs
    /// again only if it was added again.
    #[arg(long, conflicts_with = "all")]
    pub(crate) running: bool,

    /// Cancel all keys
    #[arg(long)]
    pub(crate) all: bool,

    /// With --all, cancel only keys in this state
    ///
    /// STATE is ready, waiting, in_flight, parked or damaged. The run of a key in flight continues, and only the next
    /// run is removed.
    #[arg(
        long,
        value_parser = named_values(&STATES),
        value_name = "STATE",
        requires = "all",
        conflicts_with = "keys",
        hide_possible_values = true
    )]
    pub(crate) state: Option<State>,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

/// The states of a key, with their names in flags and output.
pub(crate) const STATES: [(&str, State); 5] = [
    ("ready", State::Ready),
    ("waiting", State::Waiting),
    ("in_flight", State::InFlight),
    ("parked", State::Parked),
    ("damaged", State::Damaged),
];

/// Returns the name of a state in flags and output.
pub(crate) fn state_name(state: State) -> &'static str {
    STATES.iter().find(|(_, known)| *known == state).map_or("unknown", |(name, _)| name)
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ServerFlags {
    /// Process with --serve-admin instead of a store: http[s]://HOST:PORT, unix:PATH
    ///
    /// The token is the content of --token-file, or of the variable REQUEUE_TOKEN. --store is ignored. If the process
    /// has several queues, --queue is required. Otherwise, it must not name another queue.
    #[arg(long, value_name = "URL", value_parser = parse_server, help_heading = "Queue")]
    #[arg(hide_short_help = true)]
    pub(crate) server: Option<ServerUrl>,

    /// File with the token for --server [default: $REQUEUE_TOKEN]
    #[arg(long, value_name = "FILE", help_heading = "Queue", hide_short_help = true)]
    #[arg(requires = "server")]
    pub(crate) token_file: Option<PathBuf>,

    /// Certificates that verify an https server [default: those of the system]
    #[arg(long, value_name = "FILE", help_heading = "Queue", hide_short_help = true)]
    #[arg(requires = "server")]
    pub(crate) server_ca: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NoteFlags {
    /// Reason of the action, which is recorded with USER@HOST
    ///
    /// TEXT has at most 500 bytes. The queue keeps its last 100 actions, and the dashboard shows them.
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    pub(crate) note: Option<String>,
}

fn parse_note(text: &str) -> Result<String, String> {
    match text.len() {
        0..=500 if !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err("use at most 500 bytes without control characters".to_owned()),
    }
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum StoreCommand {
    /// Create the tables of a store, or migrate them to this version
    ///
    /// A SQLite file needs no init: `requeue add` and `requeue work --create` create and migrate it. The
    /// other stores are migrated only by this subcommand, because a migration needs more rights than other operations.
    #[command(
        mut_arg("group_by", |arg| arg.requires("queue")),
        mut_arg("group_limit", |arg| arg.requires("queue")),
        mut_arg("order", |arg| arg.requires("queue")),
    )]
    Init {
        #[command(flatten)]
        store: StoreUrl,

        /// Create this queue too, before its first add
        #[arg(long, value_name = "NAME")]
        queue: Vec<String>,

        #[command(flatten)]
        groups: GroupFlags,
    },
}

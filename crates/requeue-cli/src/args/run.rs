//! The flags of `requeue run`, and the flags that other subcommands share.
//!
//! In a struct that is flattened into a subcommand, the doc comment of a field is the flag's help. The struct itself
//! has no doc comment, because clap would show it as the description of the subcommand.

use std::ffi::OsString;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum, ValueHint};
use requeue::{InFlightPolicy, Pace, ReaddPolicy};
use rustix::process::Signal;

use crate::args::codes::{Codes, parse_codes};
use crate::args::halt::{MayHalt, parse_halt};
use crate::args::help::Sections;
use crate::args::values::{
    Retries, StartRate, named_values, parse_delimiter, parse_group_limit, parse_jobs, parse_pace,
    parse_rerun, parse_retries, parse_size, parse_start_rate,
};
use crate::duration::{Debounce, parse_debounce, parse_duration};
use crate::exit::Refusal;
use crate::input::Kind;
use crate::process::signals::parse_signal;
use crate::serve::{Address, Serve, parse_address, read_tokens};
use crate::tls::ServerTls;

/// The environment variable with the default of `--store`.
pub(crate) const STORE_VARIABLE: &str = "REQUEUE_STORE";

#[derive(Args, Debug)]
#[command(
    after_long_help = Sections::help_text("run"),
    override_usage = "requeue run [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue run [OPTIONS] -c SCRIPT",
    disable_help_flag = true
)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) read: Read,

    /// The maximum number of keys in the program [default: 1000000]
    ///
    /// Further keys stay in the input until a held key completes.
    #[arg(long, value_name = "N", help_heading = "Input", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_keys: Option<u32>,

    #[command(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    pub(crate) alone: Alone,

    #[command(flatten)]
    pub(crate) through: Through,

    /// Standard input of the commands
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_short_help = true)]
    #[arg(help_heading = "Command")]
    pub(crate) stdin: Stdin,

    /// Print the output of commands in the order in which their keys start
    ///
    /// This is the order of the input, unless --order, priorities or delays change it. The output of a command
    /// is printed together, after the output of all earlier keys. A key keeps its place until its last retry. Output
    /// that must wait is in a temporary file.
    #[arg(short = 'k', long, help_heading = "Output", hide_short_help = true)]
    pub(crate) keep_order: bool,

    // xargs has this flag. It has no effect, because a command never runs without a key.
    #[arg(short = 'r', long, hide = true)]
    pub(crate) no_run_if_empty: bool,
}

/// The flags of `requeue run` that require all keys to be in one process.
const IN_MEMORY_ONLY: [&str; 9] = [
    "debounce",
    "on_readd",
    "delay",
    "min_interval",
    "pace",
    "keep_order",
    "max_keys",
    "dry_run",
    "record_events",
];

// The flags of `requeue run --store`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Through {
    /// Keep the keys in this store until they complete
    ///
    /// URL is sqlite:FILE, postgres://HOST/DATABASE or redis://HOST. Other workers can also take keys from the queue:
    /// see `requeue work --help`. Without this option, the keys are in memory, even if $REQUEUE_STORE is set.
    #[arg(long, value_name = "URL", help_heading = "Store", hide_short_help = true)]
    #[arg(conflicts_with_all = IN_MEMORY_ONLY)]
    pub(crate) store: Option<String>,

    /// Name of the queue in the store
    #[arg(long, value_name = "NAME", default_value = "default", requires = "store")]
    #[arg(help_heading = "Store", hide_short_help = true)]
    pub(crate) queue: String,

    /// Time after which the keys of a dead worker are ready again
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    #[arg(requires = "store", help_heading = "Store", hide_short_help = true)]
    pub(crate) lease: Duration,

    /// At the start, wait until the store is ready, for TIME at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = parse_duration, requires = "store", help_heading = "Store")]
    #[arg(hide_short_help = true)]
    pub(crate) wait: Option<Option<Duration>>,

    #[command(flatten)]
    pub(crate) passwords: Passwords,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Passwords {
    /// Leave the password of the store in the environment of commands
    ///
    /// By default, PGPASSWORD or REDISCLI_AUTH is removed, and REQUEUE_STORE if it contains a password.
    #[arg(long, requires = "store", help_heading = "Command", hide_short_help = true)]
    pub(crate) pass_passwords: bool,
}

impl Passwords {
    /// Returns the environment variables with passwords that this process reads and that commands must not see.
    pub(crate) fn hidden_variables(self, store: &str) -> Vec<&'static str> {
        if self.pass_passwords {
            return Vec::new();
        }
        let variable = match store.split_once(':').map_or("", |(scheme, _)| scheme) {
            "postgres" | "postgresql" => Some("PGPASSWORD"),
            "redis" | "rediss" => Some("REDISCLI_AUTH"),
            _ => None,
        };
        // The URL in this variable may also contain a password.
        let url = std::env::var_os(STORE_VARIABLE);
        let url = url.filter(|url| has_password(&url.to_string_lossy())).map(|_| STORE_VARIABLE);
        variable.into_iter().chain(url).collect()
    }
}

/// Returns true if the URL of a store may contain a password.
fn has_password(url: &str) -> bool {
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':')) || url.contains("password=")
}

// The source and the format of the keys.
#[derive(Args, Debug)]
pub(crate) struct Read {
    /// Read keys from FILE instead of standard input
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) arg_file: Option<PathBuf>,

    /// Separate keys by NUL instead of newlines
    #[arg(short = '0', long, overrides_with = "delimiter", help_heading = "Input")]
    pub(crate) null: bool,

    /// Separate keys by C: one byte, or \t, \x1e, \036
    #[arg(short, long, value_name = "C", overrides_with = "null", help_heading = "Input")]
    #[arg(value_parser = parse_delimiter, hide_short_help = true)]
    pub(crate) delimiter: Option<u8>,

    /// Format of the input: lines, json
    ///
    /// With json, each record is an object with `key` or `key_base64`, and optionally `after`, `at`,
    /// `priority`, `merge` and `op`.
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_possible_values = true)]
    #[arg(help_heading = "Input")]
    pub(crate) input: Kind,
}

// The flags of every subcommand that runs commands. clap makes the flags from the fields, so this struct has one field
// per flag.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", hide = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// Placeholder for the key in COMMAND [default: {}]
    ///
    /// If COMMAND has no placeholder, the key becomes its last argument. Without -I, parts of a path also have
    /// placeholders: {.} is the path without its extension, {/} the name, {//} the directory, and {/.} the name without
    /// its extension.
    #[arg(short = 'I', value_name = "STR", help_heading = "Command", hide_short_help = true)]
    pub(crate) mark: Option<OsString>,

    /// Run `sh -c SCRIPT` with the key as "$1"
    #[arg(short = 'c', long, value_name = "SCRIPT", help_heading = "Command")]
    pub(crate) shell: Option<OsString>,

    /// Concurrent commands, or N% of the cores [default: 100%]
    ///
    /// 0 means as many as the limit on open files permits, and 1000 at most.
    #[arg(short, long, value_name = "N", value_parser = parse_jobs, help_heading = "Command")]
    #[arg(short_alias = 'P', alias = "max-procs")]
    pub(crate) jobs: Option<usize>,

    /// Terminate a command after TIME, as a failure
    ///
    /// TIME is a duration like 1.5s, 500ms, 2m, 1h30m, 1d or 2w, or a number of seconds. 0 means no limit.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Command")]
    pub(crate) timeout: Option<Duration>,

    /// Signal that terminates a command at its time limit [default: TERM]
    ///
    /// The signal is sent to the whole process group of the command.
    #[arg(short, long, value_name = "SIG", value_parser = parse_signal, help_heading = "Command")]
    #[arg(hide_short_help = true)]
    pub(crate) signal: Option<Signal>,

    /// Time from that signal to SIGKILL [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Command")]
    #[arg(hide_short_help = true)]
    pub(crate) kill_after: Option<Duration>,

    /// Print each command to standard error when it starts
    #[arg(short = 't', long, help_heading = "Command", hide_short_help = true)]
    pub(crate) verbose: bool,

    /// Limit the rate at which commands start: 10/s, 90/m, 100/h
    ///
    /// The limit applies to all keys of this process together. In a store, it is a setting of the queue for all
    /// workers.
    #[arg(long, value_name = "N", value_parser = parse_start_rate, help_heading = "Pace")]
    #[arg(hide_short_help = true)]
    pub(crate) rate: Option<StartRate>,

    /// Commands that may start together after a pause, with --rate [default: 1]
    ///
    /// In a store, the default is the number of starts in 200 ms, rounded up.
    #[arg(long, value_name = "N", help_heading = "Pace", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: Option<u32>,

    /// Retries of a failed key, or inf [default: 5]
    #[arg(long, value_name = "N", value_parser = parse_retries, help_heading = "Failure")]
    pub(crate) retries: Option<Retries>,

    /// Delay before the first retry; it doubles with each failure [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Failure")]
    #[arg(hide_short_help = true)]
    pub(crate) base_delay: Option<Duration>,

    /// Longest delay before a retry [default: 5m, or --base-delay if that is longer]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Failure")]
    #[arg(hide_short_help = true)]
    pub(crate) max_delay: Option<Duration>,

    /// Effect of an add on a waiting key: hold, replace or keep-both [default: hold]
    #[arg(long, value_parser = named_values(&RE_ADD), value_name = "HOW")]
    #[arg(hide_possible_values = true, help_heading = "Failure", hide_short_help = true)]
    pub(crate) re_add: Option<ReaddPolicy>,

    /// Exit codes and signals that are not retried, as in 2,64-78,SIGSEGV
    #[arg(long, value_name = "CODES", value_parser = parse_codes, help_heading = "Failure")]
    #[arg(hide_short_help = true)]
    pub(crate) fatal: Option<Codes>,

    /// Append keys that are given up to FILE
    ///
    /// FILE has the format of the input, so that a later run can read it.
    #[arg(long, value_name = "FILE", help_heading = "Failure")]
    pub(crate) dead_letter: Option<PathBuf>,

    /// Stop the run after a number of keys: now,fail=1 or soon,done=20%
    ///
    /// WHEN is never, or now or soon, with fail, success or done, and a number or a percentage. With soon,
    /// commands in flight complete; with now, they are terminated.
    #[arg(long, value_name = "WHEN", value_parser = parse_halt, help_heading = "Failure")]
    #[arg(hide_short_help = true)]
    pub(crate) halt: Option<MayHalt>,

    /// Stop at the first failed attempt, without retries
    ///
    /// The same as --retries 0 --halt now,fail=1. Without --retries 0, --halt now,fail=1 stops the run only after the
    /// last retry of a key.
    #[arg(long, conflicts_with = "halt", help_heading = "Failure", hide_short_help = true)]
    pub(crate) fail_fast: bool,

    /// Destination of the output of commands
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_short_help = true)]
    #[arg(help_heading = "Output")]
    pub(crate) output: Output,

    /// The same as --output inherit
    #[arg(short = 'u', long, conflicts_with = "output", help_heading = "Output")]
    #[arg(hide_short_help = true)]
    pub(crate) ungroup: bool,

    /// Begin each line of output with the key and a tab
    #[arg(long, help_heading = "Output", hide_short_help = true)]
    pub(crate) tag: bool,

    /// Begin each line of output with STR and a tab; {} is the key
    #[arg(long, value_name = "STR", help_heading = "Output", hide_short_help = true)]
    pub(crate) tagstring: Option<OsString>,

    /// Write a line for each run to FILE, in the format of GNU parallel
    #[arg(long, value_name = "FILE", help_heading = "Output", hide_short_help = true)]
    pub(crate) joblog: Option<PathBuf>,

    /// When to show the progress
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, hide_short_help = true)]
    #[arg(help_heading = "Output")]
    pub(crate) progress: Progress,

    /// Form of the summary, the last line on standard error
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_short_help = true)]
    #[arg(help_heading = "Output")]
    pub(crate) summary: Summary,

    /// Print this help; --help has all options
    #[arg(short, long, action = ArgAction::Help, help_heading = "Output")]
    help: Option<bool>,
}

// The flags of the subcommands whose queue is in the memory of this process.
#[derive(Args, Debug, Default)]
pub(crate) struct Alone {
    /// Print the commands without running them
    #[arg(long, help_heading = "Command")]
    pub(crate) dry_run: bool,

    /// Start a key no sooner than TIME after its first add, or at the end of the input
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    #[arg(hide_short_help = true)]
    pub(crate) delay: Option<Duration>,

    /// Start a key QUIET after its last add, but no later than MAX after its first [default: 10 x QUIET]
    #[arg(long, value_name = "QUIET[,MAX]", value_parser = parse_debounce, help_heading = "Pace")]
    #[arg(hide_short_help = true)]
    pub(crate) debounce: Option<Debounce>,

    /// Least time between two starts of a key
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pace")]
    #[arg(hide_short_help = true)]
    pub(crate) min_interval: Option<Duration>,

    /// Most starts of a key in any TIME, as in 10/1m
    ///
    /// Above this pace, a key waits, and its next run serves all adds. --min-interval TIME is the same as --pace 1/TIME.
    #[arg(long, value_name = "RUNS/TIME", value_parser = parse_pace, help_heading = "Pace")]
    #[arg(conflicts_with = "min_interval", hide_short_help = true)]
    pub(crate) pace: Option<Pace>,

    /// Effect of an add on a key whose command runs: after or restart[,MAX] [default: after]
    ///
    /// With restart, the command is terminated as soon as its key is added again, and the key runs again. This is
    /// neither a success nor a failure. When MAX has passed since the first restart, the next command of the key is not
    /// terminated, so that a key that is added constantly also completes. 0 means no limit. The default is 30s.
    #[arg(long, value_name = "HOW", value_parser = parse_rerun, help_heading = "Pace")]
    #[arg(hide_short_help = true)]
    pub(crate) on_readd: Option<InFlightPolicy>,

    /// Order of ready keys [default: fifo; priority with --input json]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Pace", hide_short_help = true)]
    pub(crate) order: Option<Order>,

    /// Group of a key: the first capture of REGEX, or the whole match
    #[arg(long, value_name = "REGEX", help_heading = "Pace", hide_short_help = true)]
    pub(crate) group_by: Option<String>,

    /// Concurrent commands of each group
    #[arg(long, value_name = "N", help_heading = "Pace", hide_short_help = true)]
    #[arg(value_parser = parse_group_limit)]
    pub(crate) group_limit: Option<u32>,

    #[command(flatten)]
    pub(crate) dashboard: Dashboard,

    /// Memory for the events of keys, which `requeue why` shows [default: 4M with --serve]
    ///
    /// SIZE is a number of bytes, as in 512K or 4M. Most events take 32 bytes, the others 64, and the oldest events are
    /// dropped first. The minimum is 256. With 0, no events are recorded.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    pub(crate) record_events: Option<usize>,
}

impl Alone {
    /// Returns the memory for recorded events, in bytes. Returns `None` for the default of the queue. Only clients of
    /// the dashboard read the events, unless spans are exported.
    pub(crate) fn recording(&self) -> Result<Option<usize>, Refusal> {
        match (self.record_events, &self.dashboard.serve) {
            (Some(1..256), _) => {
                Err(Refusal::usage("--record-events: use 256 bytes or more, or 0"))
            }
            (bytes, Some(_)) => {
                let bytes = bytes.unwrap_or(4 << 20);
                // The queue reserves the memory when it is created, and a failed reservation would abort the program.
                // The reservation is therefore tried here first.
                let is_possible = black_box(Vec::<u8>::new()).try_reserve_exact(bytes).is_ok();
                let too_much = "--record-events: this machine has less memory; use a smaller SIZE";
                is_possible.then_some(Some(bytes)).ok_or_else(|| Refusal::usage(too_much))
            }
            (Some(bytes), None) if bytes > 0 => {
                Err(Refusal::usage("--record-events requires --serve"))
            }
            (bytes, None) => Ok(bytes),
        }
    }
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Dashboard {
    /// Serve a dashboard at PORT, ADDR:PORT or unix:PATH
    ///
    /// The server also has Prometheus metrics at /metrics, and a JSON API. It has no password, and is read-only without
    /// --serve-admin. PORT without an address is on loopback.
    #[arg(long, value_name = "PORT", value_parser = parse_address, help_heading = "Output")]
    serve: Option<Address>,

    #[command(flatten)]
    page: PageFlags,
}

impl Dashboard {
    /// Returns true if at least one flag of a dashboard is set.
    pub(crate) const fn is_asked_for(&self) -> bool {
        let PageFlags { serve_admin, serve_target, tls_cert, .. } = &self.page;
        self.serve.is_some() || *serve_admin || serve_target.is_some() || tls_cert.is_some()
    }

    /// Returns the value of `--token-file`, which can also contain the token for `--server`.
    pub(crate) fn token_file(self) -> Option<PathBuf> {
        self.page.token_file
    }

    /// Returns the settings of the dashboard. Returns `None` if `--serve` is missing.
    pub(crate) fn serve_settings(self) -> Result<Option<Serve>, Refusal> {
        match self.serve {
            Some(address) => self.page.settings_at(address).map(Some),
            None if self.page.serve_admin => Err(Refusal::usage("--serve-admin requires --serve")),
            None if self.page.tls_cert.is_some() => {
                Err(Refusal::usage("--tls-cert requires --serve"))
            }
            None if self.page.serve_target.is_some() => {
                Err(Refusal::usage("--serve-target requires --serve"))
            }
            None => self.page.refuse_unused_tokens().map(|()| None),
        }
    }
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PageFlags {
    /// Let clients of the dashboard with a token change the queue
    ///
    /// They can add, cancel, revive and run keys, pause the queue, and work on keys over HTTP. The token has 16 to 1,024
    /// visible characters. It is the content of --token-file, or of the variable REQUEUE_TOKEN, which commands do not
    /// see. Each line is one token. Roles before it limit its requests, as in `add,work TOKEN`; they are read, add, work
    /// and admin. `sha256:HASH` instead of a token hides it.
    #[arg(long, help_heading = "Output", hide_short_help = true)]
    pub(crate) serve_admin: bool,

    /// File with the tokens of --serve-admin [default: $REQUEUE_TOKEN]
    #[arg(long, value_name = "FILE", help_heading = "Output", hide_short_help = true)]
    #[arg(requires = "serve_admin")]
    pub(crate) token_file: Option<PathBuf>,

    /// Encrypt the connections to the dashboard with the certificate in FILE, as PEM
    ///
    /// FILE also contains the certificates of the intermediate authorities. A renewed certificate is used without a
    /// restart.
    #[arg(long, value_name = "FILE", help_heading = "Output", hide_short_help = true)]
    #[arg(requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// File with the key of that certificate, as PEM
    #[arg(long, value_name = "FILE", help_heading = "Output", hide_short_help = true)]
    #[arg(requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Longest time for which a key should be ready before a run
    ///
    /// While the oldest ready key has been ready for longer, the dashboard shows its age in amber.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = "Output", hide_short_help = true)]
    pub(crate) serve_target: Option<Duration>,
}

impl PageFlags {
    /// Refuses tokens without a use. clap does not, because `work` also has `--server`, whose token they can be.
    fn refuse_unused_tokens(&self) -> Result<(), Refusal> {
        match &self.token_file {
            Some(_) if !self.serve_admin => {
                Err(Refusal::usage("--token-file requires --serve-admin or --server"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the settings of a dashboard at `address`.
    pub(crate) fn settings_at(&self, address: Address) -> Result<Serve, Refusal> {
        self.refuse_unused_tokens()?;
        let tokens = self.serve_admin.then(|| read_tokens(self.token_file.as_deref()));
        let tokens = tokens.transpose()?.unwrap_or_default();
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(_), Some(_)) if matches!(address, Address::Unix(_)) => {
                return Err(Refusal::usage(
                    "--tls-cert: a Unix socket needs no TLS; use ADDR:PORT",
                ));
            }
            (Some(chain), Some(key)) => Some(ServerTls::new(chain, key)?),
            _ => None,
        };
        Ok(Serve { address, tokens, target: self.serve_target, tls })
    }
}

/// The order of ready keys.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// First in, first out
    Fifo,
    /// Highest priority first; each tenth start is the oldest key
    Priority,
    /// Groups take turns within a priority
    Fair,
}

/// The values of `--re-add`.
pub(crate) const RE_ADD: [(&str, ReaddPolicy); 3] = [
    ("hold", ReaddPolicy::Hold),
    ("replace", ReaddPolicy::Replace),
    ("keep-both", ReaddPolicy::KeepBoth),
];

/// The destination of the output of commands.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Output {
    /// Whole lines, as they come
    #[default]
    Lines,
    /// All output of a run together, after its end
    Group,
    /// Commands write to the streams of requeue
    Inherit,
    /// Discard it
    None,
}

/// The standard input of commands.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stdin {
    /// Empty
    #[default]
    None,
    /// The key
    Key,
}

/// When the progress line is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Progress {
    /// On a terminal, except with --output inherit
    #[default]
    Auto,
    /// Also in files and pipes, every 10 seconds
    Always,
    /// Only after SIGUSR1; retried attempts are not reported
    Never,
}

/// The form of the summary.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Summary {
    /// A sentence
    #[default]
    Text,
    /// A JSON object
    Json,
    /// No summary
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_password() {
        for url in ["postgres://me:pw@db/app", "redis://:pw@host", "postgres://db/a?password=pw"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["sqlite:a.db", "postgres://me@db:5432/app", "redis://host:6379/1"] {
            assert!(!has_password(url), "{url}");
        }
    }
}

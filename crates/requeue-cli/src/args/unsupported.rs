//! Flags and syntax of other programs or subcommands that are not supported. Each is refused with its alternative.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Error;
use clap::error::{ContextKind, ContextValue};
#[cfg(feature = "store")]
use clap::parser::ValueSource;
#[cfg(feature = "store")]
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::exit::Refusal;

/// A flag that is not supported.
#[derive(Clone, Copy, Debug)]
struct Flag {
    /// Its name without dashes.
    long: &'static str,
    short: Option<char>,
    instead: &'static str,
}

impl Flag {
    const fn new(long: &'static str, instead: &'static str) -> Self {
        Self { long, short: None, instead }
    }

    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    fn refusal(&self, why: &str) -> Refusal {
        let Self { long, short, instead } = self;
        let short = short.map(|short| format!("-{short}, ")).unwrap_or_default();
        Refusal::usage(format!("{short}--{long}: {why}; {instead}"))
    }
}

/// A table of flags that are not supported for one reason. clap does not know them, except those that another form of
/// the subcommand has. So it never suggests one of them.
struct Table {
    why: &'static str,
    flags: &'static [Flag],
}

#[cfg(feature = "store")]
const GROUPS: &str = "use one --queue per group, with its own workers and --jobs";

/// Flags of `requeue run` that queues in a store do not have.
#[cfg(feature = "store")]
const IN_STORE: Table = Table {
    why: "not available for a queue in a store",
    flags: &[
        Flag::new("debounce", "`requeue add --debounce` debounces its adds"),
        Flag::new("on-readd", "a key that is added during its run runs once more after it"),
        Flag::new("delay", "`requeue add --after TIME` delays its adds"),
        Flag::new("min-interval", "`requeue work --rate` limits the starts of all keys"),
        Flag::new("pace", "`requeue work --rate` limits the starts of all keys"),
        Flag::new("order", "`requeue add --priority` gives keys one of three priorities"),
        Flag::new("group-by", GROUPS),
        Flag::new("group-jobs", GROUPS),
        Flag::new("keep-order", "--tag begins each line of output with its key").short('k'),
        Flag::new("max-keys", "its keys wait in the store, limited by the space there"),
        Flag::new(
            "dry-run",
            "`requeue run --dry-run` without a store prints commands, `requeue status` counts keys",
        ),
    ],
};

/// Those of them that concern adds.
#[cfg(feature = "store")]
const OF_ADDS: Table = Table {
    why: "not available for a queue in a store",
    flags: &[
        Flag::new("on-readd", "a key that is added during its run runs once more after it"),
        Flag::new("delay", "--after TIME delays the keys"),
        Flag::new("order", "--priority gives keys one of three priorities"),
        Flag::new("group-by", GROUPS),
    ],
};

const LEFT_OUT: &str = "this program was built without it";
const STORES: &str = "enable the feature `store` of requeue-cli, and that of an engine: `sqlite`, `postgres` or `redis`";
const PAGE: &str = "enable the feature `dashboard` of requeue-cli";

/// Flags of the dashboard, in a program that is built without it.
#[cfg(not(feature = "dashboard"))]
const DASHBOARD: Table = Table {
    why: LEFT_OUT,
    flags: &[
        Flag::new("serve", PAGE),
        Flag::new("serve-admin", PAGE),
        Flag::new("token-file", PAGE),
    ],
};

/// Flags of `requeue run --store`, in a program that is built without stores.
#[cfg(not(feature = "store"))]
const STORE: Table = Table {
    why: LEFT_OUT,
    flags: &[
        Flag::new("store", STORES),
        Flag::new("queue", STORES),
        Flag::new("lease", STORES),
        Flag::new("wait", STORES),
        Flag::new("pass-passwords", STORES),
    ],
};

/// Flags that scripts for xargs and GNU parallel often have.
const OF_PARALLEL: Table = {
    const ONE: &str = "each command gets one key, so that it can be retried alone; leave it out";
    const PROGRESS: &str =
        "a terminal shows the progress; --progress always also writes it to files and pipes";
    const RESUME: &str = if cfg!(feature = "sqlite") {
        "--store sqlite:FILE keeps the keys until they complete; the same command without input runs the rest"
    } else {
        "--unfinished FILE saves the keys that have not run when a signal stops the run"
    };
    const RESULTS: &str = "let the command write the file, as in -c './cmd \"$1\" >\"$1.out\"'";
    Table {
        why: "not available",
        flags: &[
            Flag::new("max-args", ONE).short('n'),
            Flag::new("max-lines", ONE).short('L'),
            Flag::new("bar", PROGRESS),
            Flag::new("eta", PROGRESS),
            Flag::new("resume", RESUME),
            Flag::new("results", RESULTS),
        ],
    }
};

/// Returns the tables of a subcommand.
fn tables(subcommand: &str) -> Vec<Table> {
    match subcommand {
        "run" => vec![
            OF_PARALLEL,
            #[cfg(not(feature = "dashboard"))]
            DASHBOARD,
            #[cfg(not(feature = "store"))]
            STORE,
        ],
        #[cfg(feature = "store")]
        "add" => vec![OF_ADDS],
        #[cfg(feature = "store")]
        "work" => vec![
            IN_STORE,
            #[cfg(not(feature = "dashboard"))]
            DASHBOARD,
        ],
        #[cfg(not(feature = "dashboard"))]
        "files" | "watch" => vec![DASHBOARD],
        _ => Vec::new(),
    }
}

/// Returns the refusal with an alternative, if an error of clap is about a subcommand or a flag that has one. The
/// arguments of the process are `args`.
pub(crate) fn refusal(error: &Error, mut args: impl Iterator<Item = OsString>) -> Option<Refusal> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    if let Some(subcommand) = text(ContextKind::InvalidSubcommand) {
        return left_out(subcommand);
    }
    let flag = text(ContextKind::InvalidArg)?;
    let tables = tables(args.nth(1)?.to_str()?);
    let is_it = |known: &Flag| match flag.strip_prefix("--") {
        Some(long) => known.long == long,
        None => {
            known.short.is_some_and(|short| flag.strip_prefix('-') == Some(&*short.to_string()))
        }
    };
    tables.iter().find_map(|Table { why, flags }| {
        flags.iter().find(|known| is_it(known)).map(|flag| flag.refusal(why))
    })
}

/// Refuses a subcommand that this program was built without.
fn left_out(subcommand: &str) -> Option<Refusal> {
    let instead = match subcommand {
        "files" if !cfg!(feature = "files") => "enable the feature `files` of requeue-cli",
        "watch" if !cfg!(feature = "kube") => "enable the feature `kube` of requeue-cli",
        "add" | "work" | "queues" | "drop" | "status" | "keys" | "explain" | "serve" | "parked"
        | "revive" | "cancel" | "pause" | "resume" | "store"
            if !cfg!(feature = "store") =>
        {
            STORES
        }
        "serve" if !cfg!(feature = "dashboard") => PAGE,
        _ => return None,
    };
    Some(Refusal::usage(format!("{subcommand}: {LEFT_OUT}; {instead}")))
}

/// The first flag on the command line that `requeue run` has only without `--store`.
///
/// clap's derived structs remove their values from the matches. Therefore this field must be the first of its struct.
#[cfg(feature = "store")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InMemoryOnly(Option<&'static Flag>);

#[cfg(feature = "store")]
impl InMemoryOnly {
    /// Refuses the flag, if there is one.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        self.0.map_or(Ok(()), |flag| Err(flag.refusal(IN_STORE.why)))
    }
}

#[cfg(feature = "store")]
impl Args for InMemoryOnly {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(feature = "store")]
impl FromArgMatches for InMemoryOnly {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |flag: &&Flag| {
            // The name of its field.
            let id = flag.long.replace('-', "_");
            matches.value_source(&id) == Some(ValueSource::CommandLine)
        };
        Ok(Self(IN_STORE.flags.iter().find(is_given)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Refuses keys on the command line as in GNU parallel, `COMMAND ::: KEY...`. If `parallel` is itself the command, its
/// arguments are not checked.
pub(crate) fn check_separators(command: &[OsString]) -> Result<(), Refusal> {
    let is_parallel =
        |word: &&OsString| Path::new(word).file_name() == Some(OsStr::new("parallel"));
    let mut words = command.iter().take_while(|word| !is_parallel(word));
    match words.find(|word| [":::", ":::+", "::::", "::::+"].iter().any(|known| *word == known)) {
        None => Ok(()),
        Some(separator) => Err(Refusal::usage(format!(
            "keys after {} as in GNU parallel are not available; `requeue run` reads keys from standard input, as in \
             printf '%s\\n' KEY... | requeue run COMMAND, or from a file: -a FILE",
            separator.display()
        ))),
    }
}

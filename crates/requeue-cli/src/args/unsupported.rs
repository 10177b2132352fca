//! Flags and syntax of other programs, and parts that this program was built without. Each is refused with its
//! alternative.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Error;
use clap::error::{ContextKind, ContextValue};

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

/// A table of flags that are not supported for one reason. clap does not know them, so that it never suggests one.
struct Table {
    why: &'static str,
    flags: &'static [Flag],
}

const LEFT_OUT: &str = "this program was built without it";
const STORES: &str = "enable the feature `store` of requeue-cli, and that of an engine: `sqlite`, `postgres` or `redis`";
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
    const RESUME: &str = "--store sqlite:FILE keeps the keys until they complete; the same command without input runs the rest";
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

/// The tables of `requeue run`.
const TABLES: &[Table] = &[
    OF_PARALLEL,
    #[cfg(not(feature = "store"))]
    STORE,
];

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
    if args.nth(1)? != "run" {
        return None;
    }
    let is_it = |known: &Flag| match flag.strip_prefix("--") {
        Some(long) => known.long == long,
        None => {
            known.short.is_some_and(|short| flag.strip_prefix('-') == Some(&*short.to_string()))
        }
    };
    TABLES.iter().find_map(|Table { why, flags }| {
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
        _ => return None,
    };
    Some(Refusal::usage(format!("{subcommand}: {LEFT_OUT}; {instead}")))
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

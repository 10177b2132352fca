//! Flags and syntax of other programs or subcommands that are not supported. Each is refused with its alternative.

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use os_display::Quotable;

use crate::exit::Refusal;

/// A flag that is not supported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// Its name without dashes.
    long: &'static str,
    short: Option<char>,
    has_value: bool,
    instead: &'static str,
}

impl Flag {
    const fn new(long: &'static str, instead: &'static str) -> Self {
        Self { long, short: None, has_value: false, instead }
    }

    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    const fn value(self) -> Self {
        Self { has_value: true, ..self }
    }

    fn arg(&self) -> Arg {
        let arg = Arg::new(self.id()).long(self.long).hide(true);
        let arg = match self.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        arg.num_args(0..=usize::from(self.has_value))
            .default_missing_value("")
            .value_parser(value_parser!(OsString))
    }

    /// Returns clap's ID, which is the name of the field in a subcommand that has the flag.
    fn id(&self) -> String {
        self.long.replace('-', "_")
    }
}

/// A table of flags.
pub(crate) trait Table {
    const FLAGS: &'static [Flag];
    /// The subcommand has the flags itself. Otherwise it gets them as hidden flags.
    const OWN: bool;
    const WHY: &'static str;
}

#[cfg(feature = "store")]
const GROUPS: &str = "use one --queue per group, with its own workers and --jobs";

/// Flags of `requeue run` that queues in a store do not have.
#[cfg(feature = "store")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InStore<const OWN: bool>;

#[cfg(feature = "store")]
impl<const OWN: bool> Table for InStore<OWN> {
    const FLAGS: &'static [Flag] = {
        &[
            // `OfAdd` leaves out the first two.
            Flag::new("debounce", "`requeue add --debounce` debounces its adds").value(),
            Flag::new("on-readd", "a key that is added during its run runs once more after it").value(),
            Flag::new("delay", "`requeue add --after TIME` delays its adds").value(),
            Flag::new("min-interval", "`requeue work --rate` limits the starts of all keys")
                .value(),
            Flag::new("pace", "`requeue work --rate` limits the starts of all keys").value(),
            Flag::new("order", "`requeue add --priority` gives keys one of three priorities")
                .value(),
            Flag::new("group-by", GROUPS).value(),
            Flag::new("group-jobs", GROUPS).value(),
            Flag::new("max-keys", "its keys wait in the store, limited by the space there").value(),
            Flag::new(
                "dry-run",
                "`requeue run --dry-run` without a store prints commands, `requeue status` counts keys",
            )
            .value(),
        ]
    };
    const OWN: bool = OWN;
    const WHY: &'static str = "not available for a queue in a store";
}

/// Flags of `requeue run` that `requeue add` does not have.
#[cfg(feature = "store")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfAdd;

#[cfg(feature = "store")]
impl Table for OfAdd {
    // `add` has --debounce, and starts no runs that an add could restart.
    const FLAGS: &'static [Flag] = InStore::<false>::FLAGS.split_at(2).1;
    const OWN: bool = false;
    const WHY: &'static str = InStore::<false>::WHY;
}

const LEFT_OUT: &str = "this program was built without it";

/// Refuses a subcommand that this program was built without.
pub(crate) fn left_out(subcommand: &str) -> Option<Refusal> {
    let feature = match subcommand {
        "files" if !cfg!(feature = "files") => "files",
        "watch" if !cfg!(feature = "kube") => "kube",
        "add" | "work" | "queues" | "drop" | "status" | "keys" | "explain" | "serve" | "parked"
        | "revive" | "cancel" | "pause" | "resume" | "store"
            if !cfg!(feature = "store") =>
        {
            "store"
        }
        "serve" if !cfg!(feature = "dashboard") => "dashboard",
        _ => return None,
    };
    let message =
        format!("{subcommand}: {LEFT_OUT}; enable the feature `{feature}` of requeue-cli");
    Some(Refusal::usage(message))
}

/// Flags of the dashboard, in a program that is built without it.
#[cfg(not(feature = "dashboard"))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WithoutDashboard;

#[cfg(not(feature = "dashboard"))]
impl Table for WithoutDashboard {
    const FLAGS: &'static [Flag] = {
        const INSTEAD: &str = "enable the feature `dashboard` of requeue-cli";
        &[
            Flag::new("serve", INSTEAD).value(),
            Flag::new("serve-admin", INSTEAD),
            Flag::new("token-file", INSTEAD).value(),
        ]
    };
    const OWN: bool = false;
    const WHY: &'static str = LEFT_OUT;
}

/// Flags of `requeue run --store`, in a program that is built without stores.
#[cfg(not(feature = "store"))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WithoutStore;

#[cfg(not(feature = "store"))]
impl Table for WithoutStore {
    const FLAGS: &'static [Flag] = {
        const INSTEAD: &str = "enable the feature `store` of requeue-cli";
        &[
            Flag::new("store", INSTEAD).value(),
            Flag::new("queue", INSTEAD).value(),
            Flag::new("lease", INSTEAD).value(),
            Flag::new("wait", INSTEAD).value(),
            Flag::new("pass-passwords", INSTEAD),
        ]
    };
    const OWN: bool = false;
    const WHY: &'static str = LEFT_OUT;
}

/// Flags of xargs and GNU parallel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfParallel;

impl Table for OfParallel {
    const FLAGS: &'static [Flag] = {
        const ONE: &str =
            "each command gets one key, so that it can be retried alone; leave it out";
        const PROGRESS: &str = "a terminal shows the progress by default; --progress always also \
                                writes it to files and pipes";
        const RESUME: &str = "--unfinished FILE saves the keys that have not run, and \
                              `requeue run -a FILE` runs them";
        const FAILED: &str =
            "--dead-letter FILE saves the failed keys, and `requeue run -a FILE` runs them";
        &[
            Flag::new("max-args", ONE).short('n').value(),
            Flag::new("max-lines", ONE).short('L').value(),
            Flag::new("xargs", ONE).short('X'),
            Flag::new(
                "keep-order",
                "output comes as commands complete; -j1 runs the keys in the order of the input, and \
                 --tag begins each line with its key",
            )
            .short('k'),
            Flag::new("bar", PROGRESS),
            Flag::new("eta", PROGRESS),
            Flag::new("resume", RESUME),
            Flag::new("resume-failed", FAILED),
            Flag::new("retry-failed", FAILED),
        ]
    };
    const OWN: bool = false;
    const WHY: &'static str = "not available";
}

/// The first flag of the table on the command line.
///
/// clap's derived structs remove their values from the matches. In a subcommand that has the flags, this field
/// must be the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unsupported<T>(Option<&'static Flag>, PhantomData<T>);

impl<T: Table> Unsupported<T> {
    /// Refuses the flag, if there is one.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        let Some(Flag { long, short, instead, .. }) = self.0 else { return Ok(()) };
        let short = short.map(|short| format!("-{short}, ")).unwrap_or_default();
        Err(Refusal::usage(format!("{short}--{long}: {}; {instead}", T::WHY)))
    }
}

impl<T: Table> Args for Unsupported<T> {
    fn augment_args(command: Command) -> Command {
        if T::OWN { command } else { command.args(T::FLAGS.iter().map(Flag::arg)) }
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for Unsupported<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given =
            |flag: &&Flag| matches.value_source(&flag.id()) == Some(ValueSource::CommandLine);
        Ok(Self(T::FLAGS.iter().find(is_given), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Refuses keys on the command line as in GNU parallel, `COMMAND ::: KEY...`. If `parallel` is itself the command, its
/// arguments are not checked.
pub(crate) fn check_separators(command: &[OsString], subcommand: &str) -> Result<(), Refusal> {
    /// The maximum number of keys in the message.
    const SHOWN: usize = 3;
    let is_separator =
        |word: &&OsString| matches!(word.to_str(), Some(":::" | ":::+" | "::::" | "::::+"));
    let Some((at, separator)) = command.iter().enumerate().find(|(_, word)| is_separator(word))
    else {
        return Ok(());
    };
    let is_parallel = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("parallel"));
    if command[..at].iter().any(is_parallel) {
        return Ok(());
    }
    let quoted = |words: &[OsString]| {
        words.iter().map(|word| word.maybe_quote().to_string()).collect::<Vec<_>>().join(" ")
    };
    let run = match at {
        0 => "COMMAND".to_owned(),
        _ => quoted(&command[..at]),
    };
    let after = &command[at + 1..];
    let count = after.iter().position(|word| is_separator(&word)).unwrap_or(after.len());
    let mut keys = quoted(&after[..count.min(SHOWN)]);
    if count > SHOWN {
        keys += " ...";
    }
    let instead = match (subcommand, separator.to_str()) {
        ("work", _) => format!("the keys come from the store: requeue add --store URL {keys}"),
        ("watch", _) => "the keys are the names of objects".to_owned(),
        (_, Some(":::" | ":::+")) => {
            format!("pass the keys on standard input: printf '%s\\n' {keys} | requeue run {run}")
        }
        _ => format!("name the file of keys: requeue run -a {keys} {run}"),
    };
    Err(Refusal::usage(format!(
        "{}: keys on the command line, as in GNU parallel, are not available; {instead}",
        separator.display()
    )))
}

//! The command line: the flags as they were typed, their values, and the configuration that they make.

pub(crate) mod codes;
pub(crate) mod config;
pub(crate) mod halt;
#[cfg(feature = "kube")]
pub(crate) mod names;
pub(crate) mod pacing;
pub(crate) mod run;
#[cfg(feature = "store")]
pub(crate) mod store;
#[cfg(feature = "store")]
pub(crate) mod unsupported;
pub(crate) mod values;
#[cfg(feature = "kube")]
pub(crate) mod watch;

use std::path::PathBuf;

use clap::Parser;
use clap::builder::styling::Styles;
use clap_complete::Shell;

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
    Run(Box<run::Flags>),
    /// Run a command per Kubernetes object that changes: a controller
    #[cfg(feature = "kube")]
    Watch(Box<watch::Flags>),
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
    Add(Box<store::AddFlags>),
    /// Run a command per key of a queue in a store, here and on other machines
    #[cfg(feature = "store")]
    Work(Box<store::WorkFlags>),
    /// List the queues of a store
    ///
    /// A line each: the name, and `empty` if the queue has no keys, or else `keys`. With --json objects
    /// with `queue`, `is_empty`, and the settings of the queue, `re_add` and `parked_add`.
    #[cfg(feature = "store")]
    Queues(store::QueuesFlags),
    /// Remove a queue from a store, if it has no keys
    ///
    /// With --force, remove its keys too. Processes that have it open get errors: their adds are refused,
    /// and workers end with exit code 125. A command in flight goes on until its worker finds that the lease
    /// is lost, at the next renewal. Then it is sent SIGTERM.
    ///
    /// Exit: 0 the queue is dropped; 1 it has keys, and is unchanged; 125 there is no such queue, or the store
    /// can't be reached.
    #[cfg(feature = "store")]
    Drop(store::DropFlags),
    /// Show how many keys of a queue in a store wait, run and are parked
    ///
    /// With --in-flight also a line for each key in flight: the key, its worker, for how long, and how long its
    /// lease lasts unless it is renewed. With --json an object, in which `in_flight` has for each of them `key`,
    /// or `key_base64` where it is no UTF-8, `worker`, `epoch`, and in seconds `age` and `lease`.
    #[cfg(feature = "store")]
    Status(store::StatusFlags),
    /// List the keys that were given up, and why
    ///
    /// A line each: the key, how often it was tried, since when it is parked, and what the last failure
    /// was. With --json objects with `key`, or `key_base64` where it is no UTF-8, `priority` unless it
    /// is 0, `attempts`, `why` and `given_up_at`.
    #[cfg(feature = "store")]
    Parked(store::ParkedFlags),
    /// Have keys that were given up run again
    ///
    /// With --all, those that are parked now, 1,000 at a time: an interruption leaves the others parked.
    ///
    /// Exit: 0 all of them will; 1 some were not parked; 125 there is no such queue, or the store can't
    /// be reached.
    #[cfg(feature = "store")]
    Revive(store::ReviveFlags),
    /// Take keys back: those that wait, not those that run
    ///
    /// With --all, 1,000 at a time: an interruption leaves the others as they are.
    ///
    /// Exit: 0 all were taken; 1 some were not there to be taken; 125 there is no such queue, or the
    /// store can't be reached.
    #[cfg(feature = "store")]
    Cancel(store::CancelFlags),
    /// Look after a store
    #[cfg(feature = "store")]
    #[command(disable_help_subcommand = true)]
    Store {
        #[command(subcommand)]
        command: store::StoreCommand,
    },
    /// Print what a shell completes a command line with
    Completions { shell: Shell },
    /// Write the manual pages to a directory
    Man { dir: PathBuf },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::config::Config;

    #[test]
    fn the_help_has_every_flag_and_no_other() {
        the_help_has_every_flag_of("run", run::HELP);
        #[cfg(feature = "store")]
        the_help_has_every_flag_of("work", store::HELP);
        #[cfg(feature = "kube")]
        the_help_has_every_flag_of("watch", watch::HELP);
    }

    fn the_help_has_every_flag_of(subcommand: &str, help: &str) {
        let cli = Cli::command();
        let command = cli.find_subcommand(subcommand).unwrap();
        let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
        let flags: BTreeSet<_> = shown()
            .flat_map(|arg| {
                let short = arg.get_short().map(|short| format!("-{short}"));
                short.into_iter().chain(arg.get_long().map(|long| format!("--{long}")))
            })
            // The user has just typed it.
            .filter(|flag| flag != "-h" && flag != "--help")
            .collect();
        let is_flag = |word: &&str| word.starts_with('-') && !word.trim_matches('-').is_empty();
        let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(is_flag);
        let said: BTreeSet<_> = words.map(str::to_owned).collect();
        assert_eq!(said, flags);
    }

    fn config(args: &[&str]) -> Result<Config, String> {
        let words = ["requeue", "run"].iter().chain(args);
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Subcommand::Run(flags) = cli.command else { panic!("not run") };
        Config::check(*flags).map(|(_, config)| config).map_err(|refusal| refusal.message)
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused_by_name() {
        for (args, named) in [
            (&["--fail-fast", "--halt", "never", "sh"][..], "--halt"),
            (&["--ungroup", "--output", "group", "sh"], "--output"),
            (&["--burst", "2", "sh"], "--burst"),
            (&["--debounce-max", "2s", "sh"], "--debounce-max"),
            (&["--debounce", "2s", "--debounce-max", "1s", "sh"], "--debounce-max"),
            (&["--order", "fair", "sh"], "--order"),
            (&["--group-jobs", "2", "sh"], "--group-jobs"),
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
        assert_eq!(debounce(&["--debounce", "2s", "--debounce-max", "3s", "sh"]), Some((2, 3)));
        assert_eq!(debounce(&["--debounce", "0", "sh"]), None);

        let rate = |args: &[&str]| config(args).unwrap().pacing.rate.map(|(_, burst)| burst);
        assert_eq!(rate(&["--rate", "10/s", "sh"]), Some(1));
        assert_eq!(rate(&["--rate", "10/s", "--burst", "3", "sh"]), Some(3));
        let timeout = |args: &[&str]| config(args).unwrap().commands.limits.timeout;
        assert_eq!(timeout(&["--timeout", "0", "sh"]), None);
        let delimiter = |args: &[&str]| config(args).unwrap().input.format.delimiter;
        assert_eq!(delimiter(&["-d", ",", "-0", "sh"]), 0);
        assert_eq!(delimiter(&["-0", "-d", ",", "sh"]), b',');
        let tag = |args: &[&str]| config(args).unwrap().commands.tag.map(|tag| tag.of(b"k"));
        assert_eq!(tag(&["--tag", "sh"]).as_deref(), Some(&b"k\t"[..]));
        assert_eq!(tag(&["-I", "@", "--tagstring", "<@>", "sh"]).as_deref(), Some(&b"<k>\t"[..]));
    }
}

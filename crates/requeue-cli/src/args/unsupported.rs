//! Flags of `requeue run` that queues in a store do not have. Each is refused with its alternative.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

use crate::exit::Refusal;

/// The flags, without their dashes, and the alternative to each.
const INSTEAD: [(&str, &str); 9] = [
    ("delay", "`requeue add --after TIME` delays its adds"),
    ("debounce", DEBOUNCE),
    ("debounce-max", DEBOUNCE),
    ("min-interval", "`requeue work --rate` limits the starts of all keys"),
    ("order", "`requeue add --priority` gives keys one of three priorities"),
    ("group-by", GROUPS),
    ("group-jobs", GROUPS),
    ("max-keys", "its keys wait in the store, limited by the space there"),
    (
        "dry-run",
        "`requeue run --dry-run` without a store prints commands, `requeue status` counts keys",
    ),
];
const DEBOUNCE: &str = "a line {\"key\": KEY, \"after\": TIME, \"merge\": \"latest\"} for \
                        `requeue add --input json` restarts the wait of a key";
const GROUPS: &str = "use one --queue per group, with its own workers and --jobs";

/// The first of these flags on the command line. A subcommand that does not have the flags itself (`OWN` is
/// false) gets them as hidden flags.
///
/// clap's derived structs remove their values from the matches. In a subcommand that has the flags, this field
/// must be the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unsupported<const OWN: bool>(Option<(&'static str, &'static str)>);

impl<const OWN: bool> Unsupported<OWN> {
    /// Refuses the flag, if there is one.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        let Some((flag, instead)) = self.0 else { return Ok(()) };
        Err(Refusal::usage(format!("--{flag}: not available for a queue in a store; {instead}")))
    }
}

/// Returns clap's ID of a flag, which is the name of the field.
fn id(flag: &str) -> String {
    flag.replace('-', "_")
}

impl<const OWN: bool> Args for Unsupported<OWN> {
    fn augment_args(command: Command) -> Command {
        let hidden = |(flag, _): &(&'static str, _)| {
            let arg = Arg::new(id(flag)).long(*flag).hide(true).num_args(0..=1);
            arg.value_parser(value_parser!(OsString))
        };
        if OWN { command } else { command.args(INSTEAD.iter().map(hidden)) }
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const OWN: bool> FromArgMatches for Unsupported<OWN> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |flag| matches.value_source(&id(flag)) == Some(ValueSource::CommandLine);
        Ok(Self(INSTEAD.into_iter().find(|(flag, _)| is_given(flag))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

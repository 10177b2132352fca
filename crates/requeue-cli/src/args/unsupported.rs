//! The flags of `requeue run` that queues in a store don't have: each is refused with its alternative.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

use crate::exit::Refusal;

/// The flags, without their dashes, and the alternative to each.
const INSTEAD: [(&str, &str); 9] = [
    ("delay", "`requeue add --after TIME` delays what it adds"),
    ("debounce", DEBOUNCE),
    ("debounce-max", DEBOUNCE),
    ("min-interval", "`requeue work --rate` limits the starts of all keys"),
    ("order", "three priorities order its keys: `requeue add --priority`"),
    ("group-by", GROUPS),
    ("group-jobs", GROUPS),
    ("max-keys", "keys wait in the store, and as many as it has space for"),
    (
        "dry-run",
        "`requeue run --dry-run` without a store shows commands, `requeue status` what waits",
    ),
];
const DEBOUNCE: &str = "each line {\"key\": KEY, \"after\": TIME, \"merge\": \"latest\"} for \
                        `requeue add --input json` begins the wait of a key again";
const GROUPS: &str = "give each group its own --queue, and workers with a --jobs of their own";

/// The first of these flags on the command line. A subcommand that does not have the flags itself (`OWN`)
/// gets them as hidden ones.
///
/// clap's derived structs take their values out of the matches: in a subcommand with the flags, this
/// comes first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unsupported<const OWN: bool>(Option<(&'static str, &'static str)>);

impl<const OWN: bool> Unsupported<OWN> {
    /// Refuses the flag.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        let Some((flag, instead)) = self.0 else { return Ok(()) };
        Err(Refusal::usage(format!("--{flag}: a queue in a store does not have it; {instead}")))
    }
}

/// The name by which clap knows a flag of a derived struct: the field's.
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

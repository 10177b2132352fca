//! The flags of `requeue schedule`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use requeue_store::Priority;

use crate::args::store::{NoteFlags, PRIORITIES, Place, ServerFlags};
use crate::args::values::named_values;
use crate::duration::parse_duration;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum ScheduleCommand {
    /// Add a key again at certain times, or change its times
    ///
    /// The command creates a missing queue. A key has at most one schedule.
    Add(AddFlags),
    /// List the keys that have a schedule
    ///
    /// Prints a line for each key: the expression or the period, the time zone, the time of the next add, and `paused` or the
    /// reason why a worker has refused the schedule. With --json, prints objects with `key` (`key_base64` if it is not
    /// UTF-8), `at` (the next time), `priority` if it is not 0, `group`, `why` (the reason), `spec`, `zone` and `is_paused`.
    List(ListFlags),
    /// Remove the schedules of keys
    ///
    /// The keys themselves and their runs remain. Exits with 1 if a key had no schedule.
    Remove(KeysFlags),
    /// Pause the schedules of keys
    ///
    /// Exits with 1 if a key has no schedule.
    Pause(KeysFlags),
    /// Resume the schedules of keys: times that have passed are skipped
    ///
    /// Exits with 1 if a key has no schedule.
    Resume(KeysFlags),
}

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Cron expression, as in "0 9 * * MON-FRI"
    #[arg(long, value_name = "EXPR", required_unless_present = "every", conflicts_with = "every")]
    pub(crate) cron: Option<String>,

    /// Time zone, as in Europe/Berlin
    #[arg(long, value_name = "NAME", default_value = "UTC", conflicts_with = "every")]
    pub(crate) zone: String,

    /// Time between two adds, counted from now
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) every: Option<Duration>,

    /// Priority: low, normal, high
    #[arg(long, value_parser = named_values(&PRIORITIES), value_name = "HOW")]
    #[arg(default_value = "normal", hide_possible_values = true)]
    pub(crate) priority: Priority,

    /// Group of the key, if adds name their groups
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Print a JSON object for each key
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KeysFlags {
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

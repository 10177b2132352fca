//! The subcommands of `requeue groups`, with their flags.
//!
//! As in `run`, structs have no doc comments, because clap would show them as descriptions of the subcommands.

use clap::{Args, Subcommand};
use requeue_store::State;

use crate::args::store::{NoteFlags, Place, RateFlags, STATES, ServerFlags};
use crate::args::values::{
    GroupLimit, named_values, parse_default_limit, parse_limit, parse_weight,
};

#[derive(Args, Debug)]
pub(crate) struct GroupQueue {
    #[command(flatten)]
    pub(crate) place: Place,

    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

#[derive(Args, Debug)]
pub(crate) struct NamedGroup {
    /// Name of the group; '' is that of keys without a group
    #[arg(value_name = "GROUP")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) queue: GroupQueue,

    #[command(flatten)]
    pub(crate) note: NoteFlags,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupsCommand {
    /// List the groups that have keys or settings
    ///
    /// Prints a line for each group, sorted by name. The columns are the numbers of ready keys, waiting keys and keys
    /// in flight, the limit, the weight, the rate with its burst, the age of the oldest ready key, the pause, and the
    /// name. With --json, prints objects with `group`, `ready`, `waiting`, `in_flight`, `dirty`, `parked`,
    /// `oldest_ready` in seconds, `limit`, `weight`, `rate` and `is_paused`. `rate` is null, or contains `starts`,
    /// `per` in seconds, and `burst`. The store reads all keys of the queue.
    List {
        #[command(flatten)]
        queue: GroupQueue,

        /// Print a JSON object for each group
        #[arg(long)]
        json: bool,
    },
    /// Set the limit of keys in flight of a group, over all workers
    ///
    /// The limit applies to later claims, and commands in flight continue. `none` removes the limit of the group, so
    /// that the limit of the queue applies.
    Limit {
        #[command(flatten)]
        group: NamedGroup,

        /// The most keys in flight, or none
        #[arg(value_name = "N", value_parser = parse_limit)]
        limit: GroupLimit,
    },
    /// Set the limit of all groups that have no other one
    ///
    /// The limit is that of --group-limit. `none` removes it.
    DefaultLimit {
        /// The most keys in flight of each group, or none
        #[arg(value_name = "N", value_parser = parse_default_limit)]
        limit: GroupLimit,

        #[command(flatten)]
        queue: GroupQueue,

        #[command(flatten)]
        note: NoteFlags,
    },
    /// Set the rate at which keys of a group start, over all workers
    ///
    /// The rate applies to later claims. `none` removes it, so that only the rate of the queue applies.
    Rate {
        #[command(flatten)]
        group: NamedGroup,

        #[command(flatten)]
        rate: RateFlags,
    },
    /// Set the number of keys that a group gets in one turn
    Weight {
        #[command(flatten)]
        group: NamedGroup,

        /// The number of keys; 1 is the default
        #[arg(value_name = "N", value_parser = parse_weight)]
        weight: u32,
    },
    /// Pause a group: no worker gets a key of it
    ///
    /// The pause is stored, and applies to the workers of all machines until `requeue groups resume`. Commands in flight
    /// continue, and keys can be added.
    Pause(NamedGroup),
    /// Resume a paused group
    Resume(NamedGroup),
    /// Remove the pending runs of the keys of a group
    ///
    /// Runs in flight continue. The store reads all keys of the queue.
    Cancel {
        #[command(flatten)]
        group: NamedGroup,

        /// Only keys in this state
        ///
        /// STATE is ready, waiting, in_flight, parked or damaged. The run of a key in flight continues, and only the
        /// next run is removed.
        #[arg(long, value_parser = named_values(&STATES), value_name = "STATE")]
        #[arg(hide_possible_values = true)]
        state: Option<State>,
    },
}

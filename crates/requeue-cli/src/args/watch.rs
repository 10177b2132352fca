//! The flags of `requeue watch` that `requeue run` does not have.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::args::help::Sections;
use crate::args::names::{
    LeaseName, Named, Selected, parse_finalizer, parse_lease, parse_named, parse_selected,
};
use crate::args::run::{Alone, Common};
use crate::duration::parse_duration;

// clap makes the flags from the fields, so this struct has one field per flag.
#[derive(Args, Debug)]
#[command(
    after_long_help = Sections::help_text("watch"),
    override_usage = "requeue watch RESOURCE [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue watch RESOURCE [OPTIONS] -c SCRIPT",
    disable_help_flag = true,
    mut_arg("retries", |arg| {
        arg.help("Retries of a failed key, or inf [default: inf]").hide_short_help(true)
    }),
    mut_arg("re_add", |arg| arg.help("Effect of a change of an object that backs off [default: hold]")),
    mut_arg("min_interval", |arg| arg.help("Least time between two starts of a key [default: 1s]")),
    mut_arg("order", |arg| arg.help("Order of ready keys [default: priority]")),
    mut_arg("group_by", |arg| {
        arg.help("Group of a key: the first capture of REGEX, or the match [default: the namespace]")
    }),
    // These flags are hidden in the short help, to make space for the flags of this subcommand.
    mut_arg("timeout", |arg| arg.hide_short_help(true)),
    mut_arg("dead_letter", |arg| {
        arg.help("Append keys that are given up to FILE, as lines").long_help(None).hide_short_help(true)
    }),
)]
pub(crate) struct Flags {
    /// Resource, as kubectl spells it: cm, deployments.apps
    #[arg(value_parser = NonEmptyStringValueParser::new(), help_heading = "Objects")]
    pub(crate) resource: String,

    /// Only objects with these labels
    #[arg(short = 'l', long, value_name = "LABELS", help_heading = "Objects")]
    pub(crate) selector: Option<String>,

    /// Only objects with these fields
    #[arg(long, value_name = "FIELDS", help_heading = "Objects", hide_short_help = true)]
    pub(crate) field_selector: Option<String>,

    #[command(flatten)]
    pub(crate) access: AccessFlags,

    /// Changes that cause runs: apply, delete [default: both]
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', help_heading = "Events")]
    #[arg(hide_possible_values = true)]
    pub(crate) on: Vec<On>,

    /// Treatment of the objects that exist at the start
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Events")]
    #[arg(hide_short_help = true)]
    pub(crate) initial: Initial,

    /// Only changes at these JSON pointers cause runs: /data,/spec/replicas
    #[arg(long, value_name = "POINTER", value_delimiter = ',', help_heading = "Events")]
    #[arg(hide_short_help = true)]
    pub(crate) changed: Vec<String>,

    /// Run once per TIME for each object, evenly spread
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Events")]
    pub(crate) resync: Option<Duration>,

    /// Keep deleted objects by this finalizer until a run for the deletion succeeds
    ///
    /// NAME is a domain of yours and a name, as in example.com/cleanup.
    #[arg(long, value_name = "NAME", value_parser = parse_finalizer, help_heading = "Events")]
    #[arg(hide_short_help = true)]
    pub(crate) finalizer: Option<String>,

    /// Run for the owner when an object of this resource changes
    #[arg(long, value_name = "RESOURCE", value_parser = NonEmptyStringValueParser::new())]
    #[arg(help_heading = "Events", hide_short_help = true)]
    pub(crate) owns: Vec<String>,

    /// Run for all objects when an object of this resource changes
    #[arg(long, value_name = "RESOURCE[/NAME]", value_parser = parse_selected)]
    #[arg(help_heading = "Events", hide_short_help = true)]
    pub(crate) all_on: Vec<Selected>,

    /// Objects of this resource as a JSON list, in $REQUEUE_SNAPSHOTS/NAME.json
    #[arg(long, value_name = "NAME=RESOURCE", value_parser = parse_named)]
    #[arg(help_heading = "Command", hide_short_help = true)]
    pub(crate) snapshot: Vec<Named>,

    #[command(flatten)]
    pub(crate) leader: LeaderFlags,

    #[command(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    pub(crate) alone: Alone,
}

#[derive(Args, Debug)]
pub(crate) struct AccessFlags {
    /// Namespace of the objects [default: the context's]
    #[arg(short, long, value_name = "NAME", help_heading = "Objects")]
    pub(crate) namespace: Option<String>,

    /// Watch the objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Objects")]
    pub(crate) all_namespaces: bool,

    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the pod's account]
    #[arg(long, value_name = "FILE", help_heading = "Objects", hide_short_help = true)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", help_heading = "Objects", hide_short_help = true)]
    pub(crate) context: Option<String>,

    /// Impersonate this user
    #[arg(long = "as", value_name = "USER", help_heading = "Objects", hide_short_help = true)]
    pub(crate) as_user: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LeaderFlags {
    /// Run commands only while this process holds this Lease
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = parse_lease)]
    #[arg(help_heading = "Replicas", hide_short_help = true)]
    pub(crate) leader_election: Option<LeaseName>,

    /// Time without a renewal after which another replica takes over
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "15s")]
    #[arg(requires = "leader_election", help_heading = "Replicas", hide_short_help = true)]
    pub(crate) lease_duration: Duration,

    /// Time without a renewal after which the leader steps down
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    #[arg(requires = "leader_election", help_heading = "Replicas", hide_short_help = true)]
    pub(crate) renew_deadline: Duration,

    /// Time between two attempts to acquire or renew the Lease
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    #[arg(requires = "leader_election", help_heading = "Replicas", hide_short_help = true)]
    pub(crate) retry_period: Duration,
}

/// The kind of a change.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    /// The object was created or changed
    Apply,
    /// The object was deleted
    Delete,
}

/// The treatment of the objects that exist at the start.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Initial {
    /// Run for each
    #[default]
    Run,
    /// Wait for their changes
    Skip,
}

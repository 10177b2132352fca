//! The flags of `requeue watch` that `requeue run` does not have.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::args::names::{LeaseName, Named, Selected, parse_finalizer};
use crate::args::run::{Alone, Common};
use crate::duration::parse_duration;

/// As `run`'s: a test holds it to the flags.
pub(super) const HELP: &str = include_str!("watch.txt");

#[derive(Args, Debug)]
#[command(
    help_template = HELP,
    override_usage = "requeue watch RESOURCE [OPTIONS] [--] COMMAND [ARG]...\n       \
                      requeue watch RESOURCE [OPTIONS] -c SCRIPT",
    disable_help_flag = true
)]
pub(crate) struct Flags {
    /// What to watch, as kubectl spells it: cm, deployments.apps, deployments.v1.apps
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) resource: String,

    /// Those with these labels alone
    #[arg(short = 'l', long, value_name = "LABELS", help_heading = "Objects")]
    pub(crate) selector: Option<String>,

    /// Those with these fields alone
    #[arg(long, value_name = "FIELDS", help_heading = "Objects")]
    pub(crate) field_selector: Option<String>,

    #[command(flatten)]
    pub(crate) access: AccessFlags,

    /// What to run for: apply, delete [apply,delete]
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', help_heading = "Events")]
    #[arg(hide_possible_values = true)]
    pub(crate) on: Vec<On>,

    /// For what is there at the start: run, skip [run]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[arg(help_heading = "Events")]
    pub(crate) initial: Initial,

    /// Run for changes at these JSON pointers alone: /data,/spec/x
    #[arg(long, value_name = "POINTER", value_delimiter = ',', help_heading = "Events")]
    pub(crate) changed: Vec<String>,

    /// Run for each object once in TIME, spread over it
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Events")]
    pub(crate) resync: Option<Duration>,

    /// Keep objects by this finalizer until a run for their end succeeds
    #[arg(long, value_name = "NAME", value_parser = parse_finalizer, help_heading = "Events")]
    pub(crate) finalizer: Option<String>,

    /// Run for the owners of such objects when these change
    #[arg(long, value_name = "RESOURCE", value_parser = NonEmptyStringValueParser::new())]
    #[arg(help_heading = "Events")]
    pub(crate) owns: Vec<String>,

    /// Run for all objects when such a one changes
    #[arg(long, value_name = "RESOURCE[/NAME]", help_heading = "Events")]
    pub(crate) all_on: Vec<Selected>,

    /// Such objects as a JSON list in $REQUEUE_SNAPSHOTS/NAME.json
    #[arg(long, value_name = "NAME=RESOURCE", help_heading = "Command")]
    pub(crate) snapshot: Vec<Named>,

    #[command(flatten)]
    pub(crate) leader: LeaderFlags,

    #[command(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    pub(crate) alone: Alone,
}

// No doc comment: it would be the command's text.
#[derive(Args, Debug)]
pub(crate) struct AccessFlags {
    /// The objects of this namespace [the context's]
    #[arg(short, long, value_name = "NAME", help_heading = "Objects")]
    pub(crate) namespace: Option<String>,

    /// The objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Objects")]
    pub(crate) all_namespaces: bool,

    /// The kubeconfig [$KUBECONFIG, ~/.kube/config, the pod's account]
    #[arg(long, value_name = "FILE", help_heading = "Objects")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Which context of it [its current one]
    #[arg(long, value_name = "NAME", help_heading = "Objects")]
    pub(crate) context: Option<String>,

    /// Be this user
    #[arg(long = "as", value_name = "USER", help_heading = "Objects")]
    pub(crate) as_user: Option<String>,
}

// No doc comment: it would be the command's text.
#[derive(Args, Debug)]
pub(crate) struct LeaderFlags {
    /// Run nothing but while this process holds this Lease
    #[arg(long, value_name = "[NAMESPACE/]NAME", help_heading = "Replicas")]
    pub(crate) leader_election: Option<LeaseName>,

    /// Others leave a leader alone that long that is not heard of [15s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "15s")]
    #[arg(hide_default_value = true, requires = "leader_election", help_heading = "Replicas")]
    pub(crate) lease_duration: Duration,

    /// It steps down if it could not renew for that long [10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    #[arg(hide_default_value = true, requires = "leader_election", help_heading = "Replicas")]
    pub(crate) renew_deadline: Duration,

    /// From one try to the next [2s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    #[arg(hide_default_value = true, requires = "leader_election", help_heading = "Replicas")]
    pub(crate) retry_period: Duration,
}

/// What has become of an object.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Apply,
    Delete,
}

/// What becomes of the objects that there are at the start.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Initial {
    #[default]
    Run,
    Skip,
}

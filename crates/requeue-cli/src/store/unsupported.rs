//! Flags of `requeue run` that queues in a store don't have, and what to use instead.

use std::ffi::OsString;

use clap::Args;

use crate::args::Flags;
use crate::exit::Refusal;

/// The alternative to each flag.
const INSTEAD: [(&str, &str); 9] = [
    ("--delay", "`requeue add --after TIME` delays what it adds"),
    ("--debounce", DEBOUNCE),
    ("--debounce-max", DEBOUNCE),
    ("--min-interval", "`requeue work --rate` limits the starts of all keys"),
    ("--order", "three priorities order its keys: `requeue add --priority`"),
    ("--group-by", GROUPS),
    ("--group-jobs", GROUPS),
    ("--max-keys", "keys wait in the store, and as many as it has space for"),
    (
        "--dry-run",
        "`requeue run --dry-run` without a store shows commands, `requeue status` what waits",
    ),
];
const DEBOUNCE: &str = "each line {\"key\": KEY, \"after\": TIME, \"merge\": \"latest\"} for \
                        `requeue add --input json` begins the wait of a key again";
const GROUPS: &str = "give each group its own --queue, and workers with a --jobs of their own";

fn refusal(given: &str) -> Refusal {
    let instead =
        INSTEAD.iter().find(|(flag, _)| *flag == given).map_or("", |(_, instead)| instead);
    Refusal::usage(format!("{given}: a queue in a store does not have it; {instead}"))
}

/// Refuses those of `requeue run --store`.
pub(super) fn check(flags: &Flags) -> Result<(), Refusal> {
    let alone = &flags.alone;
    let given = [
        ("--delay", alone.delay.is_some()),
        ("--debounce", alone.debounce.is_some()),
        ("--debounce-max", alone.debounce_max.is_some()),
        ("--min-interval", alone.min_interval.is_some()),
        ("--order", alone.order.is_some()),
        ("--group-by", alone.group_by.is_some()),
        ("--group-jobs", alone.group_jobs.is_some()),
        ("--max-keys", flags.max_keys.is_some()),
        ("--dry-run", alone.dry_run),
    ];
    first(given)
}

fn first(given: [(&str, bool); INSTEAD.len()]) -> Result<(), Refusal> {
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(refusal(flag)),
        None => Ok(()),
    }
}

// For subcommands that work on stores alone: known, to say what to use instead. No doc comment: it
// would be the command's text.
#[derive(Args, Debug, Default)]
pub(crate) struct Unsupported {
    #[arg(long, hide = true, num_args = 0..=1)]
    delay: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    debounce: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    debounce_max: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    min_interval: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    order: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    group_by: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    group_jobs: Option<Option<OsString>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    max_keys: Option<Option<OsString>>,
    #[arg(long, hide = true)]
    dry_run: bool,
}

impl Unsupported {
    /// Refuses those that are given.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        first([
            ("--delay", self.delay.is_some()),
            ("--debounce", self.debounce.is_some()),
            ("--debounce-max", self.debounce_max.is_some()),
            ("--min-interval", self.min_interval.is_some()),
            ("--order", self.order.is_some()),
            ("--group-by", self.group_by.is_some()),
            ("--group-jobs", self.group_jobs.is_some()),
            ("--max-keys", self.max_keys.is_some()),
            ("--dry-run", self.dry_run),
        ])
    }
}

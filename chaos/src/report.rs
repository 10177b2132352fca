//! Counts the faults and results of a run, and prints them as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use requeue_store::StateCounts;

use crate::check::Tally;

/// A fault that was injected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    ProcessKilled,
    Frozen,
    Ahead,
    Behind,
    CutBefore,
    CutIn,
    CutAfter,
    HeldBefore,
    HeldAfter,
    Killed,
    TakenOver,
    TakenOverLate,
    Elected,
    Promoted,
    Restored,
    PoolerKilled,
    Evicted,
    Snapshot,
    Committed,
    RolledBack,
    Paused,
    GroupPaused,
    GroupLimited,
    GroupWeighed,
    GroupRated,
    QueueLimited,
    QueueRated,
}

impl Fault {
    const ALL: [(Self, &'static str); 27] = [
        (Self::ProcessKilled, "processes killed"),
        (Self::Frozen, "processes frozen"),
        (Self::Ahead, "processes whose clock is an hour ahead"),
        (Self::Behind, "processes whose clock is an hour behind"),
        (Self::CutBefore, "connections cut before a request has arrived"),
        (Self::CutIn, "connections cut in a request or an answer"),
        (Self::CutAfter, "connections cut before an answer"),
        (Self::HeldBefore, "requests held up"),
        (Self::HeldAfter, "answers held up"),
        (Self::Killed, "the server killed"),
        (Self::TakenOver, "masters killed, and their replicas promoted"),
        (Self::TakenOverLate, "masters killed, whose replica had missed their last moment"),
        (Self::Elected, "masters killed, whose replica was elected"),
        (Self::Promoted, "replicas promoted that lagged"),
        (Self::Restored, "backups restored"),
        (Self::PoolerKilled, "poolers killed"),
        (Self::Evicted, "evictions"),
        (Self::Snapshot, "transactions open elsewhere"),
        (Self::Committed, "transactions open with an add, committed"),
        (Self::RolledBack, "transactions open with an add, rolled back"),
        (Self::Paused, "pauses of the queue"),
        (Self::GroupPaused, "pauses of groups"),
        (Self::GroupLimited, "changes of limits"),
        (Self::GroupWeighed, "changes of weights"),
        (Self::GroupRated, "changes of rates"),
        (Self::QueueLimited, "changes of the limit of the queue"),
        (Self::QueueRated, "changes of the rate of the queue"),
    ];
}

/// The number of occurrences of each fault.
pub(crate) type Faults = BTreeMap<Fault, u64>;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// Descriptions of the violations.
    pub violations: Vec<String>,
    /// The contents of the queue at the end.
    pub left: StateCounts,
    pub(crate) store: String,
    pub(crate) length: Duration,
    pub(crate) tally: Tally,
    pub(crate) faults: Faults,
    pub(crate) repairs: Repairs,
}

/// The repairs of damaged shards that processes have reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Repairs {
    /// Keys whose places in the queue were restored.
    pub(crate) restored: u64,
    /// Places in the queue whose keys' data was lost.
    pub(crate) lost: u64,
}

impl Report {
    /// Returns true if the store kept its promises.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.left == StateCounts::default()
    }

    /// Returns the number of deliveries.
    #[must_use]
    pub const fn deliveries(&self) -> u64 {
        self.tally.deliveries
    }

    /// Returns true if this fault occurred. `fault` is its name in the table.
    #[must_use]
    pub fn has(&self, fault: &str) -> bool {
        self.lines().iter().any(|&(name, count)| name == fault && count > 0)
    }

    fn lines(&self) -> Vec<(&'static str, u64)> {
        let Tally { adds, deliveries, late_writes, refused, lost_adds, lost_holders, groups } =
            self.tally;
        let faults = Fault::ALL.map(|(fault, name)| (name, self.faults.get(&fault).copied()));
        let mut lines = vec![("seconds", self.length.as_secs()), ("adds", adds)];
        lines.push(("deliveries", deliveries));
        lines.extend(faults.map(|(name, count)| (name, count.unwrap_or(0))));
        lines.extend([
            ("arrivals of keys at the limit of their group", groups.at_limit),
            ("starts at the rate of the queue or of a group", groups.at_rate),
            ("keys that a process got at most while a group waited", groups.longest_wait),
            ("ends refused", refused),
            ("late writes, which a fencing token rejects", late_writes),
            ("adds lost with a server, which is allowed", lost_adds),
            (
                "writes beside the next holder after a server lost the ownership, which is allowed",
                lost_holders,
            ),
            ("keys of damaged shards repaired", self.repairs.restored),
            ("keys of damaged shards lost, which is allowed", self.repairs.lost),
            ("keys left", self.left.ready + self.left.waiting + self.left.in_flight),
            ("violations", self.violations.len() as u64),
        ]);
        lines
    }
}

/// Prints each count that is not zero.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines().into_iter();
        let counts: Vec<String> = lines
            .filter(|&(name, count)| count > 0 || name == "violations")
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        write!(f, "{}: {}", self.store, counts.join(", "))
    }
}

/// Formats reports side by side as a Markdown table.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let row = |name: &str, cells: Vec<String>| format!("| {name} | {} |\n", cells.join(" | "));
    let columns = reports.iter();
    let mut table = row("", columns.clone().map(|report| report.store.clone()).collect());
    table += &row("---", columns.clone().map(|_| "---:".to_owned()).collect());
    let all: Vec<_> = columns.map(Report::lines).collect();
    for n in 0..all.first().map_or(0, Vec::len) {
        let cells = all.iter().map(|lines| match lines[n].1 {
            0 if n > 2 && n < lines.len() - 11 => String::new(),
            count => count.to_string(),
        });
        table += &row(all[0][n].0, cells.collect());
    }
    table
}

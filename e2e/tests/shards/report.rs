//! Checks the reports of all replicas of a group together, and computes figures.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use requeue_bench::runner::machine::Machine;
use requeue_e2e::{Nanos, full};

use crate::replica::{Fault, LEASE, Replica, Said};
use crate::schedule::{Event, LONGEST_FAULT};

/// Prints a report, and appends it to the file that `REQUEUE_E2E_FIGURES` names. A new file begins
/// with a description of the machine.
pub(crate) fn publish(text: &str) {
    println!("{text}");
    let Some(path) = std::env::var_os("REQUEUE_E2E_FIGURES") else { return };
    let is_new = !Path::new(&path).exists();
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    if is_new {
        let quick = if full() { "" } else { " QUICK=1" };
        let machine = Machine::here();
        let head = format!(
            "{machine}command   make bench-kube ONLY=shards{quick}\n\
             figures   shard groups of replicas in processes of their own, built without optimization.\n          \
             The gap of a shard is the time in which no replica can run its objects: from the end of\n          \
             the last run in flight, or from the fault, to the first run of the next holder. It has a\n          \
             limit if no other fault adds its own time. The lease duration is {} s in the schedules,\n          \
             and 15 s otherwise.\n\n",
            LEASE.as_secs()
        );
        file.write_all(head.as_bytes()).unwrap();
    }
    file.write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// The violations and the figures of one or more groups.
#[derive(Default)]
pub(crate) struct Report {
    events: BTreeMap<Event, usize>,
    replicas: usize,
    runs: usize,
    writes: usize,
    /// The descriptions of overlaps, lost changes and late writes that were accepted.
    pub(crate) violations: Vec<String>,
    overlaps: usize,
    lost: usize,
    accepted: usize,
    /// The number of runs that overlapped with runs of another replica after the Lease had expired
    /// by the replica's own clock. A process that was frozen, or got no processor time, cannot
    /// prevent such runs.
    expired: BTreeMap<&'static str, usize>,
    /// The number of late writes that were refused, by the last fault of the writer.
    refused: BTreeMap<&'static str, usize>,
    strays: usize,
    /// The number of replicas that have lost their membership.
    ended: usize,
    /// The times in which no replica could run the objects of a shard, by the kind of the move.
    /// `true` means that another fault was in progress.
    gaps: BTreeMap<(Move, bool), Vec<Nanos>>,
    facts: Vec<Facts>,
}

/// The kind of a move of a shard to another replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    /// From the end of the last run in flight at the former holder, to the first run at the next
    /// holder.
    Planned,
    /// From the fault to the first run at the next holder.
    Crash,
    /// Like `Crash`, if all other members at the time of the fault left before the Lease expired.
    /// The present members joined after the fault, and must observe the Lease for a whole lease
    /// duration after their join.
    CrashUnseen,
}

/// The reports of a replica.
struct Facts {
    number: usize,
    /// The time at which the replica joined the group.
    joined: Option<Nanos>,
    /// The time at which the replica lost its membership.
    lost: Option<Nanos>,
    /// The time after which the replica performed no action.
    over: Nanos,
    faults: Vec<(Fault, Nanos)>,
    runs: Vec<Run>,
    held: Vec<Held>,
}

struct Run {
    name: String,
    shard: u32,
    number: i32,
    begun: Nanos,
    entitled: Option<Nanos>,
    active: Nanos,
}

/// A period in which a replica held a shard.
#[derive(Clone, Copy)]
struct Held {
    shard: u32,
    number: i32,
    to: Option<Nanos>,
}

/// A response of the API server to a claim or a write.
struct Write {
    version: u64,
    number: i32,
    claims: bool,
}

impl Report {
    pub(crate) fn new(events: &BTreeMap<Event, usize>, lost: Vec<String>) -> Self {
        let violations = lost.iter().map(|name| format!("not reconciled: {name}")).collect();
        Self { events: events.clone(), lost: lost.len(), violations, ..Self::default() }
    }

    /// Adds the reports of replicas that have stopped.
    pub(crate) fn add(&mut self, replicas: &[Arc<Replica>]) {
        let mut writes = BTreeMap::<String, Vec<Write>>::new();
        for replica in replicas {
            self.replicas += 1;
            let over = replica.over().unwrap_or(Nanos::MAX);
            let (mut joined, mut lost) = (None, None);
            let (mut runs, mut held) = (BTreeMap::new(), Vec::<Held>::new());
            let faults = replica.faults();
            let reason = faults.last().map_or("no fault", |(fault, _)| match fault {
                Fault::Kill => "killed",
                Fault::Freeze => "frozen",
                Fault::Silence | Fault::Refuse => "partitioned",
            });
            for said in replica.said() {
                match said {
                    Said::Begun { run, name, shard, number, at } => {
                        // A run without a report of its end was killed with its replica.
                        let entitled = Some(over.max(at));
                        let active = over.max(at);
                        let run_of = Run { name, shard, number, begun: at, entitled, active };
                        runs.insert(run, run_of);
                    }
                    Said::Ended(ended) => {
                        let run = runs.get_mut(&ended.run).unwrap();
                        (run.entitled, run.active) = (ended.entitled, ended.active);
                    }
                    Said::Joined { at } => joined = Some(at),
                    Said::Held { shard, number, .. } => {
                        held.push(Held { shard, number, to: None });
                    }
                    Said::Left { shard, number, at } => {
                        let same = |held: &&mut Held| (held.shard, held.number) == (shard, number);
                        held.iter_mut().rev().find(same).unwrap().to = Some(at);
                    }
                    Said::Claimed { name, number, version } => {
                        writes.entry(name).or_default().push(Write {
                            version,
                            number,
                            claims: true,
                        });
                    }
                    Said::Written { name, number, version } => {
                        self.writes += 1;
                        writes.entry(name).or_default().push(Write {
                            version,
                            number,
                            claims: false,
                        });
                    }
                    Said::Refused { .. } => *self.refused.entry(reason).or_default() += 1,
                    Said::Stray { .. } => self.strays += 1,
                    Said::Lost { at, .. } => (lost, self.ended) = (Some(at), self.ended + 1),
                    Said::Listed | Said::Ran { .. } => {}
                }
            }
            self.runs += runs.len();
            let runs = runs.into_values().collect();
            let number = replica.number;
            self.facts.push(Facts { number, joined, lost, over, faults, runs, held });
        }
        for (name, mut writes) in writes {
            writes.sort_unstable_by_key(|write| write.version);
            let mut claimed = 0;
            for Write { version, number, claims } in writes {
                if claims {
                    claimed = claimed.max(number);
                }
                if number < claimed {
                    self.accepted += 1;
                    self.violations.push(format!(
                        "{name}: the write of version {version} by holder {number} was accepted \
                         after the claim by holder {claimed}"
                    ));
                }
            }
        }
    }

    /// Finds the overlaps and the gaps.
    pub(crate) fn verify(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        let mut by_name = BTreeMap::<&str, Vec<(&Facts, &Run)>>::new();
        for replica in &facts {
            for run in &replica.runs {
                by_name.entry(&run.name).or_default().push((replica, run));
            }
        }
        for (name, mut runs) in by_name {
            runs.sort_unstable_by_key(|(_, run)| run.begun);
            for (at, (first, run)) in runs.iter().enumerate() {
                let later = runs[at + 1..].iter().take_while(|(_, later)| later.begun < run.active);
                for (second, later) in later {
                    // The later run is also excused, if the Lease of its replica had already
                    // expired at its start.
                    let is_violation = later.entitled.is_some()
                        && run.entitled.is_some_and(|entitled| later.begun < entitled);
                    if is_violation {
                        self.overlaps += 1;
                        self.violations.push(format!(
                            "{name}: replica {} as holder {} of shard {} ran from {} to {}, and \
                             replica {} as holder {} of shard {} began at {}",
                            first.number,
                            run.number,
                            run.shard,
                            run.begun,
                            run.active,
                            second.number,
                            later.number,
                            later.shard,
                            later.begun,
                        ));
                    } else {
                        let late = if later.entitled.is_none() { second } else { first };
                        let froze = late
                            .faults
                            .iter()
                            .any(|(fault, at)| *fault == Fault::Freeze && *at < later.begun);
                        let reason = if froze { "frozen" } else { "other" };
                        *self.expired.entry(reason).or_default() += 1;
                    }
                }
            }
        }
        for shard in 0..1024 {
            self.gaps(&facts, shard);
        }
    }

    /// Measures the gaps of a shard: the times in which no replica could run its objects.
    fn gaps(&mut self, facts: &[Facts], shard: u32) {
        let mut begun = BTreeMap::<i32, Nanos>::new();
        let mut holders = BTreeMap::<i32, (&Facts, Held)>::new();
        for replica in facts {
            for run in replica.runs.iter().filter(|run| run.shard == shard) {
                let first = begun.entry(run.number).or_insert(run.begun);
                *first = run.begun.min(*first);
            }
            for held in replica.held.iter().filter(|held| held.shard == shard) {
                // If a shard was released but then kept, the last period of its holder counts.
                holders.insert(held.number, (replica, *held));
            }
        }
        for (number, (former, held)) in &holders {
            let next = number + 1;
            let (Some(&begun), Some((holder, _))) = (begun.get(&next), holders.get(&next)) else {
                continue;
            };
            // A replica that has lost its membership without a fault got no processor time for
            // seconds.
            let (kind, since, faults) = match (former.dead_from(), held.to) {
                (Some(dead), left) if left.is_none_or(|left| left > dead) => {
                    let mut others = facts.iter().filter(|other| other.number != former.number);
                    let faults = others.clone().any(|other| other.has_fault(dead, begun));
                    let expired = dead + LEASE.as_nanos() as Nanos;
                    let is_seen = others.any(|other| other.is_member(dead, expired));
                    (if is_seen { Move::Crash } else { Move::CrashUnseen }, dead, faults)
                }
                _ if former.lost.is_some_and(|lost| lost < begun) => continue,
                (_, Some(left)) => {
                    let faults = former.has_fault(left, begun) || holder.has_fault(left, begun);
                    (Move::Planned, left, faults)
                }
                (_, None) => continue,
            };
            let gap = begun.saturating_sub(since);
            self.gaps.entry((kind, faults)).or_default().push(gap);
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        fn add<K: Ord>(to: &mut BTreeMap<K, usize>, from: BTreeMap<K, usize>) {
            from.into_iter().for_each(|(key, count)| *to.entry(key).or_default() += count);
        }
        add(&mut self.events, other.events);
        add(&mut self.expired, other.expired);
        add(&mut self.refused, other.refused);
        self.replicas += other.replicas;
        self.runs += other.runs;
        self.writes += other.writes;
        self.violations.extend(other.violations);
        self.overlaps += other.overlaps;
        self.lost += other.lost;
        self.accepted += other.accepted;
        self.strays += other.strays;
        self.ended += other.ended;
        for (kind, gaps) in other.gaps {
            self.gaps.entry(kind).or_default().extend(gaps);
        }
    }
}

impl Facts {
    /// Returns the time of the fault that made the replica lose its shards.
    fn dead_from(&self) -> Option<Nanos> {
        let faults = self.faults.iter().rev();
        let mut fatal = faults.filter(|(fault, at)| match self.lost {
            Some(lost) => *at < lost,
            None => *fault == Fault::Kill,
        });
        fatal.next().map(|(_, at)| *at)
    }

    /// Returns true if the replica was a member during this time.
    fn is_member(&self, from: Nanos, to: Nanos) -> bool {
        let end = self.lost.map_or(self.over, |lost| lost.min(self.over));
        self.joined.is_some_and(|joined| joined < from) && end > to
    }

    /// Returns true if the replica may have suffered a fault in this time.
    fn has_fault(&self, from: Nanos, to: Nanos) -> bool {
        let from = from.saturating_sub(LONGEST_FAULT.as_nanos() as Nanos);
        self.faults.iter().any(|(_, at)| (from..to).contains(at))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = |counts: &mut dyn Iterator<Item = (String, usize)>| {
            let counts: Vec<_> = counts.map(|(name, count)| format!("{name} {count}")).collect();
            if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
        };
        let events = self.events.iter().map(|(event, count)| {
            let event = match event {
                Event::Fault(fault) => format!("{fault:?}"),
                other => format!("{other:?}"),
            };
            (event, *count)
        });
        writeln!(f, "  events: {}", counts(&mut { events }))?;
        writeln!(
            f,
            "  {} replicas, {} of them lost their membership; {} runs, {} writes",
            self.replicas, self.ended, self.runs, self.writes
        )?;
        let named = |of: &BTreeMap<&'static str, usize>| {
            counts(&mut of.iter().map(|(name, count)| ((*name).to_owned(), *count)))
        };
        writeln!(f, "  objects reconciled by two replicas at once: {}", self.overlaps)?;
        writeln!(f, "  changes that were not reconciled: {}", self.lost)?;
        writeln!(f, "  late writes that were accepted: {}", self.accepted)?;
        writeln!(f, "  late writes that were refused, by replica: {}", named(&self.refused))?;
        let expired = named(&self.expired);
        writeln!(f, "  runs beside another's after the Lease had expired: {expired}")?;
        writeln!(
            f,
            "  runs of objects whose shard was not held, which did nothing: {}",
            self.strays
        )?;
        for ((kind, faults), gaps) in &self.gaps {
            let mut gaps = gaps.clone();
            gaps.sort_unstable();
            let at = |part: f64| {
                let index = ((gaps.len() as f64 * part).ceil() as usize).clamp(1, gaps.len()) - 1;
                gaps[index] as f64 / 1e9
            };
            let (name, limit) = match kind {
                Move::Planned => ("planned move", Some(1.0)),
                Move::Crash => ("crash", Some(LEASE.as_secs_f64() + 1.0)),
                Move::CrashUnseen => ("crash, and the other members left", None),
            };
            let beside = if *faults { ", beside another fault" } else { "" };
            let judged = limit.filter(|_| !faults).map(|limit| {
                let is_reached = if at(0.99) <= limit { "yes" } else { "NO" };
                format!("; p99 up to {limit:.0} s: {is_reached}")
            });
            writeln!(
                f,
                "  gap of a shard, {name}{beside}: {} moves, p50 {:.2} s, p99 {:.2} s, longest \
                 {:.2} s{}",
                gaps.len(),
                at(0.5),
                at(0.99),
                at(1.0),
                judged.unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}

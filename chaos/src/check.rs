//! Checks a history against the promises of the store.

use std::collections::BTreeMap;

use crate::check_groups::{GroupTally, examine_groups};
use crate::event::{Event, Kind, Outcome};
use crate::groups::{Change, Changes, Rate};

/// An observation that is impossible if the store keeps its promises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Violation {
    /// Two deliveries of a key have the same epoch.
    Twice { key: u32, epoch: u64 },
    /// A later delivery of a key has a smaller epoch. Its process held the key when the delivery with the greater epoch
    /// was older than a lease.
    Fell { key: u32, epoch: u64, at: u64, later: u64 },
    /// An add was acknowledged, and no run began after it.
    LostAdd { key: u32, begun: u64 },
    /// A process still considered the key its own after a later delivery of the key had arrived at
    /// another process.
    TwoHolders { key: u32, epoch: u64, at: u64, later: u64 },
    /// The store accepted the completion of a delivery after a later delivery had arrived.
    StaleEnd { key: u32, epoch: u64, later: u64 },
    /// A process got the key while the queue was paused.
    Paused { key: u32, epoch: u64, at: u64 },
    /// More keys of a group were in flight than its limit permits. The limit of a paused group is 0. `held` contains
    /// the keys with the epochs of their deliveries.
    OverLimit { group: u32, at: u64, limit: u32, held: Vec<(u32, u64)> },
    /// A group had a ready key since `since`. In the meantime, `process` got `count` keys of other groups.
    Skipped { group: u32, since: u64, process: u32, count: u64 },
    /// More keys of a group, or of the queue, have started in a window than its rate permits. `started` contains these
    /// keys with the epochs of their deliveries.
    OverRate { group: Option<u32>, from: u64, to: u64, rate: Rate, started: Vec<(u32, u64)> },
}

impl Violation {
    /// Returns true if the violation concerns a setting of this group, or of the queue if `of` is `None`.
    pub(crate) fn concerns(&self, of: Option<u32>) -> bool {
        match *self {
            Self::OverLimit { group, .. } | Self::Skipped { group, .. } => {
                of.is_none_or(|of| of == group)
            }
            Self::OverRate { group, .. } => of == group,
            _ => false,
        }
    }

    /// Returns true if the violation is about this delivery.
    pub(crate) fn is_about(&self, delivery: (u32, u64)) -> bool {
        let is_between = |key, first, last| delivery >= (key, first) && delivery <= (key, last);
        match *self {
            Self::Twice { key, epoch } | Self::Paused { key, epoch, .. } => {
                is_between(key, epoch, epoch)
            }
            Self::LostAdd { .. } | Self::Skipped { .. } => false,
            Self::Fell { key, epoch, later, .. }
            | Self::TwoHolders { key, epoch, later, .. }
            | Self::StaleEnd { key, epoch, later } => is_between(key, epoch, later),
            Self::OverLimit { held: ref those, .. } | Self::OverRate { started: ref those, .. } => {
                those.contains(&delivery)
            }
        }
    }
}

/// The death of a server, which may have lost recent acknowledged writes. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// A time at which the server was alive, and its replicas were up to date.
    pub(crate) from: u64,
    /// A time at which the server was dead.
    pub(crate) to: u64,
}

/// The losses that deaths of servers excuse.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) deaths: Vec<Death>,
    /// The age in nanoseconds up to which acknowledged adds may be lost. `None` means that only the
    /// ownership of keys may be lost.
    pub(crate) adds: Option<u64>,
    /// The age in nanoseconds up to which starts, and acknowledged changes of settings, may be lost.
    pub(crate) moment: u64,
    /// The time, in nanoseconds, for which a process considers a key its own without a response
    /// from the server.
    pub(crate) lease: u64,
    /// The periods in which the queue was paused. For two leases after the beginning of a pause, a process may still
    /// get a key that it has claimed before.
    pub(crate) pauses: Vec<Pause>,
    /// The periods in which a server was cut off, in ascending order.
    pub(crate) outages: Vec<Pause>,
    /// True if a server evicts keys. It may then forget all data about keys and about the settings
    /// of groups.
    pub(crate) evicts: bool,
    /// The settings of the queue and of its groups.
    pub(crate) settings: Changes,
    /// The time in nanoseconds by which the machine's clock was set ahead.
    pub(crate) clock_gain: u64,
}

/// A period in which the queue was paused, or a server was cut off. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Losses {
    /// Returns true if an add that began at `begun` and was acknowledged at `at` may be lost. A
    /// process that was frozen may have received the acknowledgement long after the death.
    pub(crate) fn has_add(&self, begun: u64, at: u64) -> bool {
        let Some(moment) = self.adds else { return false };
        let has = |death: &Death| begun <= death.to && at >= death.from.saturating_sub(moment);
        self.deaths.iter().any(has)
    }

    /// Returns true if a start, or a change of a setting, in this period may be lost.
    pub(crate) fn has_moment(&self, (from, to): (u64, u64)) -> bool {
        let has = |death: &Death| from <= death.to && to >= death.from.saturating_sub(self.moment);
        self.deaths.iter().any(has)
    }

    pub(crate) fn has_change(&self, change: &Change) -> bool {
        self.has_moment((change.begun, change.at))
    }

    /// Returns true if no process may get a key at `at`.
    fn is_paused(&self, at: u64) -> bool {
        let is_in = |pause: &Pause| pause.from + 2 * self.lease < at && at < pause.to;
        self.pauses.iter().any(is_in)
    }

    /// Returns true if a process may consider the key its own at `at`, although another process got
    /// the key at `later`.
    fn has_holder(&self, at: u64, later: u64) -> bool {
        self.deaths.iter().any(|death| later >= death.from && at <= death.to + self.lease)
    }
}

/// The counts of a history without violations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) adds: u64,
    pub(crate) deliveries: u64,
    /// Writes that began while their process held the key, and arrived after the next delivery.
    pub(crate) late_writes: u64,
    /// Completions that the store refused.
    pub(crate) refused: u64,
    /// Adds that a server has lost, and was allowed to lose.
    pub(crate) lost_adds: u64,
    /// Writes by a process that still considered the key its own after a server had lost its
    /// ownership.
    pub(crate) lost_holders: u64,
    pub(crate) groups: GroupTally,
}

#[derive(Clone, Copy)]
struct Delivery {
    epoch: u64,
    at: u64,
}

/// Returns all violations, except for losses that deaths of servers excuse.
pub(crate) fn examine(events: &[Event], losses: &Losses) -> (Vec<Violation>, Tally) {
    let (mut violations, mut tally) = (Vec::new(), Tally::default());
    let mut deliveries: BTreeMap<u32, Vec<Delivery>> = BTreeMap::new();
    for event in events {
        if let Kind::Got { epoch, at } = event.kind {
            tally.deliveries += 1;
            deliveries.entry(event.key).or_default().push(Delivery { epoch, at });
        }
    }
    for (&key, deliveries) in &mut deliveries {
        deliveries.sort_by_key(|delivery| delivery.epoch);
        let twice = deliveries.windows(2).filter(|pair| pair[0].epoch == pair[1].epoch);
        violations.extend(twice.map(|pair| Violation::Twice { key, epoch: pair[0].epoch }));
    }
    let firsts: BTreeMap<u32, Vec<Delivery>> =
        deliveries.iter().map(|(&key, deliveries)| (key, firsts(deliveries))).collect();
    // The earliest arrival among the deliveries of a key with an epoch greater than `epoch`.
    let later = |key: u32, epoch: u64| {
        let deliveries = deliveries.get(&key)?;
        let after = deliveries.partition_point(|delivery| delivery.epoch <= epoch);
        firsts.get(&key)?.get(after).copied()
    };
    let last: BTreeMap<u32, u64> = deliveries
        .iter()
        .filter_map(|(&key, of)| Some((key, of.iter().map(|delivery| delivery.at).max()?)))
        .collect();
    for &Event { key, kind, .. } in events {
        match kind {
            Kind::Got { epoch, at } if losses.is_paused(at) => {
                violations.push(Violation::Paused { key, epoch, at });
            }
            Kind::Got { .. } => {}
            Kind::Added { begun, at, .. } => {
                tally.adds += 1;
                if last.get(&key).is_some_and(|&last| last > begun) {
                    continue;
                }
                if losses.has_add(begun, at) {
                    tally.lost_adds += 1;
                } else {
                    violations.push(Violation::LostAdd { key, begun });
                }
            }
            Kind::Wrote { epoch, at, landed } => {
                let Some(later) = later(key, epoch).filter(|later| later.at < landed) else {
                    continue;
                };
                if later.at >= at {
                    tally.late_writes += 1;
                } else if later.at.saturating_add(losses.lease) < at {
                    // A loss of the server does not excuse this violation, because no lease from before the loss is
                    // renewed.
                    let later = later.epoch;
                    violations.push(Violation::Fell { key, epoch, at, later });
                } else if losses.has_holder(at, later.at) {
                    tally.lost_holders += 1;
                } else {
                    let later = later.epoch;
                    violations.push(Violation::TwoHolders { key, epoch, at, later });
                }
            }
            Kind::Ended { epoch, begun, outcome } => {
                tally.refused += u64::from(outcome == Outcome::Lost);
                let later = later(key, epoch).filter(|later| later.at < begun);
                if let (Outcome::Held, Some(later)) = (outcome, later) {
                    let later = later.epoch;
                    violations.push(Violation::StaleEnd { key, epoch, later });
                }
            }
        }
    }
    let (of_groups, groups) = examine_groups(events, losses);
    violations.extend(of_groups);
    (violations, Tally { groups, ..tally })
}

/// Returns, for each position in the order of epochs, the earliest arrival at that position or at a later position.
fn firsts(deliveries: &[Delivery]) -> Vec<Delivery> {
    let mut firsts = deliveries.to_vec();
    for n in (1..firsts.len()).rev() {
        if firsts[n].at < firsts[n - 1].at {
            firsts[n - 1] = firsts[n];
        }
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_of_a_paused_queue_is_a_violation() {
        let losses =
            Losses { lease: 5, pauses: vec![Pause { from: 10, to: 40 }], ..Losses::default() };
        for (at, is_sound) in [(9, true), (20, true), (21, false), (39, false), (40, true)] {
            let events = [Event { process: 1, key: 7, kind: Kind::Got { epoch: 3, at } }];
            assert_eq!(examine(&events, &losses).0.is_empty(), is_sound, "{at}");
        }
    }

    fn check(events: &[Event]) -> Vec<Violation> {
        examine(events, &Losses { lease: 5, ..Losses::default() }).0
    }

    fn event(process: u32, kind: Kind) -> Event {
        Event { process, key: 7, kind }
    }

    fn added(begun: u64, at: u64) -> Kind {
        Kind::Added { begun, at, is_ready: true }
    }

    fn sound() -> Vec<Event> {
        vec![
            event(1, added(1, 2)),
            event(1, Kind::Got { epoch: 1, at: 10 }),
            event(1, Kind::Wrote { epoch: 1, at: 11, landed: 12 }),
            event(2, added(12, 13)),
            event(1, Kind::Ended { epoch: 1, begun: 13, outcome: Outcome::Held }),
            event(2, Kind::Got { epoch: 2, at: 20 }),
            event(2, Kind::Ended { epoch: 2, begun: 21, outcome: Outcome::Held }),
        ]
    }

    #[test]
    fn a_sound_history_is_sound() {
        assert_eq!(check(&sound()), []);
    }

    #[test]
    fn what_can_not_have_happened_is_seen() {
        let with = |kind| {
            let mut events = sound();
            events.push(event(1, kind));
            check(&events)
        };
        let lost = with(added(20, 21));
        assert_eq!(lost, [Violation::LostAdd { key: 7, begun: 20 }]);
        let got = with(Kind::Got { epoch: 2, at: 30 });
        assert_eq!(got, [Violation::Twice { key: 7, epoch: 2 }]);
        let wrote = with(Kind::Wrote { epoch: 1, at: 22, landed: 22 });
        assert_eq!(wrote, [Violation::TwoHolders { key: 7, epoch: 1, at: 22, later: 2 }]);
        let wrote = with(Kind::Wrote { epoch: 1, at: 26, landed: 26 });
        assert_eq!(wrote, [Violation::Fell { key: 7, epoch: 1, at: 26, later: 2 }]);
        let ended = with(Kind::Ended { epoch: 1, begun: 22, outcome: Outcome::Held });
        assert_eq!(ended, [Violation::StaleEnd { key: 7, epoch: 1, later: 2 }]);
        assert_eq!(with(Kind::Ended { epoch: 1, begun: 22, outcome: Outcome::Lost }), []);
    }

    #[test]
    fn a_write_may_land_late_but_not_begin_late() {
        for (at, sound) in [(19, true), (21, false)] {
            let mut events = self::sound();
            events.push(event(1, Kind::Wrote { epoch: 1, at, landed: 30 }));
            let (violations, tally) = examine(&events, &Losses::default());
            assert_eq!((violations.is_empty(), tally.late_writes > 0), (sound, sound));
        }
    }

    #[test]
    fn what_a_death_may_lose_is_no_violation() {
        let losses = |from, to, adds| Losses {
            deaths: vec![Death { from, to }],
            adds,
            lease: 5,
            ..Losses::default()
        };
        let examined = |kind, losses: &Losses| {
            let mut events = sound();
            events.push(event(1, kind));
            let (violations, tally) = examine(&events, losses);
            (violations.len(), tally.lost_adds, tally.lost_holders)
        };
        let add = added(30, 31);
        for (from, to, adds, lost) in [
            (32, 33, Some(1), true),
            (29, 30, Some(1), true),
            (33, 34, Some(1), false),
            (28, 29, Some(1), false),
            (32, 33, None, false),
        ] {
            let expected = if lost { (0, 1, 0) } else { (1, 0, 0) };
            assert_eq!(examined(add, &losses(from, to, adds)), expected, "{from} {to} {adds:?}");
        }
        // The later delivery arrived at 20.
        let wrote = Kind::Wrote { epoch: 1, at: 22, landed: 23 };
        for (from, to, lost) in [(19, 20, true), (15, 17, true), (21, 22, false), (10, 16, false)] {
            let expected = if lost { (0, 0, 1) } else { (1, 0, 0) };
            assert_eq!(examined(wrote, &losses(from, to, None)), expected, "{from} {to}");
        }
        // No loss excuses a stale completion, an epoch that is used twice, or an epoch that
        // decreases.
        let fell = Kind::Wrote { epoch: 1, at: 26, landed: 27 };
        assert_eq!(examined(fell, &losses(19, 25, Some(9))), (1, 0, 0));
        let ended = Kind::Ended { epoch: 1, begun: 22, outcome: Outcome::Held };
        assert_eq!(examined(ended, &losses(19, 20, Some(9))), (1, 0, 0));
        assert_eq!(examined(Kind::Got { epoch: 2, at: 19 }, &losses(19, 20, Some(9))), (1, 0, 0));
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        for event in sound() {
            assert_eq!(Event::parse(event.process, &event.line()), Some(event));
            // A line can be incomplete because its process was killed.
            let line = event.line();
            let cut = line.rfind(' ').expect("a line has words");
            assert_eq!(Event::parse(event.process, &line[..cut]), None, "{line}");
        }
        assert_eq!(Event::parse(1, "ended 1 2 3 hel"), None);
    }
}

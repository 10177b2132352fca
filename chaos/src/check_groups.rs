//! Checks the history of each group: its limit, pauses, rate and turns.
//!
//! A key is certainly in flight from its arrival at a process until the last moment at which this process held the key.
//! That moment is the beginning of a write at which the process still considered the key its own, or of a completion
//! that the store accepted. In the store, an expired lease counts until a claim handles it. The processes do not see
//! that claim, so the check counts only the certain time. It therefore never reports a correct history.

use std::collections::BTreeMap;

use crate::check::{Losses, Pause, Violation};
use crate::check_rates::check_rate;
use crate::event::{Event, Kind, Outcome};
use crate::groups::{GROUPS, group_of};

/// The number of leases until a group whose keys can be delivered must get a key, before any process has visited all
/// groups and given each other group a turn. Until then, dead and frozen processes may hold the keys of the group.
const LEASES: u64 = 5;
/// The greatest number of keys that a process gets before it has visited all groups. Two lookups visit all groups, and
/// one of eight claims makes a lookup. The four workers of a process take up to four keys in a claim.
const BEFORE_VISIT: u64 = 2 * 8 * 4;

/// A period in which a key was certainly in flight. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hold {
    key: u32,
    epoch: u64,
    /// The time at which the process got the key.
    got: u64,
    from: u64,
    to: u64,
}

/// The beginning of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Start {
    pub(crate) at: u64,
    pub(crate) process: u32,
    pub(crate) key: u32,
    pub(crate) epoch: u64,
}

/// The observations that concern one group.
#[derive(Debug, Default)]
struct GroupHistory {
    holds: Vec<Hold>,
    /// The times of adds that made a key ready immediately.
    ready: Vec<u64>,
    starts: Vec<Start>,
}

/// The counts of the checks of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct GroupTally {
    /// The number of arrivals of keys that brought a group to its limit.
    pub(crate) at_limit: u64,
    /// The number of starts that used up the burst of a rate.
    pub(crate) at_rate: u64,
    /// The greatest number of keys that a process got while a group waited.
    pub(crate) longest_wait: u64,
}

/// Returns all violations of limits, pauses, rates and turns.
pub(crate) fn examine_groups(events: &[Event], losses: &Losses) -> (Vec<Violation>, GroupTally) {
    let histories = histories(events, losses);
    let (mut violations, mut tally) = (Vec::new(), GroupTally::default());
    let mut starts: Vec<Start> =
        histories.values().flat_map(|history| history.starts.iter().copied()).collect();
    starts.sort_by_key(|start| start.at);
    tally.at_rate += check_rate(None, &starts, losses, &mut violations);
    for (&group, history) in &histories {
        check_limit(group, history, losses, &mut violations, &mut tally);
        tally.at_rate += check_rate(Some(group), &history.starts, losses, &mut violations);
        check_turns(group, history, &starts, losses, &mut violations, &mut tally);
    }
    (violations, tally)
}

fn histories(events: &[Event], losses: &Losses) -> BTreeMap<u32, GroupHistory> {
    let mut histories: BTreeMap<u32, GroupHistory> = BTreeMap::new();
    let mut deliveries: BTreeMap<(u32, u64), Evidence> = BTreeMap::new();
    for &Event { process, key, kind } in events {
        let history = histories.entry(group_of(key)).or_default();
        if let Some(epoch) = kind.epoch() {
            deliveries.entry((key, epoch)).or_default().note(kind);
        }
        match kind {
            Kind::Added { begun, at, is_ready: true } if !losses.has_add(begun, at) => {
                history.ready.push(at);
            }
            Kind::Got { epoch, at } => history.starts.push(Start { at, process, key, epoch }),
            _ => {}
        }
    }
    for ((key, epoch), evidence) in deliveries {
        let Some(got) = evidence.got else { continue };
        let history = histories.entry(group_of(key)).or_default();
        let holds = evidence.periods(got, losses).into_iter();
        history.holds.extend(holds.map(|(from, to)| Hold { key, epoch, got, from, to }));
    }
    for history in histories.values_mut() {
        history.ready.sort_unstable();
        history.starts.sort_by_key(|start| start.at);
    }
    histories
}

/// The observations that concern one delivery.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    got: Option<u64>,
    /// The last time at which the process considered the key its own.
    sure: Option<u64>,
    /// The beginning of a completion that the store accepted.
    completed: Option<u64>,
}

impl Evidence {
    fn note(&mut self, kind: Kind) {
        match kind {
            Kind::Got { at, .. } => self.got = Some(at),
            Kind::Wrote { at, .. } => self.sure = self.sure.max(Some(at)),
            Kind::Ended { begun, outcome: Outcome::Held, .. } => self.completed = Some(begun),
            Kind::Ended { .. } | Kind::Added { .. } => {}
        }
    }

    /// Returns the periods in which the key was certainly in flight. A server that died may have lost the claim. The
    /// claim has survived if, after the death, its completion was accepted or its lease was renewed. During the death,
    /// two servers may have answered.
    fn periods(&self, got: u64, losses: &Losses) -> Vec<(u64, u64)> {
        let Some(last) = self.sure.max(self.completed).filter(|&last| last > got) else {
            return Vec::new();
        };
        let mut periods = vec![(got, last)];
        for death in &losses.deaths {
            let has_survived = !losses.evicts
                && (self.completed.is_some_and(|begun| begun > death.to)
                    || self.sure.is_some_and(|at| at > death.to + losses.lease));
            // A process may get a key after the death that it claimed before the death.
            let is_after = got > death.to + 2 * losses.lease;
            let resumes = match (is_after, has_survived) {
                (true, _) => continue,
                (false, true) => death.to,
                (false, false) => u64::MAX,
            };
            let cut = |(from, to): (u64, u64)| {
                [(from, to.min(death.from)), (from.max(resumes), to)].into_iter()
            };
            periods = periods.into_iter().flat_map(cut).filter(|(from, to)| from < to).collect();
        }
        periods
    }
}

/// Checks that no claim has exceeded the limit of the group, which is zero while the group is paused.
///
/// When several keys are in flight, the last key was claimed while the others were in flight. Its process got the key
/// at most two leases after the claim.
fn check_limit(
    group: u32,
    history: &GroupHistory,
    losses: &Losses,
    violations: &mut Vec<Violation>,
    tally: &mut GroupTally,
) {
    let mut holds = history.holds.clone();
    holds.sort_by_key(|hold| hold.from);
    let mut in_flight: Vec<Hold> = Vec::new();
    for hold in holds {
        in_flight.retain(|other| other.to > hold.from);
        in_flight.push(hold);
        let last = in_flight.iter().map(|hold| hold.got).max().unwrap_or(0);
        let claimed = (last.saturating_sub(2 * losses.lease), last);
        let Some(limit) = losses.settings.greatest_limit(group, claimed, losses) else { continue };
        let count = in_flight.len();
        tally.at_limit += u64::from(count == limit as usize);
        if count > limit as usize {
            let held = in_flight.iter().map(|hold| (hold.key, hold.epoch)).collect();
            violations.push(Violation::OverLimit { group, at: hold.from, limit, held });
        }
    }
}

/// Checks that a group with a ready key gets a delivery before a process gets too many other keys: [`BEFORE_VISIT`]
/// keys, and the keys of one turn of each other group. Times in which a setting may hold back the group do not count.
fn check_turns(
    group: u32,
    history: &GroupHistory,
    starts: &[Start],
    losses: &Losses,
    violations: &mut Vec<Violation>,
    tally: &mut GroupTally,
) {
    let mut obstacles = losses.settings.held_back(group, losses);
    obstacles.extend(&losses.outages);
    obstacles.sort_by_key(|obstacle| obstacle.from);
    let mut waits_until = 0;
    for &since in &history.ready {
        if since < waits_until {
            continue;
        }
        let next = history.starts.partition_point(|start| start.at <= since);
        let until = history.starts.get(next).map_or(u64::MAX, |start| start.at);
        waits_until = until;
        for (from, to) in waiting_periods(since, until, &obstacles, LEASES * losses.lease) {
            let (process, count) = most_starts(starts, from, to);
            tally.longest_wait = tally.longest_wait.max(count);
            if count > BEFORE_VISIT
                && count > BEFORE_VISIT + turns_of_others(group, (from, to), losses)
            {
                violations.push(Violation::Skipped { group, since, process, count });
            }
        }
    }
}

/// Returns the greatest number of keys that all groups except this one get in one turn each.
fn turns_of_others(group: u32, period: (u64, u64), losses: &Losses) -> u64 {
    let others = (0..GROUPS).filter(|&other| other != group);
    let weight = |other| losses.settings.greatest_weight(other, period, losses);
    others.map(|other| u64::from(weight(other))).sum()
}

/// Returns the periods of a wait in which the key could be delivered. A period begins `slack` after the add, and
/// `slack` after each time at which a setting held the group back or a server was cut off. Each server of a cluster has
/// the keys of some groups.
fn waiting_periods(since: u64, until: u64, obstacles: &[Pause], slack: u64) -> Vec<(u64, u64)> {
    let (mut periods, mut from) = (Vec::new(), since.saturating_add(slack));
    for obstacle in obstacles.iter().filter(|pause| pause.to > since && pause.from < until) {
        periods.push((from, obstacle.from));
        from = from.max(obstacle.to.saturating_add(slack));
    }
    periods.push((from, until));
    periods.retain(|(from, to)| from < to);
    periods
}

/// Returns the process that got the most keys between two times, and the number of these keys.
fn most_starts(starts: &[Start], from: u64, to: u64) -> (u32, u64) {
    let first = starts.partition_point(|start| start.at <= from);
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for start in starts[first..].iter().take_while(|start| start.at < to) {
        *counts.entry(start.process).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(_, count)| count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Death;
    use crate::groups::{Change, Changes, RATED, Setting};

    const LEASE: u64 = 5;

    /// Returns the `n`th key of a group.
    fn key(group: u32, n: u32) -> u32 {
        group - RATED.end + 32 * (n + 1)
    }

    fn event(process: u32, key: u32, kind: Kind) -> Event {
        Event { process, key, kind }
    }

    /// Returns the events of a run. The run is completed if `completed` is true, and otherwise ends with a kill.
    fn run(key: u32, got: u64, last: u64, completed: bool) -> Vec<Event> {
        let last = match completed {
            true => Kind::Ended { epoch: got, begun: last, outcome: Outcome::Held },
            false => Kind::Wrote { epoch: got, at: last, landed: last },
        };
        [Kind::Got { epoch: got, at: got }, last].map(|kind| event(1, key, kind)).into()
    }

    fn losses(settings: &[(u64, Setting)]) -> Losses {
        let change = |&(at, setting)| Change { group: Some(12), begun: at, at, setting };
        let settings = Changes(settings.iter().map(change).collect());
        Losses { lease: LEASE, settings, ..Losses::default() }
    }

    fn limit(limit: u32) -> Setting {
        Setting::Limit(Some(limit))
    }

    fn check(runs: &[Vec<Event>], losses: &Losses) -> (Vec<Violation>, GroupTally) {
        examine_groups(&runs.concat(), losses)
    }

    #[test]
    fn more_keys_in_flight_than_the_limit_are_a_violation() {
        let [a, b, c] = [0, 1, 2].map(|n| key(12, n));
        for (runs, limit) in [
            ([run(a, 30, 40, true), run(b, 31, 39, true)], limit(2)),
            ([run(a, 30, 40, true), run(b, 40, 50, true)], limit(1)),
            // The process of the first run was killed after its last write.
            ([run(a, 30, 35, false), run(b, 36, 50, true)], limit(1)),
        ] {
            let (violations, tally) = check(&runs, &losses(&[(1, limit)]));
            assert_eq!((violations, tally.at_limit > 0), (vec![], true));
        }
        let runs = [run(a, 30, 40, true), run(b, 31, 39, true), run(c, 38, 50, false)];
        let (violations, _) = check(&runs, &losses(&[(1, limit(2))]));
        let held = vec![(a, 30), (b, 31), (c, 38)];
        assert_eq!(violations, [Violation::OverLimit { group: 12, at: 38, limit: 2, held }]);
        // Runs of another group do not count.
        let runs = [run(a, 30, 40, true), run(b, 31, 39, true), run(key(13, 2), 38, 50, false)];
        assert_eq!(check(&runs, &losses(&[(1, limit(2))])).0, []);
    }

    #[test]
    fn a_lower_limit_ends_no_run_and_permits_no_claim() {
        let [a, b] = [0, 1].map(|n| key(12, n));
        let settings = losses(&[(1, limit(2)), (30, limit(1))]);
        for (got, is_sound) in [(29, true), (40, true), (41, false)] {
            let runs = [run(a, 28, 60, true), run(b, got, 50, true)];
            assert_eq!(check(&runs, &settings).0.is_empty(), is_sound, "{got}");
        }
    }

    #[test]
    fn a_key_of_a_paused_group_is_a_violation() {
        let settings = losses(&[(30, Setting::Paused(true)), (50, Setting::Paused(false))]);
        for (got, is_sound) in [(29, true), (40, true), (41, false), (49, false), (50, true)] {
            let runs = [run(key(12, 0), got, got + 2, true)];
            assert_eq!(check(&runs, &settings).0.is_empty(), is_sound, "{got}");
        }
    }

    #[test]
    fn a_claim_that_a_server_has_lost_does_not_count() {
        // The limit is older than any change that the server may have lost.
        const T: u64 = 100_000_000_000;
        let [a, b] = [0, 1].map(|n| key(12, n));
        let examined = |first: Vec<Event>, second: (u64, u64), evicts: bool| {
            let deaths = vec![Death { from: T + 100, to: T + 110 }];
            let losses = Losses { deaths, evicts, ..losses(&[(1, limit(1))]) };
            let second = run(b, T + second.0, T + second.1, true);
            check(&[first, second], &losses).0.len()
        };
        let first = |last, completed| run(a, T + 95, T + last, completed);
        // The claim of the first key may be lost, because it was not renewed after the death.
        assert_eq!(examined(first(114, false), (108, 140), false), 0);
        // The claim has survived the death.
        assert_eq!(examined(first(116, false), (112, 140), false), 1);
        assert_eq!(examined(first(130, true), (112, 140), false), 1);
        assert_eq!(examined(first(130, true), (112, 140), true), 0);
        // Two servers may have answered during the death.
        assert_eq!(examined(first(130, true), (102, 109), false), 0);
        // Both runs began before the death.
        assert_eq!(examined(first(130, true), (96, 99), false), 1);
    }

    #[test]
    fn a_group_that_gets_no_turn_is_a_violation() {
        let waiting = key(15, 0);
        // One group has two keys in a turn, and each other group has one key.
        let most = BEFORE_VISIT + u64::from(GROUPS);
        let weight = |group, weight| Change {
            group: Some(group),
            begun: 1,
            at: 2,
            setting: Setting::Weight(weight),
        };
        let settings = Changes(vec![weight(15, 3), weight(16, 2)]);
        let losses = |outages| Losses {
            lease: LEASE,
            settings: settings.clone(),
            outages,
            ..Losses::default()
        };
        let history = |served: Option<u64>, process: fn(u64) -> u32| {
            let mut events =
                vec![event(1, waiting, Kind::Added { begun: 9, at: 10, is_ready: true })];
            for n in 0..=most {
                let kind = Kind::Got { epoch: n, at: 11 + LEASES * LEASE + n };
                events.push(event(process(n), key(n as u32 % 4 + 16, 1), kind));
            }
            events.extend(served.map(|at| event(1, waiting, Kind::Got { epoch: 1000, at })));
            events
        };
        let last = 11 + LEASES * LEASE + most;
        for (served, process, is_sound) in [
            (None, (|_| 1) as fn(u64) -> u32, false),
            (Some(last + 1), |_| 1, false),
            (Some(last), |_| 1, true),
            (Some(20), |_| 1, true),
            // Each process takes turns separately.
            (None, |n| n as u32 % 2, true),
        ] {
            let (violations, _) = check(&[history(served, process)], &losses(vec![]));
            assert_eq!(violations.is_empty(), is_sound, "{served:?}");
        }
        // A server was cut off before the group waited, or during that time.
        for (from, to, is_sound) in [(1, 9, false), (11, 40, true)] {
            let losses = losses(vec![Pause { from, to }]);
            assert_eq!(check(&[history(None, |_| 1)], &losses).0.is_empty(), is_sound, "{to}");
        }
        // A setting held the group back until the group waited, or during that time.
        for (group, setting, at, is_sound) in [
            (Some(15), limit(1), 9, false),
            (Some(15), limit(1), 11, true),
            (Some(15), Setting::Paused(true), 11, true),
            (None, limit(1), 11, true),
            (Some(16), limit(1), 11, false),
        ] {
            let mut losses = losses(vec![]);
            let free = match setting {
                Setting::Limit(_) => Setting::Limit(None),
                _ => Setting::Paused(false),
            };
            let changes = [(3, setting), (at, free)];
            let changes = changes.map(|(at, setting)| Change { group, begun: at, at, setting });
            losses.settings.0.extend(changes);
            let (violations, _) = check(&[history(None, |_| 1)], &losses);
            assert_eq!(violations.is_empty(), is_sound, "{group:?} {setting:?} {at}");
        }
    }
}

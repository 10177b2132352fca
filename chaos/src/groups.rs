//! The groups of the keys, and the history of their settings.

use crate::check::{Death, Losses};

/// The pattern that extracts the group from the text of a key.
pub(crate) const PATTERN: &str = "^[^/]*";
/// The number of groups: more than a claim looks up, so that claims also find groups by their cursor.
pub(crate) const GROUPS: u32 = 24;
/// The groups whose limits change. The others never have a limit.
pub(crate) const LIMITED: std::ops::Range<u32> = 0..8;
/// The groups that are paused and resumed. Half of them have a limit.
pub(crate) const PAUSED: std::ops::Range<u32> = 4..12;
/// The greatest weight of a group.
pub(crate) const WEIGHTS: u32 = 3;
/// The age in nanoseconds up to which a server that dies may lose an acknowledged change of a setting.
const MOMENT: u64 = 3_000_000_000;

/// Returns the group of a key. The last group has more keys than any other.
pub(crate) fn group_of(key: u32) -> u32 {
    (key % 32).min(GROUPS - 1)
}

pub(crate) fn group_name(group: u32) -> String {
    format!("g{group}")
}

/// Returns the text of a key in the store.
pub(crate) fn text_of(key: u32) -> String {
    format!("{}/{key}", group_name(group_of(key)))
}

/// Returns the key with this text.
pub(crate) fn key_of(text: &str) -> Option<u32> {
    text.split_once('/')?.1.parse().ok()
}

/// A setting of a group that decides whether a claim may deliver its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    /// The limit of keys in flight. `None`: no limit.
    Limit(Option<u32>),
    Paused(bool),
}

/// An acknowledged change of a setting. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) group: u32,
    pub(crate) begun: u64,
    pub(crate) at: u64,
    pub(crate) setting: Setting,
}

impl Change {
    /// Returns true if a server that died may have lost the change.
    fn may_be_lost(&self, deaths: &[Death]) -> bool {
        deaths
            .iter()
            .any(|death| self.begun <= death.to && self.at >= death.from.saturating_sub(MOMENT))
    }
}

/// The changes of all groups, in the order in which they were made. Each was acknowledged before the next one began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(pub(crate) Vec<Change>);

impl Changes {
    /// Returns the present limit of a group, and whether the group is paused.
    pub(crate) fn current(&self, group: u32) -> (Option<u32>, bool) {
        let mut current = (None, false);
        for change in self.0.iter().filter(|change| change.group == group) {
            match change.setting {
                Setting::Limit(limit) => current.0 = limit,
                Setting::Paused(paused) => current.1 = paused,
            }
        }
        current
    }

    /// Returns the greatest number of keys that a claim of the group in this period may bring in flight, with those that
    /// are in flight already. `None`: any number.
    pub(crate) fn greatest_limit(
        &self,
        group: u32,
        (from, to): (u64, u64),
        losses: &Losses,
    ) -> Option<u32> {
        let values = |select: fn(Setting) -> Option<Option<u32>>, default| {
            let of_group = self.0.iter().filter(|change| change.group == group);
            let changes: Vec<(Change, Option<u32>)> =
                of_group.filter_map(|change| Some((*change, select(change.setting)?))).collect();
            possible_values(&changes, default, (from, to), losses)
        };
        let pauses = values(
            |setting| match setting {
                Setting::Paused(paused) => Some(paused.then_some(0)),
                Setting::Limit(_) => None,
            },
            None,
        );
        if pauses.iter().all(|&pause| pause == Some(0)) {
            return Some(0);
        }
        let limits = values(
            |setting| match setting {
                Setting::Limit(limit) => Some(limit),
                Setting::Paused(_) => None,
            },
            None,
        );
        limits.into_iter().try_fold(0, |most, limit| Some(limit?.max(most)))
    }
}

/// Returns the values that a setting may have had in a period.
///
/// A value may take effect when its change begins. It is certainly replaced when the next change that no server can have
/// lost is acknowledged. A server that evicts keys may forget all values, until they are set again.
fn possible_values(
    changes: &[(Change, Option<u32>)],
    default: Option<u32>,
    (from, to): (u64, u64),
    losses: &Losses,
) -> Vec<Option<u32>> {
    let replaced = |later: &[(Change, Option<u32>)]| {
        let mut lasting = later.iter().filter(|(change, _)| !change.may_be_lost(&losses.deaths));
        lasting.next().map_or(u64::MAX, |(change, _)| change.at)
    };
    let mut values = Vec::new();
    if replaced(changes) >= from {
        values.push(default);
    }
    for (n, &(change, value)) in changes.iter().enumerate() {
        if change.begun <= to && replaced(&changes[n + 1..]) >= from {
            values.push(value);
        }
    }
    let forgetting = losses.deaths.iter().filter(|_| losses.evicts);
    for death in forgetting.filter(|death| death.from <= to) {
        let set_again = changes.partition_point(|(change, _)| change.begun <= death.to);
        if changes.get(set_again).is_none_or(|(change, _)| change.at >= from) {
            values.push(default);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(begun: u64, at: u64, limit: Option<u32>) -> Change {
        Change { group: 1, begun, at, setting: Setting::Limit(limit) }
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        for key in [0, 7, 31, 39, 40, u32::MAX] {
            assert_eq!(key_of(&text_of(key)), Some(key));
            assert!(group_of(key) < GROUPS);
        }
    }

    #[test]
    fn a_limit_applies_from_its_request_until_the_next_answer() {
        let changes =
            Changes(vec![limit(10, 12, Some(3)), limit(20, 22, Some(1)), limit(30, 32, None)]);
        let greatest = |from, to| changes.greatest_limit(1, (from, to), &Losses::default());
        assert_eq!(greatest(0, 5), None, "before the first limit");
        assert_eq!(greatest(11, 15), None, "the first limit may not be effective");
        assert_eq!(greatest(13, 19), Some(3));
        assert_eq!(greatest(22, 25), Some(3), "the second limit may not be effective");
        assert_eq!(greatest(23, 29), Some(1));
        assert_eq!(greatest(23, 30), None);
        assert_eq!(changes.greatest_limit(2, (23, 29), &Losses::default()), None);
    }

    #[test]
    fn a_paused_group_may_deliver_nothing() {
        let paused =
            |begun, at, paused| Change { group: 1, begun, at, setting: Setting::Paused(paused) };
        let changes =
            Changes(vec![limit(1, 2, Some(3)), paused(10, 12, true), paused(20, 22, false)]);
        let greatest = |from, to| changes.greatest_limit(1, (from, to), &Losses::default());
        assert_eq!(greatest(3, 12), Some(3));
        assert_eq!(greatest(13, 19), Some(0));
        assert_eq!(greatest(13, 20), Some(3));
        assert_eq!(changes.current(1), (Some(3), false));
    }

    #[test]
    fn a_change_that_a_server_has_lost_may_have_no_effect() {
        let second = 1_000_000_000;
        let [first, lowered] = [(1, Some(4)), (20, Some(1))]
            .map(|(at, most)| limit(at * second, at * second + 1, most));
        let again = limit(23 * second, 23 * second + 1, Some(1));
        let changes = Changes(vec![first, lowered, again]);
        let greatest = |at: u64, losses: &Losses| {
            changes.greatest_limit(1, (at * second, at * second), losses)
        };
        let death = |from: u64, to: u64| Death { from: from * second, to: to * second };
        assert_eq!(greatest(22, &Losses::default()), Some(1));
        let losses = Losses { deaths: vec![death(21, 22)], ..Losses::default() };
        assert_eq!(greatest(22, &losses), Some(4));
        assert_eq!(greatest(24, &losses), Some(1), "it was set again");
        let evicts = Losses { evicts: true, ..losses };
        assert_eq!((greatest(22, &evicts), greatest(24, &evicts)), (None, Some(1)));
    }
}

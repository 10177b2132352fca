//! The groups of the keys, and the history of the settings of the queue and of its groups.

use std::time::Duration;

use crate::check::{Losses, Pause};

/// The pattern that extracts the group from the text of a key.
pub(crate) const PATTERN: &str = "^[^/]*";
/// The number of groups. It exceeds the number that a claim looks up, so that claims also find groups by their cursor.
pub(crate) const GROUPS: u32 = 29;
/// The groups with rates. They contain only keys that are added repeatedly, because other keys would accumulate.
pub(crate) const RATED: std::ops::Range<u32> = 0..5;
/// The groups with rates that change. The other groups keep their first rate, so that long windows are checked.
pub(crate) const RERATED: std::ops::Range<u32> = 2..5;
/// The groups whose limits change. The other groups only have the limit of the queue.
pub(crate) const LIMITED: std::ops::Range<u32> = 2..13;
/// The groups that are paused and resumed.
pub(crate) const PAUSED: std::ops::Range<u32> = 3..17;
/// The greatest weight of a group.
pub(crate) const WEIGHTS: u32 = 3;
/// The number of keys that are added repeatedly.
pub(crate) const KEYS: u32 = 50;
/// The number of repeatedly added keys that belong to the groups with rates.
pub(crate) const RATED_KEYS: u32 = 10;
/// The rates of groups. The first two rates are so slow that one burst too many is a violation even if a server may
/// have lost the starts of many seconds.
pub(crate) const GROUP_RATES: [Rate; 5] = [
    Rate { starts: 1, per: Duration::from_secs(20), burst: 4 },
    Rate { starts: 1, per: Duration::from_secs(5), burst: 5 },
    Rate { starts: 1, per: Duration::from_secs(1), burst: 6 },
    Rate { starts: 4, per: Duration::from_secs(1), burst: 12 },
    Rate { starts: 30, per: Duration::from_secs(1), burst: 3 },
];
/// The rates of the queue.
pub(crate) const QUEUE_RATES: [Rate; 2] = [
    Rate { starts: 100, per: Duration::from_secs(1), burst: 150 },
    Rate { starts: 30, per: Duration::from_secs(1), burst: 60 },
];

/// Returns the group of a key. The last group has more keys than any other.
pub(crate) fn group_of(key: u32) -> u32 {
    match key {
        0..RATED_KEYS => key % RATED.end,
        _ => (RATED.end + key % 32).min(GROUPS - 1),
    }
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

/// A rate of at most `starts` starts in each time `per`, and a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rate {
    pub(crate) starts: u32,
    pub(crate) per: Duration,
    pub(crate) burst: u32,
}

impl From<Rate> for requeue_store::Rate {
    fn from(rate: Rate) -> Self {
        Self::new(rate.starts, rate.per).burst(rate.burst)
    }
}

/// A setting of a group, or of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    /// The limit of keys in flight. The limit of the queue applies to groups without a separate limit. `None` means no
    /// limit.
    Limit(Option<u32>),
    Paused(bool),
    Weight(u32),
    Rate(Option<Rate>),
}

impl Setting {
    const fn limit(self) -> Option<Option<u32>> {
        if let Self::Limit(limit) = self { Some(limit) } else { None }
    }

    const fn paused(self) -> Option<bool> {
        if let Self::Paused(paused) = self { Some(paused) } else { None }
    }

    const fn weight(self) -> Option<u32> {
        if let Self::Weight(weight) = self { Some(weight) } else { None }
    }

    const fn rate(self) -> Option<Option<Rate>> {
        if let Self::Rate(rate) = self { Some(rate) } else { None }
    }

    /// Returns true if the setting may make ready keys of the group wait longer than for their turn.
    const fn holds_back(self) -> bool {
        matches!(self, Self::Limit(Some(_)) | Self::Rate(Some(_)) | Self::Paused(true))
    }
}

/// An acknowledged change of a setting. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// The group, or `None` for the queue.
    pub(crate) group: Option<u32>,
    pub(crate) begun: u64,
    pub(crate) at: u64,
    pub(crate) setting: Setting,
}

impl Change {
    fn is_same_setting(&self, other: &Self) -> bool {
        let kinds = [self, other].map(|change| std::mem::discriminant(&change.setting));
        self.group == other.group && kinds[0] == kinds[1]
    }
}

/// The changes of all settings, in the order in which they were made. Each change was acknowledged before the next
/// change began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(pub(crate) Vec<Change>);

impl Changes {
    /// Returns true if the group is paused.
    pub(crate) fn is_paused(&self, group: u32) -> bool {
        let of_group = self.0.iter().rev().filter(|change| change.group == Some(group));
        of_group.filter_map(|change| change.setting.paused()).next().unwrap_or(false)
    }

    /// Returns the last change of each setting that holds keys back.
    pub(crate) fn last(&self) -> Vec<Change> {
        let mut last: Vec<Change> = Vec::new();
        for &change in &self.0 {
            last.retain(|other| !other.is_same_setting(&change));
            last.push(change);
        }
        last.retain(|change| change.setting.weight().is_none());
        last
    }

    /// Returns the maximum number of keys of the group that may be in flight after a claim in this period. `None` means
    /// any number.
    pub(crate) fn greatest_limit(
        &self,
        group: u32,
        period: (u64, u64),
        losses: &Losses,
    ) -> Option<u32> {
        let pauses = self.values(Some(group), Setting::paused, false, period, losses);
        if pauses.iter().all(|&is_paused| is_paused) {
            return Some(0);
        }
        let mut limits = self.values(Some(group), Setting::limit, None, period, losses);
        if limits.contains(&None) {
            limits.retain(Option::is_some);
            limits.extend(self.values(None, Setting::limit, None, period, losses));
        }
        limits.into_iter().try_fold(0, |most, limit| Some(limit?.max(most)))
    }

    /// Returns the greatest number of keys in one turn of the group in this period.
    pub(crate) fn greatest_weight(&self, group: u32, period: (u64, u64), losses: &Losses) -> u32 {
        let weights = self.values(Some(group), Setting::weight, 1, period, losses);
        weights.into_iter().max().unwrap_or(1)
    }

    /// Returns the rate of a group, or of the queue, if it was certainly the same during the whole period.
    pub(crate) fn certain_rate(
        &self,
        group: Option<u32>,
        period: (u64, u64),
        losses: &Losses,
    ) -> Option<Rate> {
        let rates = self.values(group, Setting::rate, None, period, losses);
        let first = *rates.first()?;
        first.filter(|_| rates.iter().all(|&rate| rate == first))
    }

    /// Returns the periods in which a setting may have held back keys of the group.
    pub(crate) fn held_back(&self, group: u32, losses: &Losses) -> Vec<Pause> {
        let applies = |change: &Change| {
            change.setting.holds_back()
                && match change.group {
                    None => change.setting.limit().is_some(),
                    of => of == Some(group),
                }
        };
        let until = |n: usize, change: &Change| {
            let mut later = self.0[n + 1..].iter().filter(|later| later.is_same_setting(change));
            let lasting = later.find(|later| !losses.has_change(later));
            lasting.map_or(u64::MAX, |later| later.at)
        };
        let changes = self.0.iter().enumerate().filter(|(_, change)| applies(change));
        changes.map(|(n, change)| Pause { from: change.begun, to: until(n, change) }).collect()
    }

    /// Returns the values that a setting of a group, or of the queue, may have had in a period.
    ///
    /// A value may take effect when its change begins. It is certainly replaced when the next change that no server can
    /// have lost is acknowledged. A server that evicts keys may forget all values, until they are set again.
    fn values<T: Copy>(
        &self,
        group: Option<u32>,
        select: fn(Setting) -> Option<T>,
        default: T,
        (from, to): (u64, u64),
        losses: &Losses,
    ) -> Vec<T> {
        let of_group = self.0.iter().filter(|change| change.group == group);
        let changes: Vec<(&Change, T)> =
            of_group.filter_map(|change| Some((change, select(change.setting)?))).collect();
        let replaced = |later: &[(&Change, T)]| {
            let mut lasting = later.iter().filter(|(change, _)| !losses.has_change(change));
            lasting.next().map_or(u64::MAX, |(change, _)| change.at)
        };
        let mut values = Vec::new();
        if replaced(&changes) >= from {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Death;

    fn limit(begun: u64, at: u64, limit: Option<u32>) -> Change {
        Change { group: Some(1), begun, at, setting: Setting::Limit(limit) }
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
        let paused = |begun, at, paused| Change {
            group: Some(1),
            begun,
            at,
            setting: Setting::Paused(paused),
        };
        let changes =
            Changes(vec![limit(1, 2, Some(3)), paused(10, 12, true), paused(20, 22, false)]);
        let greatest = |from, to| changes.greatest_limit(1, (from, to), &Losses::default());
        assert_eq!(greatest(3, 12), Some(3));
        assert_eq!(greatest(13, 19), Some(0));
        assert_eq!(greatest(13, 20), Some(3));
        assert!(!changes.is_paused(1));
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
        let losses = Losses { deaths: vec![death(21, 22)], moment: second, ..Losses::default() };
        assert_eq!(greatest(22, &losses), Some(4));
        assert_eq!(greatest(24, &losses), Some(1), "it was set again");
        let evicts = Losses { evicts: true, ..losses };
        assert_eq!((greatest(22, &evicts), greatest(24, &evicts)), (None, Some(1)));
    }
}

//! The groups of a store, and the claims that their settings permit.
//!
//! Several processes take turns separately, so the model does not predict the next key of a claim. The model decides
//! whether the claim could deliver the key.

use std::collections::BTreeMap;

/// The settings of the groups of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreGroups {
    /// The limit of keys in flight of each group without a separate limit. `None` means no limit.
    pub default_limit: Option<u32>,
    groups: BTreeMap<String, GroupSettings>,
}

/// The settings of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    /// The limit of keys in flight. `None` means that the limit of the queue applies.
    pub limit: Option<u32>,
    /// The number of keys in one turn.
    pub weight: u32,
    /// True if no key of the group may be delivered.
    pub is_paused: bool,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self { limit: None, weight: 1, is_paused: false }
    }
}

/// A ready key of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupedKey<'a> {
    /// The group.
    pub group: &'a str,
    /// The priority.
    pub priority: i32,
    /// The time at which the key became ready, in any unit.
    pub since: i64,
}

/// The reason why a claim must not deliver a key, or must not leave it in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal<'a> {
    /// The group is paused.
    Paused,
    /// The group has as many keys in flight as its limit permits.
    AtLimit(u32),
    /// An older key of the group and the priority is ready.
    NotOldest(GroupedKey<'a>),
    /// The claim could deliver this key, which has a higher priority.
    NotHighest(GroupedKey<'a>),
    /// The claim ended without this key, although it could deliver the key.
    LeftBehind(GroupedKey<'a>),
}

impl StoreGroups {
    /// Returns the settings of a group, to change them.
    pub fn settings_mut(&mut self, group: &str) -> &mut GroupSettings {
        self.groups.entry(group.to_owned()).or_default()
    }

    /// Returns the settings of a group.
    #[must_use]
    pub fn settings(&self, group: &str) -> GroupSettings {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// Returns the names of the groups whose settings were changed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Returns the limit of keys in flight that applies to a group.
    #[must_use]
    pub fn limit(&self, group: &str) -> Option<u32> {
        self.settings(group).limit.or(self.default_limit)
    }

    /// Checks that a claim may deliver `key`. `ready` contains the ready keys, and `in_flight` contains the groups of
    /// the keys in flight, both before this delivery.
    ///
    /// # Errors
    ///
    /// Returns the reason if the claim may not deliver the key.
    pub fn check_delivery<'a>(
        &self,
        key: GroupedKey<'a>,
        ready: impl IntoIterator<Item = GroupedKey<'a>>,
        in_flight: &[&str],
    ) -> Result<(), Refusal<'a>> {
        self.check_room(key.group, in_flight)?;
        let is_before = |other: &GroupedKey<'a>| {
            (other.group, other.priority) == (key.group, key.priority) && other.since < key.since
        };
        ready.into_iter().find(is_before).map_or(Ok(()), |older| Err(Refusal::NotOldest(older)))
    }

    /// Checks that a claim may deliver a key of `priority` now. `visited` contains the group and the priority of each
    /// key that the claim has already delivered. Other groups may have keys with higher priorities, because the claim
    /// does not have to find all groups. `ready` and `in_flight` are as for [`check_delivery`](Self::check_delivery).
    ///
    /// # Errors
    ///
    /// Returns a key of a higher priority that the claim could deliver.
    pub fn check_priority<'a>(
        &self,
        priority: i32,
        visited: &[(&str, i32)],
        ready: impl IntoIterator<Item = GroupedKey<'a>>,
        in_flight: &[&str],
    ) -> Result<(), Refusal<'a>> {
        let is_missed = |key: &GroupedKey<'_>| {
            key.priority > priority
                && visited.contains(&(key.group, key.priority))
                && self.check_room(key.group, in_flight).is_ok()
        };
        ready.into_iter().find(is_missed).map_or(Ok(()), |key| Err(Refusal::NotHighest(key)))
    }

    /// Checks a claim that has looked up all groups and delivers no further key. The claim must leave no key that it
    /// could deliver.
    ///
    /// # Errors
    ///
    /// Returns a key that the claim could deliver.
    pub fn check_end<'a>(
        &self,
        ready: impl IntoIterator<Item = GroupedKey<'a>>,
        in_flight: &[&str],
    ) -> Result<(), Refusal<'a>> {
        let has_room = |key: &GroupedKey<'_>| self.check_room(key.group, in_flight).is_ok();
        ready.into_iter().find(has_room).map_or(Ok(()), |key| Err(Refusal::LeftBehind(key)))
    }

    fn check_room(&self, group: &str, in_flight: &[&str]) -> Result<(), Refusal<'static>> {
        let of_group = in_flight.iter().filter(|&&other| other == group).count();
        match self.limit(group) {
            _ if self.settings(group).is_paused => Err(Refusal::Paused),
            Some(limit) if of_group >= limit as usize => Err(Refusal::AtLimit(limit)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(group: &str, since: i64) -> GroupedKey<'_> {
        GroupedKey { group, priority: 0, since }
    }

    #[test]
    fn a_claim_keeps_the_limit_of_a_group_or_else_of_the_queue() {
        let mut groups = StoreGroups { default_limit: Some(1), ..StoreGroups::default() };
        groups.settings_mut("a").limit = Some(2);
        let check = |group, in_flight: &[&str]| groups.check_delivery(key(group, 1), [], in_flight);
        assert_eq!(check("a", &["a", "b", "b"]), Ok(()));
        assert_eq!(check("a", &["a", "a"]), Err(Refusal::AtLimit(2)));
        assert_eq!(check("b", &["b"]), Err(Refusal::AtLimit(1)));
        groups.settings_mut("a").is_paused = true;
        assert_eq!(groups.check_delivery(key("a", 1), [], &[]), Err(Refusal::Paused));
    }

    #[test]
    fn a_claim_delivers_the_oldest_key_of_a_group_and_priority() {
        let groups = StoreGroups::default();
        let high = GroupedKey { priority: 1, ..key("a", 1) };
        let ready = [high, key("a", 4), key("b", 2)];
        assert_eq!(groups.check_delivery(key("a", 4), ready, &[]), Ok(()));
        assert_eq!(groups.check_delivery(high, ready, &[]), Ok(()));
        assert_eq!(
            groups.check_delivery(key("a", 5), ready, &[]),
            Err(Refusal::NotOldest(key("a", 4)))
        );
    }

    #[test]
    fn a_claim_ends_the_priority_of_the_groups_that_it_has_found() {
        let mut groups = StoreGroups::default();
        let high = GroupedKey { priority: 1, ..key("a", 1) };
        let check = |groups: &StoreGroups, priority, visited: &[(&str, i32)]| {
            groups.check_priority(priority, visited, [high, key("b", 2)], &["a"]).is_ok()
        };
        assert!(!check(&groups, 0, &[("b", 1), ("a", 1)]));
        assert!(check(&groups, 1, &[("a", 1)]));
        // In these cases, the claim has found no key of the group, or only keys of another priority.
        assert!(check(&groups, 0, &[("b", 1), ("a", 0)]));
        groups.settings_mut("a").limit = Some(1);
        assert!(check(&groups, 0, &[("a", 1)]));
    }

    #[test]
    fn a_claim_leaves_no_key_that_it_could_deliver() {
        let mut groups = StoreGroups::default();
        groups.settings_mut("a").limit = Some(1);
        let ready = [key("a", 1), key("b", 2)];
        assert_eq!(groups.check_end(ready, &["a"]), Err(Refusal::LeftBehind(key("b", 2))));
        groups.settings_mut("b").is_paused = true;
        assert_eq!(groups.check_end(ready, &["a"]), Ok(()));
        assert_eq!(groups.check_end(ready, &[]), Err(Refusal::LeftBehind(key("a", 1))));
    }
}

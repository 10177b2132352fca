//! The members of a group, as a replica has observed them.
//!
//! A member is dead if it can never act again. A replica knows that a member is dead if the member
//! has released its Lease, or if both of these conditions are true:
//!
//! - The Lease was unchanged for its whole duration, by the observer's clock.
//! - A read that was *sent* after that time shows that the Lease is still unchanged.
//!
//! The read is necessary because a watch may be late. A renewal that the read does not show was stored after the read
//! was sent. At that time, the member's right had already ended, and a member whose right has ended never acts again. A
//! Lease that was deleted is never created again. The member of a deleted Lease is dead when the longest lease duration
//! of the group has passed since the absence of the Lease was observed.
//!
//! A member that has not renewed its Lease yet is new. A new member receives no shards, because it may be in a crash
//! loop. After each crash, its shards would have no holder until its Lease expires. The exception is a group in which
//! no member has renewed its Lease. All members of such a group receive shards.
//!
//! A member that joins after a crash learns of the death later than the other members. Until then, it must not hand
//! shards to the dead member. Therefore only a renewal that the observer has seen counts, and a member whose shards
//! another member has taken receives no shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use requeue::Time;

use super::assignment::{GroupLease, JOINED, STOPPING};
use crate::lease::Lease;

pub(super) struct Member {
    pub(super) lease: Lease,
    /// The time at which the current record, or the absence of the Lease, was first observed.
    pub(super) since: Time,
    pub(super) state: State,
    /// True if the list in progress has not shown the member yet.
    unlisted: bool,
    /// True if the member is dead and its Lease was deleted.
    gone: bool,
    /// True if the observer has seen a renewal.
    renews: bool,
    /// True if another member has taken its shards, and the observer has seen no renewal since.
    is_taken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Live,
    /// The Lease was deleted.
    Absent,
    /// The member never acts again.
    Dead,
}

impl Member {
    pub(super) fn joined_group(&self) -> &str {
        self.lease.annotation(JOINED).unwrap_or_default()
    }

    fn may_receive(&self, group: &str) -> bool {
        self.state == State::Live
            && !self.is_taken
            && self.joined_group() == group
            && self.lease.annotation(STOPPING).is_none()
    }

    /// Returns the properties that decide whether a member receives shards.
    fn standing(&self) -> (bool, bool, bool) {
        (self.lease.annotation(STOPPING).is_some(), self.renews, self.is_taken)
    }

    fn lease_duration(&self, default: Duration) -> Duration {
        self.lease.duration_seconds().map_or(default, Duration::from_secs)
    }
}

/// The members, by the names of their Leases, except for the observer itself.
pub(super) struct Members {
    seen: BTreeMap<Arc<str>, Member>,
    /// Holders of shards whose Lease was never observed, each with the time of a read that found no Lease.
    unknown: BTreeMap<Arc<str>, Time>,
    lease_duration: Duration,
}

impl Members {
    pub(super) fn new(lease_duration: Duration) -> Self {
        Self { seen: BTreeMap::new(), unknown: BTreeMap::new(), lease_duration }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Member> {
        self.seen.get(name)
    }

    /// Returns the members that receive shards, in the order of their names. `own` is the observer,
    /// if it may receive shards. Its flag is true if the observer has renewed its Lease.
    ///
    /// The candidates include a new member that already holds a shard, because it received the shard when all members
    /// were new.
    pub(super) fn candidates(
        &self,
        group: &GroupLease,
        own: Option<(Arc<str>, bool)>,
    ) -> Vec<Arc<str>> {
        let others = self.seen.iter().filter(|(_, member)| member.may_receive(group.uid()));
        let others = others.map(|(name, member)| (Arc::clone(name), member.renews));
        let mut live: Vec<_> = others.chain(own).collect();
        if live.iter().any(|(_, is_renewed)| *is_renewed) {
            live.retain(|(name, is_renewed)| *is_renewed || group.assignment.holds(name));
        }
        live.sort_unstable();
        live.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the longest lease duration of the live members, in seconds.
    pub(super) fn longest_lease_seconds(&self) -> u64 {
        let live = self.seen.values().filter(|member| member.state == State::Live);
        live.filter_map(|member| member.lease.duration_seconds()).max().unwrap_or(0)
    }

    /// Records that the Lease was observed. Returns true if the candidates may have changed.
    pub(super) fn see_lease(&mut self, lease: Lease, now: Time) -> bool {
        let released = lease.holder().is_empty();
        self.unknown.remove(lease.name());
        let Some(member) = self.seen.get_mut(lease.name()) else {
            let state = if released { State::Dead } else { State::Live };
            let name = Arc::from(lease.name());
            let member = Member {
                lease,
                since: now,
                state,
                unlisted: false,
                gone: false,
                renews: false,
                is_taken: false,
            };
            self.seen.insert(name, member);
            return true;
        };
        member.unlisted = false;
        member.gone = false;
        if lease.resource_version() <= member.lease.resource_version() {
            return false;
        }
        let before = member.standing();
        let mut changed = false;
        // A dead member stays dead, because its shards may have been taken over.
        if member.state != State::Dead {
            if released {
                member.state = State::Dead;
                changed = true;
            } else if member.state == State::Absent || !member.lease.same_record(&lease) {
                changed |= member.state == State::Absent;
                member.state = State::Live;
                member.since = now;
                member.renews = true;
                member.is_taken = false;
            }
        }
        member.lease = lease;
        changed || member.standing() != before
    }

    /// Records the response to a read that was sent when the Lease seemed to have expired.
    pub(super) fn verify_expiry(&mut self, lease: Lease, sent: Time, now: Time) -> bool {
        let default = self.lease_duration;
        let unchanged = self.seen.get_mut(lease.name()).filter(|member| {
            member.state == State::Live
                && member.lease.same_record(&lease)
                && sent >= member.since + member.lease_duration(default)
        });
        match unchanged {
            // The member is declared dead here, permanently. A renewal that the read did not show was stored after the
            // read was sent, when the member's right had already ended.
            Some(member) => {
                member.state = State::Dead;
                if lease.resource_version() > member.lease.resource_version() {
                    member.lease = lease;
                }
                true
            }
            None => self.see_lease(lease, now),
        }
    }

    /// Records that another member has taken shards of this member, because it knows that this member is dead.
    pub(super) fn mark_taken(&mut self, name: &str) {
        if let Some(member) = self.seen.get_mut(name) {
            member.is_taken = true;
        }
    }

    /// Records that the Lease is absent, because it was deleted or a read has not found it.
    pub(super) fn mark_absent(&mut self, name: &str, now: Time) -> bool {
        match self.seen.get_mut(name) {
            Some(member) if member.state == State::Live => {
                member.state = State::Absent;
                member.since = now;
                true
            }
            Some(member) => {
                member.gone = member.state == State::Dead;
                false
            }
            None => {
                self.unknown.entry(Arc::from(name)).or_insert(now);
                false
            }
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.seen.values_mut().for_each(|member| member.unlisted = true);
    }

    /// Records that the Leases are absent that the completed list has not shown.
    pub(super) fn end_list(&mut self, now: Time) -> bool {
        let unlisted = self.seen.iter().filter(|(_, member)| member.unlisted);
        let unlisted: Vec<_> = unlisted.map(|(name, _)| Arc::clone(name)).collect();
        // All members must be visited. `any` would stop at the first change.
        unlisted.iter().fold(false, |changed, name| self.mark_absent(name, now) | changed)
    }

    /// Returns true if the holder of a shard never acts again. `longest` is the longest lease
    /// duration of the group.
    pub(super) fn is_dead(&self, name: &str, longest: Duration, now: Time) -> bool {
        self.dead_at(name, longest).is_some_and(|at| now >= at)
    }

    /// Returns the time from which a member is dead, if the death does not depend on a read.
    fn dead_at(&self, name: &str, longest: Duration) -> Option<Time> {
        let longest = longest.max(self.lease_duration);
        match self.seen.get(name) {
            Some(Member { state: State::Dead, .. }) => Some(Time::ZERO),
            Some(member @ Member { state: State::Absent, since, .. }) => {
                Some(*since + member.lease_duration(longest).max(longest))
            }
            Some(Member { state: State::Live, .. }) => None,
            None => self.unknown.get(name).map(|since| *since + longest),
        }
    }

    /// Returns true if a member of an earlier group object with the same name may still act.
    pub(super) fn has_foreign(&self, group: &str, longest: Duration, now: Time) -> bool {
        let mut foreign = self.seen.iter().filter(|(_, member)| member.joined_group() != group);
        foreign.any(|(name, _)| !self.is_dead(name, longest, now))
    }

    /// Returns a member whose Lease must be read, because the Lease seems to have expired, or
    /// because the member holds a shard and was never observed.
    pub(super) fn next_suspect<'a>(
        &self,
        mut holders: impl Iterator<Item = &'a Arc<str>>,
        now: Time,
    ) -> Option<Arc<str>> {
        let late = self.seen.iter().find(|(_, member)| {
            member.state == State::Live
                && now >= member.since + member.lease_duration(self.lease_duration)
        });
        let unknown = |name: &&Arc<str>| {
            !self.seen.contains_key(&***name) && !self.unknown.contains_key(&***name)
        };
        let late = late.map(|(name, _)| Arc::clone(name));
        late.or_else(|| holders.find(unknown).cloned())
    }

    /// Returns the next time at which a member may be suspect or dead.
    pub(super) fn next_deadline(&self, longest: Duration, now: Time) -> Time {
        let live = self.seen.values().filter(|member| member.state == State::Live);
        let live = live.map(|member| member.since + member.lease_duration(self.lease_duration));
        let gone = self.seen.keys().chain(self.unknown.keys());
        let gone = gone.filter_map(|name| self.dead_at(name, longest)).filter(|at| *at > now);
        live.chain(gone).min().unwrap_or(Time::NEVER)
    }

    /// Returns a dead member whose Lease can be deleted.
    pub(super) fn next_garbage(&self, holds: impl Fn(&str) -> bool) -> Option<&Member> {
        // The Lease of a holder is kept, because a replica that joins now learns of the death from
        // this Lease.
        let mut garbage = self
            .seen
            .iter()
            .filter(|(name, member)| member.state == State::Dead && !member.gone && !holds(name));
        garbage.next().map(|(_, member)| member)
    }

    /// Forgets members without a Lease that hold no shards.
    pub(super) fn forget_gone(
        &mut self,
        group: &str,
        holds: impl Fn(&str) -> bool,
        longest: Duration,
        now: Time,
    ) {
        let gone: Vec<_> = self
            .seen
            .iter()
            .filter(|(name, member)| match member.state {
                State::Live => false,
                State::Dead => member.gone && !holds(name),
                State::Absent => {
                    !holds(name)
                        && (member.joined_group() == group || self.is_dead(name, longest, now))
                }
            })
            .map(|(name, _)| Arc::clone(name))
            .collect();
        gone.iter().for_each(|name| drop(self.seen.remove(name)));
        self.unknown.retain(|name, _| holds(name));
    }
}

//! The members of a group, as one replica (the observer) has seen them.
//!
//! A member is dead if it can never act again. The observer knows that a member is dead if the member has released its
//! Lease, or if both of these conditions are true:
//!
//! - By the observer's clock, the Lease has not changed for its whole duration.
//! - A read that the observer *sent* after that time shows that the Lease has still not changed.
//!
//! The read is necessary because the watch may be late. If the read does not show a renewal, this renewal was stored
//! after the read was sent. At that time, the member's right had already ended, so the member never acts again. A
//! deleted Lease is never created again. Its member is dead when the longest lease duration of the group has passed
//! since the observer first noticed that the Lease is absent.
//!
//! A member that has never renewed its Lease is new. It may be in a crash loop. If it received shards, they would have
//! no holder after each crash until its Lease has expired. New members therefore receive no shards. The exception is a
//! group in which all members are new.
//!
//! A replica that joins after a crash notices the death later than the other members. Until then, it must not hand
//! shards to the dead member. Two rules ensure this. A member is only treated as renewing if the observer itself has
//! seen a renewal. A member whose shards another member has taken receives no shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use requeue::Time;

use super::assignment::{GroupLease, JOINED, STOPPING};
use crate::lease::Lease;

pub(super) struct Member {
    pub(super) lease: Lease,
    /// The time at which the observer first saw the present record, or the absence of the Lease.
    pub(super) since: Time,
    pub(super) state: State,
    /// True if a list is in progress, and has not contained the member's Lease yet.
    unlisted: bool,
    /// True if the member is dead, and its Lease was deleted.
    gone: bool,
    /// True if the observer has seen a renewal of the Lease.
    renews: bool,
    /// True if another member has taken shards of this member, and the observer has seen no renewal since then.
    is_taken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Live,
    /// The Lease was deleted, but the member may still act.
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

    /// Returns the properties that decide whether the member may receive shards.
    fn standing(&self) -> (bool, bool, bool) {
        (self.lease.annotation(STOPPING).is_some(), self.renews, self.is_taken)
    }

    fn lease_duration(&self, default: Duration) -> Duration {
        self.lease.duration_seconds().map_or(default, Duration::from_secs)
    }
}

/// The members other than the observer, by the names of their Leases.
pub(super) struct Members {
    seen: BTreeMap<Arc<str>, Member>,
    /// The holders of shards whose Leases the observer has never seen. The value is the time of a read that found no
    /// Lease.
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

    /// Returns the sorted names of the members that may receive shards. `own` is the observer, if it may receive
    /// shards. Its second value is true if the observer has renewed its Lease.
    ///
    /// A new member that already holds a shard is also included. It received the shard when all members were new.
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

    /// Returns the longest lease duration of all live members, in seconds.
    pub(super) fn longest_lease_seconds(&self) -> u64 {
        let live = self.seen.values().filter(|member| member.state == State::Live);
        live.filter_map(|member| member.lease.duration_seconds()).max().unwrap_or(0)
    }

    /// Stores a Lease that the watch has shown. Returns true if this may change the result of
    /// [`candidates`](Self::candidates).
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
        // A dead member is never treated as alive again, because other members may have taken over its shards.
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

    /// Handles the response to a read that was sent when the Lease seemed to have expired.
    pub(super) fn verify_expiry(&mut self, lease: Lease, sent: Time, now: Time) -> bool {
        let default = self.lease_duration;
        let unchanged = self.seen.get_mut(lease.name()).filter(|member| {
            member.state == State::Live
                && member.lease.same_record(&lease)
                && sent >= member.since + member.lease_duration(default)
        });
        match unchanged {
            // The member is now known to be dead, permanently. If the read does not show a renewal, the renewal was
            // stored after the read was sent. At that time, the member's right had already ended.
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

    /// Notes that another member, which knows that this member is dead, has taken shards of it.
    pub(super) fn mark_taken(&mut self, name: &str) {
        if let Some(member) = self.seen.get_mut(name) {
            member.is_taken = true;
        }
    }

    /// Notes that the Lease is absent, because it was deleted, or because a read has not found it.
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

    /// Notes that the Leases that the completed list did not contain are absent.
    pub(super) fn end_list(&mut self, now: Time) -> bool {
        let unlisted = self.seen.iter().filter(|(_, member)| member.unlisted);
        let unlisted: Vec<_> = unlisted.map(|(name, _)| Arc::clone(name)).collect();
        // `any` would stop at the first member for which the result is true, but all members must be visited.
        unlisted.iter().fold(false, |changed, name| self.mark_absent(name, now) | changed)
    }

    /// Returns true if this holder of a shard never acts again. `longest` is the longest lease duration in the group.
    pub(super) fn is_dead(&self, name: &str, longest: Duration, now: Time) -> bool {
        self.dead_at(name, longest).is_some_and(|at| now >= at)
    }

    /// Returns the time from which the member is known to be dead without a read. Returns `None` if a read is
    /// necessary, or if the member may be alive.
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

    /// Returns true if a member of an earlier group object of the same name may still act.
    pub(super) fn has_foreign(&self, group: &str, longest: Duration, now: Time) -> bool {
        let mut foreign = self.seen.iter().filter(|(_, member)| member.joined_group() != group);
        foreign.any(|(name, _)| !self.is_dead(name, longest, now))
    }

    /// Returns a member whose Lease the observer must read. Either the Lease seems to have expired, or the member holds
    /// a shard and the observer has never seen its Lease.
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

    /// Returns the next time at which a Lease may seem to have expired, or a member may be known to be dead.
    pub(super) fn next_deadline(&self, longest: Duration, now: Time) -> Time {
        let live = self.seen.values().filter(|member| member.state == State::Live);
        let live = live.map(|member| member.since + member.lease_duration(self.lease_duration));
        let gone = self.seen.keys().chain(self.unknown.keys());
        let gone = gone.filter_map(|name| self.dead_at(name, longest)).filter(|at| *at > now);
        live.chain(gone).min().unwrap_or(Time::NEVER)
    }

    /// Returns a dead member whose Lease can be deleted.
    pub(super) fn next_garbage(&self, holds: impl Fn(&str) -> bool) -> Option<&Member> {
        // The Lease of a holder is kept. A replica that joins later learns from this Lease that the holder is dead.
        let mut garbage = self
            .seen
            .iter()
            .filter(|(name, member)| member.state == State::Dead && !member.gone && !holds(name));
        garbage.next().map(|(_, member)| member)
    }

    /// Removes the members that have no Lease and hold no shards.
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

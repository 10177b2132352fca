//! The protocol of a shard group, as a state machine. It has no clock and sends no requests.
//!
//! # Safety
//!
//! The invariant is that no two replicas act on one shard at the same time. Three rules ensure it:
//!
//! 1. A replica acts on a shard only under two conditions. It holds its member Lease, and the last version of the group
//!    object that it has seen names it as the holder. Its right ends one renew deadline after it has sent its last
//!    successful renewal. A replica whose right has ended never acts again, because each member Lease has only one
//!    term. For each name, a replica makes only one attempt to create the Lease. If the response is lost, other
//!    replicas may see the Lease expire.
//! 2. The group object changes only by writes whose precondition is the version that the writer has read. Only two
//!    writers change the holder of a shard. One is the present holder, after all runs of the shard have completed. The
//!    other is a replica that knows that the present holder is [dead](super::members). A dead member never becomes
//!    alive again.
//! 3. After a holder has sent such a write, it does not act on the shard until it has seen a later version of the
//!    object that names it as the holder. With this version, the write can no longer succeed, even if it arrives later.
//!
//! By rule 2, the assignment that a live holder has seen stays valid until the holder itself changes it. A late watch
//! can therefore delay a member, but cannot make it act on the shard of another member.
//!
//! As in the election, only the rates of the clocks matter. The faster rate divided by the slower rate must be less
//! than the lease duration divided by the renew deadline. When a suspended machine resumes, the Leases of all other
//! members may seem to have expired. The replica therefore reads each Lease before it takes over shards.
//!
//! If the group object is deleted, all memberships end. A member may notice the deletion late. Each member Lease
//! contains the uid of the group object that its member has joined. While a member of another group object may be
//! alive, no replica takes shards of the new object.
//!
//! # Progress
//!
//! All replicas compute the [desired assignment](super::balance) from the group object and the live members.
//! [New](super::members) members get no shards. A holder hands each surplus shard over: it requests a
//! [release](Change::Release), waits until the shard is drained, and writes the new holder. If a run takes too long,
//! the holder requests its [cancellation](Change::Cancel), because until it ends no other key of the shard can run. A
//! member that stops hands over all of its shards, and then releases and deletes its Lease.
//!
//! If a member knows that another member is dead, it writes the desired holders of the dead member's shards. It also
//! writes the desired holders of shards that have no holder.
//!
//! If the watch of a member has not shown the member's own renewals for a whole renew deadline, the member lists the
//! Leases again.

mod local;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use requeue::Time;
use requeue::wait::JitterSource;

use self::local::Local;
use self::requests::Requests;
use super::assignment::GroupLease;
use super::members::Members;
use super::protocol::{Change, End, Settings, Step, Watched};
use crate::lease::Lease;
use crate::requests::Answer;

/// The state of one replica in a group. The caller tells it the time, sends the requests that it returns, and passes on
/// the results and the events of a watch of the group's Leases.
pub(super) struct Group {
    settings: Settings,
    jitter: JitterSource,
    phase: Phase,
    lists: Lists,
    group: Option<GroupLease>,
    members: Members,
    /// The version of this replica's Lease that its watch has shown last, and the time of that event.
    own: Option<(Lease, Time)>,
    local: Vec<Local>,
    desired: Option<Vec<Option<Arc<str>>>>,
    requests: Requests,
    /// Before this time, no step is due, unless an event or a response changes the state.
    idle_until: Time,
    changes: VecDeque<Change>,
}

/// The state of the watch's lists.
struct Lists {
    /// True if the first list of the watch is complete.
    is_complete: bool,
    /// True if the list in progress has not contained the group object yet.
    lacks_group: bool,
    /// The time at which the list was last requested. Before the first request, the time of the join.
    requested: Time,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// The replica has not read the group object yet.
    Looking,
    /// The replica is about to create its member Lease. `stops` is true if it was already asked to stop.
    Joining {
        stops: bool,
    },
    Member,
    Stopping,
    Ended(End),
}

impl Group {
    pub(super) fn new(settings: Settings, jitter: JitterSource, now: Time) -> Self {
        Self {
            jitter,
            phase: Phase::Looking,
            lists: Lists { is_complete: false, lacks_group: false, requested: now },
            group: None,
            members: Members::new(settings.lease_duration),
            own: None,
            local: vec![Local::Elsewhere; settings.layout.count],
            desired: None,
            requests: Requests::default(),
            idle_until: Time::ZERO,
            changes: VecDeque::new(),
            settings,
        }
    }

    /// Returns the next step at the time `now`. If the replica has its member Lease, `right` is the time at which its
    /// right to act ends.
    pub(super) fn poll(&mut self, now: Time, right: Option<Time>) -> Step {
        if self.requests.sent.as_ref().is_some_and(|sent| now >= sent.until) {
            self.handle_answer(now, Answer::Failed);
        }
        if let Phase::Joining { stops } = self.phase
            && right.is_some()
        {
            self.phase = if stops { Phase::Stopping } else { Phase::Member };
            self.lists.requested = now;
            self.plan_again();
            // The response to the creation of the member Lease has arrived. Before that, other members may have already
            // handed shards over to this replica.
            if let Some(group) = self.group.take() {
                self.follow_assignment(&group, None, now);
                self.group = Some(group);
            }
        }
        // This check enforces rule 1. It comes before all other steps, and its result is final. When the right has
        // ended, other members may take the shards over, even before the watch shows this.
        if self.is_member() && right.is_none_or(|right| now >= right) {
            self.phase = Phase::Ended(End::Lost);
        }
        if let Phase::Ended(end) = &self.phase {
            return Step::Ended(end.clone());
        }
        let right = right.unwrap_or(Time::NEVER);
        // The driver polls after each event. Most events are renewals that change nothing, so the steps below are
        // skipped.
        if self.requests.sent.is_none() && self.requests.pause <= now && now < self.idle_until {
            return Step::Wait(right.min(self.idle_until));
        }
        self.settle_shards(now);
        let wait = self.next_cancellation().min(right);
        if let Some(sent) = &self.requests.sent {
            return Step::Wait(wait.min(sent.until));
        }
        if now < self.requests.pause {
            return Step::Wait(wait.min(self.requests.pause));
        }
        if self.is_member() && now >= self.watch_deadline() {
            self.lists.requested = now;
            return Step::Relist;
        }
        let next = self.next_request(now);
        next.unwrap_or_else(|| match &self.phase {
            Phase::Ended(end) => Step::Ended(end.clone()),
            _ => {
                let wait = wait.min(self.next_deadline(now));
                self.idle_until = wait;
                Step::Wait(wait)
            }
        })
    }

    /// Applies an event of the watch.
    pub(super) fn handle_event(&mut self, now: Time, event: Watched) {
        match event {
            Watched::Init => {
                self.members.begin_list();
                self.lists.lacks_group = true;
            }
            Watched::InitApply(lease) | Watched::Apply(lease) => self.see_lease(lease, now),
            Watched::Delete(lease) => {
                if lease.name() == self.settings.name {
                    if self.group.as_ref().is_some_and(|group| group.uid() == lease.uid()) {
                        self.group_deleted();
                    }
                } else if lease.name() != &*self.settings.member {
                    let changed = self.members.mark_absent(lease.name(), now);
                    self.plan_again_if(changed);
                }
            }
            Watched::InitDone => {
                self.lists.is_complete = true;
                self.members.end_list(now);
                self.plan_again();
                if self.lists.lacks_group && self.group.is_some() {
                    self.group_deleted();
                }
            }
        }
    }

    /// Announces that this replica stops, and hands over all of its shards. The participation ends when no shard is
    /// left.
    pub(super) fn stop(&mut self) {
        match self.phase {
            Phase::Looking => self.phase = Phase::Ended(End::Left),
            Phase::Member => {
                self.phase = Phase::Stopping;
                self.plan_again();
            }
            Phase::Joining { .. } => self.phase = Phase::Joining { stops: true },
            Phase::Stopping | Phase::Ended(_) => {}
        }
    }

    /// Requests a read of the group object. When it has succeeded, `confirmed` is later than the time of this call.
    pub(super) fn request_read(&mut self) {
        self.requests.read = true;
        self.requests.read_again = self.requests.sent.is_some();
        self.idle_until = Time::ZERO;
    }

    pub(super) fn confirmed_at(&self) -> Option<Time> {
        self.requests.confirmed
    }

    /// Returns the next change that the driver must send to the user.
    pub(super) fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    pub(super) fn group(&self) -> Option<&GroupLease> {
        self.group.as_ref()
    }

    fn is_member(&self) -> bool {
        matches!(self.phase, Phase::Member | Phase::Stopping)
    }

    /// Makes the next poll compute the desired assignment again.
    fn plan_again(&mut self) {
        self.desired = None;
        self.idle_until = Time::ZERO;
    }

    fn plan_again_if(&mut self, changed: bool) {
        if changed {
            self.plan_again();
        }
    }

    fn longest_lease(&self) -> Duration {
        let stored = self.group.as_ref().map_or(0, |group| group.lease_seconds);
        Duration::from_secs(stored).max(self.settings.lease_duration)
    }

    fn watch_deadline(&self) -> Time {
        let seen = self.own.as_ref().map_or(Time::ZERO, |(_, since)| *since);
        seen.max(self.lists.requested) + self.settings.renew_deadline
    }

    /// Returns the next time at which a step is due even if no event arrives.
    fn next_deadline(&self, now: Time) -> Time {
        if !self.is_member() {
            return Time::NEVER;
        }
        self.watch_deadline().min(self.members.next_deadline(self.longest_lease(), now))
    }

    fn see_lease(&mut self, lease: Lease, now: Time) {
        if lease.name() == self.settings.name {
            self.lists.lacks_group = false;
            self.see_group(lease, now);
        } else if lease.name() == &*self.settings.member {
            self.see_own(lease, now);
        } else {
            let changed = self.members.see_lease(lease, now);
            self.plan_again_if(changed);
        }
    }

    fn see_own(&mut self, lease: Lease, now: Time) {
        let changed = match &mut self.own {
            Some((seen, _)) if lease.resource_version() <= seen.resource_version() => false,
            Some((seen, since)) => {
                if !seen.same_record(&lease) {
                    *since = now;
                }
                let changed = seen.is_renewed() != lease.is_renewed();
                *seen = lease;
                changed
            }
            None => {
                self.own = Some((lease, now));
                true
            }
        };
        self.plan_again_if(changed);
    }

    /// Returns the sorted names of the members that may receive shards.
    fn receiving_members(&self, group: &GroupLease) -> Vec<Arc<str>> {
        let is_renewed = self.own.as_ref().is_some_and(|(lease, _)| lease.is_renewed());
        let own = (Arc::clone(&self.settings.member), is_renewed);
        self.members.candidates(group, (self.phase == Phase::Member).then_some(own))
    }

    fn see_group(&mut self, lease: Lease, now: Time) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        self.lists.lacks_group = false;
        // Events and responses may arrive in any order. An earlier version of the object might name this replica as the
        // holder of a shard that it has since handed over.
        if self.group.as_ref().is_some_and(|group| group.version >= lease.resource_version()) {
            return;
        }
        if self.group.as_ref().is_some_and(|group| group.uid() != lease.uid()) {
            self.group_deleted();
            if matches!(self.phase, Phase::Ended(_)) {
                return;
            }
        }
        let group = match GroupLease::from_lease(lease) {
            Ok(group) if group.layout == self.settings.layout => group,
            Ok(group) => return self.phase = Phase::Ended(End::Mismatch(group.layout)),
            Err(unreadable) => return self.phase = Phase::Ended(End::Unreadable(unreadable)),
        };
        let before = self.group.take();
        self.idle_until = Time::ZERO;
        let slots = before.iter().flat_map(|before| before.assignment.slots());
        for (old, new) in slots.zip(group.assignment.slots()) {
            // Only the holder itself hands a shard over. If another member has written the new holder, the former
            // holder is dead.
            if let Some(holder) = old.holder.as_deref()
                && new.holder != old.holder
                && group.writer() != Some(holder)
            {
                self.members.mark_taken(holder);
            }
        }
        if self.is_member() {
            self.follow_assignment(&group, before.as_ref(), now);
        }
        self.requests.unresolved.take_if(|version| *version < group.version);
        self.requests.conflict.take_if(|version| *version < group.version);
        if before.is_none_or(|before| before.assignment != group.assignment) {
            self.desired = None;
        }
        self.group = Some(group);
    }

    fn group_deleted(&mut self) {
        self.idle_until = Time::ZERO;
        let was_known = self.group.take().is_some() || self.is_member();
        // If the replica has not joined yet, its participation does not end. It waits for a new group object, or
        // creates it.
        if was_known && !matches!(self.phase, Phase::Looking | Phase::Ended(_)) {
            self.phase = Phase::Ended(End::Deleted);
        }
    }
}

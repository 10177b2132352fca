//! The protocol of a shard group, as a state machine without a clock and without a network.
//!
//! # Safety
//!
//! Invariant: no two replicas act on a shard at the same time.
//!
//! 1. A replica acts on a shard only while it holds its member Lease, and while the last version of the group object
//!    that it has seen names it as the holder. The replica's right ends one renew deadline after its last successful
//!    renewal was sent. A replica whose right has ended never acts again. Each Lease has only one term. If the response
//!    to its creation is lost, other replicas may observe that the Lease expires, so the replica makes only one attempt
//!    with each name.
//! 2. The group object changes only by writes whose precondition is the version that the writer has read. Two kinds of
//!    writers change the holder of a shard. One writer is the present holder, after all runs of the shard have
//!    completed. The other writer is a replica that knows that the present holder is [dead](super::members), which is
//!    permanent.
//! 3. A holder that has sent such a write does not act on the shard before it has seen a later
//!    version of the object that names it as the holder. From then on, the write can no longer
//!    succeed, even if it has not arrived yet.
//!
//! By rule 2, the assignment that a live holder has seen stays valid until the holder changes it. A late watch can
//! therefore delay a member, but cannot make it act on the shard of another member.
//!
//! As in the election, only the rates of the clocks matter. The ratio of the faster rate to the slower rate must be
//! less than the ratio of the lease duration to the renew deadline. When a suspended machine resumes, all other Leases
//! may seem to have expired. Such a machine reads the Leases before it takes shards over.
//!
//! A group object that is deleted ends the membership of all its members. The members may notice the deletion late.
//! Each member Lease names the uid of the group object. As long as a member whose Lease names another uid may be alive,
//! no shard of the new object is taken.
//!
//! # Progress
//!
//! All replicas compute the [desired assignment](super::balance) from the group object and the live members, except for
//! members that are [new](super::members). A holder hands a surplus shard over: it requests its
//! [release](Change::Release), waits until the shard is drained, and writes the new holder. If a run exceeds the time
//! limit, its [cancellation](Change::Cancel) is requested, because no other key of the shard can run until the run has
//! stopped. A member that stops hands over all of its shards, and then releases and deletes its Lease.
//!
//! A member that knows that another member is dead writes the desired holders of the dead member's shards. It also
//! writes the desired holders of shards without a holder.
//!
//! If the watch of a member has not shown its own renewals for a whole renew deadline, the member lists the Leases
//! again.

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

/// The state of one replica in a group. The caller passes the time, makes the requests, and passes
/// the events of a watch of all Leases of the group.
pub(super) struct Group {
    settings: Settings,
    jitter: JitterSource,
    phase: Phase,
    lists: Lists,
    group: Option<GroupLease>,
    members: Members,
    /// The last observed version of this replica's Lease, and the time of that observation.
    own: Option<(Lease, Time)>,
    local: Vec<Local>,
    desired: Option<Vec<Option<Arc<str>>>>,
    requests: Requests,
    /// No step is due before this time, unless an event changes the state.
    idle_until: Time,
    changes: VecDeque<Change>,
}

/// The lists of the watch.
struct Lists {
    /// True if the first list is complete.
    is_complete: bool,
    /// True if the list in progress has not shown the group object.
    lacks_group: bool,
    /// The time of the last request to list again, or of the join.
    requested: Time,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// The replica does not know the group object yet.
    Looking,
    /// The member Lease is about to be created. The replica may already have been asked to stop.
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

    /// Returns the next step at `now`. If the member Lease was acquired, `right` is the time until which the member may
    /// act.
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
            // Other members may have handed shards over to this replica before the response to the
            // creation of its Lease arrived.
            if let Some(group) = self.group.take() {
                self.follow_assignment(&group, None, now);
                self.group = Some(group);
            }
        }
        // Rule 1 is enforced here. The check precedes all other steps, and its result is final. Other members may take
        // the shards over as soon as the right has ended, before the watch of this member shows the takeover.
        if self.is_member() && right.is_none_or(|right| now >= right) {
            self.phase = Phase::Ended(End::Lost);
        }
        if let Phase::Ended(end) = &self.phase {
            return Step::Ended(end.clone());
        }
        let right = right.unwrap_or(Time::NEVER);
        // The driver polls after each event of the watch, and most events are renewals without a consequence.
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

    /// Handles an event of the watch.
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

    /// Announces that this replica stops, and hands all shards over. The protocol ends when all
    /// shards are handed over.
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

    /// Requests a read of the group object, so that `confirmed` becomes later than now.
    pub(super) fn request_read(&mut self) {
        self.requests.read = true;
        self.requests.read_again = self.requests.sent.is_some();
        self.idle_until = Time::ZERO;
    }

    pub(super) fn confirmed_at(&self) -> Option<Time> {
        self.requests.confirmed
    }

    /// Returns the next change for the controller.
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

    /// Returns the next time at which a request is due without an event.
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

    /// Returns the members that receive shards, in the order of their names.
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
        // The events of the watch and the responses can arrive in any order. An earlier version could name this replica
        // as the holder of a shard that it has since handed over.
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
            // Only the holder itself hands a shard over. If another member wrote the new holder, the former holder is
            // dead.
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
        // A replica that has not joined yet waits for a new group object, or creates it.
        if was_known && !matches!(self.phase, Phase::Looking | Phase::Ended(_)) {
            self.phase = Phase::Ended(End::Deleted);
        }
    }
}

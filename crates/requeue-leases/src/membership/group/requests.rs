//! The requests of a replica, and the handling of their results.

use std::sync::Arc;
use std::time::Duration;

use requeue::Time;
use requeue::wait::jitter;
use serde_json::{Map, Value};

use super::local::Local;
use super::{Group, Phase};
use crate::membership::assignment::{Assignment, GroupLease, STOPPING};
use crate::membership::protocol::{End, Settings, Step};
use crate::requests::{Answer, Call};

/// The base of the random wait after a conflict. The wait is random, so that several members that write at the same
/// time do not have another conflict.
const CONFLICT_PAUSE: Duration = Duration::from_millis(10);
/// The base of the random wait after a failed request.
const FAILURE_PAUSE: Duration = Duration::from_millis(400);

/// The request in flight, and the state that decides which request comes next.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) sent: Option<Sent>,
    /// Until this time, no request is sent.
    pub(super) pause: Time,
    /// The version on which this replica's last write was based, if it has received no response. The write may still
    /// succeed.
    pub(super) unresolved: Option<u64>,
    /// The version on which this replica's last write was based, if the write had a conflict.
    pub(super) conflict: Option<u64>,
    /// True if the group object must be read. Either the object exists, but the watch has not shown it, or a caller
    /// waits for a read.
    pub(super) read: bool,
    /// True if a caller has begun to wait for a read since the call in flight was sent.
    pub(super) read_again: bool,
    /// True if another call has failed since the last read of the group object was sent. If a caller waits for a read,
    /// the read is then the next call.
    has_failed: bool,
    /// The time at which the last successful read or write of the group object was sent.
    pub(super) confirmed: Option<Time>,
    announced: bool,
    /// The version of this replica's Lease on which the announcement was based, if the announcement had a conflict.
    announce_conflict: Option<u64>,
}

pub(super) struct Sent {
    pub(super) call: Sending,
    pub(super) at: Time,
    pub(super) until: Time,
}

pub(super) enum Sending {
    CreateGroup,
    ReadGroup,
    WriteGroup { version: u64 },
    ReadMember(Arc<str>),
    Announce { version: u64 },
    Delete(Arc<str>),
}

impl Group {
    /// Returns the next call that is due, as a step.
    pub(super) fn next_request(&mut self, now: Time) -> Option<Step> {
        // Until the first list is complete, this replica may not know all live members. It therefore sends no request.
        if !self.lists.is_complete {
            return None;
        }
        let is_first = self.group.is_none() || self.requests.has_failed;
        if self.requests.conflict.is_some() || self.requests.read && is_first {
            return Some(self.read_group(now));
        }
        let seconds = self.settings.lease_duration.as_secs();
        let Some(group) = &self.group else {
            let Settings { name, layout, .. } = &self.settings;
            let json = GroupLease::new_object(name, layout, seconds);
            return Some(self.send_call(now, Sending::CreateGroup, Call::Create(json)));
        };
        match self.phase {
            Phase::Looking => {
                let group = group.uid().to_owned();
                self.phase = Phase::Joining { stops: false };
                return Some(Step::Join { group });
            }
            Phase::Joining { .. } | Phase::Ended(_) => return None,
            Phase::Member | Phase::Stopping => {}
        }
        if self.phase == Phase::Stopping && !self.requests.announced {
            return Some(self.announce_stop(now));
        }
        if let Some(assignment) = self.planned_assignment(group, now) {
            let version = group.version;
            let seconds = seconds.max(self.members.longest_lease_seconds());
            let json = group.with_assignment(&assignment, &self.settings.member, seconds);
            // Rule 3 begins here, before the write is sent, because the write may succeed at any time from now on. This
            // replica does not act on these shards until a later version of the object names it again.
            for (local, slot) in self.local.iter_mut().zip(assignment.slots()) {
                if let Local::Drained { number, since } = *local
                    && slot.holder.as_ref() != Some(&self.settings.member)
                {
                    *local = Local::Given { number, since };
                }
            }
            self.requests.unresolved = Some(version);
            return Some(self.send_call(now, Sending::WriteGroup { version }, Call::Replace(json)));
        }
        if self.phase == Phase::Stopping && !group.assignment.holds(&self.settings.member) {
            self.phase = Phase::Ended(End::Left);
            return None;
        }
        let holders = group.assignment.slots().iter().filter_map(|slot| slot.holder.as_ref());
        let holders = holders.filter(|holder| **holder != self.settings.member);
        if let Some(suspect) = self.members.next_suspect(holders, now) {
            let read = Call::Read(suspect.to_string());
            return Some(self.send_call(now, Sending::ReadMember(suspect), read));
        }
        // Handovers and takeovers come before reads, because callers may request reads all the time. A successful write
        // also updates `confirmed`.
        if self.requests.read {
            return Some(self.read_group(now));
        }
        self.collect_garbage(now)
    }

    /// Handles the result of the call in flight.
    pub(in super::super) fn handle_answer(&mut self, now: Time, answer: Answer) {
        let Some(sent) = self.requests.sent.take() else { return };
        self.idle_until = Time::ZERO;
        match (sent.call, answer) {
            (
                Sending::CreateGroup | Sending::ReadGroup | Sending::WriteGroup { .. },
                Answer::Lease(lease),
            ) => {
                self.see_group(lease, now);
                // If a caller has begun to wait during this call, another read is necessary.
                self.requests.read = std::mem::take(&mut self.requests.read_again);
                self.requests.conflict = None;
                self.requests.confirmed = Some(sent.at);
            }
            // The group object exists, but the watch has not shown it. The event may be late, or the object may have
            // lost its label.
            (Sending::CreateGroup, Answer::Conflict) => self.requests.read = true,
            (Sending::CreateGroup, Answer::NotFound) => self.phase = Phase::Ended(End::NoNamespace),
            (Sending::ReadGroup, Answer::NotFound) => {
                self.requests.read = false;
                self.group_deleted();
            }
            (Sending::WriteGroup { version }, Answer::Conflict) => {
                self.requests.conflict = Some(version);
                self.requests.pause = now + jitter(CONFLICT_PAUSE, 4.0, &mut self.jitter);
            }
            (Sending::WriteGroup { .. }, Answer::NotFound) => self.group_deleted(),
            (Sending::ReadMember(name), Answer::Lease(lease)) => {
                if name == self.settings.member {
                    self.see_own(lease, now);
                } else {
                    let changed = self.members.verify_expiry(lease, sent.at, now);
                    self.plan_again_if(changed);
                }
            }
            (Sending::ReadMember(name), Answer::NotFound) => {
                let changed = self.members.mark_absent(&name, now);
                self.plan_again_if(changed);
                if name == self.settings.member {
                    self.pause_after_failure(now);
                }
            }
            (Sending::Announce { .. }, Answer::Lease(lease)) => {
                self.requests.announced = true;
                self.see_own(lease, now);
            }
            // The Lease was renewed since its version was read. The announcement is repeated with a later version.
            (Sending::Announce { version }, Answer::Conflict) => {
                self.requests.announce_conflict = Some(version)
            }
            (Sending::Delete(name), Answer::Deleted | Answer::NotFound) => {
                let changed = self.members.mark_absent(&name, now);
                self.plan_again_if(changed);
            }
            (
                call,
                Answer::Lease(_)
                | Answer::Deleted
                | Answer::NotFound
                | Answer::Conflict
                | Answer::Failed,
            ) => {
                self.requests.has_failed = !matches!(call, Sending::ReadGroup);
                self.pause_after_failure(now);
            }
        }
    }

    fn pause_after_failure(&mut self, now: Time) {
        self.requests.pause = now + jitter(FAILURE_PAUSE, 1.0, &mut self.jitter);
    }

    fn send_call(&mut self, now: Time, sending: Sending, call: Call) -> Step {
        debug_assert!(self.requests.sent.is_none(), "one request at a time");
        // If there is no response by this time, the call has failed for this replica. The API server may still execute
        // it.
        let until = now + self.settings.request_limit;
        // A caller that begins to wait from now on needs a read that is sent later than this call.
        self.requests.read_again = false;
        self.requests.sent = Some(Sent { call: sending, at: now, until });
        Step::Call(call)
    }

    fn read_group(&mut self, now: Time) -> Step {
        self.requests.has_failed = false;
        self.send_call(now, Sending::ReadGroup, Call::Read(self.settings.name.clone()))
    }

    fn announce_stop(&mut self, now: Time) -> Step {
        let own = self.own.as_ref().map(|(lease, _)| (lease, lease.resource_version()));
        match own {
            Some((lease, version)) if self.requests.announce_conflict != Some(version) => {
                let annotations = Map::from_iter([(STOPPING.to_owned(), Value::from("true"))]);
                let json = lease.with_annotations(annotations);
                self.send_call(now, Sending::Announce { version }, Call::Replace(json))
            }
            _ => {
                let member = Arc::clone(&self.settings.member);
                let read = Call::Read(member.to_string());
                self.send_call(now, Sending::ReadMember(member), read)
            }
        }
    }

    /// Returns the assignment that this replica must write, or `None` if it must write nothing.
    fn planned_assignment(&self, group: &GroupLease, now: Time) -> Option<Assignment> {
        let desired = self.desired.as_ref()?;
        let me = &self.settings.member;
        let longest = self.longest_lease();
        let may_take =
            self.phase == Phase::Member && !self.members.has_foreign(group.uid(), longest, now);
        let mut assignment = group.assignment.clone();
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let mine = desired[shard].as_ref() == Some(me);
            let to = match (self.local[shard], &slot.holder) {
                (Local::Drained { .. } | Local::Given { .. }, _) if !mine => desired[shard].clone(),
                // This replica also writes the shards of other desired holders. If the desired holder has joined after
                // the crash, it notices the death one lease duration later than this replica.
                (Local::Elsewhere, None) if may_take => desired[shard].clone(),
                (Local::Elsewhere, Some(holder))
                    if may_take && self.members.is_dead(holder, longest, now) =>
                {
                    desired[shard].clone()
                }
                _ => continue,
            };
            // Rule 2: the holder of a shard changes only if all runs of the shard have ended, or if the holder is dead.
            debug_assert!(
                !matches!(self.local[shard], Local::Held { .. } | Local::Releasing { .. }),
                "shard {shard} is still in use"
            );
            assignment.set_holder(shard, to);
        }
        // A write without a response is repeated with the same precondition, so at most one of the two can succeed.
        (assignment != group.assignment || self.requests.unresolved.is_some()).then_some(assignment)
    }

    /// Deletes the Lease of a dead member. Only the first of the candidates does this, so that others do not send the
    /// same request.
    fn collect_garbage(&mut self, now: Time) -> Option<Step> {
        let group = self.group.as_ref()?;
        let holds = |name: &str| group.assignment.holds(name);
        self.members.forget_gone(group.uid(), holds, self.longest_lease(), now);
        if self.receiving_members(group).first() != Some(&self.settings.member) {
            return None;
        }
        let lease = &self.members.next_garbage(holds)?.lease;
        let call = Call::Delete {
            name: lease.name().to_owned(),
            uid: lease.uid().to_owned(),
            version: lease.resource_version(),
        };
        let name = Arc::from(lease.name());
        Some(self.send_call(now, Sending::Delete(name), call))
    }
}

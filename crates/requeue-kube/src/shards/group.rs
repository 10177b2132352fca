//! The protocol of a shard group, as a state machine without a clock and without a network.
//!
//! # Safety
//!
//! Invariant: no two replicas act on a shard at the same time.
//!
//! 1. A replica acts on a shard only while it holds its member Lease, and while the last version of
//!    the group object that it has seen names it as the holder. Its right ends one renew deadline
//!    after its last successful renewal was sent. A replica whose right has ended never acts again.
//!    A Lease has one term only: if the response to its creation is lost, others may observe that
//!    it expires. The replica therefore makes one attempt with each name.
//! 2. The group object changes only by writes that name the version that the writer has read. Two
//!    kinds of writers change the holder of a shard. One is the present holder, after all runs of the
//!    shard have ended. The other is a replica that knows that the present holder is
//!    [dead](super::members), which is permanent.
//! 3. A holder that has sent such a write does not act on the shard before it has seen a later
//!    version of the object that names it. From then on the write can no longer succeed, even if
//!    it is still on its way.
//!
//! By 2, what a live holder has seen remains true until it changes it itself. A late watch can
//! therefore delay a member, but cannot make it act on the shard of another.
//!
//! Only the rates of the clocks matter, as in the election: the faster clock may exceed the slower
//! one by less than the ratio of lease to renew deadline. A machine that was suspended may believe
//! that all members have expired when it resumes. It then reads their Leases before it acts on that.
//!
//! A group object that is deleted ends the membership of all its members. They may notice it late.
//! Each member Lease names the uid of the group object. As long as a Lease with another uid belongs
//! to a member that may be alive, no shard of the new object is taken.
//!
//! # Progress
//!
//! All replicas compute the [desired assignment](super::balance) from the group object and the live
//! members, except for [new](super::members) ones. A holder hands a surplus shard over: it asks for
//! its [release](Change::Release), waits until it is drained, and writes the new holder. If a run
//! exceeds the time limit, its [cancellation](Change::Cancel) is requested: until the run ends, no
//! other key of the shard can run. A member that stops hands over all of its shards, and then
//! releases and deletes its Lease.
//! The desired holder takes the shards of a dead member, and those without a holder.
//!
//! A member whose watch has not shown its own renewals for a renew deadline lists the Leases again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::{JitterSource, jitter};
use serde_json::{Map, Value};

use super::assignment::{Assignment, GroupLease, STOPPING};
use super::balance;
use super::members::{Member, Members, State};
use super::protocol::{Answer, Call, Change, End, Gain, Settings, Source, Step, Watched};
use crate::leader::Lease;

/// The base of the pause after a conflict. Several members that write at once take turns.
const CONFLICT_PAUSE: Duration = Duration::from_millis(10);
/// The base of the pause after a request that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(400);

/// One replica's part in a group. The caller passes the time, makes the requests, and passes the
/// events of a watch on all Leases of the group.
pub(super) struct Group {
    settings: Settings,
    jitter: JitterSource,
    phase: Phase,
    /// The first list is complete.
    listed: bool,
    group: Option<GroupLease>,
    /// The list in progress has not shown the group object.
    unlisted: bool,
    members: Members,
    /// This replica's Lease as last observed, and when its record was.
    own: Option<(Lease, Time)>,
    local: Vec<Local>,
    desired: Option<Vec<Option<Arc<str>>>>,
    sent: Option<Sent>,
    /// No request is sent before.
    pause: Time,
    /// Nothing is due before, unless something changes.
    idle_until: Time,
    /// A write of this version had no response, and may still succeed.
    unresolved: Option<u64>,
    /// A write of this version met a conflict.
    conflict: Option<u64>,
    /// The object must be read: it exists, but the watch has not shown it, or a reader waits.
    read: bool,
    /// A reader has begun to wait since the read in flight was sent.
    read_again: bool,
    /// The start of the last successful read or write of the object.
    confirmed: Option<Time>,
    announced: bool,
    /// The announcement met a conflict at this version of the own Lease.
    announce_conflict: Option<u64>,
    relisted: Time,
    changes: VecDeque<Change>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// The group object is not known yet.
    Looking,
    /// The member Lease is about to be created. The replica may have to stop when it is.
    Joining {
        stops: bool,
    },
    Member,
    Stopping,
    Ended(End),
}

/// A shard from this replica's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Local {
    Elsewhere,
    Held {
        number: i32,
    },
    /// Its runs are draining.
    Releasing {
        number: i32,
        since: Time,
        cancelled: bool,
    },
    /// No run is left. The object still names this replica.
    Drained {
        number: i32,
        since: Time,
    },
    /// A write of a new holder was sent.
    Given {
        number: i32,
        since: Time,
    },
}

struct Sent {
    call: Sending,
    at: Time,
    until: Time,
}

enum Sending {
    CreateGroup,
    ReadGroup,
    WriteGroup { version: u64 },
    ReadMember(Arc<str>),
    Announce { version: u64 },
    Delete(Arc<str>),
}

impl Group {
    pub(super) fn new(settings: Settings, jitter: JitterSource, now: Time) -> Self {
        Self {
            jitter,
            phase: Phase::Looking,
            listed: false,
            group: None,
            unlisted: false,
            members: Members::new(settings.lease_duration),
            own: None,
            local: vec![Local::Elsewhere; settings.layout.count],
            desired: None,
            sent: None,
            pause: now,
            idle_until: Time::ZERO,
            unresolved: None,
            conflict: None,
            read: false,
            read_again: false,
            confirmed: None,
            announced: false,
            announce_conflict: None,
            relisted: now,
            changes: VecDeque::new(),
            settings,
        }
    }

    /// Returns the next step at `now`. `right` is the end of the right that the member Lease gives,
    /// if it was acquired. `wall` is the time of day.
    pub(super) fn poll(&mut self, now: Time, right: Option<Time>, wall: Timestamp) -> Step {
        if self.sent.as_ref().is_some_and(|sent| now >= sent.until) {
            self.answer(now, Answer::Failed);
        }
        if let Phase::Joining { stops } = self.phase
            && right.is_some()
        {
            self.phase = if stops { Phase::Stopping } else { Phase::Member };
            self.relisted = now;
            self.changed(true);
            // Others may have handed shards over before the response to the creation arrived.
            if let Some(group) = self.group.take() {
                self.follow(&group, None, now);
                self.group = Some(group);
            }
        }
        if self.is_member() && right.is_none_or(|right| now >= right) {
            self.phase = Phase::Ended(End::Lost);
        }
        if let Phase::Ended(end) = &self.phase {
            return Step::Ended(end.clone());
        }
        let right = right.unwrap_or(Time::NEVER);
        if self.sent.is_none() && self.pause <= now && now < self.idle_until {
            return Step::Wait(right.min(self.idle_until));
        }
        self.settle(now);
        let wait = self.next_cancellation().min(right);
        if let Some(sent) = &self.sent {
            return Step::Wait(wait.min(sent.until));
        }
        if now < self.pause {
            return Step::Wait(wait.min(self.pause));
        }
        if self.is_member() && now >= self.watch_deadline() {
            self.relisted = now;
            return Step::Relist;
        }
        let next = self.next(now, wall);
        next.unwrap_or_else(|| match &self.phase {
            Phase::Ended(end) => Step::Ended(end.clone()),
            _ => {
                let wait = wait.min(self.deadline(now));
                self.idle_until = wait;
                Step::Wait(wait)
            }
        })
    }

    /// Handles the result of the call in flight.
    pub(super) fn answer(&mut self, now: Time, answer: Answer) {
        let Some(sent) = self.sent.take() else { return };
        self.idle_until = Time::ZERO;
        match (sent.call, answer) {
            (Sending::CreateGroup | Sending::ReadGroup, Answer::Lease(lease)) => {
                self.see_group(lease, now);
                self.read = std::mem::take(&mut self.read_again);
                (self.conflict, self.confirmed) = (None, Some(sent.at));
            }
            // It exists. The watch may not have shown it yet, or it has no label.
            (Sending::CreateGroup, Answer::Conflict) => self.read = true,
            (Sending::CreateGroup, Answer::NotFound) => self.phase = Phase::Ended(End::NoNamespace),
            (Sending::ReadGroup, Answer::NotFound) => {
                self.read = false;
                self.group_deleted();
            }
            (Sending::WriteGroup { .. }, Answer::Lease(lease)) => {
                self.see_group(lease, now);
                self.confirmed = Some(sent.at);
            }
            (Sending::WriteGroup { version }, Answer::Conflict) => {
                self.conflict = Some(version);
                self.pause = now + jitter(CONFLICT_PAUSE, 4.0, &mut self.jitter);
            }
            (Sending::WriteGroup { .. }, Answer::NotFound) => self.group_deleted(),
            (Sending::ReadMember(name), Answer::Lease(lease)) => {
                if name == self.settings.member {
                    self.see_own(lease, now);
                } else {
                    let changed = self.members.verify(lease, sent.at, now);
                    self.changed(changed);
                }
            }
            (Sending::ReadMember(name), Answer::NotFound) => {
                let changed = self.members.absent(&name, now);
                self.changed(changed);
                if name == self.settings.member {
                    self.pause_after_failure(now);
                }
            }
            (Sending::Announce { .. }, Answer::Lease(lease)) => {
                self.announced = true;
                self.see_own(lease, now);
            }
            // A renewal has changed the Lease in the meantime.
            (Sending::Announce { version }, Answer::Conflict) => {
                self.announce_conflict = Some(version)
            }
            (Sending::Delete(name), Answer::Deleted | Answer::NotFound) => {
                let changed = self.members.absent(&name, now);
                self.changed(changed);
            }
            (
                _,
                Answer::Lease(_)
                | Answer::Deleted
                | Answer::NotFound
                | Answer::Conflict
                | Answer::Failed,
            ) => {
                self.pause_after_failure(now);
            }
        }
    }

    /// Handles an event of the watch.
    pub(super) fn watched(&mut self, now: Time, event: Watched) {
        match event {
            Watched::Restart => {
                self.members.list();
                self.unlisted = true;
            }
            Watched::Listed(lease) | Watched::Applied(lease) => self.see(lease, now),
            Watched::Deleted(lease) => {
                if lease.name() == self.settings.name {
                    if self.group.as_ref().is_some_and(|group| group.uid() == lease.uid()) {
                        self.group_deleted();
                    }
                } else if lease.name() != &*self.settings.member {
                    let changed = self.members.absent(lease.name(), now);
                    self.changed(changed);
                }
            }
            Watched::Complete => {
                self.listed = true;
                self.members.listed(now);
                self.changed(true);
                if self.unlisted && self.group.is_some() {
                    self.group_deleted();
                }
            }
        }
    }

    /// Reports that no run of these shards is left, after their release or cancellation.
    pub(super) fn drained(&mut self, now: Time, shards: impl IntoIterator<Item = usize>) {
        for shard in shards {
            if let Some(local) = self.local.get_mut(shard)
                && let Local::Releasing { number, .. } = *local
            {
                *local = Local::Drained { number, since: now };
            }
        }
        self.idle_until = Time::ZERO;
    }

    /// Announces that this replica stops, and hands all shards over. The part ends when that is
    /// done.
    pub(super) fn stop(&mut self) {
        match self.phase {
            Phase::Looking => self.phase = Phase::Ended(End::Left),
            Phase::Member => {
                self.phase = Phase::Stopping;
                self.changed(true);
            }
            Phase::Joining { .. } => self.phase = Phase::Joining { stops: true },
            Phase::Stopping | Phase::Ended(_) => {}
        }
    }

    /// Reads the group object, so that `confirmed` becomes later than now.
    pub(super) fn confirm(&mut self) {
        (self.read, self.read_again) = (true, self.sent.is_some());
        self.idle_until = Time::ZERO;
    }

    pub(super) fn confirmed(&self) -> Option<Time> {
        self.confirmed
    }

    /// Returns the next change for the controller.
    pub(super) fn change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns the fencing number of a shard on which this replica acts, as long as its right has
    /// not ended.
    pub(super) fn acts(&self, shard: usize) -> Option<i32> {
        if !self.is_member() {
            return None;
        }
        match self.local[shard] {
            Local::Held { number } | Local::Releasing { number, .. } => Some(number),
            Local::Elsewhere | Local::Drained { .. } | Local::Given { .. } => None,
        }
    }

    pub(super) fn group(&self) -> Option<&GroupLease> {
        self.group.as_ref()
    }

    fn is_member(&self) -> bool {
        matches!(self.phase, Phase::Member | Phase::Stopping)
    }

    fn changed(&mut self, changed: bool) {
        if changed {
            (self.desired, self.idle_until) = (None, Time::ZERO);
        }
    }

    fn pause_after_failure(&mut self, now: Time) {
        self.pause = now + jitter(FAILURE_PAUSE, 1.0, &mut self.jitter);
    }

    fn longest(&self) -> Duration {
        let stored = self.group.as_ref().map_or(0, |group| group.lease_seconds);
        Duration::from_secs(stored).max(self.settings.lease_duration)
    }

    fn watch_deadline(&self) -> Time {
        let seen = self.own.as_ref().map_or(Time::ZERO, |(_, since)| *since);
        seen.max(self.relisted) + self.settings.renew_deadline
    }

    fn next_cancellation(&self) -> Time {
        let limit = self.settings.handover_limit;
        let releases = self.local.iter().filter_map(|local| match local {
            Local::Releasing { since, cancelled: false, .. } => Some(*since + limit),
            _ => None,
        });
        releases.min().unwrap_or(Time::NEVER)
    }

    /// Returns the next time at which a request is due without an event.
    fn deadline(&self, now: Time) -> Time {
        if !self.is_member() {
            return Time::NEVER;
        }
        self.watch_deadline().min(self.members.deadline(self.longest(), now))
    }

    fn see(&mut self, lease: Lease, now: Time) {
        if lease.name() == self.settings.name {
            self.unlisted = false;
            self.see_group(lease, now);
        } else if lease.name() == &*self.settings.member {
            self.see_own(lease, now);
        } else {
            let changed = self.members.see(lease, now);
            self.changed(changed);
        }
    }

    fn see_own(&mut self, lease: Lease, now: Time) {
        let changed = match &mut self.own {
            Some((seen, _)) if lease.version() <= seen.version() => false,
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
        self.changed(changed);
    }

    /// Returns the members that receive shards, in the order of their names.
    fn candidates(&self, group: &GroupLease) -> Vec<Arc<str>> {
        let is_renewed = self.own.as_ref().is_some_and(|(lease, _)| lease.is_renewed());
        let own = (Arc::clone(&self.settings.member), is_renewed);
        self.members.candidates(group, (self.phase == Phase::Member).then_some(own))
    }

    fn see_group(&mut self, lease: Lease, now: Time) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        self.unlisted = false;
        if self.group.as_ref().is_some_and(|group| group.version >= lease.version()) {
            return;
        }
        if self.group.as_ref().is_some_and(|group| group.uid() != lease.uid()) {
            self.group_deleted();
            if matches!(self.phase, Phase::Ended(_)) {
                return;
            }
        }
        let group = match GroupLease::read(lease) {
            Ok(group) if group.layout == self.settings.layout => group,
            Ok(group) => return self.phase = Phase::Ended(End::Mismatch(group.layout)),
            Err(unreadable) => return self.phase = Phase::Ended(End::Unreadable(unreadable)),
        };
        let before = self.group.take();
        self.idle_until = Time::ZERO;
        if self.is_member() {
            self.follow(&group, before.as_ref(), now);
        }
        if self.unresolved.is_some_and(|version| version < group.version) {
            self.unresolved = None;
        }
        if self.conflict.is_some_and(|version| version < group.version) {
            self.conflict = None;
        }
        if before.is_none_or(|before| before.assignment != group.assignment) {
            self.desired = None;
        }
        self.group = Some(group);
    }

    /// Applies a new version of the assignment to the shards of this replica.
    fn follow(&mut self, group: &GroupLease, before: Option<&GroupLease>, now: Time) {
        let (mut gained, mut lost, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let mine = slot.holder.as_ref() == Some(&self.settings.member);
            let local = self.local[shard];
            let next = match (local, mine) {
                (Local::Elsewhere, false) => Local::Elsewhere,
                // The write of another holder can no longer succeed: it named an earlier version.
                (Local::Given { number, since }, true) if number == slot.number => {
                    Local::Drained { number, since }
                }
                (
                    Local::Held { number }
                    | Local::Releasing { number, .. }
                    | Local::Drained { number, .. },
                    true,
                ) if number == slot.number => local,
                (_, true) => {
                    if matches!(local, Local::Held { .. } | Local::Releasing { .. }) {
                        lost.push(shard);
                    }
                    let from = before.map(|before| &before.assignment.slots()[shard]);
                    let from = self.source(from.and_then(|slot| slot.holder.as_ref()), now);
                    gained.push(Gain { shard, number: slot.number, from });
                    Local::Held { number: slot.number }
                }
                (Local::Given { since, .. } | Local::Drained { since, .. }, false) => {
                    moved.push((shard, now.since(since)));
                    Local::Elsewhere
                }
                (Local::Held { .. } | Local::Releasing { .. }, false) => {
                    lost.push(shard);
                    Local::Elsewhere
                }
            };
            self.local[shard] = next;
        }
        self.report(lost, Change::Lost);
        self.report(moved, Change::Moved);
        self.report(gained, Change::Gained);
    }

    fn report<T>(&mut self, of: Vec<T>, change: fn(Vec<T>) -> Change) {
        if !of.is_empty() {
            self.changes.push_back(change(of));
        }
    }

    fn source(&self, holder: Option<&Arc<str>>, now: Time) -> Source {
        let Some(holder) = holder else { return Source::Nobody };
        match self.members.get(holder) {
            Some(Member { state: State::Live, .. }) => Source::Member(Arc::clone(holder)),
            Some(Member { since, .. }) => Source::Dead(Arc::clone(holder), now.since(*since)),
            None => Source::Dead(Arc::clone(holder), Duration::ZERO),
        }
    }

    fn group_deleted(&mut self) {
        self.idle_until = Time::ZERO;
        if self.group.take().is_some() || self.is_member() {
            self.phase = match &self.phase {
                Phase::Looking => Phase::Looking,
                Phase::Joining { .. } | Phase::Member | Phase::Stopping => {
                    Phase::Ended(End::Deleted)
                }
                Phase::Ended(end) => Phase::Ended(end.clone()),
            };
        }
    }

    /// Computes the desired assignment, and asks for the release of shards that must move.
    fn settle(&mut self, now: Time) {
        if !self.is_member() {
            return;
        }
        let Some(group) = &self.group else { return };
        let desired = match self.desired.take() {
            Some(desired) => desired,
            None => balance::desired(&group.assignment, &self.candidates(group)),
        };
        let (mut release, mut cancel, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, local) in self.local.iter_mut().enumerate() {
            let mine = desired[shard].as_ref() == Some(&self.settings.member);
            match *local {
                Local::Held { number } if !mine => {
                    *local = Local::Releasing { number, since: now, cancelled: false };
                    release.push(shard);
                }
                Local::Releasing { number, since, cancelled: false }
                    if now >= since + self.settings.handover_limit =>
                {
                    *local = Local::Releasing { number, since, cancelled: true };
                    cancel.push(shard);
                }
                Local::Drained { number, .. } if mine => {
                    *local = Local::Held { number };
                    kept.push(Gain { shard, number, from: Source::Itself });
                }
                _ => {}
            }
        }
        self.desired = Some(desired);
        self.report(kept, Change::Gained);
        self.report(release, Change::Release);
        self.report(cancel, Change::Cancel);
    }

    /// Returns the next request that is due.
    fn next(&mut self, now: Time, wall: Timestamp) -> Option<Step> {
        if !self.listed {
            return None;
        }
        if self.read || self.conflict.is_some() {
            return Some(self.call(
                now,
                Sending::ReadGroup,
                Call::Read(self.settings.name.clone()),
            ));
        }
        let seconds = self.settings.lease_duration.as_secs();
        let Some(group) = &self.group else {
            let Settings { name, layout, .. } = &self.settings;
            let json = GroupLease::create(name, name, layout, seconds, wall);
            return Some(self.call(now, Sending::CreateGroup, Call::Create(json)));
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
        if self.phase == Phase::Stopping && !self.announced {
            return Some(self.announce(now));
        }
        if let Some(assignment) = self.plan(group, now) {
            let version = group.version;
            let json = group.write(&assignment, seconds.max(self.members.longest()));
            for (local, slot) in self.local.iter_mut().zip(assignment.slots()) {
                if let Local::Drained { number, since } = *local
                    && slot.holder.as_ref() != Some(&self.settings.member)
                {
                    *local = Local::Given { number, since };
                }
            }
            self.unresolved = Some(version);
            return Some(self.call(now, Sending::WriteGroup { version }, Call::Replace(json)));
        }
        if self.phase == Phase::Stopping && !group.assignment.holds(&self.settings.member) {
            self.phase = Phase::Ended(End::Left);
            return None;
        }
        let holders = group.assignment.slots().iter().filter_map(|slot| slot.holder.as_ref());
        let holders = holders.filter(|holder| **holder != self.settings.member);
        if let Some(suspect) = self.members.suspect(holders, now) {
            let read = Call::Read(suspect.to_string());
            return Some(self.call(now, Sending::ReadMember(suspect), read));
        }
        self.collect(now)
    }

    fn call(&mut self, now: Time, sending: Sending, call: Call) -> Step {
        let until = now + self.settings.request_limit;
        self.sent = Some(Sent { call: sending, at: now, until });
        Step::Call(call)
    }

    fn announce(&mut self, now: Time) -> Step {
        match &self.own {
            Some((lease, _)) if self.announce_conflict != Some(lease.version()) => {
                let mut annotations = Map::new();
                annotations.insert(STOPPING.to_owned(), Value::from("true"));
                let (version, json) = (lease.version(), lease.annotate(annotations));
                self.call(now, Sending::Announce { version }, Call::Replace(json))
            }
            _ => {
                let member = Arc::clone(&self.settings.member);
                let read = Call::Read(member.to_string());
                self.call(now, Sending::ReadMember(member), read)
            }
        }
    }

    /// Returns the assignment to write, or `None` if no write is due.
    fn plan(&self, group: &GroupLease, now: Time) -> Option<Assignment> {
        let desired = self.desired.as_ref()?;
        let me = &self.settings.member;
        let longest = self.longest();
        let may_take =
            self.phase == Phase::Member && !self.members.has_foreign(group.uid(), longest, now);
        let mut assignment = group.assignment.clone();
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let mine = desired[shard].as_ref() == Some(me);
            let to = match (self.local[shard], &slot.holder) {
                (Local::Drained { .. } | Local::Given { .. }, _) if !mine => desired[shard].clone(),
                (Local::Elsewhere, None) if mine && may_take => Some(Arc::clone(me)),
                (Local::Elsewhere, Some(holder))
                    if mine && may_take && self.members.is_dead(holder, longest, now) =>
                {
                    Some(Arc::clone(me))
                }
                _ => continue,
            };
            assignment.set(shard, to);
        }
        // A write without a response is settled by another one: only one of them can succeed.
        (assignment != group.assignment || self.unresolved.is_some()).then_some(assignment)
    }

    /// Deletes the Lease of a dead member. The first candidate does it for all.
    fn collect(&mut self, now: Time) -> Option<Step> {
        let group = self.group.as_ref()?;
        let holds = |name: &str| group.assignment.holds(name);
        self.members.forget(group.uid(), holds, self.longest(), now);
        if self.candidates(group).first() != Some(&self.settings.member) {
            return None;
        }
        let lease = &self.members.garbage(holds)?.lease;
        let call = Call::Delete {
            name: lease.name().to_owned(),
            uid: lease.uid().to_owned(),
            version: lease.version(),
        };
        let name = Arc::from(lease.name());
        Some(self.call(now, Sending::Delete(name), call))
    }
}

//! The states of the shards at this replica. A shard is handed over only after its runs have ended.

use std::sync::Arc;

use requeue::Time;

use super::Group;
use crate::membership::assignment::GroupLease;
use crate::membership::balance;
use crate::membership::protocol::{Change, Gain, Source};

/// The state of a shard at this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Local {
    Elsewhere,
    Held {
        number: i32,
    },
    /// The user was asked to end the runs of the shard, and has not reported this yet.
    Releasing {
        number: i32,
        since: Time,
        cancelled: bool,
    },
    /// No run of the shard is in flight. The group object still names this replica as the holder.
    Drained {
        number: i32,
        since: Time,
    },
    /// This replica has sent a write that names a new holder.
    Given {
        number: i32,
        since: Time,
    },
}

impl Group {
    /// Notes that no run of these shards is in flight, because the user has reported this after a release or
    /// cancellation.
    pub(in super::super) fn mark_drained(
        &mut self,
        now: Time,
        shards: impl IntoIterator<Item = usize>,
    ) {
        for shard in shards {
            // The report may be late. If the shard was lost and gained again since the report was sent, the report is
            // ignored.
            if let Some(local) = self.local.get_mut(shard)
                && let Local::Releasing { number, .. } = *local
            {
                *local = Local::Drained { number, since: now };
            }
        }
        self.idle_until = Time::ZERO;
    }

    /// Returns the number in the fencing token of a shard on which this replica acts. The result is valid only until
    /// the replica's right ends.
    pub(in super::super) fn acting_number(&self, shard: usize) -> Option<i32> {
        if !self.is_member() {
            return None;
        }
        match self.local[shard] {
            Local::Held { number } | Local::Releasing { number, .. } => Some(number),
            Local::Elsewhere | Local::Drained { .. } | Local::Given { .. } => None,
        }
    }

    /// Computes the desired assignment, and requests the release of the shards that must move.
    pub(super) fn settle_shards(&mut self, now: Time) {
        if !self.is_member() {
            return;
        }
        let Some(group) = &self.group else { return };
        let desired = match self.desired.take() {
            Some(desired) => desired,
            None => balance::desired_holders(&group.assignment, &self.receiving_members(group)),
        };
        let mut release = Vec::new();
        let mut cancel = Vec::new();
        let mut kept = Vec::new();
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
        // The result is kept for the following writes, until an event changes the members or the group object.
        self.desired = Some(desired);
        self.report_change(kept, Change::Gained);
        self.report_change(release, Change::Release);
        self.report_change(cancel, Change::Cancel);
    }

    /// Applies a new version of the assignment to the states of the shards.
    pub(super) fn follow_assignment(
        &mut self,
        group: &GroupLease,
        before: Option<&GroupLease>,
        now: Time,
    ) {
        let mut gained = Vec::new();
        let mut lost = Vec::new();
        let mut moved = Vec::new();
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let mine = slot.holder.as_ref() == Some(&self.settings.member);
            let local = self.local[shard];
            let next = match (local, mine) {
                (Local::Elsewhere, false) => Local::Elsewhere,
                // The precondition of this replica's write is an earlier version of the object, so the write can no
                // longer succeed. The replica keeps the shard.
                (Local::Given { number, since }, true) if number == slot.number => {
                    Local::Drained { number, since }
                }
                (
                    Local::Held { number }
                    | Local::Releasing { number, .. }
                    | Local::Drained { number, .. },
                    true,
                ) if number == slot.number => local,
                // The number has changed, so another replica has held the shard in the meantime, and may have acted on
                // it. The runs that this replica began under the former number must end.
                (_, true) => {
                    if matches!(local, Local::Held { .. } | Local::Releasing { .. }) {
                        lost.push(shard);
                    }
                    let from = before.map(|before| &before.assignment.slots()[shard]);
                    let holder = from.and_then(|slot| slot.holder.as_ref());
                    let from = self.source_of(holder, group.writer(), now);
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
        // Losses are reported first. If a shard was lost and gained again, its old runs are then cancelled before the
        // shard is reported as gained.
        self.report_change(lost, Change::Lost);
        self.report_change(moved, Change::Moved);
        self.report_change(gained, Change::Gained);
    }

    /// Returns how this replica got a shard that `holder` held before. `writer` is the member that wrote the new
    /// assignment.
    fn source_of(&self, holder: Option<&Arc<str>>, writer: Option<&str>, now: Time) -> Source {
        let Some(holder) = holder else { return Source::Nobody };
        if writer == Some(&**holder) {
            return Source::Member(Arc::clone(holder));
        }
        // If this replica joined after the crash, it has seen the Lease only since its join. The time then begins with
        // the join.
        let since = self.members.get(holder).map_or(now, |member| member.since);
        Source::Dead(Arc::clone(holder), now.since(since))
    }

    fn report_change<T>(&mut self, of: Vec<T>, change: fn(Vec<T>) -> Change) {
        if !of.is_empty() {
            self.changes.push_back(change(of));
        }
    }

    pub(super) fn next_cancellation(&self) -> Time {
        let limit = self.settings.handover_limit;
        let releases = self.local.iter().filter_map(|local| match local {
            Local::Releasing { since, cancelled: false, .. } => Some(*since + limit),
            _ => None,
        });
        releases.min().unwrap_or(Time::NEVER)
    }
}

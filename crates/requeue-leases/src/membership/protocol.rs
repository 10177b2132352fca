//! The inputs and the outputs of the protocol's state machine.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher;
use requeue::Time;

use super::assignment::{Layout, Unreadable};
use crate::lease::Lease;
use crate::requests::Call;

/// The settings of a group that the protocol needs.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The name of the group, which is also the name of the group object.
    pub(super) name: String,
    /// The name of this replica's member Lease. No other member Lease ever has the same name.
    pub(super) member: Arc<str>,
    pub(super) layout: Layout,
    pub(super) lease_duration: Duration,
    pub(super) renew_deadline: Duration,
    pub(super) request_limit: Duration,
    pub(super) handover_limit: Duration,
}

/// An event of the watch on the Leases of the group. Events arrive in the order of their versions.
///
/// The request of a list is sent after its `Init` event.
pub(crate) type Watched = watcher::Event<Lease>;

/// The next step that the driver must take.
#[must_use]
#[derive(Debug)]
pub(super) enum Step {
    /// Make this call, and poll again without waiting for the response. If the response is late,
    /// the call has failed.
    Call(Call),
    /// Create the member Lease. Its annotation must contain the uid of the group object.
    Join { group: String },
    /// List the Leases again, because the watch has shown no event for too long.
    Relist,
    /// Wait until this time, and then poll again.
    Wait(Time),
    /// The participation of this replica has ended. There is no further step.
    Ended(End),
}

/// The way in which a replica's participation in a group has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// All shards were handed over. The driver can release and delete the member Lease.
    Left,
    /// The right to act has ended, because the member Lease was lost.
    Lost,
    /// The group object was deleted.
    Deleted,
    /// The namespace does not exist.
    NoNamespace,
    /// The existing group has this layout, which differs from that of this replica.
    Mismatch(Layout),
    Unreadable(Unreadable),
}

/// A change of the shards of this replica, which the driver sends to the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Gained(Vec<Gain>),
    /// Start no further run in these shards, and report when the runs in flight have ended.
    Release(Vec<usize>),
    /// Cancel the runs that are still in flight, and report when they have ended.
    Cancel(Vec<usize>),
    /// Another process has changed the holder of these shards. Cancel all their runs now.
    Lost(Vec<usize>),
    /// This replica has written the new holders of these shards. Contains the time from the drain
    /// of each shard to this write.
    Moved(Vec<(usize, Duration)>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gain {
    pub(super) shard: usize,
    pub(super) number: i32,
    pub(super) from: Source,
}

/// The holder of a gained shard before this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// The shard had no holder.
    Nobody,
    /// A live member, which has handed the shard over.
    Member(Arc<str>),
    /// A dead member, and the time since the last renewal that this replica has seen.
    Dead(Arc<str>, Duration),
    /// This replica itself, which has drained the shard, but keeps it after all.
    Itself,
}

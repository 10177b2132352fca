//! The inputs and the outputs of the protocol.

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
    /// The name of the group, and of its object.
    pub(super) name: String,
    /// The name of this replica's Lease. No other replica ever has the same name.
    pub(super) member: Arc<str>,
    pub(super) layout: Layout,
    pub(super) lease_duration: Duration,
    pub(super) renew_deadline: Duration,
    pub(super) request_limit: Duration,
    pub(super) handover_limit: Duration,
}

/// An event of the watch on the Leases of the group, in the order of their versions.
///
/// A list is requested after its `Init` event.
pub(crate) type Watched = watcher::Event<Lease>;

/// The next step of the driver.
#[must_use]
#[derive(Debug)]
pub(super) enum Step {
    /// Make this call, and immediately poll again. If the response is late, the call counts as failed.
    Call(Call),
    /// Acquire the member Lease, with the uid of the group object in its annotation.
    Join { group: String },
    /// List the Leases again, because the watch is silent.
    Relist,
    /// Wait until this time.
    Wait(Time),
    /// The participation of this replica has ended.
    Ended(End),
}

/// The way in which a replica's participation in a group ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// All shards were handed over. The member Lease can be released and deleted.
    Left,
    /// The member Lease was lost.
    Lost,
    /// The group object was deleted.
    Deleted,
    /// The namespace does not exist.
    NoNamespace,
    /// The group has another layout than this replica.
    Mismatch(Layout),
    Unreadable(Unreadable),
}

/// A change for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Gained(Vec<Gain>),
    /// Start no further run of these shards, and report when the runs in flight have ended.
    Release(Vec<usize>),
    /// Cancel the runs that are still in flight, and report when they have ended.
    Cancel(Vec<usize>),
    /// Another process has changed the holder of these shards. Cancel all their runs now.
    Lost(Vec<usize>),
    /// The new holders of these shards were written. Contains the time since the shards were drained.
    Moved(Vec<(usize, Duration)>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gain {
    pub(super) shard: usize,
    pub(super) number: i32,
    pub(super) from: Source,
}

/// The holder of a shard before this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// The shard had no holder.
    Nobody,
    /// A member that was alive.
    Member(Arc<str>),
    /// A dead member, and the time since its last observed renewal.
    Dead(Arc<str>, Duration),
    /// This replica, which had released the shard and keeps it after all.
    Itself,
}

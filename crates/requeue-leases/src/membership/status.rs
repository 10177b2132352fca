//! The state of a group, for observers.

use std::time::Duration;

use tokio::sync::watch;

use super::held::View;
use crate::clock::Clock;
use crate::metrics::GroupMeters;

/// The state of a shard group as this process has last seen it, for a dashboard.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The name of the group.
    pub group: String,
    /// The name of this process's member Lease.
    pub member: String,
    /// All shards, in the order of their numbers. Empty until the process has read the object of the group.
    pub shards: Vec<ShardStatus>,
    /// The number of shards that this process has received from live members.
    pub handovers: u64,
    /// The number of shards that this process has taken over from dead members.
    pub takeovers: u64,
}

/// A shard in a [`GroupStatus`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShardStatus {
    /// The name of the holder's member Lease, if the shard has a holder.
    pub holder: Option<String>,
    /// The time for which this process has held the shard, or `None` if it does not hold the shard.
    pub held_for: Option<Duration>,
}

/// Reads the state of a group.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(super) group: String,
    pub(super) member: String,
    pub(super) clock: Clock,
    pub(super) view: watch::Receiver<View>,
    pub(super) meters: GroupMeters,
}

impl Observer {
    /// Returns the state of the group as this process has last seen it.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        // The clock is read before the view is locked, because the driver needs that lock.
        let now = self.clock.now();
        let view = self.view.borrow();
        let shards = view.holders.iter().enumerate().map(|(shard, holder)| ShardStatus {
            holder: holder.as_deref().map(str::to_owned),
            held_for: view.held.get(shard).copied().flatten().map(|(_, at)| now.since(at)),
        });
        let [handovers, takeovers, _] = self.meters.moves.each_ref().map(|count| count.get());
        GroupStatus {
            group: self.group.clone(),
            member: self.member.clone(),
            shards: shards.collect(),
            handovers,
            takeovers,
        }
    }
}

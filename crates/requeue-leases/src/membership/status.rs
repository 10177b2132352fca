//! The state of a shard group, for observers.

use std::time::Duration;

use tokio::sync::watch;

use super::held::View;
use crate::clock::Clock;
use crate::metrics::GroupMeters;

/// The last state of a shard group that this process has seen, for example for a dashboard.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The name of the shard group.
    pub group: String,
    /// The name of the member Lease of this process.
    pub member: String,
    /// All shards, in the order of their numbers. Empty until this process has read the group object.
    pub shards: Vec<ShardStatus>,
    /// The number of shards that live members have handed over to this process.
    pub handovers: u64,
    /// The number of shards that this process has taken over from dead members.
    pub takeovers: u64,
}

/// The state of one shard in a [`GroupStatus`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShardStatus {
    /// The name of the holder's member Lease. `None` if the shard has no holder.
    pub holder: Option<String>,
    /// How long this process has held the shard. `None` if this process does not hold it.
    pub held_for: Option<Duration>,
}

/// A handle that reads the state of a group.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(super) group: String,
    pub(super) member: String,
    pub(super) clock: Clock,
    pub(super) view: watch::Receiver<View>,
    pub(super) meters: GroupMeters,
}

impl Observer {
    /// Returns the last state of the group that this process has seen.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        // The clock is read before the lock is acquired, because the driver needs the same lock.
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

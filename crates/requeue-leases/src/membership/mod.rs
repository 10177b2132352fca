//! Shard groups, in which replicas share the objects of a kind. When a replica joins or leaves, shards are handed over.
//!
//! A group divides the objects into a fixed number of [shards](crate::range), 64 by default. Each replica is a member,
//! and holds an equal number of shards. The members coordinate by Leases. The group needs no central component, no
//! webhook and no custom resource.
//!
//! - **One holder.** No two members act on a shard at the same time, even if requests are slow or lost, watches are
//!   late, or a member is disconnected. As in a [leader election](crate::leader), no machine's clock may run 1.5 times
//!   as fast as another's.
//! - **Late writes are rejected.** If a process is frozen in the middle of a write, it completes the write when it
//!   continues, although it may no longer hold the shard. With the [fence](HeldShard::fence) of the shard, the API
//!   server rejects this write.
//! - **Even shares.** If there are n members, each holds ⌊shards/n⌋ or ⌈shards/n⌉ shards. When a member joins or
//!   leaves, only the shards of its share move. A member receives its share after its first renewal.
//! - **Planned handovers.** A shard moves when its runs in flight have completed. The holder continues to work on its
//!   other shards. The old holder writes the new holder into the group object. The shard therefore has no active holder
//!   only during one write and one event.
//! - **Crashes.** If a member dies, the other members take over its shards when its Lease has expired by their clocks.
//!   This takes the lease duration, which is 15 s by default, and the time for two requests.
//! - **Idle cost.** While the members do not change, each member sends only one renewal of its Lease per retry period.
//!
//! ```no_run
//! use requeue_leases::membership::{Change, ShardGroup};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let group = ShardGroup::new("website", "default").count(64);
//! let client = group.client(kube::Config::infer().await?)?;
//! let mut membership = group.join(client).await?;
//! while let Some(change) = membership.next().await? {
//!     match change {
//!         Change::Gained(held) => println!("start to work on {} shards", held.len()),
//!         // When the runs of these shards have ended, report this.
//!         Change::Release(shards) | Change::Cancel(shards) => membership.drained(shards),
//!         Change::Lost(shards) => println!("cancel all work on {shards:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Objects of a group
//!
//! | Lease | content |
//! |---|---|
//! | the name of the group | the field and the kind of the sharded objects, and for each shard its holder and its fencing token, as annotations. Members change it by compare-and-swap. |
//! | the name of the group and a UUID, one for each member | the holder and the renewals, as in leader election; the uid of the group object; an annotation when the member is about to stop |
//!
//! All these Leases have the label `requeue/shard-group`. When a member stops, it deletes its Lease. The other members
//! delete the Lease of a dead member.
//!
//! # Long runs at a handover
//!
//! While a shard is being released, no run of its keys begins. A run that takes longer than
//! [`handover_timeout`](ShardGroup::handover_timeout), 30 s by default, must therefore be [cancelled](Change::Cancel).
//! The handover waits until the cancelled run has ended. The new holder reconciles the object of this run again, as
//! after a crash.
//!
//! # Members that have just joined
//!
//! A member receives shards after it has renewed its Lease once. It does this one [retry
//! period](crate::leader::Config::retry_period) after it joined, which is 2 s by default. A process in a crash loop
//! therefore receives no shards. If no live member has renewed its Lease yet, all members receive shards. For example,
//! the first member of a group takes all shards immediately.
//!
//! # Deleted objects
//!
//! - **A member Lease.** When its member next renews, it notices the deletion, and leaves the group. The other members
//!   wait for the longest lease duration of the group after they have noticed the deletion.
//! - **The group object.** All members leave the group with [`MembershipError::Deleted`]. The members of the next group
//!   object take no shards until the Leases of all former members were released or have expired.
//! - **Both at the same time.** Members that start afterwards cannot know that former members still run. Two members
//!   may then act on one shard, until the renew deadline of the former member has passed. Stop all members before you
//!   delete all Leases.
//!
//! # Permissions
//!
//! ```yaml
//! - apiGroups: [coordination.k8s.io]
//!   resources: [leases]
//!   verbs: [get, list, watch, create, update, delete]
//! - apiGroups: [events.k8s.io]
//!   resources: [events]
//!   verbs: [create, patch]
//! ```

mod assignment;
mod balance;
mod config;
mod driver;
mod error;
mod group;
mod handle;
mod held;
mod members;
pub(crate) mod protocol;
mod rights;
mod sharding;
mod status;
#[cfg(test)]
mod tests;
mod watch;

pub use self::config::ShardGroup;
pub use self::error::MembershipError;
pub use self::held::{Change, HeldShard};
// The type is hidden, because only requeue-kube uses it. It leaves the group after an interrupted join.
#[doc(hidden)]
pub use self::handle::Joining;
pub use self::handle::Membership;
// The types are hidden, because only requeue-kube uses them. They apply the changes of a group to controllers.
#[doc(hidden)]
pub use self::sharding::{ShardedWork, Sharding};
// The type is hidden, because only requeue-kube uses it. It shows the state of a group while another task applies the
// changes.
#[doc(hidden)]
pub use self::status::Observer;
pub use self::status::{GroupStatus, ShardStatus};

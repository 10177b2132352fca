//! Shard groups: replicas share the objects of a kind, and hand shards over when replicas join and
//! leave.
//!
//! A group divides the objects into a fixed number of [shards](crate::range), 64 by default. Each
//! replica is a member, and holds an equal part of the shards. The members agree through Leases,
//! without a central component, a webhook or a custom resource.
//!
//! - **One holder.** No two members act on a shard at the same time, even if requests are slow or lost, watches are
//!   late, or a member is disconnected. As in [leader election](crate::leader), no machine's clock may run 1.5 times as
//!   fast as the clock of another machine.
//! - **Late writes are rejected.** A process that was frozen in the middle of a write completes the write when it
//!   continues. With the [fence](HeldShard::fence) of its shard, the API server rejects that write.
//! - **Even shares.** With n members, each member has between ⌊shards/n⌋ and ⌈shards/n⌉ shards. When a member joins or
//!   leaves, only the shards in its share move. A member receives its share after its first renewal.
//! - **Planned handovers.** A shard moves when its runs in flight have completed. The other shards of the holder
//!   continue. The old holder writes the new holder, so the shard has no active holder only during one write and one
//!   event.
//! - **Crashes.** The shards of a member that dies are taken over when its Lease has expired by the clocks of the other
//!   members. This takes the lease duration, which is 15 s by default, and two requests.
//! - **Idle cost.** In a group that does not change, each member only sends one renewal of its Lease per retry period.
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
//!         // At this point, no work is in flight.
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
//! All these Leases have the label `requeue/shard-group`. A member that stops deletes its Lease.
//! Other members delete the Leases of dead members.
//!
//! # Long runs at a handover
//!
//! While a shard is being released, no run of its keys starts. A run that exceeds
//! [`handover_timeout`](ShardGroup::handover_timeout), 30 s by default, is therefore
//! [cancelled](Change::Cancel). The new holder reconciles its object again, as after a crash. The
//! handover still waits for the end of the run.
//!
//! # Members that have just joined
//!
//! A member receives shards after it has renewed its Lease for the first time, one [retry
//! period](crate::leader::Config::retry_period) after it joined: 2 s by default. A process in a crash loop therefore
//! receives no shards. If no live member has renewed its Lease yet, all members receive shards. For example, the first
//! member of a group takes all shards immediately.
//!
//! # Deleted objects
//!
//! - **A member Lease.** The member of a deleted Lease leaves the group at its next renewal. The other members wait for
//!   the duration of the Lease, from the time at which they notice that the Lease was deleted.
//! - **The object of the group.** All members leave the group with [`MembershipError::Deleted`]. Members of the next
//!   object take no shards until the Leases of all former members have expired or are released.
//! - **Both at the same time.** Members that start afterwards cannot know about members that still run. Two members may
//!   then act on one shard, for at most the renew deadline. Stop all members before you delete all Leases.
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
// Hidden, because only requeue-kube uses this type, to leave a group after an interrupted join.
#[doc(hidden)]
pub use self::handle::Joining;
pub use self::handle::Membership;
// Hidden, because only requeue-kube uses these types, to apply the changes of a group.
#[doc(hidden)]
pub use self::sharding::{ShardedWork, Sharding};
// Hidden, because only requeue-kube uses this type, to show the state of a group while it applies
// the changes.
#[doc(hidden)]
pub use self::status::Observer;
pub use self::status::{GroupStatus, ShardStatus};

//! The state of a controller as others see it.

use std::fmt;
use std::time::Duration;

use super::sharding::HeldShards;
use super::writes::Writes;
use crate::ObjectKey;
use crate::shards::GroupStatus;

/// The state of a controller that its queue does not have, for a dashboard.
///
/// All clones show the same controller. The methods take a lock for a short time, and do no I/O.
///
/// ```
/// use requeue_kube::ObjectKey;
/// use requeue_kube::controller::Status;
///
/// fn show(status: &Status, object: &ObjectKey) {
///     if let Some(wait) = status.why_waits(object) {
///         println!("{object}: {wait}");
///     }
///     for shard in status.shard_group().into_iter().flat_map(|group| group.shards) {
///         println!("{}: {}", shard.index, shard.holder.as_deref().unwrap_or("no holder"));
///     }
/// }
/// # show(&Status::default(), &ObjectKey::new(None, "a"));
/// ```
///
/// `docs/KUBE.md` shows it on the dashboard of `requeue-http`.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub(super) writes: Writes,
    pub(super) held: HeldShards,
}

impl Status {
    /// Returns the reason why the run of an object waits, if it is one that the queue does not know.
    ///
    /// For all other reasons see [`Entry::explain`](requeue::Entry::explain).
    #[must_use]
    pub fn why_waits(&self, object: &ObjectKey) -> Option<Wait> {
        self.held.wait_of(object).or_else(|| self.writes.wait_of(object))
    }

    /// Returns the state of the shard group, or `None` if the controller has not joined one.
    #[must_use]
    pub fn shard_group(&self) -> Option<GroupStatus> {
        self.held.group()
    }
}

/// A reason why the run of an object waits.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// A watch has not shown a [write](Writes) of the last run yet.
    OwnWrite {
        /// The kind of the object that was written.
        kind: String,
        /// The object that was written. That of a deletion may lack the namespace.
        object: ObjectKey,
        /// The resource version that the watch must reach, or `None` for a deletion.
        version: Option<u64>,
        /// The run starts after this time at the latest.
        left: Duration,
    },
    /// The shard was gained, and is being listed.
    ShardGained {
        /// The number of the shard.
        shard: u32,
    },
    /// The shard is being handed over: its runs in flight complete, and no others start.
    ShardReleased {
        /// The number of the shard.
        shard: u32,
    },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnWrite { kind, object, version, left } => {
                match version {
                    Some(version) => write!(
                        f,
                        "waits for the watch to reach resourceVersion {version} of {kind} {object}"
                    )?,
                    None => {
                        write!(f, "waits for the watch to show the deletion of {kind} {object}")?
                    }
                }
                write!(f, ", at most {:.1} s", left.as_secs_f64())
            }
            Self::ShardGained { shard } => write!(f, "waits for the list of shard {shard}"),
            Self::ShardReleased { shard } => {
                write!(f, "shard {shard} is being handed over to another replica")
            }
        }
    }
}

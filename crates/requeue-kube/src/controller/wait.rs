//! The reasons of waits that the queue does not know.

use std::fmt;
use std::time::Duration;

use crate::ObjectKey;

/// A reason why the run of an object waits.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// A watch has not shown a [write](super::Writes) of the last run yet.
    OwnWrite {
        /// The kind of the object that was written.
        kind: String,
        /// The object that was written. For a deletion, it may lack the namespace.
        object: ObjectKey,
        /// The resource version that the watch must reach, or `None` for a deletion.
        version: Option<u64>,
        /// The time after which the run starts in any case.
        left: Duration,
    },
    /// The shard was gained, and is being listed.
    ShardGained {
        /// The number of the shard.
        shard: u32,
    },
    /// The shard is being handed over: its runs in flight complete, and no other runs start.
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

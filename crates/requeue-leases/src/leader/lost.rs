//! The ways in which a term ends.

use std::fmt;
use std::time::Duration;

/// The reason why a leader no longer leads, except for its own release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeadershipLost {
    /// No renewal succeeded for this long after the last successful one was sent.
    RenewDeadline(Duration),
    /// Another replica holds the Lease.
    Taken {
        /// The identity of the holder. Empty if the Lease has none.
        by: String,
    },
    /// The Lease was deleted.
    Deleted,
    /// The elector was dropped, or has released the lease.
    Abandoned,
    /// The [shard](crate::membership) with this number is no longer held.
    Shard(u32),
}

impl fmt::Display for LeadershipLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("leadership lost: ")?;
        match self {
            Self::RenewDeadline(deadline) => {
                write!(f, "the lease was not renewed for {deadline:?}")
            }
            Self::Taken { by } if by.is_empty() => {
                f.write_str("another process released the lease")
            }
            Self::Taken { by } => write!(f, "the lease is held by {by:?}"),
            Self::Deleted => f.write_str("the lease was deleted"),
            Self::Abandoned => f.write_str("the lease is no longer renewed"),
            Self::Shard(shard) => write!(f, "shard {shard} is no longer held"),
        }
    }
}

impl std::error::Error for LeadershipLost {}

/// The way in which an elector's part in an election ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LeadershipLost),
}

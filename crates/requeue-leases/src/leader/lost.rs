//! The ways in which a term ends.

use std::time::Duration;

/// The reason why a leader no longer leads, except for its own release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeadershipLost {
    /// No renewal succeeded for this long after the last successful one was sent.
    #[error("leadership lost: the lease was not renewed for {0:?}")]
    RenewDeadline(Duration),
    /// Another replica holds the Lease.
    #[error("leadership lost: {}", holder(by))]
    Taken {
        /// The identity of the holder. Empty if the Lease has none.
        by: String,
    },
    /// The Lease was deleted.
    #[error("leadership lost: the lease was deleted")]
    Deleted,
    /// The elector was dropped, or has released the lease.
    #[error("leadership lost: the lease is no longer renewed")]
    Abandoned,
    /// The [shard](crate::membership) with this number is no longer held.
    #[error("leadership lost: shard {0} is no longer held")]
    Shard(u32),
}

fn holder(by: &str) -> String {
    match by {
        "" => "another process released the lease".to_owned(),
        _ => format!("the lease is held by {by:?}"),
    }
}

/// The way in which an elector's part in an election ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LeadershipLost),
}

//! The ways in which a term ends.

use std::time::Duration;

use crate::token::FencingToken;

/// The reason why a leader no longer leads, or must stop writing. A release by the leader is not such a reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeadershipLost {
    /// No renewal has succeeded for this time since the last successful renewal was sent.
    #[error("leadership lost: the lease was not renewed for {0:?}")]
    RenewDeadline(Duration),
    /// Another replica holds the Lease.
    ///
    /// Contains the identity of the holder, or an empty text if the Lease has no holder.
    #[error("leadership lost: {}", describe_holder(.0))]
    Taken(String),
    /// The Lease was deleted.
    #[error("leadership lost: the lease was deleted")]
    Deleted,
    /// The elector was dropped, or has released the lease.
    #[error("leadership lost: the lease is no longer renewed")]
    Abandoned,
    /// The [shard](crate::membership) with this number is no longer held.
    #[error("leadership lost: shard {0} is no longer held")]
    Shard(u32),
    /// This later term has claimed an object: see [`Fence::claim`](super::Fence::claim).
    #[error("the later term {0} has claimed the object")]
    Fenced(FencingToken),
    /// Some work was still running this long after the leader had to stop: at the end of the [drain
    /// timeout](super::Config::drain_timeout), or [long after](super::Status::check) the end of the lease. The lease is
    /// not released, but expires.
    #[error("work was still running {0:?} after the leader had to stop")]
    Undrained(Duration),
}

fn describe_holder(identity: &str) -> String {
    match identity {
        "" => "another process released the lease".to_owned(),
        _ => format!("the lease is held by {identity:?}"),
    }
}

/// The way in which an elector's participation in an election ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LeadershipLost),
}

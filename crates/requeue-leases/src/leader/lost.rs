//! The reasons for which a term ends.

use std::time::Duration;

use crate::token::FencingToken;

/// The reason why a leader no longer leads, or must stop writing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeadershipLost {
    /// No renewal has succeeded for this time, which began when the leader sent its last successful renewal.
    #[error("leadership lost: the lease was not renewed for {0:?}")]
    RenewDeadline(Duration),
    /// Another replica holds the Lease, or the Lease no longer has a holder.
    ///
    /// Contains the identity of the new holder, or an empty text if there is none.
    #[error("leadership lost: {}", describe_holder(.0))]
    Taken(String),
    /// The Lease was deleted.
    #[error("leadership lost: the lease was deleted")]
    Deleted,
    /// The elector was dropped, or has released the Lease.
    #[error("leadership lost: the lease is no longer renewed")]
    Abandoned,
    /// This process no longer holds a [shard](crate::membership) that it held before. Contains the number of the shard.
    #[error("leadership lost: shard {0} is no longer held")]
    Shard(u32),
    /// A later term has claimed the object. Contains the token of this term, which
    /// [`Fence::claim`](super::Fence::claim) has found.
    #[error("the later term {0} has claimed the object")]
    Fenced(FencingToken),
    /// Some work was still running this long after the leader had to stop. The time is the [drain
    /// timeout](super::Config::drain_timeout). In [`Status::check`](super::Status::check), it is the time since the end
    /// of the lease. The lease is not released, but expires.
    #[error("work was still running {0:?} after the leader had to stop")]
    Undrained(Duration),
}

fn describe_holder(identity: &str) -> String {
    match identity {
        "" => "another process released the lease".to_owned(),
        _ => format!("the lease is held by {identity:?}"),
    }
}

/// The way in which an elector's participation in an election has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LeadershipLost),
}

//! The errors of shard groups.

use super::assignment::Layout;
use crate::leader::{ConfigError, LeadershipLost};

/// The reason why a process cannot join a shard group, or is no longer a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The name of the group is not a DNS label of at most 63 characters.
    #[error(
        "invalid name of a shard group {0:?}: use at most 63 lower-case letters, digits and hyphens, \
         with no hyphen at the start or the end"
    )]
    Name(String),
    /// The namespace of the group does not exist.
    #[error("the namespace {0:?} of the shard group does not exist: create it, or use another")]
    Namespace(String),
    /// The number of shards is not a power of two up to 1,024.
    #[error("{0} shards: use a power of two from 1 to 1024")]
    Count(u32),
    /// The times of the member Lease are not safe.
    #[error("{0}")]
    Config(ConfigError),
    /// A permission for Leases is missing.
    #[error(
        "no permission to {verb} leases.coordination.k8s.io in namespace {namespace:?}: a shard group \
         needs the verbs get, list, watch, create, update and delete"
    )]
    Forbidden {
        /// The namespace of the group.
        namespace: String,
        /// The verb that was refused, such as `watch`.
        verb: String,
    },
    /// The group has another number of shards.
    #[error(
        "the shard group {group:?} has {stored} shards, not {configured}: configure {stored}, or stop \
         all members and delete the Lease {group:?}"
    )]
    OtherCount {
        /// The name of the group.
        group: String,
        /// The number of shards of the group.
        stored: u32,
        /// The number that this process was configured with.
        configured: u32,
    },
    /// A group with this name shards other objects, or by another field.
    #[error("the shard group {group:?} shards {stored}, not {configured}: use another name")]
    OtherContent {
        /// The name of the group.
        group: String,
        /// The kind and the field of the group.
        stored: String,
        /// The kind and the field that this process was configured with.
        configured: String,
    },
    /// The Lease with the name of the group is not the object of a shard group.
    #[error(
        "the Lease {group:?} is not the object of a shard group: the annotation {annotation} is missing \
         or invalid; use another name, or stop all members and delete the Lease"
    )]
    NotAGroup {
        /// The name of the group.
        group: String,
        /// The annotation that is missing or invalid.
        annotation: &'static str,
    },
    /// The object of the group was deleted.
    #[error("the Lease {group:?} of the shard group was deleted: join again")]
    Deleted {
        /// The name of the group.
        group: String,
    },
    /// The member Lease was lost. All shards are lost with it.
    #[error("the membership in the shard group has ended: {0}")]
    Lost(LeadershipLost),
}

impl MembershipError {
    pub(super) fn mismatch(group: &str, stored: &Layout, configured: &Layout) -> Self {
        let group = group.to_owned();
        // The group of another controller may have another number of shards.
        let is_same = stored.objects == configured.objects && stored.by == configured.by;
        if is_same {
            let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
            let stored = number(stored.count);
            let configured = number(configured.count);
            return Self::OtherCount { group, stored, configured };
        }
        let content = |layout: &Layout| match &*layout.objects {
            "" => format!("objects by {}", layout.by),
            objects => format!("{objects} by {}", layout.by),
        };
        Self::OtherContent { group, stored: content(stored), configured: content(configured) }
    }
}

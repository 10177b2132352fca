//! The errors of shard groups.

use super::assignment::{Layout, Unreadable};
use crate::error::ConfigError;
use crate::leader::LeadershipLost;

/// The reason why a process cannot join a shard group, or is no longer a member of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The configuration is invalid, or does not fit the API server. For example, the namespace or a permission is
    /// missing, or the group has another number of shards. A further attempt without a change would also fail.
    #[error("{0}")]
    Config(ConfigError),
    /// The group object was deleted. Contains the name of its Lease.
    #[error("the Lease {0:?} of the shard group was deleted: join again")]
    Deleted(String),
    /// The process has lost its member Lease, and with it the right to all of its shards.
    #[error("the membership in the shard group has ended: {0}")]
    Lost(LeadershipLost),
}

impl MembershipError {
    /// Creates the error for a namespace that does not exist.
    pub(super) fn no_namespace(namespace: &str) -> Self {
        Self::from_text(format!(
            "the namespace {namespace:?} of the shard group does not exist: create it, or use another"
        ))
    }

    /// Creates the error for a verb that the API server does not permit.
    pub(super) fn missing_permission(verb: &str, namespace: &str) -> Self {
        Self::from_text(format!(
            "no permission to {verb} leases.coordination.k8s.io in namespace {namespace:?}: a shard \
             group needs the verbs get, list, watch, create, update and delete"
        ))
    }

    /// Creates the error for a group that has another number of shards, or that divides other objects.
    pub(super) fn other_shards(group: &str, stored: &Layout, configured: &Layout) -> Self {
        // If the group divides other objects, it belongs to another controller. A difference in the number of shards is
        // then not the cause.
        let is_same = stored.objects == configured.objects && stored.by == configured.by;
        if is_same {
            let (stored, configured) = (stored.count, configured.count);
            return Self::from_text(format!(
                "the shard group {group:?} has {stored} shards, not {configured}: configure {stored}, \
                 or stop all members and delete the Lease {group:?}"
            ));
        }
        let content = |layout: &Layout| match &*layout.objects {
            "" => format!("objects by {}", layout.by),
            objects => format!("{objects} by {}", layout.by),
        };
        let (stored, configured) = (content(stored), content(configured));
        Self::from_text(format!(
            "the shard group {group:?} shards {stored}, not {configured}: use another name"
        ))
    }

    /// Creates the error for a Lease that is not the object of a shard group.
    pub(super) fn not_a_group(group: &str, Unreadable(annotation): Unreadable) -> Self {
        Self::from_text(format!(
            "the Lease {group:?} is not the object of a shard group: the annotation {annotation} is \
             missing or invalid; use another name, or stop all members and delete the Lease"
        ))
    }

    pub(super) fn from_text(text: String) -> Self {
        Self::Config(ConfigError(text))
    }
}

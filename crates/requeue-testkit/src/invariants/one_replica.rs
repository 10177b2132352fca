//! The invariant that at most one replica writes.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{ObjectId, Writer, text};
use super::{Checked, Sent, Write};

/// Finds a write of a replica that does not hold the Lease of its election.
///
/// The write is checked when the replica sends it. A replica may send a write in time, and the
/// write may reach the server late. Only a fencing token can prevent this, so the invariant
/// permits it.
#[derive(Default)]
pub(super) struct OneReplica {
    /// The last holder of each Lease, or `None` if the Lease has no holder.
    holders: BTreeMap<ObjectId, Option<Writer>>,
    /// The Leases that the replicas of each set have written.
    leases: BTreeMap<u32, BTreeSet<ObjectId>>,
}

impl OneReplica {
    pub(super) fn note_write(&mut self, write: &Write) {
        let Writer::Process { set, .. } = write.writer else { return };
        if write.object.plural != "leases" {
            return;
        }
        self.leases.entry(set).or_default().insert(write.object.clone());
        let identity = write.after.as_ref().map(|lease| text(&lease["spec"]["holderIdentity"]));
        let is_held = identity.is_some_and(|identity| !identity.is_empty());
        // A Lease is written only by its holder, or by a replica that takes over an expired
        // Lease. The writer is therefore the holder.
        self.holders.insert(write.object.clone(), is_held.then_some(write.writer));
    }

    pub(super) fn check_sent(&mut self, sent: &Sent<'_>) -> Checked {
        let Writer::Process { set, .. } = sent.writer else { return Ok(()) };
        // Events are permitted, because replicas that do not hold the Lease also report on the
        // election.
        if matches!(sent.object.plural.as_str(), "leases" | "events" | "selfsubjectaccessreviews") {
            return Ok(());
        }
        // A shard group has several Leases, and each of its replicas writes to other objects.
        // The invariant therefore applies only to sets with one Lease.
        let Some(leases) = self.leases.get(&set).filter(|leases| leases.len() == 1) else {
            return Ok(());
        };
        let mut holders = leases.iter().filter_map(|lease| *self.holders.get(lease)?);
        match holders.find(|holder| *holder != sent.writer) {
            Some(holder) => Err(format!(
                "{} writes {} while {holder} holds the Lease",
                sent.writer, sent.object
            )),
            None => Ok(()),
        }
    }
}

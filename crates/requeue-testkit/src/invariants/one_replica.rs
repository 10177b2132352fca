//! At most one replica acts on an object.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{ObjectId, Writer, text};
use super::{Checked, Sent, Write};

/// Finds writes of replicas that do not hold the Lease of their election.
///
/// The check is at the time when a replica sends a request. A write that was sent in time, and that reaches the server
/// late, is not the fault of the replica: only a fence rejects it.
#[derive(Default)]
pub(super) struct OneReplica {
    /// The Leases, with the last holder.
    holders: BTreeMap<ObjectId, Option<Writer>>,
    /// The Leases that the processes of each set have written.
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
        // Only the holder writes its Lease, and a replica that takes an expired one.
        self.holders.insert(write.object.clone(), is_held.then_some(write.writer));
    }

    pub(super) fn check_sent(&mut self, sent: &Sent<'_>) -> Checked {
        let Writer::Process { set, .. } = sent.writer else { return Ok(()) };
        // Events are reports. The processes of an election publish some about the Lease itself.
        if matches!(sent.object.plural.as_str(), "leases" | "events" | "selfsubjectaccessreviews") {
            return Ok(());
        }
        // Shard groups have several Leases: several replicas act, each on its objects.
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

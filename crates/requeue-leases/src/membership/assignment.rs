//! The group object: a Lease whose annotations contain the assignment of a shard group.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::lease::{ASSIGNMENT, Lease};

/// The label of all Leases of a group. Its value is the name of the group.
pub(super) const LABEL: &str = "requeue/shard-group";
/// The annotation of a member Lease that contains the uid of the group object. The member has joined the group with
/// this object.
pub(super) const JOINED: &str = "requeue/shard-group-uid";
/// The annotation that a member adds to its Lease when it is about to stop. The member then receives no more shards.
pub(super) const STOPPING: &str = "requeue/shard-stopping";
/// The annotation that contains the name of the member that wrote the assignment. Only the holder itself hands a shard
/// over. If another member has moved a shard, the former holder is dead.
const WRITER: &str = "requeue/shard-writer";
const BY: &str = "requeue/shard-by";
const OBJECTS: &str = "requeue/shard-objects";
/// The annotation that contains the names of all holders, separated by spaces.
const HOLDERS: &str = "requeue/shard-holders";

/// The properties of a group that must be the same for all members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) count: usize,
    pub(super) by: String,
    pub(super) objects: String,
}

/// The entry of a shard in the assignment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Slot {
    pub(super) holder: Option<Arc<str>>,
    /// The number in the fencing token of the shard. Each new holder gets a greater number. It is 0 if the shard has
    /// never had a holder.
    pub(super) number: i32,
}

/// The entries of all shards, in the order of their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Assignment(Vec<Slot>);

impl Assignment {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![Slot::default(); count])
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.0
    }

    pub(super) fn holds(&self, member: &str) -> bool {
        self.0.iter().any(|slot| slot.holder.as_deref() == Some(member))
    }

    /// Sets the holder of a shard. A holder gets a greater number than all former holders.
    pub(super) fn set_holder(&mut self, shard: usize, holder: Option<Arc<str>>) {
        let slot = &mut self.0[shard];
        if holder.is_some() {
            // The number never decreases, so the token of a former holder never becomes valid again.
            slot.number = slot.number.saturating_add(1);
        }
        slot.holder = holder;
    }

    fn parse(holders: &str, slots: &str) -> Option<Self> {
        let holders: Vec<Arc<str>> = holders.split_whitespace().map(Arc::from).collect();
        let slot = |text: &str| {
            let (holder, number) = text.split_once(':')?;
            let holder = match holder {
                "-" => None,
                index => Some(Arc::clone(holders.get(index.parse::<usize>().ok()?)?)),
            };
            let number = number.parse().ok().filter(|number| *number >= 0)?;
            Some(Slot { holder, number })
        };
        slots.split_whitespace().map(slot).collect::<Option<_>>().map(Self)
    }

    fn annotations(&self) -> Map<String, Value> {
        let mut holders: Vec<_> = self.0.iter().filter_map(|slot| slot.holder.as_deref()).collect();
        // The holders are sorted, so that equal assignments have the same text.
        holders.sort_unstable();
        holders.dedup();
        let slot = |slot: &Slot| {
            let index = slot.holder.as_deref().and_then(|it| holders.binary_search(&it).ok());
            let index = index.map_or("-".to_owned(), |index| index.to_string());
            format!("{index}:{}", slot.number)
        };
        let slots: Vec<_> = self.0.iter().map(slot).collect();
        Map::from_iter([
            (HOLDERS.to_owned(), json!(holders.join(" "))),
            (ASSIGNMENT.to_owned(), json!(slots.join(" "))),
        ])
    }
}

/// The last version of the group object that this replica has read.
#[derive(Clone, Debug)]
pub(super) struct GroupLease {
    lease: Lease,
    pub(super) version: u64,
    pub(super) layout: Layout,
    pub(super) assignment: Assignment,
    /// The longest lease duration that any member has had so far, in seconds.
    pub(super) lease_seconds: u64,
}

/// The error for a Lease that is not a group object, or that was damaged. Contains the name of the annotation that is
/// missing or invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unreadable(pub(super) &'static str);

impl GroupLease {
    pub(super) fn from_lease(lease: Lease) -> Result<Self, Unreadable> {
        let read = |name: &'static str| lease.annotation(name).ok_or(Unreadable(name));
        let holders = read(HOLDERS)?;
        let slots = read(ASSIGNMENT)?;
        let assignment = Assignment::parse(holders, slots).ok_or(Unreadable(ASSIGNMENT))?;
        let layout = Layout {
            count: assignment.slots().len(),
            by: read(BY)?.to_owned(),
            objects: read(OBJECTS)?.to_owned(),
        };
        let version = lease.resource_version();
        let lease_seconds = lease.duration_seconds().unwrap_or(0);
        Ok(Self { lease, version, layout, assignment, lease_seconds })
    }

    pub(super) fn uid(&self) -> &str {
        self.lease.uid()
    }

    /// Returns the member that wrote this version of the object.
    pub(super) fn writer(&self) -> Option<&str> {
        self.lease.annotation(WRITER)
    }

    /// Returns the object for a new group, in which no shard has a holder.
    pub(super) fn new_object(name: &str, layout: &Layout, seconds: u64) -> Value {
        let mut annotations = Assignment::new(layout.count).annotations();
        annotations.insert(BY.to_owned(), json!(layout.by));
        annotations.insert(OBJECTS.to_owned(), json!(layout.objects));
        // `spec` contains no holder, because no process holds the group object itself.
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "labels": { LABEL: name }, "annotations": annotations },
            "spec": { "leaseDurationSeconds": seconds },
        })
    }

    /// Returns the object with this assignment. The write of this object fails if the object was changed since it was
    /// read.
    pub(super) fn with_assignment(
        &self,
        assignment: &Assignment,
        writer: &str,
        seconds: u64,
    ) -> Value {
        let mut annotations = assignment.annotations();
        annotations.insert(WRITER.to_owned(), json!(writer));
        let mut json = self.lease.with_annotations(annotations);
        json["spec"]["leaseDurationSeconds"] = json!(self.lease_seconds.max(seconds));
        // The number grows with each write, so that each write changes the object. The API server gives no new version
        // to an object that a write does not change.
        json["spec"]["leaseTransitions"] = json!(self.lease.transitions().wrapping_add(1).max(0));
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_as_it_was_written() {
        let mut assignment = Assignment::new(4);
        assignment.set_holder(0, Some("web-b".into()));
        assignment.set_holder(1, Some("web-a".into()));
        assignment.set_holder(3, Some("web-a".into()));
        assignment.set_holder(3, None);
        let annotations = assignment.annotations();
        assert_eq!(annotations[HOLDERS], "web-a web-b");
        assert_eq!(annotations[ASSIGNMENT], "1:1 0:1 -:0 -:1");
        assert_eq!(Assignment::parse("web-a web-b", "1:1 0:1 -:0 -:1"), Some(assignment));
        for invalid in ["2:1", "0", "0:", ":1", "0:-1", "0:x", "x:1", "0:2147483648"] {
            assert_eq!(Assignment::parse("web-a web-b", invalid), None, "{invalid}");
        }
    }

    /// The API server permits at most 256 KiB of annotations, and etcd an object of at most 1.5 MiB.
    #[test]
    fn the_largest_group_takes_a_few_kilobytes() {
        let mut assignment = Assignment::new(1024);
        for shard in 0..1024 {
            assignment.0[shard].number = 9999;
            assignment.set_holder(shard, Some(format!("web-{:036}", shard % 100).into()));
        }
        let annotations = json!(assignment.annotations());
        assert!(annotations.to_string().len() < 16 * 1024);
    }
}

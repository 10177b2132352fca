//! A Lease object. This module reads its record, and writes the record without losing unknown
//! fields.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::token::FencingToken;

/// The annotation of a [shard group](crate::membership)'s object. For each shard, it contains the position of the
/// holder in the list of holders, or `-`, and the fencing token.
pub(crate) const ASSIGNMENT: &str = "requeue/shard-assignment";

/// A Lease that was read from the API server.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// The complete object, so that fields of later versions of Kubernetes are written back
    /// unchanged.
    json: Arc<Value>,
    /// The part that the election compares. A change outside of this part, such as a change of a
    /// label, does not show that the leader is alive.
    record: LeaseSpec,
    uid: String,
}

impl Lease {
    pub(crate) fn from_json(json: Value) -> Result<Self, serde_json::Error> {
        let record = match &json["spec"] {
            Value::Null => LeaseSpec::default(),
            spec => LeaseSpec::deserialize(spec)?,
        };
        // The uid is required, because it is part of the fencing token. It distinguishes a Lease
        // from a deleted Lease of the same name.
        let uid = String::deserialize(&json["metadata"]["uid"])?;
        Ok(Self { json: Arc::new(json), record, uid })
    }

    pub(crate) fn name(&self) -> &str {
        self.json["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the resource version. Versions of one resource are ordered.
    pub(crate) fn resource_version(&self) -> u64 {
        let version = self.json["metadata"]["resourceVersion"].as_str();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.json["metadata"]["annotations"][name].as_str()
    }

    /// Returns true if the Lease is the object of a shard group.
    pub(crate) fn is_group(&self) -> bool {
        self.annotation(ASSIGNMENT).is_some()
    }

    /// Returns the complete object with these annotations added or replaced.
    pub(crate) fn with_annotations(&self, annotations: Map<String, Value>) -> Value {
        let mut json = Value::clone(&self.json);
        extend_object(&mut json["metadata"]["annotations"], annotations);
        json
    }

    /// Returns the holder. The result is empty if there is no holder.
    pub(crate) fn holder(&self) -> &str {
        self.record.holder_identity.as_deref().unwrap_or_default()
    }

    pub(crate) fn same_record(&self, other: &Self) -> bool {
        self.uid == other.uid && self.record == other.record
    }

    /// Returns true if the holder has renewed the Lease since it acquired it.
    pub(crate) fn is_renewed(&self) -> bool {
        self.record.renew_time != self.record.acquire_time
    }

    pub(crate) fn duration_seconds(&self) -> Option<u64> {
        // Another program may have written a negative duration, which counts as a missing duration.
        self.record.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok())
    }

    pub(crate) fn transitions(&self) -> i32 {
        self.record.lease_transitions.unwrap_or_default()
    }

    pub(crate) fn fencing_token(&self) -> FencingToken {
        FencingToken::new(&self.uid, self.transitions())
    }

    /// Returns the object to create, with this metadata, for the first term.
    pub(crate) fn new_object(
        metadata: &Value,
        holder: &str,
        seconds: i32,
        now: Timestamp,
    ) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": seconds,
                "leaseTransitions": 0,
                "acquireTime": MicroTime(now),
                "renewTime": MicroTime(now),
            },
        })
    }

    /// Returns the object that takes the Lease over, with the term number `transitions`.
    pub(crate) fn taken_by(
        &self,
        holder: &str,
        seconds: i32,
        transitions: i32,
        now: Timestamp,
    ) -> Value {
        let now = self.renewal_time(now);
        self.with_spec(json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "leaseTransitions": transitions,
            "acquireTime": now,
            "renewTime": now,
        }))
    }

    /// Returns the object that renews the Lease.
    pub(crate) fn as_renewed(&self, seconds: i32, now: Timestamp) -> Value {
        self.with_spec(
            json!({ "leaseDurationSeconds": seconds, "renewTime": self.renewal_time(now) }),
        )
    }

    /// Returns the object that releases the Lease, so that another replica may take it immediately.
    pub(crate) fn as_released(&self, now: Timestamp) -> Value {
        // As in client-go, the duration is 1 second, so that a standby that ignores the empty holder waits only for
        // this time.
        self.taken_by("", 1, self.transitions(), now)
    }

    /// Returns `now`, or a time just after the previous renewal if the clock was set back. The time
    /// must change, because other replicas detect a renewal by a change of the record.
    fn renewal_time(&self, now: Timestamp) -> MicroTime {
        let after = |MicroTime(before): &MicroTime| {
            before.checked_add(SignedDuration::from_micros(1)).unwrap_or(Timestamp::MAX)
        };
        MicroTime(self.record.renew_time.as_ref().map(after).map_or(now, |least| now.max(least)))
    }

    /// Returns the complete object, with these fields of `spec` replaced.
    fn with_spec(&self, fields: Value) -> Value {
        // The whole object is copied, so that unknown fields are written back.
        let mut json = Value::clone(&self.json);
        if let Value::Object(fields) = fields {
            extend_object(&mut json["spec"], fields);
        }
        json
    }
}

/// Adds the fields to an object, or replaces the fields. Creates a missing object.
fn extend_object(object: &mut Value, fields: Map<String, Value>) {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Value::Object(object) = object {
        object.extend(fields);
    }
}

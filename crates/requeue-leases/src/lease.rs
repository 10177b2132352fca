//! A Lease object. The module reads the fields that an election needs, and keeps all other fields in each write.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::token::FencingToken;

/// The annotation with the assignment, in the object of a [shard group](crate::membership). For each shard, it contains
/// the fencing token, and the position of the holder in the list of holders, or `-` if there is no holder.
pub(crate) const ASSIGNMENT: &str = "requeue/shard-assignment";

/// A Lease as the API server has returned it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// The complete object. A write sends it back, with unknown fields of later versions of Kubernetes unchanged.
    json: Arc<Value>,
    /// The fields that the election compares. A change of any other field, such as a label, does not prove that the
    /// holder is alive.
    record: LeaseSpec,
    uid: String,
}

impl Lease {
    pub(crate) fn from_json(json: Value) -> Result<Self, serde_json::Error> {
        let record = match &json["spec"] {
            Value::Null => LeaseSpec::default(),
            spec => LeaseSpec::deserialize(spec)?,
        };
        // The uid distinguishes the Lease from an earlier Lease of the same name. It is part of the fencing token, so a
        // Lease without a uid is refused.
        let uid = String::deserialize(&json["metadata"]["uid"])?;
        Ok(Self { json: Arc::new(json), record, uid })
    }

    pub(crate) fn name(&self) -> &str {
        self.json["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the resource version as a number. A later version of the same object has a greater number.
    pub(crate) fn resource_version(&self) -> u64 {
        let version = self.json["metadata"]["resourceVersion"].as_str();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.json["metadata"]["annotations"][name].as_str()
    }

    /// Returns true if the Lease is the object of a shard group, and not a Lease that a process can hold.
    pub(crate) fn is_group(&self) -> bool {
        self.annotation(ASSIGNMENT).is_some()
    }

    /// Returns the complete object with these annotations. Other annotations stay.
    pub(crate) fn with_annotations(&self, annotations: Map<String, Value>) -> Value {
        let mut json = Value::clone(&self.json);
        extend_object(&mut json["metadata"]["annotations"], annotations);
        json
    }

    /// Returns the identity of the holder, or an empty text if the Lease has no holder.
    pub(crate) fn holder(&self) -> &str {
        self.record.holder_identity.as_deref().unwrap_or_default()
    }

    pub(crate) fn same_record(&self, other: &Self) -> bool {
        self.uid == other.uid && self.record == other.record
    }

    /// Returns true if the holder has renewed the Lease at least once since it acquired it.
    pub(crate) fn is_renewed(&self) -> bool {
        self.record.renew_time != self.record.acquire_time
    }

    pub(crate) fn duration_seconds(&self) -> Option<u64> {
        // Another program may have written a negative duration. It is treated as a missing duration.
        self.record.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok())
    }

    pub(crate) fn transitions(&self) -> i32 {
        self.record.lease_transitions.unwrap_or_default()
    }

    pub(crate) fn fencing_token(&self) -> FencingToken {
        FencingToken::new(&self.uid, self.transitions())
    }

    /// Returns a new Lease object with this metadata, for the first term.
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

    /// Returns the object with which `holder` takes the Lease over. `transitions` is the number of the new term.
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

    /// Returns the object with which the holder renews the Lease.
    pub(crate) fn as_renewed(&self, seconds: i32, now: Timestamp) -> Value {
        self.with_spec(
            json!({ "leaseDurationSeconds": seconds, "renewTime": self.renewal_time(now) }),
        )
    }

    /// Returns the object with which the holder releases the Lease. Another replica may then take it immediately.
    pub(crate) fn as_released(&self, now: Timestamp) -> Value {
        // As in client-go, the released Lease has a duration of 1 s. A standby that does not check for an empty holder
        // then waits only 1 s.
        self.taken_by("", 1, self.transitions(), now)
    }

    /// Returns `now`. If the clock was set back, returns the time of the previous renewal plus one microsecond. The
    /// time must change with each renewal, because other replicas detect the renewal by this change.
    fn renewal_time(&self, now: Timestamp) -> MicroTime {
        let after = |MicroTime(before): &MicroTime| {
            before.checked_add(SignedDuration::from_micros(1)).unwrap_or(Timestamp::MAX)
        };
        MicroTime(self.record.renew_time.as_ref().map(after).map_or(now, |least| now.max(least)))
    }

    /// Returns the complete object with these fields of `spec`. Other fields stay.
    fn with_spec(&self, fields: Value) -> Value {
        // The copy contains all fields, including those that this crate does not know.
        let mut json = Value::clone(&self.json);
        if let Value::Object(fields) = fields {
            extend_object(&mut json["spec"], fields);
        }
        json
    }
}

/// Inserts the fields into a JSON object, and replaces fields of the same names. Any other JSON value is replaced by an
/// object with these fields.
fn extend_object(object: &mut Value, fields: Map<String, Value>) {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Value::Object(object) = object {
        object.extend(fields);
    }
}

//! Writes that a leader of an earlier term can't make any more.

use std::fmt;
use std::str::FromStr;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as Operations, PatchOperation, TestOperation};
use kube::api::{Patch, ResourceExt};
use serde_json::{Value, json};

use super::leadership::{Leadership, LeadershipLost};

/// Which term of which Lease: `uid/transitions`.
///
/// `leaseTransitions` alone is none: it begins anew with a Lease that was deleted and created
/// again, so that two terms would have the same number. Within one Lease the later term has the
/// greater number; terms of two Leases have no order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    uid: String,
    transitions: i32,
}

impl Token {
    pub(super) fn new(uid: &str, transitions: i32) -> Self {
        Self { uid: uid.to_owned(), transitions }
    }

    /// The `metadata.uid` of the Lease.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Its `spec.leaseTransitions`.
    #[must_use]
    pub fn transitions(&self) -> i32 {
        self.transitions
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.transitions)
    }
}

/// As [`Display`](fmt::Display) writes it.
impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        text.split_once('/')
            .filter(|(uid, _)| !uid.is_empty())
            .and_then(|(uid, transitions)| Some(Self::new(uid, transitions.parse().ok()?)))
            .ok_or_else(|| ParseTokenError(text.to_owned()))
    }
}

/// What is no [`Token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTokenError(String);

impl fmt::Display for ParseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a term is uid/transitions, not {:?}", self.0)
    }
}

impl std::error::Error for ParseTokenError {}

/// Has the API server refuse what a leader of an earlier term writes.
///
/// No election can stop a process that is frozen between its last look at the clock and a write,
/// and thaws when another leads. So the object says in an annotation in which term it was last
/// claimed, and every write tests for it:
///
/// 1. Before its first write to an object, a leader [claims](Fence::claim) it: reads it, and sends
///    the patch, which writes its own term where the object is still as it was read.
/// 2. Each of its writes to the object is a JSON patch made by [`patch`](Fence::patch), to the
///    object or to its `status`. It tests for the term first, and the API server applies all of a
///    JSON patch or nothing.
///
/// From the moment a leader has claimed an object, the writes of all earlier ones to it are
/// refused: with code 422 where the test fails, or by [`ClaimError::Fenced`] where the claim sees a later term.
///
/// What it does not do:
///
/// - A write without it is not fenced: neither by a `PUT`, nor by a merge patch or an apply, which
///   can't test. (A `PUT` with the `resourceVersion` that was read since the claim is as good.)
/// - Creating is not fenced, for there is nothing to test: an earlier leader's late create brings
///   an object back that was deleted since. Create with [the annotation](Fence::annotation), so
///   that it shows whose it is.
/// - Deletes carry no patch: give them the uid and `resourceVersion` that were read since the claim
///   as preconditions.
/// - It is per object: what has not been claimed yet is open to the earlier leader.
/// - Another Lease is another fence. With its Lease deleted under a leader, two lead until it notices;
///   the fence then tells the terms apart, and who still holds the Lease that there is may claim.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::api::{Api, PatchParams};
/// # use requeue_kube::leader::{ClaimError, Leadership};
/// # async fn write(leadership: Leadership, maps: Api<ConfigMap>) -> Result<(), Box<dyn std::error::Error>> {
/// let fence = leadership.fence();
/// let params = PatchParams::default();
///
/// let map = maps.get("web").await?;
/// if let Some(claim) = fence.claim(&map).await? {
///     maps.patch("web", &params, &claim).await?;
/// }
/// let change = serde_json::from_value(serde_json::json!([
///     { "op": "add", "path": "/data", "value": { "replicas": "3" } },
/// ]))?;
/// maps.patch("web", &params, &fence.patch(change)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Fence {
    leadership: Leadership,
    annotation: String,
}

impl Fence {
    /// The annotation that has the term, unless [another](Fence::with_annotation) is named.
    pub const ANNOTATION: &str = "requeue/leader-term";

    pub(super) fn new(leadership: Leadership) -> Self {
        Self { leadership, annotation: Self::ANNOTATION.to_owned() }
    }

    /// With another annotation, as where two elections write to one object.
    #[must_use]
    pub fn with_annotation(mut self, annotation: impl Into<String>) -> Self {
        self.annotation = annotation.into();
        self
    }

    /// Name and value of the annotation, for an object that is to be created in this term.
    #[must_use]
    pub fn annotation(&self) -> (String, String) {
        (self.annotation.clone(), self.leadership.token().to_string())
    }

    /// What has to be sent before the first write to an object that was just read; `None` when it
    /// has been claimed in this term already.
    ///
    /// It asks nothing of the API server unless the object was claimed under another Lease, or with
    /// something that is no term: then this renews the lease first, to be sure that the term there
    /// is not the later one.
    ///
    /// The patch fails with code 422 when the object has changed since it was read: read it again.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Fenced`] when a later term has claimed it, [`ClaimError::Lost`] when leading
    /// is over: in both cases the writer has to stop.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any point; at most the lease has been renewed.
    pub async fn claim<K: ResourceExt>(&self, object: &K) -> Result<Option<Patch<()>>, ClaimError> {
        self.leadership.check()?;
        let ours = self.leadership.token();
        let annotations = object.annotations();
        if let Some(claimed) = annotations.get(&self.annotation) {
            match claimed.parse::<Token>() {
                Ok(term) if term == *ours => return Ok(None),
                Ok(term) if term.uid == ours.uid => {
                    if term.transitions > ours.transitions {
                        return Err(ClaimError::Fenced(term));
                    }
                }
                // No order tells which is later. But whoever can renew now led when this was read.
                Ok(_) | Err(_) => self.leadership.confirm().await?,
            }
        }
        let mut operations =
            vec![test(&["metadata", "resourceVersion"], json!(object.resource_version()))];
        if annotations.is_empty() {
            operations.push(add(&["metadata", "annotations"], json!({})));
        }
        operations.push(add(&self.path(), json!(ours.to_string())));
        Ok(Some(Patch::Json(Operations(operations))))
    }

    /// These operations, after a test that the object is claimed in this term.
    ///
    /// It is made whether or not this one still leads: the API server is who decides.
    #[must_use]
    pub fn patch(&self, operations: Operations) -> Patch<()> {
        let term = json!(self.leadership.token().to_string());
        let mut all = vec![test(&self.path(), term)];
        all.extend(operations.0);
        Patch::Json(Operations(all))
    }

    fn path(&self) -> [&str; 3] {
        ["metadata", "annotations", &self.annotation]
    }
}

fn test(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(path), value })
}

fn add(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path), value })
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}

/// Why an object can't be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimError {
    /// A later term has claimed it: this one.
    Fenced(Token),
    /// Leading is over.
    Lost(LeadershipLost),
}

impl From<LeadershipLost> for ClaimError {
    fn from(lost: LeadershipLost) -> Self {
        Self::Lost(lost)
    }
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced(term) => write!(f, "the object was claimed in the later term {term}"),
            Self::Lost(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for ClaimError {}

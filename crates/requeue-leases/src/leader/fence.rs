//! Fencing: the API server rejects writes of leaders of earlier terms.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as Operations, PatchOperation, TestOperation};
use kube::api::{Patch, ResourceExt};
use serde_json::{Value, json};

use super::leadership::Leadership;
use super::lost::LeadershipLost;
use crate::token::FencingToken;

/// The default name of the annotation with the term of a leader.
const ANNOTATION: &str = "requeue/leader-term";

/// Makes the API server reject writes of leaders of earlier terms.
///
/// A process can be frozen between its last check of the clock and a write, and continue when another process leads. No
/// election can prevent that write. An annotation of the object therefore contains the term that last claimed the
/// object, and every write tests this annotation:
///
/// 1. Before its first write to an object, a leader [claims](Fence::claim) the object. It reads the
///    object, and sends the patch of the claim. The patch writes the leader's term if the object
///    has not changed since it was read.
/// 2. Each write of the leader to the object, or to its `status`, is a JSON patch from
///    [`patch`](Fence::patch). The patch first tests the term. The API server applies either all
///    operations of a JSON patch or none.
///
/// After a leader has claimed an object, all writes of earlier leaders to the object are rejected.
/// A write is rejected with code 422, because its test fails. A claim fails with
/// [`LeadershipLost::Fenced`] if it finds a later term.
///
/// Limits:
///
/// - A write without the test is not rejected. A merge patch, an apply and a `PUT` cannot contain
///   the test. (A `PUT` with a `resourceVersion` that was read after the claim is equally safe.)
/// - A creation is not fenced, because there is no object to test. If the create request of an earlier leader arrives
///   late, it restores an object that was deleted in the meantime. Create objects with [the
///   annotation](Fence::annotation), so that they show their term.
/// - A delete has no patch. Use the uid and the `resourceVersion` that were read after the claim as
///   preconditions.
/// - A fence protects single objects. An earlier leader can still write to objects that have not
///   been claimed yet.
/// - The terms of another Lease have another fence. If the Lease is deleted while a leader holds it, two processes lead
///   until the first leader notices. The fence distinguishes the terms of these two leaders, and only the holder of the
///   current Lease can claim objects.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::api::{Api, PatchParams};
/// # use requeue_leases::leader::Leadership;
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
    right: Arc<dyn Right>,
    token: Arc<FencingToken>,
    annotation: String,
}

/// The right to write that belongs to a token.
pub(crate) trait Right: fmt::Debug + Send + Sync {
    /// Returns an error if the right has ended, by the clock.
    fn check(&self) -> Result<(), LeadershipLost>;

    /// Asks the API server, and returns an error if the right has ended.
    fn confirm(&self) -> BoxFuture<'_, Result<(), LeadershipLost>>;
}

impl Right for Leadership {
    fn check(&self) -> Result<(), LeadershipLost> {
        Self::check(self)
    }

    fn confirm(&self) -> BoxFuture<'_, Result<(), LeadershipLost>> {
        Box::pin(Self::confirm(self))
    }
}

impl Leadership {
    /// Returns a fence. With its patches, the API server rejects late writes of earlier terms.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::new(self.clone()), Arc::clone(&self.token), ANNOTATION)
    }
}

impl Fence {
    pub(crate) fn new(right: Arc<dyn Right>, token: Arc<FencingToken>, annotation: &str) -> Self {
        Self { right, token, annotation: annotation.to_owned() }
    }

    /// Sets the name of the annotation, for example if the leaders of two elections write to one
    /// object.
    ///
    /// The default is `requeue/leader-term` for a leader, and `requeue/shard-term` for a shard.
    #[must_use]
    pub fn with_annotation(mut self, annotation: impl Into<String>) -> Self {
        self.annotation = annotation.into();
        self
    }

    /// Returns the name and the value of the annotation, for an object that is created in this
    /// term.
    #[must_use]
    pub fn annotation(&self) -> (String, String) {
        (self.annotation.clone(), self.token.to_string())
    }

    /// Returns the patch to send before the first write to an object that was just read. Returns
    /// `None` if this term has already claimed the object.
    ///
    /// In most cases, the call sends no request. If the object was claimed under another Lease, or if the annotation is
    /// not a term, the call first renews the lease. The renewal ensures that the term in the annotation is not a later
    /// term.
    ///
    /// The patch fails with code 422 if the object has changed since it was read. Read the object
    /// again in that case.
    ///
    /// # Errors
    ///
    /// Returns [`LeadershipLost::Fenced`] if a later term has claimed the object, and another reason if this term has
    /// ended. In both cases, the writer must stop.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point. The only possible effect is a renewal of the lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::api::{Api, PatchParams};
    /// # use requeue_leases::leader::Fence;
    /// # async fn example(fence: Fence, maps: Api<ConfigMap>) -> Result<(), Box<dyn std::error::Error>> {
    /// let map = maps.get("web").await?;
    /// if let Some(claim) = fence.claim(&map).await? {
    ///     maps.patch("web", &PatchParams::default(), &claim).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn claim<K: ResourceExt>(
        &self,
        object: &K,
    ) -> Result<Option<Patch<()>>, LeadershipLost> {
        self.right.check()?;
        let ours = &*self.token;
        let annotations = object.annotations();
        if let Some(claimed) = annotations.get(&self.annotation) {
            match FencingToken::parse(claimed) {
                Some(term) if term == *ours => return Ok(None),
                Some(term) if term.uid() == ours.uid() => {
                    if term.transitions() > ours.transitions() {
                        return Err(LeadershipLost::Fenced(term));
                    }
                }
                // Terms of two Leases cannot be compared. However, a process that can renew its lease now was also the
                // leader when it read the annotation.
                Some(_) | None => self.right.confirm().await?,
            }
        }
        // Without this test, a late claim would overwrite the claim of a later term.
        let mut operations =
            vec![test_op(&["metadata", "resourceVersion"], json!(object.resource_version()))];
        if annotations.is_empty() {
            // A JSON patch cannot add an entry to a map that does not exist.
            operations.push(add_op(&["metadata", "annotations"], json!({})));
        }
        operations.push(add_op(&self.annotation_path(), json!(ours.to_string())));
        Ok(Some(Patch::Json(Operations(operations))))
    }

    /// Returns a patch with these operations, after a test that this term has claimed the object.
    ///
    /// The call does not check whether this process still leads, because the API server decides.
    #[must_use]
    pub fn patch(&self, operations: Operations) -> Patch<()> {
        let term = json!(self.token.to_string());
        // The test comes first, because the API server stops at the first operation that fails.
        let mut all = vec![test_op(&self.annotation_path(), term)];
        all.extend(operations.0);
        Patch::Json(Operations(all))
    }

    fn annotation_path(&self) -> [&str; 3] {
        ["metadata", "annotations", &self.annotation]
    }
}

fn test_op(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer_to(path), value })
}

fn add_op(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer_to(path), value })
}

fn pointer_to(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}

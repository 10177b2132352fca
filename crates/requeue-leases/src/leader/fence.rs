//! Fences, with which the API server rejects the writes of leaders of earlier terms.

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

/// The default name of the annotation that contains the term of a leader.
const ANNOTATION: &str = "requeue/leader-term";

/// A fence makes the API server reject the writes of leaders of earlier terms.
///
/// A process can be frozen between its check of the clock and a write. When it continues, another process may lead. No
/// election can prevent this write. Therefore, an annotation of each object contains the term of the leader that last
/// claimed it, and every write tests the annotation:
///
/// 1. Before its first write to an object, a leader reads the object, and [claims](Fence::claim) it by a patch. The
///    patch writes the leader's term into the annotation. It fails if the object has changed since it was read.
/// 2. For each write to the object or its `status`, the leader uses a JSON patch from [`patch`](Fence::patch). The
///    patch first tests the annotation. The API server applies either all operations of a JSON patch or none.
///
/// After a leader has claimed an object, the API server rejects all writes of earlier leaders to this object. It
/// answers such a write with code 422, because the test fails. If an earlier leader tries to claim the object,
/// [`claim`](Fence::claim) returns [`LeadershipLost::Fenced`].
///
/// Limits:
///
/// - A write without the test is not rejected. Merge patches, applies and `PUT`s cannot contain the test. (A `PUT` is
///   equally safe if its `resourceVersion` was read after the claim.)
/// - A create request is not fenced, because there is no object to test. If the create request of an earlier leader
///   arrives late, it restores an object that was deleted in the meantime. Create objects with [the
///   annotation](Fence::annotation), so that each object shows the term of its creator.
/// - A delete request has no patch. Give it preconditions: the uid and the `resourceVersion` that were read after the
///   claim.
/// - A fence protects single objects. An earlier leader can still write to objects that no later leader has claimed
///   yet.
/// - The terms of two Leases cannot be compared. If a Lease is deleted while a leader holds it, two processes lead
///   until the first one notices. The fence distinguishes their terms, and only the holder of the present Lease can
///   claim objects.
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

/// The right that a token stands for: leading a term, or holding a shard.
pub(crate) trait Right: fmt::Debug + Send + Sync {
    /// Returns an error if the right has ended by the clock of this process. Sends no request.
    fn check(&self) -> Result<(), LeadershipLost>;

    /// Sends a request to the API server, and returns an error if the right has ended.
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
    /// Returns a fence of this term. Its patches make the API server reject writes of earlier terms.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::new(self.clone()), Arc::clone(&self.token), ANNOTATION)
    }
}

impl Fence {
    pub(crate) fn new(right: Arc<dyn Right>, token: Arc<FencingToken>, annotation: &str) -> Self {
        Self { right, token, annotation: annotation.to_owned() }
    }

    /// Sets the name of the annotation. This is necessary if the leaders of two elections write to the same object.
    ///
    /// The default is `requeue/leader-term` for a leader, and `requeue/shard-term` for a shard.
    #[must_use]
    pub fn with_annotation(mut self, annotation: impl Into<String>) -> Self {
        self.annotation = annotation.into();
        self
    }

    /// Returns the name and the value of the annotation. Add it to each object that is created in this term.
    #[must_use]
    pub fn annotation(&self) -> (String, String) {
        (self.annotation.clone(), self.token.to_string())
    }

    /// Returns the patch that claims an object that was just read. Send it before the first write to the object.
    /// Returns `None` if this term has already claimed the object.
    ///
    /// In most cases, this method sends no request. It first renews the lease if the annotation contains a term of
    /// another Lease, or is not a term. The renewal proves that the annotation does not come from a later leader.
    ///
    /// The API server rejects the patch with code 422 if the object has changed since it was read. In this case, read
    /// the object again, and call this method again.
    ///
    /// # Errors
    ///
    /// Returns [`LeadershipLost::Fenced`] if a later term has claimed the object. Returns another error if this term
    /// has ended. In both cases, this process must stop writing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may have been renewed. Nothing else has changed.
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
                // The terms of two Leases cannot be compared. But if this process can renew its lease now, it was also
                // the leader when it read the annotation.
                Some(_) | None => self.right.confirm().await?,
            }
        }
        // This operation makes a late claim fail. Without it, the claim could overwrite the claim of a later term.
        let mut operations =
            vec![test_op(&["metadata", "resourceVersion"], json!(object.resource_version()))];
        if annotations.is_empty() {
            // A JSON patch cannot add an entry to a map that does not exist, so the map is created first.
            operations.push(add_op(&["metadata", "annotations"], json!({})));
        }
        operations.push(add_op(&self.annotation_path(), json!(ours.to_string())));
        Ok(Some(Patch::Json(Operations(operations))))
    }

    /// Returns a JSON patch that tests whether this term has claimed the object, and then applies `operations`.
    ///
    /// This method does not check whether this process still leads. The API server checks the annotation.
    #[must_use]
    pub fn patch(&self, operations: Operations) -> Patch<()> {
        let term = json!(self.token.to_string());
        // The test is the first operation, because the API server stops at the first operation that fails.
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

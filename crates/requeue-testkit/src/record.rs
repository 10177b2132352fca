//! The record of requests to a [`Cluster`](crate::Cluster).

use k8s_openapi::jiff::Timestamp;

/// A request to the server, and its result.
///
/// All versions in this struct are resource versions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The time at which the server received the request.
    pub at: Timestamp,
    /// The name of the user who sent the request.
    pub user: String,
    /// The verb of RBAC, such as `deletecollection`. If the path has no resource, the HTTP
    /// method.
    pub verb: String,
    /// The resource with its group, such as `deployments.apps`. If the path has no resource,
    /// the path.
    pub resource: String,
    /// The subresource, such as `status`, or `None`.
    pub subresource: Option<String>,
    /// The namespace in the path, or `None`.
    pub namespace: Option<String>,
    /// The name of the object. It is from the path, or, for a creation, from the body.
    pub name: Option<String>,
    /// The version that the client sent: in the query of a read, or in the body of a write.
    pub version_sent: Option<String>,
    /// The name of the field manager, if the request is a write.
    pub manager: Option<String>,
    /// True if the request was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The HTTP status code of the response.
    pub code: u16,
    /// The reason in the response, such as `Conflict`, if the request failed.
    pub reason: Option<String>,
    /// The version of the server before the request.
    pub version_before: u64,
    /// The version of the server after the request. If it differs from `version_before`, the
    /// request has changed objects.
    pub version_after: u64,
}

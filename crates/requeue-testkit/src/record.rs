//! The log of requests.

use k8s_openapi::jiff::Timestamp;

/// A request, and its result.
///
/// Versions are resource versions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The time of the request.
    pub at: Timestamp,
    /// The user who made the request.
    pub user: String,
    /// The verb of RBAC, such as `deletecollection`; for a path without a resource, the method.
    pub verb: String,
    /// The resource with its group, such as `deployments.apps`; or a path without a resource.
    pub resource: String,
    /// The subresource, such as `status`.
    pub subresource: Option<String>,
    /// The namespace of the object or the list.
    pub namespace: Option<String>,
    /// The name of the object. For a creation it comes from the body.
    pub name: Option<String>,
    /// The version that the client sent: in the query of a read, in the body of a write.
    pub version_sent: Option<String>,
    /// The field manager of a write.
    pub manager: Option<String>,
    /// True if the request should not change anything.
    pub dry_run: bool,
    /// The status code of HTTP.
    pub code: u16,
    /// The reason of a failure, such as `Conflict`.
    pub reason: Option<String>,
    /// The version of the server before the request.
    pub version_before: u64,
    /// The version of the server after the request. It differs from `version_before` if the request changed objects.
    pub version_after: u64,
}

//! The review of a process's permissions, before it joins a group.
//!
//! Without the review, a missing permission would be noticed later, and only in the log. The protocol repeats a request
//! that fails.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

use super::error::MembershipError;

const VERBS: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];

/// Returns an error for the first verb that the API server does not permit. If the server does not answer a review, a
/// later request shows whether the permission is missing.
pub(super) async fn review_permissions(
    client: &Client,
    namespace: &str,
) -> Result<(), MembershipError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let allowed = join_all(VERBS.map(async |verb| {
        let attributes = ResourceAttributes {
            group: Some("coordination.k8s.io".to_owned()),
            namespace: Some(namespace.to_owned()),
            resource: Some("leases".to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..<_>::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await;
        // A missing answer is not a refusal. If the permission is missing, a later request fails.
        answer.ok().and_then(|review| review.status).is_none_or(|status| status.allowed)
    }));
    match VERBS.into_iter().zip(allowed.await).find(|(_, allowed)| !allowed) {
        Some((verb, _)) => Err(MembershipError::missing_permission(verb, namespace)),
        None => Ok(()),
    }
}

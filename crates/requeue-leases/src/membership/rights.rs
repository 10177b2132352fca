//! Reviews the permissions of a member before it joins.
//!
//! Without this review, a missing permission would be reported later, and only in the log, because failed requests are
//! repeated.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

use super::error::MembershipError;

const VERBS: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];

/// Returns an error for the first verb that is refused. If the server does not answer a review, the
/// later requests show whether the permission exists.
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
        // A missing answer does not count as a refusal, because the later requests show whether the
        // permission exists.
        answer.ok().and_then(|review| review.status).is_none_or(|status| status.allowed)
    }));
    match VERBS.into_iter().zip(allowed.await).find(|(_, allowed)| !allowed) {
        Some((verb, _)) => Err(MembershipError::missing_permission(verb, namespace)),
        None => Ok(()),
    }
}

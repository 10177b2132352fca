//! Asks the API server for the rights of this user before the first watch starts.
//!
//! Without the right to watch, a watch would be retried forever. Without the right to patch, the finalizer could not
//! be added, and no command would run. The program therefore refuses to start without these rights.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::access::Access;
use super::resource::Resource;
use crate::exit::{Exit, Refusal};

impl Access {
    /// Checks the right to apply `verb`, such as watch or patch, to the selected objects of a resource. If the server
    /// does not answer, the program starts, and a missing right later makes a request fail.
    pub(crate) async fn review_right(
        &self,
        verb: &str,
        resource: &Resource,
        params: &ListParams,
    ) -> Result<(), Refusal> {
        let namespace = self.namespace_of(resource);
        let attributes = ResourceAttributes {
            group: Some(resource.api.group.clone()),
            // If the selector names a single object, the right to this object is sufficient.
            name: params.field_selector.as_deref().and_then(required_name).map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            resource: Some(resource.api.plural.clone()),
            verb: Some(verb.to_owned()),
            version: Some(resource.api.version.clone()),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..<_>::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        match answer.ok().and_then(|review| review.status) {
            // Without an answer, the program starts. A missing right then makes a later request fail.
            Some(status) if !status.allowed => {
                let what = resource.name_in(namespace.unwrap_or_default());
                let everywhere = if namespace.is_none() { " of the whole cluster" } else { "" };
                let message = format!(
                    "{} may not {verb} {what}{everywhere}; {}",
                    self.user_name().await,
                    self.next_step(verb, resource)
                );
                Err(Refusal { exit: Exit::Denied, message })
            }
            _ => Ok(()),
        }
    }

    /// Returns the next step for the user if the server refuses `verb`.
    pub(crate) fn next_step(&self, verb: &str, resource: &Resource) -> String {
        let namespace = self.namespace_of(resource);
        let (role, scope) = match namespace {
            Some(namespace) => ("a Role and a RoleBinding", format!("-n {namespace}")),
            None => ("a ClusterRole and a ClusterRoleBinding", "-A".to_owned()),
        };
        let user = self.impersonated.iter().map(|user| format!(" --as {user}")).collect::<String>();
        let name = resource.name();
        format!(
            "allow it by {role}, and check that with `kubectl auth can-i {verb} {name} {scope}{user}`"
        )
    }

    /// Returns the name of this user as the server knows it. If the server does not answer, returns the name that this
    /// process knows.
    async fn user_name(&self) -> String {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
        let info = review.ok().and_then(|review| review.status?.user_info);
        match info.and_then(|info| info.username).or_else(|| self.impersonated.clone()) {
            Some(user) => format!("user {user:?}"),
            None => "the user of this kubeconfig or pod".to_owned(),
        }
    }

    /// Returns the namespace of the resource's objects if it does not exist.
    pub(crate) async fn missing_namespace(&self, resource: &Resource) -> Option<&str> {
        let namespace = self.namespace_of(resource)?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        // Without the right to get namespaces, the result is unknown. No warning is then printed.
        matches!(namespaces.get_metadata_opt(namespace).await, Ok(None)).then_some(namespace)
    }
}

/// Returns the name that a field selector requires. Returns `None` if it requires none.
fn required_name(selector: &str) -> Option<&str> {
    let value = selector.split(',').find_map(|part| part.strip_prefix("metadata.name="))?;
    Some(value.strip_prefix('=').unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::required_name;

    #[test]
    fn a_selector_of_one_name_has_that_name() {
        assert_eq!(required_name("metadata.name=a"), Some("a"));
        assert_eq!(required_name("status.phase!=Failed,metadata.name==a.b"), Some("a.b"));
        assert_eq!(required_name("metadata.name!=a"), None);
        assert_eq!(required_name("metadata.namespace=a"), None);
    }
}

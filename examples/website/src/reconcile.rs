//! The reconciler of a website.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event as News, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use requeue_kube::controller::Action;
use requeue_kube::finalizer::{self, Event, finalizer};
use serde_json::{Value, json};

use crate::CONTROLLER;
use crate::api::{Website, WebsiteStatus};

/// The label of all objects that this controller creates.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The ConfigMap in the controller's own namespace that lists all websites.
///
/// Owner references cannot refer to another namespace. Therefore, the entries are removed with a finalizer.
pub const DIRECTORY: &str = "websites";

const FINALIZER: &str = "example.com/directory";

/// The context that each run needs.
pub struct Context {
    client: Client,
    directory: Api<ConfigMap>,
    recorder: Recorder,
}

impl Context {
    /// Creates the context.
    ///
    /// The [directory](DIRECTORY) is in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            directory: Api::namespaced(client.clone(), namespace),
            recorder: Recorder::new(client.clone(), CONTROLLER.into()),
            client,
        }
    }

    /// Publishes an Event about the website. A failure is only logged.
    async fn tell(&self, site: &Website, type_: EventType, reason: &str, note: String) {
        let (reason, action) = (reason.into(), "Reconcile".into());
        let news = News { type_, reason, note: Some(note), action, secondary: None };
        if let Err(error) = self.recorder.publish(&news, &site.object_ref(&())).await {
            tracing::warn!(%error, "an Event could not be published");
        }
    }

    /// Adds the website to the directory, or removes it if `listed` is false.
    async fn list(&self, site: &Website, listed: bool) -> kube::Result<()> {
        // Namespaces contain no dots.
        let name = format!("{}.{}", site.namespace().unwrap_or_default(), site.name_any());
        let entry = json!({ "data": { name: listed.then(|| site.uid()) } });
        self.directory.patch(DIRECTORY, &PatchParams::default(), &Patch::Merge(entry)).await?;
        Ok(())
    }
}

/// Makes the cluster match `site`, or cleans up after its deletion.
///
/// # Errors
///
/// Returns an error if a request failed. The controller retries with backoff.
pub async fn reconcile(
    site: Arc<Website>,
    context: Arc<Context>,
) -> Result<Action, finalizer::Error<kube::Error>> {
    let sites = Api::namespaced(context.client.clone(), &site.namespace().unwrap_or_default());
    let result = finalizer(&sites, FINALIZER, Arc::clone(&site), async |event| match event {
        Event::Apply(site) => apply(&site, &context, &sites).await,
        Event::Cleanup(site) => {
            context.list(&site, false).await?;
            Ok(Action::await_change())
        }
    })
    .await;
    if let Err(error) = &result {
        // The API server limits a note to 1 kB.
        let note = format!("{:.1000}", error.to_string());
        context.tell(&site, EventType::Warning, "Failed", note).await;
    }
    result
}

async fn apply(site: &Website, context: &Context, sites: &Api<Website>) -> kube::Result<Action> {
    context.list(site, true).await?;

    let namespace = site.namespace().unwrap_or_default();
    let (name, ours) = (site.name_any(), PatchParams::apply(CONTROLLER).force());
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), &namespace);
    let map = maps.patch(&name, &ours, &Patch::Apply(config_map(site))).await?;
    let deployments = Api::<Deployment>::namespaced(context.client.clone(), &namespace);
    let deployment = deployment(site, map.resource_version());
    let deployment = deployments.patch(&name, &ours, &Patch::Apply(deployment)).await?;

    let new = status(site, &deployment);
    if site.status.as_ref() != Some(&new) {
        let apply = json!({
            "apiVersion": Website::api_version(&()),
            "kind": Website::kind(&()),
            "status": new,
        });
        sites.patch_status(&name, &ours, &Patch::Apply(apply)).await?;
    }
    let before = site.status.as_ref().and_then(|status| status.observed_generation);
    if before != new.observed_generation {
        let note = format!("generation {}", new.observed_generation.unwrap_or_default());
        context.tell(site, EventType::Normal, "Applied", note).await;
    }
    Ok(Action::await_change())
}

fn metadata(site: &Website) -> Value {
    json!({
        "name": site.name_any(),
        "labels": { MANAGED_BY: CONTROLLER },
        "ownerReferences": site.controller_owner_ref(&()).as_slice(),
    })
}

fn config_map(site: &Website) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(site),
        "data": { "index.html": site.spec.content },
    })
}

/// Returns the Deployment. `content` is the version of the ConfigMap. When it changes, the pods are replaced.
fn deployment(site: &Website, content: Option<String>) -> Value {
    let pods = json!({ "example.com/website": site.name_any() });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(site),
        "spec": {
            "replicas": site.spec.replicas,
            "selector": { "matchLabels": pods },
            "template": {
                "metadata": {
                    "labels": pods,
                    "annotations": { "example.com/content": content },
                },
                "spec": {
                    "containers": [{
                        "name": "web",
                        "image": "nginxinc/nginx-unprivileged:stable",
                        "ports": [{ "containerPort": 8080 }],
                        "volumeMounts": [{
                            "name": "content",
                            "mountPath": "/usr/share/nginx/html",
                            "readOnly": true,
                        }],
                    }],
                    "volumes": [{ "name": "content", "configMap": { "name": site.name_any() } }],
                },
            },
        },
    })
}

fn status(site: &Website, deployment: &Deployment) -> WebsiteStatus {
    // Until the Deployment's controller has seen this generation, the status describes an earlier
    // one.
    let seen = deployment.status.as_ref();
    let seen = seen.filter(|seen| seen.observed_generation == deployment.metadata.generation);
    let ready = seen.and_then(|seen| seen.ready_replicas).unwrap_or(0);
    let is_ready = seen.is_some() && ready >= site.spec.replicas;

    let status = if is_ready { "True" } else { "False" };
    let reason = if is_ready { "Serving" } else { "Waiting" };
    let before = site.status.as_ref();
    let before = before.and_then(|status| status.conditions.iter().find(|c| c.type_ == "Ready"));
    let since = before.filter(|before| before.status == status);
    let since = since.map(|before| before.last_transition_time.clone());
    WebsiteStatus {
        observed_generation: site.metadata.generation,
        ready_replicas: ready,
        conditions: vec![Condition {
            type_: "Ready".into(),
            status: status.into(),
            reason: reason.into(),
            message: format!("{ready} of {} replicas are ready", site.spec.replicas),
            observed_generation: site.metadata.generation,
            last_transition_time: since.unwrap_or_else(|| Time(requeue_kube::now())),
        }],
    }
}

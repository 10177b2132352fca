//! A website and all objects that belong to it.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use requeue_e2e::{apply, until};
use serde::de::DeserializeOwned;
use serde_json::json;
use website_controller::Website;

use crate::NAMESPACE;

pub(crate) struct World {
    sites: Api<Website>,
    maps: Api<ConfigMap>,
    deployments: Api<Deployment>,
    events: Api<Event>,
    directory: Api<ConfigMap>,
}

const SITE: &str = "hello";

impl World {
    pub(crate) fn of(client: &Client) -> Self {
        Self {
            sites: Api::default_namespaced(client.clone()),
            maps: Api::default_namespaced(client.clone()),
            deployments: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client.clone()),
            directory: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// Checks that the website gets its objects, a status, an Event, and its entry in the
    /// directory.
    pub(crate) async fn comes_up(&self) {
        apply(self.sites.clone().into_client(), manifest!("website.yaml")).await;
        let site = self.site_when("seen", |site| observed(site) == Some(1)).await;
        let uid = site.uid().expect("an object has a uid");
        let map = self.maps.get(SITE).await.expect("the ConfigMap exists");
        let deployment = self.deployments.get(SITE).await.expect("the Deployment exists");
        for owners in [map.owner_references(), deployment.owner_references()] {
            let [owner] = owners else { panic!("{owners:?}") };
            assert_eq!((&owner.uid, owner.controller), (&uid, Some(true)));
        }
        assert_eq!(content(&map), "<h1>Hello</h1>");
        assert_eq!(deployment.spec.replicas, Some(2));
        assert_eq!(ready(&site), ("False", "0 of 2 replicas are ready"));
        assert_eq!(self.in_directory().await, Some(uid.clone()));
        self.has_event("Applied").await;
    }

    /// Checks that the status follows the status of the Deployment. There is no controller of
    /// Deployments, so the test writes the status of the Deployment.
    pub(crate) async fn follows_its_deployment(&self) {
        let deployment = self.deployments.get(SITE).await.expect("the Deployment exists");
        let generation = deployment.metadata.generation;
        let status = json!({ "status": {
            "observedGeneration": generation, "replicas": 2, "readyReplicas": 2,
        } });
        let params = PatchParams::default();
        self.deployments
            .patch_status(SITE, &params, &Patch::Merge(status))
            .await
            .expect("the status is written");
        let site = self.site_when("ready", |site| ready(site).0 == "True").await;
        assert_eq!(ready(&site), ("True", "2 of 2 replicas are ready"));
    }

    /// Checks that a change of the content replaces the pods.
    pub(crate) async fn changes(&self, to: &str, generation: i64) {
        let before = self.version_of_pods().await;
        self.change(to).await;
        self.site_when("seen", |site| observed(site) == Some(generation)).await;
        let map = self.maps.get(SITE).await.expect("the ConfigMap exists");
        assert_eq!(content(&map), to);
        let version = self.version_of_pods().await;
        assert!(version != before && version == map.resource_version());
    }

    /// Checks that owned objects are created again after a deletion.
    pub(crate) async fn is_mended(&self) {
        comes_back(&self.maps).await;
        comes_back(&self.deployments).await;
    }

    /// Checks that a change fails and is reported while the directory does not exist, and that the
    /// change is retried afterwards.
    pub(crate) async fn fails_and_recovers(&self) {
        self.directory
            .delete("websites", &DeleteParams::default())
            .await
            .expect("the directory is deleted");
        self.change("<h1>Hello at last</h1>").await;
        self.has_event("Failed").await;
        apply(self.sites.clone().into_client(), manifest!("manifests/deployment.yaml")).await;
        let site = self.site_when("seen", |site| observed(site) == Some(3)).await;
        assert_eq!(self.in_directory().await, site.uid());
    }

    /// Checks that the finalizer removes objects that garbage collection does not remove.
    pub(crate) async fn goes(&self) {
        self.sites.delete(SITE, &DeleteParams::default()).await.expect("the website is deleted");
        until("the website is gone", async || {
            self.sites.get_opt(SITE).await.expect("an answer").is_none()
        })
        .await;
        assert_eq!(self.in_directory().await, None);
        until("all its objects are gone", async || {
            let map = self.maps.get_opt(SITE).await.expect("an answer");
            let deployment = self.deployments.get_opt(SITE).await.expect("an answer");
            map.is_none() && deployment.is_none()
        })
        .await;
    }

    async fn change(&self, to: &str) {
        let change = json!({ "spec": { "content": to } });
        let params = PatchParams::default();
        self.sites
            .patch(SITE, &params, &Patch::Merge(change))
            .await
            .expect("the website is changed");
    }

    async fn has_event(&self, reason: &str) {
        let uid = self.sites.get(SITE).await.expect("the website exists").uid();
        until(&format!("there is an Event {reason}"), async || {
            let events = self.events.list(&ListParams::default()).await.expect("a list");
            events.iter().any(|event| {
                let about = event.regarding.as_ref().and_then(|about| about.uid.as_ref());
                about == uid.as_ref() && event.reason.as_deref() == Some(reason)
            })
        })
        .await;
    }

    async fn site_when(&self, what: &str, is: impl Fn(&Website) -> bool) -> Website {
        until(&format!("the website is {what}"), async || {
            is(&self.sites.get(SITE).await.expect("the website exists"))
        })
        .await;
        self.sites.get(SITE).await.expect("the website exists")
    }

    async fn version_of_pods(&self) -> Option<String> {
        let deployment = self.deployments.get(SITE).await.expect("the Deployment exists");
        deployment.spec.template.metadata?.annotations?.remove("example.com/content")
    }

    async fn in_directory(&self) -> Option<String> {
        let directory = self.directory.get("websites").await.expect("the directory exists");
        directory.data?.remove(&format!("default.{SITE}"))
    }
}

async fn comes_back<K>(api: &Api<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let uid = api.get(SITE).await.expect("the object exists").uid();
    api.delete(SITE, &DeleteParams::default()).await.expect("the object is deleted");
    until("the object exists again", async || {
        let object = api.get_opt(SITE).await.expect("an answer");
        object.is_some_and(|object| object.uid() != uid)
    })
    .await;
}

fn content(map: &ConfigMap) -> &str {
    map.data.as_ref().map_or("", |data| &data["index.html"])
}

fn observed(site: &Website) -> Option<i64> {
    site.status.as_ref()?.observed_generation
}

/// Returns the status and the message of the condition `Ready`.
fn ready(site: &Website) -> (&str, &str) {
    let status = site.status.as_ref().expect("a website has a status");
    let [ready] = &*status.conditions else { panic!("{:?}", status.conditions) };
    assert_eq!(ready.type_, "Ready");
    (&ready.status, &ready.message)
}

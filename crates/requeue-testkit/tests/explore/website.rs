//! The website example, with two replicas.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use requeue_kube::controller::Action;
use requeue_kube::finalizer::{self, Event, finalizer};
use requeue_kube::leader::{Config, LeaderElector};
use requeue_kube::{Controller, policy};
use requeue_testkit::explore::{Process, World, explore};
use requeue_testkit::invariants::Invariant;
use serde_json::{Value, json};
use website_controller::reconcile::{Context, DIRECTORY, reconcile};
use website_controller::{CONTROLLER, Website};

use super::{Checked, SEEDS, User, assert_found, create, entry, install};

const SYSTEM: &str = "website-system";
const FINALIZER: &str = "example.com/directory";

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Bug {
    None,
    /// The ConfigMap and the Deployment have no owner.
    ForgetsOwner,
    /// The directory is read, changed and replaced, without a version.
    ReplacesDirectory,
    /// A leader works on after the loss of its Lease.
    IgnoresLoss,
    /// The directory is cleaned up after the removal of the finalizer.
    CleansUpLast,
}

type Failed = Box<dyn Error + Send + Sync>;

async fn run(process: Process, bug: Bug) -> Result<(), Failed> {
    let client = match bug {
        Bug::ForgetsOwner => without_owners(process.client()),
        _ => process.client(),
    };
    let elector = LeaderElector::new(process.client(), Config::new(SYSTEM, CONTROLLER))?;
    let context = Arc::new(Context::new(client.clone(), SYSTEM));
    let (controller, _term) = match bug {
        Bug::IgnoresLoss => {
            let term = elector.acquire().await;
            let sites = Api::<Website>::all(client.clone());
            let controller = Controller::new(sites, watcher::Config::default())
                .owns(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
                .owns(Api::<Deployment>::all(client.clone()), watcher::Config::default());
            (controller, Some(term))
        }
        _ => (website_controller::controller(client.clone(), elector), None),
    };
    let reconcile =
        move |site, context| reconcile_with(process.clone(), site, context, client.clone(), bug);
    let results = controller.run(reconcile, policy::backoff, context);
    results.map(website_controller::report).try_collect::<()>().await?;
    Ok(())
}

async fn reconcile_with(
    process: Process,
    site: Arc<Website>,
    context: Arc<Context>,
    client: Client,
    bug: Bug,
) -> Result<Action, finalizer::Error<kube::Error>> {
    let sites = Api::<Website>::namespaced(client.clone(), &site.namespace().unwrap_or_default());
    let directory = Api::<ConfigMap>::namespaced(client, SYSTEM);
    let failed = finalizer::Error::ApplyFailed;
    match bug {
        Bug::CleansUpLast if site.metadata.deletion_timestamp.is_some() => {
            let name = format!("{}.{}", site.namespace().unwrap_or_default(), site.name_any());
            let nothing = async |_: Event<Website>| Ok::<_, kube::Error>(Action::await_change());
            let action = finalizer(&sites, FINALIZER, site, nothing).await?;
            let stepped = process.step("clean up").await;
            stepped.map_err(|error| failed(kube::Error::Service(error.into())))?;
            let entry = Patch::Merge(json!({ "data": { name: null } }));
            directory.patch(DIRECTORY, &PatchParams::default(), &entry).await.map_err(failed)?;
            return Ok(action);
        }
        Bug::ReplacesDirectory => {
            let mut map = directory.get(DIRECTORY).await.map_err(failed)?;
            map.metadata.resource_version = None;
            map.metadata.managed_fields = None;
            directory.replace(DIRECTORY, &PostParams::default(), &map).await.map_err(failed)?;
        }
        _ => {}
    }
    reconcile(site, context).await
}

/// Returns a client whose objects have no owners, as if the code had forgotten them.
fn without_owners(client: Client) -> Client {
    let forget = move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (head, body) = request.into_parts();
            let mut body = body.collect_bytes().await?;
            if let Ok(mut object) = serde_json::from_slice::<Value>(&body)
                && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
                && metadata.remove("ownerReferences").is_some()
            {
                body = Bytes::from(object.to_string());
            }
            client.send(Request::from_parts(head, Body::from(body))).await
        }
    };
    Client::new(tower::service_fn(forget), "default")
}

/// Lets users create, change and delete websites, and checks the objects.
pub(crate) async fn scenario(world: World, bug: Bug) {
    install::<Website>(&world, &["default", SYSTEM]).await;
    let directories = Api::<ConfigMap>::namespaced(world.client(), SYSTEM);
    create(&directories, json!({ "metadata": { "name": DIRECTORY } })).await;
    let world = if bug == Bug::CleansUpLast || bug == Bug::ForgetsOwner {
        // The effects of these bugs are permanent.
        world.bound(Duration::from_secs(120))
    } else {
        world
    };
    world.run_replicas(2, move |process| run(process, bug));

    let sites = Api::<Website>::namespaced(world.client(), "default");
    let user = User { world: &world, objects: sites, longest: 8_000 };
    for name in ["a", "b"] {
        user.create(name, json!({ "spec": { "content": "1", "replicas": 1 } })).await;
    }
    // A leader that has lost its Lease needs work to be noticed.
    let changes = if bug == Bug::IgnoresLoss { 8 } else { 1 };
    for n in 0..changes {
        user.change("a", json!({ "spec": { "content": format!("changed {n}") } })).await;
    }
    user.delete("b").await;
    world.converges(check).await;
}

async fn check(client: Client) -> Checked {
    let sites = Api::<Website>::namespaced(client.clone(), "default");
    let sites = sites.list(&ListParams::default()).await?.items;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let deployments = Api::<Deployment>::namespaced(client.clone(), "default");
    let mut listed = Vec::new();
    for site in &sites {
        let name = site.name_any();
        let (map, deployment) = (maps.get(&name).await?, deployments.get(&name).await?);
        if entry(&map, "index.html") != Some(&site.spec.content) {
            return Err(format!("the page of {name} is old").into());
        }
        let replicas = deployment.spec.replicas;
        if replicas != Some(site.spec.replicas) {
            return Err(format!("the Deployment of {name} has {replicas:?} replicas").into());
        }
        if site.status.is_none() {
            return Err(format!("{name} has no status").into());
        }
        listed.push((format!("default.{name}"), site.uid().unwrap_or_default()));
    }
    let left = maps.list(&ListParams::default()).await?.items.len();
    if left != sites.len() {
        return Err(format!("{left} ConfigMaps for {} websites", sites.len()).into());
    }
    let directory = Api::<ConfigMap>::namespaced(client, SYSTEM).get(DIRECTORY).await?;
    let found: Vec<_> = directory.data.unwrap_or_default().into_iter().collect();
    if found != listed {
        return Err(format!("the directory lists {found:?} instead of {listed:?}").into());
    }
    Ok(())
}

#[test]
fn the_correct_controller_passes() {
    explore(SEEDS / 2, |world| scenario(world, Bug::None));
}

#[test]
fn a_forgotten_owner_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::ForgetsOwner));
}

#[test]
fn a_replacement_without_a_version_is_found() {
    assert_found(&[Invariant::CurrentVersion], |world| scenario(world, Bug::ReplacesDirectory));
}

#[test]
fn a_leader_that_works_on_is_found() {
    assert_found(&[Invariant::OneReplica], |world| scenario(world, Bug::IgnoresLoss));
}

#[test]
fn a_clean_up_after_the_finalizer_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::CleansUpLast));
}

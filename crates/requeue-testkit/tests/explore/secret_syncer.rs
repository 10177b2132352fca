//! A port of the example `secret_syncer` of kube-rs: each ConfigMap is copied to a Secret.
//!
//! The Secret has no owner reference. A finalizer removes it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use requeue_testkit::explore::{World, explore};
use requeue_testkit::invariants::Invariant;
use serde_json::{Value, json};

use super::{Checked, SEEDS, User, assert_found};

const FINALIZER: &str = "configmap-secret-syncer.nullable.se/cleanup";

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    /// The clean-up fails if the Secret no longer exists.
    CleansUpOnce,
    /// The finalizer is removed before the clean-up.
    RemovesFinalizerFirst,
    /// The finalizer is set after the Secret is created.
    SetsFinalizerLast,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// An error that is `std::error::Error`, as kube's controller wants it.
#[derive(Debug)]
struct Error(Failed);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

async fn reconcile(map: Arc<ConfigMap>, client: Client, bug: Bug) -> Result<Action, Failed> {
    let namespace = map.namespace().unwrap_or_default();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    let secrets = Api::<Secret>::namespaced(client, &namespace);
    match bug {
        Bug::None | Bug::CleansUpOnce => {
            let result = finalizer(&maps, FINALIZER, map, async |event| match event {
                Event::Apply(map) => copy(&secrets, &map).await,
                Event::Cleanup(map) => clean_up(&secrets, &map, bug == Bug::None).await,
            });
            Ok(result.await?)
        }
        Bug::RemovesFinalizerFirst | Bug::SetsFinalizerLast => {
            let is_deleted = map.metadata.deletion_timestamp.is_some();
            let has_finalizer = map.finalizers().iter().any(|it| it == FINALIZER);
            let set = async |finalizers: Value| {
                let version = map.resource_version();
                let patch =
                    json!({ "metadata": { "finalizers": finalizers, "resourceVersion": version } });
                maps.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
            };
            if is_deleted && has_finalizer {
                if bug == Bug::RemovesFinalizerFirst {
                    set(Value::Null).await?;
                    return Ok(clean_up(&secrets, &map, true).await?);
                }
                clean_up(&secrets, &map, true).await?;
                set(Value::Null).await?;
            } else if !is_deleted {
                if bug == Bug::RemovesFinalizerFirst && !has_finalizer {
                    set(json!([FINALIZER])).await?;
                }
                copy(&secrets, &map).await?;
                if !has_finalizer && bug == Bug::SetsFinalizerLast {
                    set(json!([FINALIZER])).await?;
                }
            }
            Ok(Action::await_change())
        }
    }
}

async fn copy(secrets: &Api<Secret>, map: &ConfigMap) -> kube::Result<Action> {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": map.name_any() },
        "stringData": map.data,
    });
    let apply = PatchParams::apply("syncer").force();
    secrets.patch(&map.name_any(), &apply, &Patch::Apply(secret)).await?;
    Ok(Action::await_change())
}

async fn clean_up(
    secrets: &Api<Secret>,
    map: &ConfigMap,
    may_be_missing: bool,
) -> kube::Result<Action> {
    match secrets.delete(&map.name_any(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if may_be_missing && status.code == 404 => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    Ok(Action::await_change())
}

async fn run(client: Client, bug: Bug) {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let policy = |_: Arc<_>, _: &_, _: Arc<_>| Action::requeue(Duration::from_secs(5));
    let reconcile = async move |map, context: Arc<(Client, Bug)>| {
        reconcile(map, Client::clone(&context.0), context.1).await.map_err(Error)
    };
    let controller = Controller::new(maps, watcher::Config::default());
    controller.run(reconcile, policy, Arc::new((client, bug))).for_each(async |_| {}).await;
}

async fn scenario(world: World, bug: Bug) {
    world.run_controller(move |client| run(client, bug));
    let maps = Api::<ConfigMap>::namespaced(world.client(), "default");
    let user = User { world: &world, objects: maps, longest: 3_000 };
    for name in ["a", "b", "c"] {
        user.create(name, json!({ "data": { "x": name } })).await;
    }
    for name in ["a", "b"] {
        user.delete(name).await;
    }
    world.converges(check).await;
    user.delete("c").await;
    world.converges(check).await;
}

async fn check(client: Client) -> Checked {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let maps = maps.list(&ListParams::default()).await?;
    let secrets = Api::<Secret>::namespaced(client, "default").list(&ListParams::default()).await?;
    let names = |names: Vec<String>| names.join(" ");
    let maps = names(maps.iter().map(ResourceExt::name_any).collect());
    let secrets = names(secrets.iter().map(ResourceExt::name_any).collect());
    if maps != secrets {
        return Err(format!("ConfigMaps: {maps}; Secrets: {secrets}").into());
    }
    Ok(())
}

#[test]
fn the_correct_controller_passes() {
    explore(SEEDS, |world| scenario(world, Bug::None));
}

#[test]
fn a_finalizer_that_stays_is_found() {
    let found = [Invariant::FinalizersRemoved, Invariant::Converges];
    assert_found(&found, |world| scenario(world, Bug::CleansUpOnce));
}

#[test]
fn a_finalizer_that_is_removed_before_the_clean_up_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::RemovesFinalizerFirst));
}

#[test]
fn a_finalizer_that_is_set_after_the_effect_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::SetsFinalizerLast));
}

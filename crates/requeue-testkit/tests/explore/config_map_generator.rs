//! A port of the example `configmapgen_controller` of kube-rs, on kube's own `Controller`.
//!
//! Each generator has a ConfigMap with its content.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::{reflector, watcher};
use kube::{Client, CustomResource, Resource, ResourceExt};
use requeue_testkit::explore::{World, explore};
use requeue_testkit::invariants::Invariant;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Checked, SEEDS, User, assert_found, entry, install};

#[derive(CustomResource, Deserialize, Serialize, Clone, Debug, JsonSchema)]
#[kube(group = "nullable.se", version = "v1", kind = "ConfigMapGenerator", namespaced)]
struct ConfigMapGeneratorSpec {
    content: String,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    /// The ConfigMap has a generated name, and is created if the store has none.
    GeneratesNames,
    /// Each run writes its time into an annotation.
    TouchesItself,
    /// A ConfigMap that differs is deleted and created again.
    Recreates,
    /// The controller does not watch its ConfigMaps.
    WatchesNoChildren,
    /// After a failure, the controller waits for the next change.
    SwallowsErrors,
}

struct Context {
    client: Client,
    maps: reflector::Store<ConfigMap>,
    bug: Bug,
}

async fn reconcile(
    generator: Arc<ConfigMapGenerator>,
    context: Arc<Context>,
) -> Result<Action, kube::Error> {
    let namespace = generator.namespace().unwrap_or_default();
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), &namespace);
    let name = generator.name_any();
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "ownerReferences": generator.controller_owner_ref(&()).as_slice(),
        },
        "data": { "content": generator.spec.content },
    });
    let result = match context.bug {
        Bug::GeneratesNames => {
            let known = context.maps.state();
            let is_ours = |map: &&Arc<ConfigMap>| {
                let mut owners = map.owner_references().iter();
                owners.any(|owner| Some(&owner.uid) == generator.uid().as_ref())
            };
            if let Some(known) = known.iter().find(is_ours) {
                let change = Patch::Merge(json!({ "data": map["data"] }));
                maps.patch(&known.name_any(), &PatchParams::default(), &change).await?;
                return Ok(Action::await_change());
            }
            let mut map = map;
            map["metadata"]["generateName"] = json!(format!("{name}-"));
            map["metadata"].as_object_mut().expect("an object").remove("name");
            let map = serde_json::from_value(map).expect("a ConfigMap");
            maps.create(&PostParams::default(), &map).await.map(drop)
        }
        Bug::Recreates => {
            let known = context.maps.get(&reflector::ObjectRef::new(&name).within(&namespace));
            if known.is_some_and(|known| entry(&known, "content") == Some(&generator.spec.content))
            {
                return Ok(Action::await_change());
            }
            match maps.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
            let map = serde_json::from_value(map).expect("a ConfigMap");
            maps.create(&PostParams::default(), &map).await.map(drop)
        }
        _ => maps
            .patch(&name, &PatchParams::apply("generator").force(), &Patch::Apply(map))
            .await
            .map(drop),
    };
    if context.bug == Bug::TouchesItself {
        let generators = Api::<ConfigMapGenerator>::namespaced(context.client.clone(), &namespace);
        let runs = generator.annotations().get("runs").and_then(|runs| runs.parse().ok());
        let runs: u64 = runs.unwrap_or(0);
        let touch = json!({ "metadata": { "annotations": { "runs": (runs + 1).to_string() } } });
        generators.patch(&name, &PatchParams::default(), &Patch::Merge(touch)).await?;
    }
    match result {
        Err(_) if context.bug == Bug::SwallowsErrors => Ok(Action::await_change()),
        result => result.map(|()| Action::await_change()),
    }
}

async fn run(client: Client, bug: Bug) {
    let generators = Api::<ConfigMapGenerator>::all(client.clone());
    let api = Api::<ConfigMap>::all(client.clone());
    let (maps, writer) = reflector::store();
    let follow = reflector::reflector(writer, watcher(api.clone(), watcher::Config::default()));
    let context = Arc::new(Context { client, maps, bug });
    let mut controller = Controller::new(generators, watcher::Config::default());
    if bug != Bug::WatchesNoChildren {
        controller = controller.owns(api, watcher::Config::default());
    }
    let policy = |_: Arc<_>, _: &_, _: Arc<_>| Action::requeue(Duration::from_secs(5));
    let work = controller.run(reconcile, policy, context).for_each(async |_| {});
    tokio::join!(work, follow.for_each(async |_| {}));
}

/// Lets a user create, change and delete generators, and checks the ConfigMaps.
async fn scenario(world: World, bug: Bug) {
    install::<ConfigMapGenerator>(&world, &["default"]).await;
    if bug == Bug::TouchesItself {
        // A loop without end takes long in a test.
        world.most_requests(100);
    }
    world.run_controller(move |client| run(client, bug));
    let generators = Api::<ConfigMapGenerator>::namespaced(world.client(), "default");
    let user = User { world: &world, objects: generators, longest: 3_000 };
    for name in ["a", "b"] {
        user.create(name, json!({ "spec": { "content": "1" } })).await;
    }
    user.change("a", json!({ "spec": { "content": "2" } })).await;
    world.converges(check).await;
    let maps = Api::<ConfigMap>::namespaced(world.client(), "default");
    let ours = maps.list(&ListParams::default()).await.expect("listed").items;
    let victim = &ours[world.draw(0..ours.len() as u64) as usize];
    maps.delete(&victim.name_any(), &DeleteParams::default()).await.expect("deleted");
    user.delete("b").await;
    world.converges(check).await;
}

async fn check(client: Client) -> Checked {
    let generators = Api::<ConfigMapGenerator>::namespaced(client.clone(), "default");
    let generators = generators.list(&ListParams::default()).await?.items;
    let maps = Api::<ConfigMap>::namespaced(client, "default").list(&ListParams::default()).await?;
    for generator in &generators {
        let owned = |map: &&ConfigMap| {
            let owner = map.owner_references().first();
            owner.is_some_and(|owner| Some(&owner.uid) == generator.uid().as_ref())
        };
        let name = generator.name_any();
        let map = maps.iter().find(owned).ok_or(format!("{name} has no ConfigMap"))?;
        if entry(map, "content") != Some(&generator.spec.content) {
            return Err(format!("the ConfigMap of {name} has other content").into());
        }
    }
    if maps.items.len() != generators.len() {
        return Err(format!("there are {} ConfigMaps", maps.items.len()).into());
    }
    Ok(())
}

#[test]
fn the_correct_controller_passes() {
    explore(SEEDS, |world| scenario(world, Bug::None));
}

#[test]
fn a_creation_that_is_repeated_under_another_name_is_found() {
    let found = [Invariant::CreatedOnce];
    assert_found(&found, |world| scenario(world, Bug::GeneratesNames));
}

#[test]
fn a_hot_loop_is_found() {
    assert_found(&[Invariant::Quiet], |world| scenario(world, Bug::TouchesItself));
}

#[test]
fn the_deletion_of_a_wanted_object_is_found() {
    assert_found(&[Invariant::NothingWantedDeleted], |world| scenario(world, Bug::Recreates));
}

#[test]
fn a_missing_watch_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::WatchesNoChildren));
}

#[test]
fn a_swallowed_error_is_found() {
    assert_found(&[Invariant::Converges], |world| scenario(world, Bug::SwallowsErrors));
}

//! Runs controllers and queues under many seeds, with and without planted bugs.

mod config_map_generator;
mod determinism;
#[cfg(feature = "store")]
mod queues;
mod secret_syncer;
pub(crate) mod website;

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::CustomResourceExt;
use requeue_testkit::explore::{World, find_failure};
use requeue_testkit::invariants::Invariant;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};
use tokio::time::sleep;

type Checked = Result<(), Box<dyn Error + Send + Sync>>;

/// The seeds of each test of a correct program. `REQUEUE_SEEDS` replaces it.
const SEEDS: u64 = 10;
/// The seeds within which a planted bug must be found.
const UNTIL_FOUND: u64 = 1_000;

/// A user, who pauses before each change of an object.
struct User<'w, K> {
    world: &'w World,
    objects: Api<K>,
    /// The longest pause, in milliseconds.
    longest: u64,
}

impl<K: Clone + Debug + DeserializeOwned + Serialize> User<'_, K> {
    async fn pause(&self) {
        sleep(Duration::from_millis(self.world.draw(0..self.longest))).await;
    }

    async fn create(&self, name: &str, mut object: Value) {
        self.pause().await;
        object["metadata"] = json!({ "name": name });
        create(&self.objects, object).await;
    }

    async fn change(&self, name: &str, change: Value) {
        self.pause().await;
        let patch = Patch::Merge(change);
        self.objects.patch(name, &PatchParams::default(), &patch).await.expect("changed");
    }

    async fn delete(&self, name: &str) {
        self.pause().await;
        self.objects.delete(name, &DeleteParams::default()).await.expect("deleted");
    }
}

/// Creates an object.
async fn create<K>(api: &Api<K>, object: Value)
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let object = from_value(object).expect("an object of this kind");
    api.create(&PostParams::default(), &object).await.expect("the server accepts it");
}

/// Creates the definition of a resource, and namespaces.
async fn install<K: CustomResourceExt>(world: &World, namespaces: &[&str]) {
    let definitions = Api::<CustomResourceDefinition>::all(world.client());
    definitions.create(&PostParams::default(), &K::crd()).await.expect("the definition is valid");
    for name in namespaces.iter().filter(|name| **name != "default") {
        let namespace = json!({ "metadata": { "name": name } });
        create(&Api::<Namespace>::all(world.client()), namespace).await;
    }
}

/// Checks that a planted bug is found within [`UNTIL_FOUND`] seeds, by one of these invariants.
#[track_caller]
fn assert_found<F, Fut>(invariants: &[Invariant], test: F)
where
    F: Fn(World) -> Fut + Sync,
    Fut: Future<Output = ()>,
{
    let failure = find_failure(UNTIL_FOUND, test).expect("the planted bug is found");
    assert!(invariants.contains(&failure.invariant()), "{failure}");
    println!("{failure}");
}

/// Returns the text of a ConfigMap's entry.
fn entry<'a>(map: &'a ConfigMap, name: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(name).map(String::as_str)
}

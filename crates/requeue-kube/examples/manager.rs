//! Two controllers in one process, which share the watch of Secrets.
//!
//! The controllers only report objects, so they need only the permissions `list` and `watch`. The process stops at
//! Ctrl-C, or when a controller cannot continue:
//!
//! ```sh
//! cargo run -p requeue-kube --example manager
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use requeue_kube::controller::{Action, Config, Watched};
use requeue_kube::shared::{Index, SharedWatch};
use requeue_kube::{Controller, Manager, policy};

/// Returns the names of the Secrets that a pod mounts.
fn mounted(pod: &Pod) -> BTreeSet<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone()).collect()
}

/// Reports the Secrets that a pod mounts and that do not exist.
async fn check_pod(pod: Arc<Pod>, secrets: Arc<Store<Secret>>) -> Result<Action, kube::Error> {
    let namespace = pod.namespace().unwrap_or_default();
    for name in mounted(&pod) {
        if secrets.get(&ObjectRef::new(&name).within(&namespace)).is_none() {
            println!("{namespace}/{} waits for the Secret {name}", pod.name_any());
        }
    }
    Ok(Action::await_change())
}

/// Reports the pods that mount a Secret.
async fn check_secret(
    secret: Arc<Secret>,
    pods: Arc<Index<String, Pod>>,
) -> Result<Action, kube::Error> {
    let users = pods.keys(&secret.name_any());
    let namespace = secret.namespace();
    let users = users.iter().filter(|pod| pod.namespace() == namespace.as_deref()).count();
    println!("{} pods mount the Secret {}", users, secret.name_any());
    Ok(Action::await_change())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::try_default().await?;
    let mut manager = Manager::new().shutdown_on_signal();

    let wc = watcher::Config::default();
    let pods: SharedWatch<Pod> = manager.watch(Api::all(client.clone()), wc.clone());
    let secrets: SharedWatch<Secret> = manager.watch(Api::all(client), wc);
    let by_secret = pods.by_index(mounted);

    // A pod is checked again when a Secret that it mounts is created, changed or deleted.
    let users = by_secret.clone();
    let of_pods = Controller::for_shared(&pods)
        .watch_mapped(Watched::shared(&secrets), move |secret| -> Vec<ObjectRef<Pod>> {
            let pods = users.keys(&secret.name_any()).into_iter();
            let namespace = secret.namespace();
            let pods = pods.filter(|pod| pod.namespace() == namespace.as_deref());
            pods.map(|pod| pod.to_ref(())).collect()
        })
        .with_config(Config::default().concurrency(4));
    let store = Arc::new(secrets.store());
    manager.add(of_pods, |it| it.run(check_pod, policy::backoff, store));
    let of_secrets = Controller::for_shared(&secrets);
    manager.add(of_secrets, |it| it.run(check_secret, policy::backoff, Arc::new(by_secret)));

    let readiness = manager.readiness();
    tokio::spawn(async move {
        readiness.ready().await;
        println!("all caches are complete");
    });
    manager.run().await?;
    Ok(())
}

//! A kind that is installed after the start of its controller, and removed later.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Api, Client, CustomResource, CustomResourceExt, Resource};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, Watched};
use requeue_kube::{Controller, policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "optional.example.com", version = "v1", kind = "Gadget", namespaced)]
struct GadgetSpec {}

const DEFINITION: &str = "gadgets.optional.example.com";

/// Installs the kind, and creates an object of this kind that `owner` owns.
async fn install(client: &Client, owner: &ConfigMap) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &Gadget::crd()).await.unwrap();
    let established = conditions::is_crd_established();
    await_condition(definitions, DEFINITION, established).await.unwrap();
    let mut gadget = Gadget::new("gadget", GadgetSpec {});
    gadget.metadata.owner_references = Some(vec![owner.owner_ref(&()).unwrap()]);
    let gadgets =
        Api::<Gadget>::namespaced(client.clone(), owner.metadata.namespace.as_ref().unwrap());
    until("the kind is served", async || {
        gadgets.create(&PostParams::default(), &gadget).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_kind_that_is_installed_later_is_watched_and_again_after_its_removal() {
    let Some(server) = Server::shared().await else { return };
    let (client, namespace) = (server.client().await, server.namespace("optional").await);
    let account = server.access().user("optional");
    let verbs = json!(["list", "watch"]);
    let rules = json!([
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs },
        { "apiGroups": ["optional.example.com"], "resources": ["gadgets"], "verbs": verbs },
        { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
          "resourceNames": [DEFINITION], "verbs": verbs },
    ]);
    account.allow(rules).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let metadata = ObjectMeta { name: Some("owner".to_owned()), ..ObjectMeta::default() };
    let owner = ConfigMap { metadata, ..ConfigMap::default() };
    let owner = maps.create(&PostParams::default(), &owner).await.unwrap();

    let limited = account.client().await;
    let wc = watcher::Config::default().fields("metadata.name=owner");
    let controller = Controller::new(Api::<ConfigMap>::namespaced(limited.clone(), &namespace), wc)
        .watch_owned(
            Watched::metadata(
                Api::<Gadget>::namespaced(limited, &namespace),
                watcher::Config::default(),
            )
            .optional(),
        )
        .name(&namespace);
    let (runs, errors) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let reconcile = async |_: Arc<ConfigMap>, runs: Arc<AtomicUsize>| {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, kube::Error>(Action::await_change())
    };
    let reported = Arc::clone(&errors);
    let stream = controller.run(reconcile, policy::backoff, Arc::clone(&runs));
    let _running = AbortOnDropHandle::new(tokio::spawn(stream.for_each(move |item| {
        reported.lock().unwrap().extend(item.err().map(|error| error.to_string()));
        async {}
    })));
    let count = || runs.load(Ordering::SeqCst);
    until("the controller runs without the kind", async || count() == 1).await;
    for _ in 0..2 {
        let before = count();
        install(&client, &owner).await;
        until("the owner of the object runs", async || count() > before).await;
        let before = count();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let installed = definitions.get(DEFINITION).await.unwrap();
        definitions.delete(DEFINITION, &DeleteParams::default()).await.unwrap();
        let uid = installed.metadata.uid.unwrap();
        let deleted = conditions::is_deleted(&uid);
        await_condition(definitions, DEFINITION, deleted).await.unwrap();
        until("the owner of the deleted object runs", async || count() > before).await;
    }
    // If the kind is installed again immediately, the watch lists its objects again, and the kind
    // does not count as absent.
    let is_expected = |error: &String| error.contains("Expired");
    let errors = errors.lock().unwrap();
    assert!(errors.iter().all(is_expected), "{errors:?}");
}

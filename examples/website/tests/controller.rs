//! The whole controller beside an API server in memory, with the permissions of its manifests.

mod rbac;

use axum::Router;
use axum::body::{self, Body};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use requeue_kube::leader;
use requeue_testkit::ApiServer;
use serde_json::json;
use tokio::net::TcpListener;
use tower::{Service, service_fn};
use website_controller::reconcile::DIRECTORY;
use website_controller::{CONTROLLER, Website};

use self::rbac::{objects, permissions};

const NAMESPACE: &str = "website-system";
const RBAC: &str = include_str!("../manifests/rbac.yaml");

/// Serves the API on a socket, and returns the configuration of a client.
async fn serve(server: ApiServer) -> kube::Config {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = service_fn(move |request: http::Request<Body>| {
        let mut server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body::to_bytes(body, usize::MAX).await.expect("a body");
            let request = http::Request::from_parts(parts, body.to_vec().into());
            let response = server.call(request).await.expect("a response");
            Ok(response.map(Body::new))
        }
    });
    let router = Router::new().fallback_service(service);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut config = kube::Config::new(format!("http://{address}").parse().expect("a URL"));
    config.default_namespace = NAMESPACE.into();
    config
}

#[tokio::test]
async fn a_website_lives_and_goes() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let server = ApiServer::new();
    let client = server.client();
    let definition: CustomResourceDefinition =
        serde_saphyr::from_str(include_str!("../manifests/crd.yaml"))?;
    Api::all(client.clone()).create(&PostParams::default(), &definition).await?;
    let namespaces = Api::<Namespace>::all(client.clone());
    for namespace in objects::<Namespace>(RBAC, "Namespace") {
        namespaces.create(&PostParams::default(), &namespace).await?;
    }
    let directory = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let empty = serde_json::from_value(json!({ "metadata": { "name": DIRECTORY } }))?;
    directory.create(&PostParams::default(), &empty).await?;

    let config = serve(server.with_access(permissions(RBAC, CONTROLLER, NAMESPACE))).await;
    let election = leader::Config::new(NAMESPACE, CONTROLLER);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let controller = tokio::spawn(website_controller::run(config, election, listener));

    let sites = Api::<Website>::default_namespaced(client.clone());
    let site = serde_json::from_value(json!({
        "metadata": { "name": "shop" }, "spec": { "content": "<h1>Shop</h1>", "replicas": 2 },
    }))?;
    sites.create(&PostParams::default(), &site).await?;
    let told = |site: Option<&Website>| {
        let status = site.and_then(|site| site.status.as_ref());
        status.map(|status| status.conditions[0].status.clone()).unwrap_or_default()
    };
    await_condition(sites.clone(), "shop", |site: Option<&Website>| told(site) == "False").await?;
    let map = Api::<ConfigMap>::default_namespaced(client.clone()).get("shop").await?;
    assert_eq!(map.data.unwrap_or_default()["index.html"], "<h1>Shop</h1>");

    // The test is the controller of Deployments.
    let deployments = Api::<Deployment>::default_namespaced(client);
    let deployment = deployments.get("shop").await?;
    let status = json!({ "status": {
        "observedGeneration": deployment.metadata.generation, "readyReplicas": 2,
    } });
    deployments.patch_status("shop", &PatchParams::default(), &Patch::Merge(status)).await?;
    await_condition(sites.clone(), "shop", |site: Option<&Website>| told(site) == "True").await?;
    let entries = directory.get(DIRECTORY).await?.data.unwrap_or_default();
    assert!(entries.contains_key("default.shop"));

    let uid = sites.get("shop").await?.uid().unwrap_or_default();
    sites.delete("shop", &DeleteParams::default()).await?;
    await_condition(sites, "shop", conditions::is_deleted(&uid)).await?;
    assert!(deployments.get_opt("shop").await?.is_none(), "the owner is gone");
    assert!(directory.get(DIRECTORY).await?.data.unwrap_or_default().is_empty());
    controller.abort();

    let refused: Vec<_> =
        server.records().into_iter().filter(|record| [403, 501].contains(&record.code)).collect();
    assert_eq!(refused, [], "the manifests allow everything that the controller does");
    assert!(!server.objects("leases.coordination.k8s.io").is_empty());
    Ok(())
}

//! The subresources `status` and `scale`.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{from, refused};

#[tokio::test]
async fn spec_and_status_are_written_apart() {
    let deployments = Api::<Deployment>::default_namespaced(ApiServer::new().client());
    let deployment: Deployment = from(json!({
        "metadata": { "name": "d" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": { "containers": [{ "name": "main", "image": "main" }] },
            },
        },
        "status": { "replicas": 7 },
    }));
    let created = deployments.create(&PostParams::default(), &deployment).await.expect("created");
    assert_eq!(created.status.unwrap_or_default().replicas, None);
    let both = json!({ "spec": { "replicas": 3 }, "status": { "replicas": 1 } });
    let patch = Patch::Merge(&both);
    let params = PatchParams::default();
    let patched = deployments.patch_status("d", &params, &patch).await.expect("patched");
    assert_eq!(patched.spec.replicas, Some(2));
    assert_eq!(patched.metadata.generation, Some(1));
    let patched = deployments.patch("d", &params, &patch).await.expect("patched");
    assert_eq!(patched.status.expect("a status").replicas, Some(1));
    assert_eq!(patched.metadata.generation, Some(2));
}

#[tokio::test]
async fn the_scale_of_a_deployment_is_its_replicas() {
    let client = ApiServer::new().client();
    let deployments = Api::<Deployment>::default_namespaced(client.clone());
    let deployment: Deployment = from(json!({
        "metadata": { "name": "d" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": { "containers": [{ "name": "main", "image": "main" }] },
            },
        },
    }));
    deployments.create(&PostParams::default(), &deployment).await.expect("created");
    let scale = deployments.get_scale("d").await.expect("a scale");
    assert_eq!(scale.spec.expect("a spec").replicas, Some(2));
    assert_eq!(scale.status.expect("a status").selector.as_deref(), Some("app=d"));
    let patch = Patch::Merge(json!({ "spec": { "replicas": 5 } }));
    deployments.patch_scale("d", &PatchParams::default(), &patch).await.expect("patched");
    let read = deployments.get("d").await.expect("read");
    assert_eq!(read.spec.replicas, Some(5));
    assert_eq!(read.metadata.generation, Some(2));
    let patch = Patch::Merge(json!({ "spec": { "replicas": -1 } }));
    let status = refused(deployments.patch_scale("d", &PatchParams::default(), &patch).await);
    assert_eq!(status.code, 422);
    let put = async |body: serde_json::Value| {
        let path = "/apis/apps/v1/namespaces/default/deployments/d/scale";
        let body = body.to_string().into_bytes();
        client.request_text(http::Request::put(path).body(body).expect("a request")).await
    };
    put(json!({ "metadata": { "name": "d" }, "spec": { "replicas": 6 } })).await.expect("scaled");
    assert_eq!(deployments.get("d").await.expect("read").spec.replicas, Some(6));
    for wrong in [
        json!({ "kind": "Deployment", "metadata": { "name": "d" } }),
        json!({ "metadata": { "name": "other" } }),
        json!({ "metadata": { "name": "d" }, "spec": { "replicas": "6" } }),
        json!([]),
    ] {
        assert_eq!(refused(put(wrong.clone()).await).code, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_workload_has_defaults_and_merges_containers_by_name() {
    let client = ApiServer::new().client();
    let api = Api::<Deployment>::default_namespaced(client);
    let deployment: Deployment = from(json!({
        "metadata": { "name": "web" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "web" }] },
            },
        },
    }));
    let created = json!(api.create(&PostParams::default(), &deployment).await.expect("created"));
    assert_eq!(created["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    let container = &created["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always");
    let containers =
        json!([{ "name": "side", "image": "new" }, { "name": "main", "image": "web:2" }]);
    let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    let patched = api.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
    let patched = json!(patched.expect("patched"));
    let containers = &patched["spec"]["template"]["spec"]["containers"];
    // The containers have the order of the patch.
    assert_eq!(containers[0]["name"], "side");
    assert_eq!(containers[1]["image"], "web:2");
    assert_eq!(containers[1]["terminationMessagePath"], "/dev/termination-log");
}

#[tokio::test]
async fn a_scale_of_zero_has_no_owner() {
    let deployments = Api::<Deployment>::default_namespaced(ApiServer::new().client());
    let deployment = from(json!({ "metadata": { "name": "d" }, "spec": {
        "replicas": 2,
        "selector": { "matchLabels": { "app": "d" } },
        "template": { "metadata": { "labels": { "app": "d" } }, "spec": {
            "containers": [{ "name": "main", "image": "web" }],
        } },
    } }));
    deployments.create(&PostParams::default(), &deployment).await.expect("created");
    for (replicas, owners) in [(3, 1), (0, 0)] {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        deployments.patch_scale("d", &PatchParams::default(), &patch).await.expect("scaled");
        let managers = deployments.get("d").await.expect("found").metadata.managed_fields;
        let managers = managers.unwrap_or_default().into_iter();
        let of_scale = managers.filter(|it| it.subresource.as_deref() == Some("scale"));
        assert_eq!(of_scale.count(), owners, "{replicas} replicas");
    }
}

//! Discovery.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use kube::discovery::{Discovery, Scope};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{define, definition, from};

#[tokio::test]
async fn discovery_finds_built_in_and_custom_kinds() {
    let client = ApiServer::new().client();
    define(&client, json!({ "type": "object" })).await;
    let discoveries = [
        Discovery::new(client.clone()).run().await.expect("discovery"),
        Discovery::new(client.clone()).run_aggregated().await.expect("discovery"),
    ];
    for discovery in discoveries {
        for (group, kind, plural, is_namespaced) in [
            ("", "Pod", "pods", true),
            ("", "Namespace", "namespaces", false),
            ("apps", "Deployment", "deployments", true),
            ("example.com", "Thing", "things", true),
        ] {
            let group = discovery.get(group).expect("the group");
            let (resource, capabilities) = group.recommended_kind(kind).expect("the kind");
            assert_eq!(resource.plural, plural);
            assert_eq!(capabilities.scope == Scope::Namespaced, is_namespaced);
            assert!(capabilities.supports_operation("watch"));
        }
    }
    let version = client.apiserver_version().await.expect("a version");
    assert_eq!((&*version.major, &*version.minor), ("1", "37"));
}

#[tokio::test]
async fn the_newest_stable_version_comes_first() {
    let client = ApiServer::new().client();
    let mut json = json!(definition(json!({ "type": "object" })));
    let version = json["spec"]["versions"][0].clone();
    let versions = ["v2", "v10", "v11alpha2", "v3beta1", "v3beta2", "other"].map(|name| {
        let mut version = version.clone();
        version["name"] = json!(name);
        version["storage"] = json!(name == "v2");
        version
    });
    json["spec"]["versions"] = json!(versions);
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.create(&PostParams::default(), &from(json)).await.expect("a definition");
    let groups = client.list_api_groups().await.expect("groups").groups;
    let group = groups.iter().find(|group| group.name == "example.com").expect("the group");
    let found: Vec<_> = group.versions.iter().map(|version| &*version.version).collect();
    assert_eq!(found, ["v10", "v2", "v3beta2", "v3beta1", "v11alpha2", "other"]);
}

//! Discovery.

use kube::discovery::{Discovery, Scope};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::define;

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

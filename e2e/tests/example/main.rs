//! Tests the example in `examples/website`: two replicas with the manifests of the example, and
//! with exactly the permissions in these manifests.

/// Includes the text of a manifest of the example.
macro_rules! manifest {
    ($path:literal) => {
        include_str!(concat!("../../../examples/website/", $path))
    };
}

mod manifests;
mod replica;
mod rights;
mod world;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use requeue_e2e::{Server, until};
use website_controller::CONTROLLER;

use crate::replica::{Replica, leader_first};
use crate::world::World;

/// The namespace of the controller, as in the manifests.
const NAMESPACE: &str = "website-system";

#[tokio::test]
async fn the_example_does_what_it_says_with_what_it_is_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    let [policy, audit] = ["policy.yaml", "audit.log"].map(|name| dir.path().join(name));
    std::fs::write(&policy, rights::AUDIT_POLICY).expect("the policy can be written");
    let policy = format!("--audit-policy-file={}", policy.display());
    let log = format!("--audit-log-path={}", audit.display());
    let Some(server) = Server::start_with(&[&policy, &log]).await else { return };
    let client = server.client().await;

    manifests::install(&client).await;
    let replicas = [Replica::start(&server, "one").await, Replica::start(&server, "two").await];
    let [leader, standby] = leader_first(replicas).await;

    let world = World::of(&client);
    world.comes_up().await;
    world.follows_its_deployment().await;
    world.changes("<h1>Hello again</h1>", 2).await;
    world.is_mended().await;
    world.fails_and_recovers().await;
    assert!(leader.get("/").await.contains("<title>websites"));
    let done = r#"controller_runtime_reconcile_total{controller="website",result="success"}"#;
    let metrics = leader.get("/metrics").await;
    let done = metrics.lines().find_map(|line| line.strip_prefix(done)).expect("the series exists");
    assert!(done.trim().parse::<u64>().expect("a number") > 0);

    leader.node.kill().await;
    until("the standby leads", async || standby.leads().await).await;
    world.changes("<h1>Hello from the other</h1>", 4).await;
    world.goes().await;

    standby.node.terminate().await;
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let lease = leases.get(CONTROLLER).await.expect("the Lease exists");
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref().unwrap_or_default(), "", "the Lease was not released");
    assert_eq!(rights::used(&audit), rights::allowed());
}

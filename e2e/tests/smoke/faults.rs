//! Processes of the server that are killed, terminated and frozen.

use std::process::Command;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube::{Api, Client};
use requeue_e2e::{Server, until};
use tokio::time::timeout;

use crate::support::{AWHILE, create, maps, next_added, watch};

#[tokio::test]
async fn an_api_server_that_is_killed_comes_back_with_what_it_had() {
    let Some(server) = Server::exclusive().await else { return };
    let maps = maps(&server, "killed").await;
    let first = create(&maps, "one").await;
    let mut watch = watch(&maps, &first).await.unwrap();

    server.apiserver().kill().await;
    assert_eq!(next_added(&mut watch).await, None);
    maps.get("one").await.unwrap_err();
    server.apiserver().start().await;
    maps.get("one").await.unwrap();
}

#[tokio::test]
async fn an_api_server_that_is_told_to_end_ends_its_watches() {
    let Some(server) = Server::exclusive().await else { return };
    let maps = maps(&server, "ended").await;
    let first = create(&maps, "one").await;
    let mut watch = watch(&maps, &first).await.unwrap();

    server.apiserver().terminate().await;
    assert_eq!(next_added(&mut watch).await, None);
    server.apiserver().start().await;
    maps.get("one").await.unwrap();
}

#[tokio::test]
async fn a_frozen_api_server_answers_later() {
    let Some(server) = Server::exclusive().await else { return };
    let maps = maps(&server, "frozen").await;
    create(&maps, "one").await;

    server.apiserver().freeze();
    let mut read = Box::pin(maps.get("one"));
    assert!(timeout(AWHILE, &mut read).await.is_err());
    server.apiserver().thaw();
    read.await.unwrap();
}

#[tokio::test]
async fn the_api_server_does_without_etcd_for_as_long_as_that_is_down() {
    let Some(server) = Server::exclusive().await else { return };
    let maps = maps(&server, "etcd").await;
    create(&maps, "one").await;
    let client = server.client().await;
    assert!(ready(&client).await);

    server.etcd().kill().await;
    until("the API server misses its etcd", async || !ready(&client).await).await;
    server.etcd().start().await;
    maps.get("one").await.unwrap();

    server.etcd().freeze();
    let mut write = Box::pin(create(&maps, "two"));
    assert!(timeout(AWHILE, &mut write).await.is_err());
    server.etcd().thaw();
    write.await;
}

#[tokio::test]
async fn without_controllers_a_namespace_stays() {
    let Some(server) = Server::exclusive().await else { return };
    let name = server.namespace("stays").await;
    let namespaces: Api<Namespace> = Api::all(server.client().await);

    server.controllers().freeze();
    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    let gone = async || namespaces.get_opt(&name).await.unwrap().is_none();
    assert!(timeout(AWHILE, until("the namespace is gone", gone)).await.is_err());
    server.controllers().thaw();
    until("the namespace is gone", gone).await;
}

#[tokio::test]
async fn programs_of_ones_own_are_frozen_and_killed_alike() {
    let Some(server) = Server::shared().await else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "i=0; while :; do i=$((i + 1)); echo $i; done"]);
    let counter = server.spawn("counter", command);
    until("the program counts", async || counter.log().contains("\n10\n")).await;

    counter.freeze();
    let frozen = counter.log();
    assert!(counter.log() == frozen, "the frozen program counts");
    counter.thaw();
    until("the program counts again", async || counter.log().len() > frozen.len()).await;
    counter.kill().await;
    assert!(counter.log().starts_with(&frozen));
}

async fn ready(client: &Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.is_ok()
}

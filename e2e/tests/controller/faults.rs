//! Faults of the API server and of the network, under which no key may be lost and no object may be
//! in flight twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use requeue_e2e::{Server, full, until};
use tokio::time::timeout;

use crate::world::World;

pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

pub(crate) async fn create(world: &World, names: &[String]) {
    join_all(names.iter().map(|name| world.create(name))).await;
}

#[tokio::test]
async fn deletes_behind_410_gone_are_heard_of() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    let world = World::new(&server, "gone").await;
    let names = names("a", 10);
    create(&world, &names).await;
    let proxy = server.proxy().await;
    let client = world.access(&server).through(&proxy).client().await;
    let _running = world.control("gone", client);
    world.is_known().await;

    proxy.down();
    until("all connections are closed", async || proxy.connections() == 0).await;
    join_all([0, 1].map(|n| world.delete_main(&names[n]))).await;
    join_all([2, 3].map(|n| world.delete_owned(&names[n]))).await;
    join_all([4, 5].map(|n| world.delete_watched(&names[n]))).await;
    world.change(&names[6], 1).await;
    world.delete_owned(&names[7]).await;
    world.delete_watched(&names[7]).await;
    world.delete_main(&names[7]).await;
    world.create("later").await;
    server.compact().await;
    proxy.up();
    world.is_known().await;
    assert!(world.found.gone.load(Ordering::SeqCst) > 0, "no list was due");
}

#[tokio::test]
async fn an_api_server_that_is_killed_or_frozen_costs_no_key() {
    let Some(server) = Server::exclusive().await else { return };
    let world = World::new(&server, "killed").await;
    let names = names("a", 10);
    create(&world, &names).await;
    let _running = world.control("killed", world.access(&server).client().await);
    world.is_known().await;

    for round in 0..if full() { 5 } else { 1 } {
        join_all(names[5..].iter().map(|name| world.change(name, 2 * round))).await;
        server.apiserver().kill().await;
        server.apiserver().start().await;
        join_all(names[5..].iter().map(|name| world.change(name, 2 * round + 1))).await;
        server.apiserver().freeze();
        let frozen = Duration::from_secs(if full() { 10 } else { 1 });
        assert!(timeout(frozen, world.look(&names[0])).await.is_err());
        server.apiserver().thaw();
        world.is_known().await;
    }
    join_all(names[..3].iter().map(|name| world.delete_main(name))).await;
    server.etcd().kill().await;
    server.etcd().start().await;
    join_all(names[3..5].iter().map(|name| world.delete_owned(name))).await;
    world.is_known().await;
}

#[tokio::test]
async fn a_watch_that_is_cut_again_and_again_costs_no_key() {
    let Some(server) = Server::shared().await else { return };
    let world = World::new(server, "cut").await;
    let proxy = server.proxy().await;
    let client = world.access(server).through(&proxy).client().await;
    let names = names("a", if full() { 200 } else { 20 });
    let running = world.control("cut", client);
    let cutting = proxy.cut_every(Duration::from_millis(if full() { 1000 } else { 300 }));
    for names in names.chunks(10) {
        create(&world, names).await;
        join_all(names.iter().map(|name| world.change(name, 1))).await;
        join_all(names[..3].iter().map(|name| world.delete_main(name))).await;
        join_all(names[3..6].iter().map(|name| world.delete_owned(name))).await;
        join_all(names[6..9].iter().map(|name| world.delete_watched(name))).await;
    }
    drop(cutting);
    world.is_known().await;
    running.stop().await;
}

#[tokio::test]
async fn what_is_cut_off_by_a_shutdown_comes_again_after_a_restart() {
    let Some(server) = Server::shared().await else { return };
    let world = World::new(server, "restart").await;
    let names = names("a", if full() { 1000 } else { 100 });
    let running = world.control("restart", world.access(server).client().await);
    let (one, other) = names.split_at(names.len() / 2);
    for names in one.chunks(10) {
        create(&world, names).await;
    }
    // The controller is stopped during the outage.
    let stopping = running.stop();
    let deleting = async {
        for names in one.chunks(20) {
            join_all(names.iter().map(|name| world.delete_main(name))).await;
        }
        for names in other.chunks(10) {
            create(&world, names).await;
        }
    };
    futures_util::future::join(stopping, deleting).await;
    // An object that was deleted in the meantime concerned another object, which still exists.
    let again = world.control("restart", world.access(server).client().await);
    for names in other.chunks(20) {
        join_all(names.iter().map(|name| world.delete_main(name))).await;
    }
    world.is_known().await;
    again.stop().await;
}

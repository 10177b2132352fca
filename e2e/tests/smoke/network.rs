//! Networks that are cut, frozen and slowed down.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use requeue_e2e::{Server, until};
use tokio::time::timeout;

use crate::support::{AWHILE, create, maps, next_added, through, watch};

#[tokio::test]
async fn a_watch_that_is_cut_ends_and_one_that_resumes_misses_nothing() {
    let Some(server) = Server::shared().await else { return };
    let proxy = server.proxy().await;
    let direct = maps(server, "cut").await;
    let proxied = through(server.access().through(&proxy).client().await, &direct);
    let first = create(&direct, "one").await;

    let mut raw = watch(&proxied, &first).await.unwrap();
    assert!(proxy.connections() > 0);
    assert!(proxy.received() > 0);
    proxy.cut();
    assert_eq!(next_added(&mut raw).await, None);

    // The watcher connects after the cut.
    let watcher = watcher(proxied, watcher::Config::default()).default_backoff();
    let mut seen = Box::pin(watcher.applied_objects());
    assert_eq!(seen.try_next().await.unwrap().unwrap().metadata.name.unwrap(), "one");
    proxy.cut();
    create(&direct, "two").await;
    let two = loop {
        // A cut is an error after which the watch continues.
        if let Ok(Some(map)) = seen.try_next().await {
            break map;
        }
    };
    assert_eq!(two.metadata.name.unwrap(), "two");
}

#[tokio::test]
async fn connections_are_cut_again_and_again_until_told_otherwise() {
    let Some(server) = Server::shared().await else { return };
    let proxy = server.proxy().await;
    let direct = maps(server, "cuts").await;
    let proxied = through(server.access().through(&proxy).client().await, &direct);
    let first = create(&direct, "one").await;

    let cutting = proxy.cut_every(Duration::from_millis(500));
    let mut ended = 0;
    until("three watches were cut", async || {
        if let Ok(mut watch) = watch(&proxied, &first).await {
            assert_eq!(next_added(&mut watch).await, None);
            ended += 1;
        }
        ended == 3
    })
    .await;
    drop(cutting);

    let mut whole = watch(&proxied, &first).await;
    while whole.is_err() {
        whole = watch(&proxied, &first).await;
    }
    create(&direct, "two").await;
    assert_eq!(next_added(&mut whole.unwrap()).await.unwrap(), "two");
}

#[tokio::test]
async fn a_frozen_network_delivers_later() {
    let Some(server) = Server::shared().await else { return };
    let proxy = server.proxy().await;
    let direct = maps(server, "frozen").await;
    let proxied = through(server.access().through(&proxy).client().await, &direct);
    let first = create(&direct, "one").await;
    let mut watch = watch(&proxied, &first).await.unwrap();

    proxy.freeze();
    create(&direct, "two").await;
    assert!(timeout(AWHILE, next_added(&mut watch)).await.is_err());
    let mut read = Box::pin(proxied.get("one"));
    assert!(timeout(AWHILE, &mut read).await.is_err());
    proxy.thaw();
    assert_eq!(next_added(&mut watch).await.unwrap(), "two");
    read.await.unwrap();
}

#[tokio::test]
async fn a_network_that_is_down_lets_nobody_through() {
    let Some(server) = Server::shared().await else { return };
    let proxy = server.proxy().await;
    let direct = maps(server, "down").await;
    create(&direct, "one").await;
    let proxied = through(server.access().through(&proxy).client().await, &direct);
    proxied.get("one").await.unwrap();

    proxy.down();
    proxied.get("one").await.unwrap_err();
    until("all connections are closed", async || proxy.connections() == 0).await;
    proxy.up();
    proxied.get("one").await.unwrap();
}

#[tokio::test]
async fn a_slow_network_takes_its_time() {
    let Some(server) = Server::shared().await else { return };
    let proxy = server.proxy().await;
    let direct = maps(server, "slow").await;
    create(&direct, "one").await;
    let proxied = through(server.access().through(&proxy).client().await, &direct);
    proxied.get("one").await.unwrap();

    proxy.delay(AWHILE);
    let asked = Instant::now();
    proxied.get("one").await.unwrap();
    // Both the request and the response are delayed.
    assert!(asked.elapsed() >= 2 * AWHILE);
}

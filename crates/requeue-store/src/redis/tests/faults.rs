//! What is said, and what is lost, when servers fail or refuse.

use super::*;
use crate::{Queue, Store};

async fn open(url: &str, name: &str) -> Queue {
    store(url).await.queue(name).open().await.expect("it opens")
}

async fn drained(queue: &Queue) -> Vec<String> {
    let mut found = Vec::new();
    while queue.counts().await.expect("counted") != Counts::default() {
        for item in queue.get_many(256).await {
            found.push(item.to_string());
            item.succeed().await.expect("it is ours");
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn what_was_acknowledged_is_there_when_the_server_is_back() {
    let Some(server) = Server::start() else { return };
    let queue = open(&server.url(""), "q").await;
    queue.add_all(["a", "b"]).await.expect("added");
    let item = queue.get().await.expect("it is there");
    server.kill();
    // What comes meanwhile waits for it.
    let (adding, ending) = (queue.clone(), tokio::spawn(item.succeed()));
    let adding = tokio::spawn(async move { adding.add("c").await });
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    server.restart();
    ending.await.expect("it ends").expect("it is ours still");
    adding.await.expect("it ends").expect("it is added");
    let item = getting.await.expect("it ends").expect("it is not shut down");
    assert!(matches!(item.as_str(), Some("b" | "c")), "{item:?}");
    item.succeed().await.expect("it is ours");
    assert_eq!(drained(&queue).await.len(), 1);
}

#[tokio::test]
async fn who_is_not_let_in_hears_why_without_the_password() {
    let Some(server) = Server::start() else { return };
    server.cli(&["acl", "setuser", "worker", "on", ">s3cret"]);
    let url = server.url("worker:wr0ng@");
    let error = Store::connect(&url).await.expect_err("it is wrong").to_string();
    assert!(error.contains("WRONGPASS") || error.contains("uthentication"), "{error}");
    assert!(!error.contains("wr0ng"), "{error}");
    server.kill();
    let error = Store::connect(&url).await.expect_err("nobody is there").to_string();
    assert!(!error.contains("wr0ng") && error.contains("127.0.0.1:"), "{error}");
}

/// As the page of the engine says.
const RIGHTS: &str = "on >s3cret ~requeue:* +evalsha +script|load +blpop +get +set +time +exists \
    +type +hset +hdel +hget +hmget +hscan +zadd +zrem +zrange +zrangebyscore +zcount +zcard +zscan \
    +llen +lpush +ltrim +wait +cluster|slots";

#[tokio::test]
async fn the_rights_that_are_documented_are_enough_and_needed() {
    let Some(server) = Server::start() else { return };
    let user = |name: &str, rights: &str| {
        let rights: Vec<_> = rights.split_whitespace().collect();
        server.cli(&[&["acl", "setuser", name], &rights[..]].concat());
        server.url(&format!("{name}:s3cret@"))
    };
    let queue = open(&user("worker", RIGHTS), "q").await;
    queue.add_all(["a", "b"]).await.expect("added");
    let mut items = queue.get_many(2).await;
    items.remove(0).park("no").await.expect("it is ours");
    items.remove(0).retry("no").await.expect("it is ours");
    assert!(queue.revive("a").await.expect("asked"));
    assert_eq!(queue.snapshot(None, None, 9).await.expect("a page").len(), 2);
    assert_eq!(drained(&queue).await, ["a", "b"]);
    // Who lacks one of them can't open the queue, so that no script ends in the middle.
    let needed = RIGHTS.split_whitespace().filter(|right| right.starts_with('+'));
    let elsewhere = ["+blpop", "+wait", "+cluster|slots", "+script|load"];
    for (at, right) in needed.filter(|right| !elsewhere.contains(right)).enumerate() {
        let url = user(&format!("poor{at}"), &RIGHTS.replacen(right, "", 1));
        let opened = Store::connect(&url).await.expect("it is let in").queue("q").open().await;
        let error = opened.expect_err(right).to_string();
        let denied = ["NOPERM", "can't run this command", "permissions"];
        assert!(denied.iter().any(|word| error.contains(word)), "{right}: {error}");
        assert!(!error.contains("for now"), "{right}: {error}");
    }
}

#[tokio::test]
async fn what_is_not_ours_stays_as_it_is() {
    let Some(server) = Server::start() else { return };
    let bare = Store::connect(&server.url("")).await.expect("it is there");
    let error = bare.queue("q").open().await.expect_err("there is none").to_string();
    assert!(error.ends_with("there is no queue in it yet"), "{error}");
    server.cli(&["set", "requeue:schema", "7"]);
    let error = bare.migrate().await.expect_err("it is of another version").to_string();
    assert!(error.ends_with("its version is \"7\", and this program's 1"), "{error}");
    server.cli(&["set", "requeue:schema", "1"]);
    server.cli(&["set", "requeue:{q/0.0}:leases", "mine"]);
    let error = bare.queue("q").open().await.expect_err("it is a string").to_string();
    assert!(error.contains("requeue:{q/0.0}:leases is another program's: a string"), "{error}");
    assert_eq!(server.cli(&["get", "requeue:{q/0.0}:leases"]), "mine");
}

#[tokio::test]
async fn a_server_that_is_full_takes_nothing_and_loses_nothing() {
    let Some(server) = Server::start() else { return };
    let engine = Redis::connect(options(&server.url(""))).await.expect("it is there");
    engine.migrate().await.expect("the schema is made");
    let place = engine.open("q", EarlyAdd::Replace).await.expect("it opens");
    let ask = |n: u8| vec![Ask { key: Key::from(vec![n]), add: crate::Add::now(), adds: 1 }];
    engine.add(&place, ask(1)).await.expect("added");
    server.cli(&["config", "set", "maxmemory", "1"]);
    let fault = engine.add(&place, ask(2)).await.expect_err("there is no room");
    assert_eq!(fault.kind, crate::error::Kind::Absent, "{}", fault.source);
    assert_eq!(engine.counts(&place).await.expect("counted").ready, 1);
    server.cli(&["config", "set", "maxmemory", "0"]);
    engine.add(&place, ask(2)).await.expect("there is room again");
    assert_eq!(engine.counts(&place).await.expect("counted").ready, 2);
}

#[tokio::test]
async fn what_replicas_do_not_confirm_may_or_may_not_be() {
    let Some(server) = Server::start() else { return };
    let url = format!("{}?wait=1", server.url(""));
    let engine = Redis::connect(options(&url)).await.expect("it is there");
    engine.migrate().await.expect("the schema is made");
    let place = engine.open("q", EarlyAdd::Replace).await.expect("it opens");
    let ask = Ask { key: Key::from("a"), add: crate::Add::now(), adds: 1 };
    let fault = engine.add(&place, vec![ask]).await.expect_err("it has no replica");
    assert_eq!(fault.kind, crate::error::Kind::Unsure, "{}", fault.source);
    assert_eq!(fault.source.to_string(), "0 of 1 replicas have it");
    assert_eq!(engine.counts(&place).await.expect("counted").ready, 1);
}

/// Adds while a master dies. All that was acknowledged, and all that was handed out after.
async fn failed_over(url: &str, cluster: &Cluster) -> (Vec<String>, Vec<String>) {
    let queue = open(url, "q").await;
    let before: Vec<String> = (0..300).map(|n| format!("before-{n:03}")).collect();
    queue.add_all(before.clone()).await.expect("added");
    let adding = tokio::spawn({
        let queue = queue.clone();
        async move {
            let mut added = Vec::new();
            for n in 0..2000 {
                let key = format!("during-{n:04}");
                if queue.add(key.clone()).await.is_ok() {
                    added.push(key);
                }
            }
            added
        }
    });
    tokio::task::block_in_place(|| {
        cluster.fail_over(0);
        // It comes back as the replica of its replica, who has none otherwise.
        cluster.nodes()[0].restart();
    });
    let mut added = adding.await.expect("it ends");
    assert_eq!(added.len(), 2000, "the engine goes on by itself");
    added.extend(before);
    added.sort();
    (added, drained(&queue).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_have_survives_a_failover() {
    let Some(cluster) = Cluster::start() else { return };
    let (added, found) = failed_over(&format!("{}?wait=1", cluster.url()), &cluster).await;
    assert_eq!(found, added);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_does_not_answer_holds_up_no_other() {
    let Some(cluster) = Cluster::start() else { return };
    let queue = open(&cluster.url(), "q").await;
    let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    queue.add_all(keys.clone()).await.expect("added");
    cluster.nodes()[1].kill();
    let mut items = Vec::new();
    // A third is away.
    while items.len() < 40 {
        items.extend(queue.get_many(10).await);
    }
    for item in items {
        item.succeed().await.expect("it is ours");
    }
}

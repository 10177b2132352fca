//! Tests errors and lost writes when servers fail or refuse requests.

use std::collections::BTreeMap;

use super::*;
use crate::engine::receipts::{Attempts, GRACE};
use crate::engine::{Asked, Delivery, Failure, Finish};
use crate::{Queue, Schedule, Store};

async fn open(url: &str, name: &str) -> Queue {
    store(url).await.queue(name).open().await.expect("the queue opens")
}

async fn drained(queue: &Queue) -> Vec<String> {
    let mut found = Vec::new();
    while queue.counts().await.expect("counted") != StateCounts::default() {
        for item in queue.get_many(256).await {
            found.push(item.to_string());
            item.succeed().await.expect("the lease is valid");
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
    let item = queue.get().await.expect("a key is delivered");
    server.kill();
    // The operations wait until the server has started again.
    let (adding, ending) = (queue.clone(), tokio::spawn(item.succeed()));
    let adding = tokio::spawn(async move { adding.add("c").await });
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    server.restart();
    ending.await.expect("the task does not panic").expect("the lease is still valid");
    adding.await.expect("the task does not panic").expect("added");
    let item = getting.await.expect("the task does not panic").expect("the queue is not shut down");
    assert!(matches!(item.as_str(), Some("b" | "c")), "{item:?}");
    item.succeed().await.expect("the lease is valid");
    assert_eq!(drained(&queue).await.len(), 1);
}

#[tokio::test]
async fn who_is_not_let_in_hears_why_without_the_password() {
    let Some(server) = Server::start() else { return };
    server.cli(&["acl", "setuser", "worker", "on", ">s3cret"]);
    let url = server.url("worker:wr0ng@");
    let error = chain(&Store::connect(&url).await.expect_err("the password is wrong"));
    assert!(error.contains("WRONGPASS") || error.contains("uthentication"), "{error}");
    assert!(!error.contains("wr0ng"), "{error}");
    server.kill();
    let error = chain(&Store::connect(&url).await.expect_err("the server is stopped"));
    assert!(!error.contains("wr0ng") && error.contains("127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn why_nothing_connects_has_a_kind() {
    use crate::ErrorKind::{Authentication, Invalid, Refused, Tls, Unreachable, WrongServer};

    let Some(server) = Server::start() else { return };
    let Some(postgres) = requeue_servers::Postgres::shared() else { return };
    let [nobody] = requeue_servers::free_ports();
    let other = format!("127.0.0.1:{} answered, but not as a Redis server", postgres.port());
    let ca = server.certificate();
    let with_tls = |host| format!("{}?ca={}", server.tls_url(host), ca.display());
    let refused = format!("nothing listens on 127.0.0.1:{nobody}: connection refused");
    for (url, kind, expected) in [
        ("redis://h?speed=9".to_owned(), Invalid, "unknown option \"speed\"".to_owned()),
        (format!("redis://127.0.0.1:{nobody}"), Unreachable, refused.clone()),
        (format!("rediss://127.0.0.1:{nobody}"), Unreachable, refused),
        (
            format!("redis://127.0.0.1:{}", postgres.port()),
            WrongServer,
            format!("{other}: it is a PostgreSQL server"),
        ),
        (format!("rediss://127.0.0.1:{}", postgres.port()), WrongServer, other),
        (
            server.tls_url("127.0.0.1").replace("rediss", "redis"),
            Tls,
            "answered, but only with TLS: use rediss://".to_owned(),
        ),
        (
            server.url("").replace("redis:", "rediss:"),
            Tls,
            "answered without TLS: use redis://".to_owned(),
        ),
        (server.tls_url("localhost"), Tls, "certificate".to_owned()),
        (with_tls("127.0.0.1"), Tls, "certificate".to_owned()),
        (server.url("poor:wr0ng@"), Authentication, "uthentication".to_owned()),
        (server.url("") + "/99", Refused, "DB index is out of range".to_owned()),
    ] {
        let error = Store::connect(&url).await.expect_err(&url);
        assert!(chain(&error).contains(&expected), "{url}: {}", chain(&error));
        assert_eq!(error.kind(), kind, "{url}: {}", chain(&error));
    }
    server.cli(&["config", "set", "requirepass", "n0w"]);
    let error = Store::connect(&server.url("")).await.expect_err("the server requires a password");
    assert_eq!(error.kind(), Authentication, "{}", chain(&error));
    let expected = "the server requires a password; set REDISCLI_AUTH, or add it to the address";
    assert!(chain(&error).contains(expected), "{}", chain(&error));
    let error =
        Store::connect(&server.url("default:wr0ng@")).await.expect_err("the password is wrong");
    assert_eq!(error.kind(), Authentication, "{}", chain(&error));
    assert!(Store::connect(&server.url("default:n0w@")).await.is_ok());
}

/// The minimum permissions, as in the documentation of the engine.
pub(super) const RIGHTS: &str = "on >s3cret ~requeue:* +evalsha +script|load +blpop +get +set +time +exists \
    +type +hset +hdel +hget +hlen +hmget +hscan +zadd +zrem +zrange +zrangebylex +zrangebyscore +zscore +zcount +zcard \
    +zscan +llen +lpush +ltrim +wait +cluster|slots +cluster|info +info";

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
    items.remove(0).give_up("no").await.expect("the lease is valid");
    items.remove(0).retry("no").await.expect("the lease is valid");
    assert!(queue.revive("a").await.expect("revived"));
    assert_eq!(queue.snapshot(None, None, 9).await.expect("the page is read").len(), 2);
    assert_eq!(drained(&queue).await, ["a", "b"]);
    // If a client lacks one of these commands, it cannot open the queue. Therefore, no script fails after it has begun
    // to write.
    let needed = RIGHTS.split_whitespace().filter(|right| right.starts_with('+'));
    let elsewhere = ["+blpop", "+wait", "+cluster|slots", "+cluster|info", "+script|load", "+info"];
    for (at, right) in needed.filter(|right| !elsewhere.contains(right)).enumerate() {
        let url = user(&format!("poor{at}"), &RIGHTS.replacen(right, "", 1));
        let opened =
            Store::connect(&url).await.expect("the client may connect").queue("q").open().await;
        let error = chain(&opened.expect_err(right));
        let denied = ["NOPERM", "can't run this command", "permissions"];
        assert!(denied.iter().any(|word| error.contains(word)), "{right}: {error}");
        assert!(!error.contains("at the moment"), "{right}: {error}");
    }
}

#[tokio::test]
async fn what_is_not_ours_stays_as_it_is() {
    let Some(server) = Server::start() else { return };
    let bare = Store::connect(&server.url("")).await.expect("the store connects");
    let error = chain(&bare.queue("q").open().await.expect_err("the queue does not exist"));
    assert!(error.contains("the store has no schema yet; run `requeue store init`"), "{error}");
    server.cli(&["set", "requeue:schema", "7"]);
    let error = chain(&bare.migrate().await.expect_err("the version differs"));
    assert!(
        error.ends_with(
            "the schema has version 7, and this program needs 2; update \
             requeue: a newer version has created or upgraded the store"
        ),
        "{error}"
    );
    server.cli(&["set", "requeue:schema", "2"]);
    server.cli(&["set", "requeue:{q/0.0}:leases", "mine"]);
    let error = chain(&bare.queue("q").open().await.expect_err("the type differs"));
    assert!(
        error.contains("requeue:{q/0.0}:leases belongs to another program: it is a string"),
        "{error}"
    );
    assert_eq!(server.cli(&["get", "requeue:{q/0.0}:leases"]), "mine");
}

/// For queues without groups, the format of the data is the same in versions 1 and 2.
#[tokio::test]
async fn a_migration_raises_the_version_and_keeps_the_keys() {
    let Some(server) = Server::start() else { return };
    let before = store(&server.url("")).await;
    before.queue("q").open().await.expect("the queue opens").add("a").await.expect("added");
    server.cli(&["set", "requeue:schema", "1"]);
    let after = Store::connect(&server.url("")).await.expect("the store connects");
    let error = chain(&after.queue("q").open().await.expect_err("the version is older"));
    assert!(
        error.ends_with(
            "the schema has version 1, and this program needs 2; to upgrade it, run `requeue store init`, \
             or call `Store::migrate`"
        ),
        "{error}"
    );
    after.migrate().await.expect("the version is raised");
    let queue = after.queue("q").open().await.expect("the queue opens");
    assert_eq!(queue.get().await.expect("the queue is open").as_str(), Some("a"));
}

#[tokio::test]
async fn a_server_that_is_full_takes_nothing_and_lets_go_of_what_it_has() {
    let Some(server) = Server::start() else { return };
    let (engine, place) = engine(&server.url(""), "q").await;
    for key in ["a", "b", "c"] {
        engine.add_keys(&place, asking(key)).await.expect("added");
    }
    server.cli(&["config", "set", "maxmemory", "1"]);
    let fault = engine.add_keys(&place, asking("d")).await.expect_err("the server is full");
    assert_eq!(fault.kind, crate::types::error::Kind::Unable, "{}", fault.source);
    assert_eq!(engine.count_keys(&place).await.expect("counted").ready, 3);
    // A process that connects when the server is full can also work on the existing keys.
    let (engine, place) = self::engine(&server.url(""), "q").await;
    let claimed = engine.claim_keys(&place, Claim { max: 3, ..ONE }).await.expect("claimed").items;
    let held = claimed.iter().map(|out| (out.key.clone(), out.epoch)).collect();
    let renewed = engine.renew_leases(&place, held, ONE.lease).await.expect("renewed");
    assert_eq!(renewed, [Renewed::Yes; 3]);
    let fail = Finish::GiveUp(Failure::new(Asked::default(), "no"));
    let later = Finish::RequeueAfter(Duration::from_secs(3600), crate::Priority::default());
    let ends = [Finish::Succeed, fail, later];
    let end = |(out, how): (Delivery, _)| End { key: out.key, epoch: out.epoch, how };
    let ends = claimed.into_iter().zip(ends).map(end).collect();
    assert_eq!(engine.finish_deliveries(&place, ends).await.expect("ended"), [true; 3]);
    let revived =
        engine.make_ready(&place, vec!["b".into()], State::Parked).await.expect("revived");
    assert_eq!(revived, [Some(true)]);
    let cancelled = engine.cancel_keys(&place, vec!["c".into()], None).await.expect("cancelled");
    assert!(cancelled[0] == Some(true));
    let counts = engine.count_keys(&place).await.expect("counted");
    assert_eq!((counts.ready, counts.waiting, counts.parked), (1, 0, 0));
    server.cli(&["config", "set", "maxmemory", "0"]);
    engine.add_keys(&place, asking("d")).await.expect("there is space again");
    assert_eq!(engine.count_keys(&place).await.expect("counted").ready, 2);
}

#[tokio::test]
async fn what_replicas_do_not_confirm_may_or_may_not_be() {
    let Some(server) = Server::start() else { return };
    let url = format!("{}?wait=1", server.url(""));
    let engine = Redis::connect(options(&url)).await.expect("the engine connects");
    engine.migrate_schema().await.expect("the schema is created");
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let ask = Ask::new(Key::from("a"), crate::Add::now());
    let fault = engine.add_keys(&place, vec![ask]).await.expect_err("the server has no replica");
    assert_eq!(fault.kind, crate::types::error::Kind::Unconfirmed, "{}", fault.source);
    assert_eq!(fault.source.to_string(), "only 0 of 1 replicas have confirmed it");
    assert_eq!(engine.count_keys(&place).await.expect("counted").ready, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_is_sent_again_is_one_add() {
    let Some(cluster) = Cluster::start() else { return };
    let url = format!("{}?wait=1&shards=1", cluster.url());
    let (engine, place) = engine(&url, "q").await;
    let ask = || vec![Ask::new("a", crate::Add::now())];
    let deadline = tokio::time::Instant::now() + Duration::from_secs(3600);
    let mut attempts = Attempts::until(deadline);
    let slot = engine.shards_of(&place).expect("the queue is open")[0].slot;
    let third = usize::from(slot) * 3 / 16384;
    let replica = &cluster.nodes()[third + 3];
    // The key is parked before the add, and after each of its runs.
    let park = async || {
        let claimed = engine.claim_keys(&place, ONE).await.expect("claimed").items;
        let ends = claimed.into_iter().map(|out| {
            let failure = Failure::new(Asked::default(), "no");
            End { key: out.key, epoch: out.epoch, how: Finish::GiveUp(failure) }
        });
        engine.finish_deliveries(&place, ends.collect()).await.expect("completed").len()
    };
    engine.add_keys(&place, ask()).await.expect("added");
    assert_eq!(park().await, 1);
    tokio::task::block_in_place(|| {
        replica.freeze();
        cluster.nodes()[third].cli(&["client", "kill", "type", "replica"]);
    });
    for runs in [1, 0, 0] {
        let fault = engine.add_once(&place, ask(), &mut attempts).await;
        let fault = fault.expect_err("the replica does not answer");
        assert_eq!(fault.kind, crate::types::error::Kind::Unconfirmed, "{}", fault.source);
        assert_eq!(park().await, runs, "only the first attempt revives the key");
    }
    tokio::task::block_in_place(|| replica.thaw());
    // This attempt adds nothing. Nevertheless, `WAIT` waits for the writes of the first attempt.
    let added = loop {
        match engine.add_once(&place, ask(), &mut attempts).await {
            Ok(added) => break added,
            Err(fault) => assert_eq!(fault.kind, crate::types::error::Kind::Unconfirmed),
        }
    };
    assert_eq!(added, [Added::Revived], "the answer of the first attempt");
    // The receipt still exists after a failover.
    tokio::task::block_in_place(|| {
        cluster.nodes()[third].kill();
        cluster.take_over(third);
        cluster.nodes()[third].restart();
    });
    let added = loop {
        match engine.add_once(&place, ask(), &mut attempts).await {
            Ok(added) => break added,
            Err(fault) => assert!(!fault.kind.is_final(), "{}", fault.source),
        }
    };
    assert_eq!(added, [Added::Revived], "the answer of the first attempt");
    assert_eq!(park().await, 0);
    // An equal batch with other attempts is a new add, not a repetition.
    let mut others = Attempts::until(deadline);
    let added = engine.add_once(&place, ask(), &mut others).await.expect("added");
    assert_eq!(added, [Added::Revived]);
    assert_eq!(park().await, 1);
}

#[tokio::test]
async fn receipts_are_few_and_expire() {
    let Some(cluster) = Cluster::start() else { return };
    let (engine, place) = engine(&format!("{}?wait=1&shards=1", cluster.url()), "q").await;
    let slot = engine.shards_of(&place).expect("the queue is open")[0].slot;
    let server = &cluster.nodes()[usize::from(slot) * 3 / 16384];
    for n in 0..100 {
        let mut attempts = Attempts::until(tokio::time::Instant::now() + Duration::from_secs(3600));
        let asks = asking(&n.to_string());
        engine.add_once(&place, asks, &mut attempts).await.expect("added");
    }
    let found = server.cli(&["keys", "*:receipt:*"]);
    assert_eq!(found.lines().count(), 1, "one at a time: {found}");
    // A server that was suspended may execute an attempt after the deadline, so the receipt lasts longer than the
    // deadline. The last batch has overwritten the same receipt.
    let lasts = || -> i64 { server.cli(&["pttl", &found]).parse().expect("the key expires") };
    let grace = GRACE.as_millis() as i64;
    let left = lasts();
    assert!(left > 0 && left <= 3_600_000 + grace, "{left}");
    let mut attempts = Attempts::until(tokio::time::Instant::now());
    engine.add_once(&place, asking("late"), &mut attempts).await.expect("added");
    let left = lasts();
    assert!(left > 0 && left <= grace, "{left}");
}

fn numbered(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{what}-{n:04}")).collect()
}

/// Adds the keys one after another, in a separate task.
fn add_beside(queue: &Queue, keys: Vec<String>) -> tokio::task::JoinHandle<()> {
    let queue = queue.clone();
    tokio::spawn(async move {
        for key in keys {
            queue.add(key).await.expect("the add is retried");
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_have_survives_a_failover() {
    let Some(cluster) = Cluster::start() else { return };
    let queue = open(&format!("{}?wait=1", cluster.url()), "q").await;
    let (before, during) = (numbered("before", 300), numbered("during", 1000));
    queue.add_all(before.clone()).await.expect("added");
    let adding = add_beside(&queue, during.clone());
    tokio::task::block_in_place(|| {
        cluster.nodes()[0].kill();
        cluster.take_over(0);
        // The server starts again as the only replica of its former replica.
        cluster.nodes()[0].restart();
    });
    adding.await.expect("the task does not panic");
    assert_eq!(drained(&queue).await, [before, during].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_what_its_replica_had_not_got_and_no_more() {
    let Some(cluster) = Cluster::start() else { return };
    let queue = open(&cluster.url(), "q").await;
    let (first, last) = (numbered("first", 200), numbered("last", 200));
    queue.add_all(first.clone()).await.expect("added");
    let replica = &cluster.nodes()[3];
    tokio::task::block_in_place(|| {
        assert_eq!(cluster.nodes()[0].cli(&["wait", "1", "5000"]), "1");
        replica.freeze();
        cluster.nodes()[0].cli(&["client", "kill", "type", "replica"]);
    });
    // For a third of the shards, only the master has these changes.
    let mut held = Vec::new();
    while held.len() < first.len() {
        held.extend(queue.get_many(256).await);
    }
    queue.add_all(last.clone()).await.expect("added");
    tokio::task::block_in_place(|| {
        cluster.nodes()[0].kill();
        replica.thaw();
        cluster.take_over(0);
    });
    let (mut again, mut numbers) = (Vec::new(), HashMap::new());
    for item in held {
        let (key, number) = (item.to_string(), item.fencing_token());
        match item.succeed().await {
            Ok(()) => {}
            Err(crate::CompleteError::Lost | crate::CompleteError::Unsure) => {
                numbers.insert(key.clone(), number);
                again.push(key);
            }
            Err(other) => panic!("{key}: {other}"),
        }
    }
    assert!(
        again.len() > 20 && again.len() < 120,
        "about a third of the deliveries are repeated: {}",
        again.len()
    );
    // These keys are delivered again with a higher token. All other completions remain in effect.
    let mut found = Vec::new();
    while queue.counts().await.expect("counted") != StateCounts::default() {
        for item in queue.get_many(256).await {
            let key = item.to_string();
            assert!(numbers.get(&key).is_none_or(|&number| number < item.fencing_token()), "{key}");
            found.push(key);
            item.succeed().await.expect("the lease is valid");
        }
    }
    let (mut redone, kept): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|key| key.starts_with("first"));
    redone.sort();
    again.sort();
    assert_eq!(redone, again);
    assert!(
        kept.len() > 80 && kept.len() < 180,
        "about two thirds of the adds are kept: {}",
        kept.len()
    );
    assert!(kept.iter().all(|key| last.contains(key)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_given_to_another_node_goes_on_there() {
    let Some(cluster) = Cluster::start() else { return };
    let engine = Redis::connect(options(&format!("{}?shards=4", cluster.url()))).await;
    let engine = Arc::new(engine.expect("the engine connects"));
    engine.migrate_schema().await.expect("the schema is created");
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let slot = engine.shards_of(&place).expect("the queue is open")[0].slot;
    let queue = Queue::new(engine, place, crate::client::options::Options::default(), None);
    let (before, during) = (numbered("before", 300), numbered("during", 1000));
    queue.add_all(before.clone()).await.expect("added");
    let adding = add_beside(&queue, during.clone());
    tokio::task::block_in_place(|| {
        cluster.give_slot(slot, 0, 1);
        cluster.give_slot(slot, 1, 2);
    });
    adding.await.expect("the task does not panic");
    assert_eq!(drained(&queue).await, [before, during].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_does_not_answer_holds_up_no_other() {
    let Some(cluster) = Cluster::start() else { return };
    let queue = open(&cluster.url(), "q").await;
    queue.add_all(numbered("key", 100)).await.expect("added");
    tokio::task::block_in_place(|| cluster.nodes()[1].freeze());
    // A third of the shards does not answer.
    let mut items = Vec::new();
    while items.len() < 50 {
        items.extend(queue.get_many(10).await);
    }
    for item in items {
        item.succeed().await.expect("the lease is valid");
    }
    tokio::task::block_in_place(|| cluster.nodes()[1].thaw());
    while queue.counts().await.expect("counted") != StateCounts::default() {
        for item in queue.get_many(256).await {
            item.succeed().await.expect("the lease is valid");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schedules_of_a_shard_that_does_not_answer_hold_up_no_other() {
    let Some(cluster) = Cluster::start() else { return };
    let queue = open(&cluster.url(), "q").await;
    for key in numbered("key", 24) {
        let pulse = Schedule::every(Duration::from_millis(10));
        queue.schedule(key, pulse).await.expect("stored");
    }
    tokio::task::block_in_place(|| cluster.nodes()[1].freeze());
    let mut counts = BTreeMap::new();
    while counts.values().filter(|&&count| count >= 5).count() < 8 {
        for item in queue.get_many(10).await {
            *counts.entry(item.key().clone()).or_insert(0) += 1;
            item.succeed().await.expect("the lease is valid");
        }
    }
    tokio::task::block_in_place(|| cluster.nodes()[1].thaw());
    while counts.len() < 24 {
        for item in queue.get_many(10).await {
            *counts.entry(item.key().clone()).or_insert(0) += 1;
            item.succeed().await.expect("the lease is valid");
        }
    }
}

#[tokio::test]
async fn with_tls_a_server_is_believed_if_its_certificate_is() {
    let Some(server) = Server::shared() else { return };
    let certificate = server.certificate();
    let url = format!("{}?ca={}", server.tls_url("localhost"), certificate.display());
    let queue = open(&url, &name("tls")).await;
    queue.add("a").await.expect("added");
    assert_eq!(drained(&queue).await, ["a"]);
    for url in [
        server.tls_url("localhost"),
        format!("{}?ca={}", server.tls_url("127.0.0.1"), certificate.display()),
    ] {
        let error = chain(&Store::connect(&url).await.expect_err(&url));
        assert!(error.contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_full_server_cancels_runs() {
    let Some(server) = Server::start() else { return };
    let queue = open(&server.url(""), "q").await;
    queue.add("a").await.expect("added");
    let item = queue.get().await.expect("a key is delivered");
    server.cli(&["config", "set", "maxmemory", "1"]);
    // The server refuses the notification, but the run is cancelled nevertheless.
    let cancelled = queue.cancel_running("a").await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    drop(item);
}

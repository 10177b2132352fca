//! Tests operations of several processes on one queue, and unusual keys and names.

use std::collections::HashSet;

use tokio::task::JoinSet;

use super::*;
use crate::{Add, Completion, ErrorKind, Queue};

/// A poll interval that is longer than any test. A process with this interval receives a key only if it is woken.
const NEVER: Duration = Duration::from_secs(3600);

async fn open(url: &str, name: &str) -> Queue {
    store(url).await.queue(name).poll(NEVER).open().await.expect("the queue opens")
}

/// Runs tasks that have separate connections, as processes have.
async fn work(url: &str, name: &str, tasks: usize, rounds: usize) {
    const KEYS: usize = 60;
    let held = Arc::new(Mutex::new(HashMap::new()));
    let last = Arc::new(Mutex::new(HashMap::new()));
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let queue = open(url, name).await;
        let (held, last) = (Arc::clone(&held), Arc::clone(&last));
        all.spawn(async move {
            for round in 0..rounds {
                let keys = (0..KEYS).filter(|n| (n + round + task) % 12 == 0);
                queue.add_all(keys.map(|n| n.to_string())).await.expect("added");
                for item in queue.get_many(5).await {
                    let key = item.key().clone();
                    let other = lock(&held).insert(key.clone(), item.fencing_token());
                    assert_eq!(other, None, "{key} was delivered twice at once");
                    let before = lock(&last).insert(key.clone(), item.fencing_token());
                    assert!(
                        before < Some(item.fencing_token()),
                        "{key}: the fencing token must increase"
                    );
                    tokio::task::yield_now().await;
                    lock(&held).remove(&key);
                    match round % 7 {
                        0 => item.retry("once more").await.expect("the lease is valid"),
                        1 => item.release().await.expect("the lease is valid"),
                        _ => item.succeed().await.expect("the lease is valid"),
                    }
                }
            }
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.expect("no key is delivered twice at once");
    }
    let queue = open(url, name).await;
    // The keys of the last adds are still in the queue.
    while queue.counts().await.expect("counted") != StateCounts::default() {
        for item in queue.get_many(100).await {
            item.succeed().await.expect("the lease is valid");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_have_a_key_at_once_and_none_is_lost() {
    let Some(server) = Server::shared() else { return };
    work(&server.url(""), &name("shared"), 4, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_cluster_no_two_have_a_key_at_once_and_none_is_lost() {
    let Some(cluster) = Cluster::shared() else { return };
    work(&cluster.url(), &name("shared"), 4, 60).await;
}

async fn wakes(url: &str) {
    let name = name("waking");
    let (one, other) = (open(url, &name).await, open(url, &name).await);
    let adding = open(url, &name).await;
    let get = |queue: &Queue| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await.expect("the queue is not shut down") })
    };
    let (first, second) = (get(&one), get(&other));
    // Both getters must be woken, by one token or by two.
    adding.add_all(["a", "b"]).await.expect("added");
    let items = [first.await.expect("woken"), second.await.expect("woken")];
    let found: HashSet<_> = items.iter().map(|item| item.to_string()).collect();
    assert_eq!(found, HashSet::from(["a".to_owned(), "b".to_owned()]));
    // The next keys are a key that was added in flight, a failed key, and a key with a due time.
    adding.add("a").await.expect("added");
    let third = get(&one);
    for item in items {
        item.succeed().await.expect("the lease is valid");
    }
    let item = third.await.expect("woken");
    assert_eq!(item.as_str(), Some("a"));
    let fourth = get(&other);
    item.complete(Completion::RetryAfter(Duration::from_millis(20)))
        .await
        .expect("the lease is valid");
    let item = fourth.await.expect("woken");
    assert_eq!((item.as_str(), item.attempt()), (Some("a"), 2));
    item.succeed().await.expect("the lease is valid");
    let fifth = get(&one);
    adding.add_after("c", NEVER).await.expect("added");
    adding.add_after("c", Duration::from_millis(30)).await.expect("added");
    let item = fifth.await.expect("woken");
    assert_eq!(item.as_str(), Some("c"));
    item.give_up("no more").await.expect("the lease is valid");
    let sixth = get(&other);
    assert!(adding.revive("c").await.expect("revived"));
    sixth.await.expect("woken").succeed().await.expect("the lease is valid");
}

#[tokio::test]
async fn who_waits_is_woken() {
    let Some(server) = Server::shared() else { return };
    wakes(&server.url("")).await;
}

#[tokio::test]
async fn who_waits_for_a_cluster_is_woken() {
    let Some(cluster) = Cluster::shared() else { return };
    wakes(&cluster.url()).await;
}

fn get(queue: &Queue) -> tokio::task::JoinHandle<String> {
    let queue = queue.clone();
    tokio::spawn(async move {
        let item = queue.get().await.expect("the queue is not shut down");
        let key = item.to_string();
        item.succeed().await.expect("the lease is valid");
        key
    })
}

#[tokio::test]
async fn who_takes_a_message_and_leaves_keys_behind_passes_it_on() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (open(&server.url(""), "q").await, open(&server.url(""), "q").await);
    let gets = [get(&one), get(&other)];
    waiting(&server, 2).await;
    one.add_all(["a", "b"]).await.expect("added");
    for got in gets {
        got.await.expect("woken");
    }
}

#[tokio::test]
async fn who_is_busy_takes_no_message_from_who_waits() {
    let Some(server) = Server::start() else { return };
    let (busy, idle) = (open(&server.url(""), "q").await, open(&server.url(""), "q").await);
    let got = get(&busy);
    waiting(&server, 1).await;
    // No token announces that a delayed key becomes due. The connection for tokens still waits.
    busy.add_after("a", Duration::from_millis(50)).await.expect("added");
    assert_eq!(got.await.expect("the key is due"), "a");
    let got = get(&idle);
    waiting(&server, 2).await;
    busy.add("b").await.expect("added");
    assert_eq!(got.await.expect("woken"), "b");
}

async fn may_be_anything(url: &str) {
    let keys: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        b"{".to_vec(),
        b"}{a}".to_vec(),
        b"a b\r\n$3\r\n".to_vec(),
        vec![0xff, 0xfe, 0],
        b"1e3".to_vec(),
        vec![b'x'; 2048],
    ];
    let names = ["{}", "}", "a b", "a/0.0", "a", "*", "'\"\\", "ä\u{1}"].map(|odd| {
        // The suffix makes the name unique in this test run.
        format!("{odd}{}", name(""))
    });
    let mut queues = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let queue = open(url, name).await;
        queue.add_all(keys[..=at].to_vec()).await.expect("added");
        queues.push(queue);
    }
    for (at, queue) in queues.iter().enumerate() {
        let mut wanted = keys[..=at].to_vec();
        wanted.sort();
        let found = queue.snapshot(None, None, 100).await.expect("the page is read");
        assert_eq!(found.iter().map(|entry| entry.key.to_vec()).collect::<Vec<_>>(), wanted);
        for key in &wanted {
            let found =
                queue.look_up(key.clone()).await.expect("looked up").expect("the key exists");
            assert_eq!(found.key.to_vec(), *key);
        }
        let mut left = wanted.len();
        while left > 0 {
            for item in queue.get_many(100).await {
                left -= 1;
                item.succeed().await.expect("the lease is valid");
            }
        }
        assert_eq!(queue.counts().await.expect("counted"), StateCounts::default());
    }
    let error =
        queues[0].add(vec![b'{'; 1 << 20]).await.expect_err("the key is too long").to_string();
    let said =
        format!("\"{}...\": the key has 1048576 bytes; at most 2048 are allowed", "{".repeat(64));
    assert_eq!(error, said);
    let error =
        queues[0].add_all([vec![b'a'], vec![0; 2049]]).await.expect_err("a key is too long");
    assert!(!error.may_have_happened(), "{error}");
    assert_eq!(queues[0].counts().await.expect("counted"), StateCounts::default());
    for name in ["", "a\0b", &"q".repeat(201)] {
        let error =
            chain(&store(url).await.queue(name).open().await.expect_err("the name is invalid"));
        assert_eq!(error, format!("queue {name:?}: invalid name: use 1 to 200 bytes without NUL"));
    }
}

#[tokio::test]
async fn keys_and_names_may_be_anything() {
    let Some(server) = Server::shared() else { return };
    may_be_anything(&server.url("")).await;
}

#[tokio::test]
async fn keys_and_names_may_be_anything_on_a_cluster() {
    let Some(cluster) = Cluster::shared() else { return };
    may_be_anything(&cluster.url()).await;
}

#[tokio::test]
async fn many_keys_are_walked_page_by_page() {
    let Some(server) = Server::shared() else { return };
    let queue = open(&server.url(""), &name("pages")).await;
    let keys: Vec<String> = (0..2000).map(|n| format!("{n:04}")).collect();
    queue.add_all(keys.clone()).await.expect("added");
    let mut items = queue.get_many(20).await;
    items.pop().expect("a key was delivered").give_up("bad").await.expect("the lease is valid");
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = queue.snapshot(None, after.as_ref(), 300).await.expect("the page is read");
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        found.extend(page.into_iter().map(|entry| entry.key.to_string()));
    }
    assert_eq!(found, keys);
    for (state, count) in
        [(State::InFlight, 19), (State::Parked, 1), (State::Waiting, 0), (State::Ready, 1980)]
    {
        let page = queue.snapshot(state, None, 5000).await.expect("the page is read");
        assert_eq!(page.len(), count, "{state:?}");
        assert!(page.iter().all(|entry| entry.state == state));
    }
    let counts = queue.counts().await.expect("counted");
    assert_eq!((counts.ready, counts.in_flight, counts.parked), (1980, 19, 1));
}

/// A pause can fail after it has paused some shards, and a shard can lose its pause. In these cases, the client must
/// not return the keys of other shards to the store, and claim them again immediately.
#[tokio::test]
async fn a_pause_of_one_shard_returns_no_key_of_the_others() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&format!("{}?shards=2", server.url("")), &name("half")).await;
    for n in 0..20 {
        engine.add_keys(&place, asking(&n.to_string())).await.expect("added");
    }
    let shards = engine.shards_of(&place).expect("the queue is open");
    let pause = async |number: usize| {
        let mut command = engine.nodes.scripts.pause.on(&shards[number]);
        command.arg(1);
        engine.run_script(&shards[number], &command).await.expect("paused");
    };
    pause(0).await;
    for begin in [0, 1] {
        let claimed = engine.claim_shards(&place, begin, ONE).await.expect("claimed");
        let is_paused = claimed.is_paused;
        assert_eq!((claimed.items.len(), is_paused), (1, false), "from shard {begin}");
    }
    assert!(engine.is_paused(&place).await.expect("answered"));
    pause(1).await;
    let claimed = engine.claim_shards(&place, 0, ONE).await.expect("claimed");
    assert_eq!((claimed.items.len(), claimed.is_paused), (0, true));
}

#[tokio::test]
async fn a_page_of_parked_keys_takes_no_walk() {
    let Some(server) = Server::start() else { return };
    let queue = open(&format!("{}?shards=3", server.url("")), "q").await;
    let keys: Vec<String> = (0..1500).map(|n| format!("{n:04}")).collect();
    queue.add_all(keys.clone()).await.expect("added");
    let mut left = keys.len();
    while left > 0 {
        for item in queue.get_many(256).await {
            left -= 1;
            item.give_up("bad").await.expect("the lease is valid");
        }
    }
    server.cli(&["config", "resetstat"]);
    let after = crate::Key::from("0700");
    for (after, wanted) in [(None, &keys[..40]), (Some(&after), &keys[701..741])] {
        let page = queue.snapshot(State::Parked, after, 40).await.expect("the page is read");
        assert_eq!(page.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(), wanted);
    }
    let stats = server.cli(&["info", "commandstats"]);
    assert!(!stats.contains("scan:") && stats.contains("_hget:calls=240,"), "{stats}");
    // The limit is greater than the number of keys that one request returns.
    let page = queue.snapshot(State::Parked, None, 5000).await.expect("the page is read");
    assert_eq!(page.into_iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(), keys);
    // Another client may have removed the rows.
    server.cli(&["del", "requeue:{q/0.0}:rows"]);
    let page = queue.snapshot(State::Parked, None, 5000).await.expect("the page is read");
    assert!(page.len() > 900 && page.len() < 1100, "{}", page.len());
}

#[tokio::test]
async fn a_key_that_ends_leaves_nothing_and_its_numbers_rise() {
    let Some(server) = Server::start() else { return };
    let url = server.url("");
    let queue = open(&url, "q").await;
    let mut last = 0;
    for round in 0..4 {
        queue.add_with("a", Add::now().flags(3)).await.expect("added");
        let item = queue.get().await.expect("a key is delivered");
        assert!(item.fencing_token() > last);
        last = item.fencing_token();
        item.succeed().await.expect("the lease is valid");
        match round {
            0 => {
                let left = server.cli(&["keys", "*"]);
                let mut left: Vec<_> = left.lines().collect();
                left.sort_unstable();
                let kept = [
                    "requeue:schema",
                    "requeue:queues",
                    "requeue:{q/0.0}:epoch",
                    "requeue:{q/0.0}:generation",
                    "requeue:{q}:queue",
                ];
                assert_eq!(left.iter().filter(|key| !key.ends_with(":wake")).count(), kept.len());
                assert!(kept.iter().all(|key| left.contains(key)), "{left:?}");
            }
            // A failover may lose this Redis key.
            1 => _ = server.cli(&["del", "requeue:{q/0.0}:epoch"]),
            // An operator may remove the scripts from the server.
            2 => _ = server.cli(&["script", "flush"]),
            _ => {}
        }
    }
}

/// With the maximum number of shards, fencing tokens stay below 2⁵³. Two shards never give the same token.
#[tokio::test]
async fn epochs_of_any_number_of_shards_are_small_and_rise_without_the_last_one() {
    let Some(server) = Server::start() else { return };
    let keys: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    for shards in [1, 3, 16, 256] {
        let queue = open(&format!("{}?shards={shards}", server.url("")), &name("epochs")).await;
        let (mut last, mut all) = (HashMap::new(), HashSet::new());
        for round in 0..4 {
            queue.add_all(keys.clone()).await.expect("added");
            let mut left = keys.len();
            while left > 0 {
                for item in queue.get_many(left).await {
                    let (key, epoch) = (item.to_string(), item.fencing_token());
                    assert!(epoch < 1 << 53, "{shards}: {epoch}");
                    assert!(all.insert(epoch), "{shards}: {epoch} twice");
                    let least = epoch + if round == 1 { 3_500_000_000 } else { 0 };
                    assert!(last.insert(key, least) < Some(epoch), "{shards}, {round}");
                    item.succeed().await.expect("the lease is valid");
                    left -= 1;
                }
            }
            for kept in server.cli(&["keys", "requeue:*:epoch"]).lines() {
                match round {
                    // A failover may lose this Redis key.
                    0 => _ = server.cli(&["del", kept]),
                    // The effect is the same as that of a clock that was set back by 1 h.
                    1 => {
                        _ = server.cli(&["incrby", kept, &(3_600_000_000_u64 / shards).to_string()])
                    }
                    _ => {}
                }
            }
        }
    }
}

#[tokio::test]
async fn a_queue_whose_rows_were_removed_is_empty_and_goes_on() {
    let Some(server) = Server::start() else { return };
    let queue = open(&server.url(""), "q").await;
    queue.add_all(["a", "b", "c"]).await.expect("added");
    let item = queue.get().await.expect("a key is delivered");
    server.cli(&["del", "requeue:{q/0.0}:rows"]);
    assert!(matches!(item.succeed().await, Err(crate::CompleteError::Lost)));
    let claim = queue.get_many(10);
    queue.add("d").await.expect("added");
    let items = claim.await;
    assert_eq!(items.iter().map(|item| item.to_string()).collect::<Vec<_>>(), ["d"]);
}

#[tokio::test]
async fn who_only_looks_makes_no_queue() {
    let Some(server) = Server::shared() else { return };
    let (store, name) = (store(&server.url("")).await, name("looked-for"));
    for _ in 0..2 {
        let error =
            store.queue(&name).must_exist().open().await.expect_err("the queue does not exist");
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    }
    store.queue(&name).readd_policy(ReaddPolicy::Hold).open().await.expect("the queue is created");
    let opened = store.queue(&name).must_exist().open().await.expect("the queue exists");
    assert_eq!(opened.shared.place.readd_policy, ReaddPolicy::Hold);
}

#[tokio::test]
async fn what_is_in_one_batch_twice_happens_twice() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&server.url(""), &name("twice")).await;
    let keys = ["a", "b", "a", "a", "c", "b"];
    let mut asks: Vec<Ask> = keys.into_iter().flat_map(asking).collect();
    asks[3].add = Add::now().priority(crate::Priority::High);
    asks[5].add = Add::after(NEVER).merge(crate::Merge::Exactly);
    use Added::{Coalesced, New};
    let added = engine.add_keys(&place, asks).await.expect("added");
    assert_eq!(added, [New, New, Coalesced, Coalesced, New, New]);
    let claimed = engine.claim_keys(&place, Claim { max: 9, ..ONE }).await.expect("claimed").items;
    let found: Vec<_> = claimed.iter().map(|out| (&*out.key, out.asked.adds)).collect();
    assert_eq!(found, [(&b"a"[..], 3), (b"c", 1)]);

    // A delivery can be completed once. A completion with an earlier token has no effect.
    let [a, c] = &claimed[..] else { panic!("expected two deliveries") };
    let end =
        |key: &Key, epoch| End { key: key.clone(), epoch, how: crate::engine::Finish::Succeed };
    let ends = vec![
        end(&a.key, a.epoch - 1),
        end(&c.key, c.epoch),
        end(&a.key, a.epoch),
        End { how: crate::engine::Finish::Release(a.asked), ..end(&a.key, a.epoch) },
        end(&c.key, c.epoch),
    ];
    let ended = engine.finish_deliveries(&place, ends).await.expect("answered");
    assert_eq!(ended, [false, true, true, false, false]);
    let counts = engine.count_keys(&place).await.expect("counted");
    assert_eq!((counts.waiting, counts.ready, counts.in_flight), (1, 0, 0));
}

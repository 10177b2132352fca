//! Tests servers that lose Redis keys, because of their configuration or a deletion.

use std::collections::BTreeSet;

use tokio::time::timeout;

use super::faults::RIGHTS;
use super::*;
use crate::engine::{Dropped, Failure, Finish};
use crate::types::error::chain;
use crate::{Add, Priority, Queue, Schedule, Store};

const LONG: Duration = Duration::from_secs(900);

#[tokio::test]
async fn a_server_that_evicts_is_refused_unless_that_is_accepted() {
    let Some(server) = Server::start() else { return };
    let set = |limit: &str, policy: &str| {
        server.cli(&["config", "set", "maxmemory", limit]);
        server.cli(&["config", "set", "maxmemory-policy", policy]);
    };
    let (url, accepting) = (server.url(""), format!("{}?eviction=accept", server.url("")));
    for (limit, policy, evicts) in [
        ("100mb", "allkeys-lru", true),
        ("100mb", "allkeys-random", true),
        ("100mb", "noeviction", false),
        // This policy evicts only keys with a time to live. The keys of requeue have none.
        ("100mb", "volatile-lru", false),
        ("0", "allkeys-lru", false),
    ] {
        set(limit, policy);
        let connected = Store::connect(&url).await;
        assert_eq!(connected.is_err(), evicts, "{limit} {policy}");
        if let Err(error) = connected {
            let said = format!("127.0.0.1:{}: maxmemory-policy is {policy}", server.port());
            let error = chain(&error);
            assert!(error.contains(&said), "{error}");
            assert!(error.contains("CONFIG SET maxmemory-policy noeviction"), "{error}");
            assert!(error.contains("?eviction=accept"), "{error}");
        }
        Store::connect(&accepting).await.expect("eviction is accepted");
    }
    // A client without the permission for `INFO` can connect nevertheless.
    set("100mb", "allkeys-lru");
    let rights = format!("worker {}", RIGHTS.replace(" +info", ""));
    let rights: Vec<_> = rights.split_whitespace().collect();
    server.cli(&[&["acl", "setuser"], &rights[..]].concat());
    let store =
        Store::connect(&server.url("worker:s3cret@")).await.expect("the client is not refused");
    store.migrate().await.expect("the schema is created");
    store.queue("q").open().await.expect("the queue opens");
}

#[tokio::test]
async fn each_master_of_a_cluster_is_asked_whether_it_evicts() {
    let Some(cluster) = Cluster::start() else { return };
    let master = &cluster.nodes()[2];
    master.cli(&["config", "set", "maxmemory", "100mb"]);
    master.cli(&["config", "set", "maxmemory-policy", "allkeys-lfu"]);
    let error = Store::connect(&cluster.url()).await.expect_err("the server evicts");
    let error = chain(&error);
    let said = format!("127.0.0.1:{}: maxmemory-policy is allkeys-lfu", master.port());
    assert!(error.contains(&said), "{error}");
}

#[tokio::test]
async fn a_sentinel_names_the_server_to_use() {
    let Some(server) = Server::start() else { return };
    let sentinel = server.sentinel();
    let error = Store::connect(&sentinel.url("")).await.expect_err("the server is a Sentinel");
    let error = chain(&error);
    let said = format!(
        "127.0.0.1:{}: this is the address of a Sentinel; use the address \
         of its master: 127.0.0.1:{} (jobs)",
        sentinel.port(),
        server.port()
    );
    assert!(error.ends_with(&said), "{error}");
}

#[tokio::test]
async fn a_schema_or_a_record_that_was_removed_is_named_and_made_again() {
    let Some(server) = Server::start() else { return };
    let store = store(&server.url("")).await;
    let queue =
        store.queue("q").readd_policy(ReaddPolicy::Hold).open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    server.cli(&["del", "requeue:schema"]);
    let error = chain(&store.queue("q").open().await.expect_err("the schema was removed"));
    assert!(error.contains("it has the queue, but not the key \"requeue:schema\""), "{error}");
    assert!(error.contains("`requeue store init`"), "{error}");
    store.migrate().await.expect("the version is stored again");
    server.cli(&["del", "requeue:{q}:queue"]);
    let queue =
        store.queue("q").readd_policy(ReaddPolicy::Hold).open().await.expect("the queue opens");
    assert_eq!(queue.counts().await.expect("counted").ready, 1);
}

/// The record is lost. A process that creates it again is killed before it has marked the shards.
#[tokio::test]
async fn a_queue_whose_record_is_made_again_by_halves_keeps_its_keys() {
    let Some(server) = Server::start() else { return };
    let store = store(&format!("{}?shards=4", server.url(""))).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all((0..100).map(|n| n.to_string())).await.expect("added");
    let record = "requeue:{q}:queue";
    let halves =
        ["readd_policy", "0", "shards", "4", "parked_add", "0", "generation", "77", "new", "1"];
    for marks in [&[][..], &["--all"]] {
        server.cli(&["del", record]);
        if !marks.is_empty() {
            // The mark of one shard is also lost. The marks of the other shards decide.
            let found = server.cli(&["keys", "requeue:*:generation"]);
            let mark = found.lines().next().expect("there are four marks").to_owned();
            server.cli(&["del", &mark]);
        }
        server.cli(&[&["hset", record], &halves[..]].concat());
        let opened = store.queue("q").open().await.expect("the queue opens");
        assert_eq!(opened.counts().await.expect("counted").ready, 100);
        assert_eq!(queue.counts().await.expect("counted").ready, 100);
        assert!(!server.cli(&["hgetall", record]).contains("new"));
    }
}

/// The names of a shard's Redis keys, except those of the last fencing token and of the wake tokens.
const PARTS: [&str; 7] = ["rows", "low", "normal", "high", "leases", "again", "parked"];

/// Returns a queue that has a key of each kind, and the completions of its keys in flight.
async fn with_all_kinds(url: &str, name: &str) -> (Redis, Place, Vec<End>) {
    let (engine, place) = engine(url, name).await;
    for (key, priority) in
        [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)]
    {
        // Because of the delay, claims find the keys that are added later before these keys.
        let add = Add::after(Duration::from_millis(1)).priority(priority);
        let ask = Ask::new(key, add);
        engine.add_keys(&place, vec![ask]).await.expect("added");
    }
    let later = Ask::new("later", Add::after(LONG * 30));
    engine.add_keys(&place, vec![later]).await.expect("added");
    let mut ends = Vec::new();
    for key in ["parked", "running", "dirty"] {
        let urgent = Add::now().priority(Priority::High);
        engine.add_keys(&place, vec![Ask::new(key, urgent)]).await.expect("added");
    }
    while ends.len() < 3 {
        let claimed = engine.claim_keys(&place, Claim { max: 1, ..ONE }).await.expect("claimed");
        for out in claimed.items {
            let how = match &*out.key {
                b"parked" => Finish::GiveUp(Failure::new(out.asked, "no")),
                b"running" | b"dirty" => Finish::Succeed,
                _ => Finish::Release(out.asked),
            };
            let end = End { key: out.key, epoch: out.epoch, how };
            if matches!(end.how, Finish::Release(_)) {
                engine.finish_deliveries(&place, vec![end]).await.expect("the lease is valid");
                continue;
            }
            ends.push(end);
        }
    }
    ends.sort_by(|a, b| a.key.cmp(&b.key));
    let parked = ends.remove(1);
    engine.finish_deliveries(&place, vec![parked]).await.expect("the lease is valid");
    engine.add_keys(&place, asking("dirty")).await.expect("added");
    (engine, place, ends)
}

/// Asserts that no operation fails although parts of the shard are missing.
async fn all_operations_work(engine: &Redis, place: &Place) {
    engine.count_keys(place).await.expect("counted");
    for state in [None, Some(State::Ready), Some(State::InFlight), Some(State::Parked)] {
        engine.read_page(place, state, None, 100).await.expect("the page is read");
    }
    for key in ["low", "normal", "later", "parked", "running", "dirty"] {
        engine.look_up(place, &key.into()).await.expect("looked up");
    }
    let held = vec![("running".into(), 1), ("nobody's".into(), 1)];
    engine.renew_leases(place, held, ONE.lease).await.expect("answered");
    let end = End { key: "nobody's".into(), epoch: 1, how: Finish::Succeed };
    assert_eq!(engine.finish_deliveries(place, vec![end]).await.expect("answered"), [false]);
    engine.cancel_keys(place, vec!["nobody's".into()], None).await.expect("answered");
    engine.make_ready(place, vec!["nobody's".into()], State::Parked).await.expect("answered");
}

/// Works until no key is ready or in flight. Asserts that no key is in flight twice at the same time. Returns the
/// delivered keys.
async fn drain(engine: &Redis, place: &Place, ends: Vec<End>) -> Vec<String> {
    engine.finish_deliveries(place, ends).await.expect("answered");
    engine.cancel_keys(place, vec!["later".into()], None).await.expect("answered");
    let drained = async {
        let mut found = Vec::new();
        loop {
            let claimed = engine.claim_keys(place, Claim { max: 2, ..ONE }).await.expect("claimed");
            if claimed.items.is_empty() && claimed.next.is_none() {
                if engine.is_idle(place).await.expect("answered") {
                    break found;
                }
                continue;
            }
            let keys: BTreeSet<_> = claimed.items.iter().map(|out| out.key.clone()).collect();
            assert_eq!(keys.len(), claimed.items.len(), "a key has two runs: {claimed:?}");
            for out in claimed.items {
                found.push(out.key.to_string());
                let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
                assert_eq!(
                    engine.finish_deliveries(place, vec![end]).await.expect("answered"),
                    [true]
                );
            }
        }
    };
    let mut found = timeout(LONG, drained).await.expect("no key is stuck");
    found.sort();
    found
}

fn removed(server: &Server, queue: &str, part: &str) {
    let key = format!("requeue:{{{queue}/0.0}}:{part}");
    assert_eq!(server.cli(&["del", &key]), "1", "{key}");
}

#[tokio::test]
async fn a_shard_that_has_lost_a_part_is_repaired_and_no_key_is_stuck() {
    let Some(server) = Server::shared() else { return };
    let url = server.url("");
    for part in PARTS {
        for is_open in [true, false] {
            let name = name(part);
            let (engine, place, ends) = with_all_kinds(&url, &name).await;
            removed(server, &name, part);
            let (engine, place) = match is_open {
                true => (engine, place),
                false => super::engine(&url, &name).await,
            };
            all_operations_work(&engine, &place).await;
            let found = drain(&engine, &place, ends).await;
            // All parts except the rows can be restored from the rows.
            let wanted: &[&str] =
                if part == "rows" { &[] } else { &["dirty", "high", "low", "normal"] };
            assert_eq!(found, wanted, "{part}, {is_open}");
            let parked = u64::from(part != "rows");
            let counts = engine.count_keys(&place).await.expect("counted");
            assert_eq!(
                counts,
                StateCounts { parked, ..StateCounts::default() },
                "{part}, {is_open}"
            );
            assert_eq!(
                engine
                    .make_ready(&place, vec!["parked".into()], State::Parked)
                    .await
                    .expect("answered"),
                [Some(parked == 1)]
            );
        }
    }
}

#[tokio::test]
async fn a_row_that_was_removed_fails_no_script() {
    let Some(server) = Server::shared() else { return };
    let url = server.url("");
    for key in ["low", "normal", "high", "later", "parked", "running", "dirty"] {
        let name = name("row");
        let (engine, place, ends) = with_all_kinds(&url, &name).await;
        assert_eq!(server.cli(&["hdel", &format!("requeue:{{{name}/0.0}}:rows"), key]), "1");
        all_operations_work(&engine, &place).await;
        let found = drain(&engine, &place, ends).await;
        let wanted: Vec<_> =
            ["dirty", "high", "low", "normal"].into_iter().filter(|&other| other != key).collect();
        assert_eq!(found, wanted, "{key}");
        let parked = u64::from(key != "parked");
        let counts = engine.count_keys(&place).await.expect("counted");
        assert_eq!(counts, StateCounts { parked, ..StateCounts::default() }, "{key}");
    }
}

/// Before the repair, the states of these keys are unknown. The keys are not lost.
#[tokio::test]
async fn rows_that_have_lost_their_places_are_counted_as_damaged_and_keep_their_queue() {
    let Some(server) = Server::shared() else { return };
    let name = name("placeless");
    let (engine, place) = engine(&server.url(""), &name).await;
    for key in ["a", "b", "c"] {
        engine.add_keys(&place, asking(key)).await.expect("added");
    }
    let part = |part: &str| format!("requeue:{{{name}/0.0}}:{part}");
    server.cli(&["hset", &part("rows"), "c", "not a row"]);
    let first = engine.claim_keys(&place, Claim { max: 3, ..ONE }).await.expect("claimed");
    assert_eq!((first.items.len(), first.damaged.len()), (2, 1));
    for (removed, in_flight, damaged) in [("none", 2, 1), ("aside", 2, 1), ("leases", 0, 3)] {
        server.cli(&["del", &part(removed)]);
        let expected = StateCounts { in_flight, damaged, ..StateCounts::default() };
        assert_eq!(engine.count_keys(&place).await.expect("counted"), expected, "{removed}");
        let kept = engine.drop_queue(&name, false).await.expect("answered");
        assert_eq!(kept, Dropped::Kept(expected, 0), "{removed}");
    }
    let dropped = engine.drop_queue(&name, true).await.expect("dropped");
    assert_eq!(dropped, Dropped::Yes(StateCounts { damaged: 3, ..StateCounts::default() }));
}

/// The row of a key was removed, but its places remain. After an add, the key runs only once.
#[tokio::test]
async fn what_is_left_of_a_removed_row_does_nothing_to_its_key() {
    let Some(server) = Server::shared() else { return };
    let url = server.url("");
    for part in ["low", "running", "parked", "dirty"] {
        let name = name("left");
        let (engine, place, _) = with_all_kinds(&url, &name).await;
        removed(server, &name, "rows");
        engine.add_keys(&place, asking(part)).await.expect("added");
        // This command lets the leases of the keys in flight expire.
        let leases = format!("requeue:{{{name}/0.0}}:leases");
        if server.cli(&["zcard", &leases]) != "0" {
            server.cli(&["zadd", &leases, "1", "running", "1", "dirty"]);
        }
        let claimed =
            engine.claim_keys(&place, Claim { max: 9, ..ONE }).await.expect("claimed").items;
        let found: Vec<_> = claimed.iter().map(|out| (out.key.to_string(), out.failures)).collect();
        assert_eq!(found, [(part.to_owned(), 0)]);
        let again =
            engine.claim_keys(&place, Claim { max: 9, ..ONE }).await.expect("claimed").items;
        assert_eq!(again, [], "{part}: the key is in flight");
        let ends = claimed.into_iter().map(|out| End {
            key: out.key,
            epoch: out.epoch,
            how: Finish::Succeed,
        });
        assert_eq!(drain(&engine, &place, ends.collect()).await, Vec::<String>::new());
        let counts = engine.count_keys(&place).await.expect("counted");
        assert_eq!(counts, StateCounts::default(), "{part}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_on_a_server_that_evicts_goes_on_with_what_is_left() {
    let Some(server) = Server::start() else { return };
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-random"]);
    let used = server.cli(&["info", "memory"]);
    let used = super::super::requirements::said(&used, "used_memory").expect("the query succeeds");
    let limit = used.trim().parse::<u64>().expect("the value is a number") + (3 << 20);
    server.cli(&["config", "set", "maxmemory", &limit.to_string()]);
    let url = format!("{}?eviction=accept&shards=32", server.url(""));
    let open = || async {
        store(&url).await.queue("q").backoff(Duration::ZERO, Duration::ZERO).open().await
    };
    let queue: Queue = open().await.expect("the queue opens");
    let evicted = || {
        let stats = server.cli(&["info", "stats"]);
        stats
            .lines()
            .any(|line| line.starts_with("evicted_keys:") && line.trim() != "evicted_keys:0")
    };
    let mut n = 0;
    while !evicted() || n < 20_000 {
        queue.add_all((n..n + 256).map(|n| format!("{n:0>100}"))).await.expect("added");
        n += 256;
        // The server may have evicted all keys that were added.
        let items = timeout(Duration::from_secs(1), queue.get_many(100)).await.unwrap_or_default();
        for item in items {
            // The server may have evicted the delivery.
            let _ = item.succeed().await;
        }
    }
    server.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    server.cli(&["config", "set", "maxmemory", "0"]);
    if server.cli(&["exists", "requeue:schema"]) == "0" {
        store(&url).await;
    }
    queue.shut_down_when_idle();
    let drained = async {
        while let Some(item) = queue.get().await {
            let _ = item.succeed().await;
        }
    };
    timeout(LONG, drained).await.expect("no key is stuck");
    let late = open().await.expect("the queue opens");
    assert_eq!(late.counts().await.expect("counted"), StateCounts::default());
    late.add("a").await.expect("added");
    assert_eq!(late.get().await.expect("a key is delivered").as_str(), Some("a"));
}

/// Claims read the time of the next schedule together with the pause of the shard.
#[tokio::test]
async fn a_schedule_whose_time_was_removed_adds_its_key() {
    let Some(server) = Server::shared() else { return };
    let (url, name) = (server.url(""), name("time"));
    let paused = format!("requeue:{{{name}/0.0}}:paused");
    let open = async || {
        let store = store(&url).await;
        store.queue(&*name).poll(Duration::from_millis(10)).open().await.expect("the queue opens")
    };
    let daily = Schedule::cron("@daily", "UTC").expect("valid");
    let queue = open().await;
    queue.schedule("daily", daily).await.expect("stored");
    let kept = server.cli(&["get", &paused]);
    removed(server, &name, "paused");
    let (shared, page) = (&queue.shared, 9);
    shared.engine.next_schedules(&shared.place, 0, page).await.expect("read");
    assert_eq!(server.cli(&["get", &paused]), kept);

    let pulse = Schedule::every(Duration::from_millis(10));
    queue.schedule("pulse", pulse).await.expect("stored");
    removed(server, &name, "paused");
    let other = open().await;
    let item = timeout(LONG, other.get()).await.expect("the key is added").expect("it is open");
    assert_eq!(item.as_str(), Some("pulse"));
    item.succeed().await.expect("the lease is held");
}

#[tokio::test]
async fn a_time_whose_schedule_was_removed_is_removed_and_hides_no_other() {
    let Some(server) = Server::shared() else { return };
    let (url, name) = (server.url(""), name("hidden"));
    let part = |part: &str| format!("requeue:{{{name}/0.0}}:{part}");
    let queue = store(&url).await.queue(&*name).open().await.expect("the queue opens");
    let (shared, page) = (&queue.shared, 9);
    let due_in = async || {
        let claimed = shared.engine.claim_keys(&shared.place, ONE).await.expect("claimed");
        claimed.schedule_in
    };
    let times: Vec<_> = (0..30).flat_map(|n| ["1".to_owned(), format!("lost{n}")]).collect();
    let times: Vec<_> = times.iter().map(String::as_str).collect();
    for is_alone in [true, false] {
        if !is_alone {
            let yearly = Schedule::cron("@yearly", "UTC").expect("valid");
            queue.schedule("yearly", yearly).await.expect("stored");
        }
        server.cli(&[&["zadd", &part("schedule-times")], &times[..]].concat());
        // Claims read this time.
        server.cli(&["set", &part("paused"), &format!("-{} 1", shared.place.generation)]);
        assert_eq!(due_in().await, Some(Duration::ZERO));
        let agenda = shared.engine.next_schedules(&shared.place, 0, page).await.expect("read");
        let keys: Vec<_> = agenda.schedules.iter().map(|found| found.key.to_string()).collect();
        assert_eq!(keys, if is_alone { vec![] } else { vec!["yearly"] });
        assert_eq!(server.cli(&["zcard", &part("schedule-times")]), keys.len().to_string());
        assert_eq!(due_in().await.is_none(), is_alone);
        assert_ne!(due_in().await, Some(Duration::ZERO));
    }
}

//! Tests of groups that the comparison with the model does not cover: lost parts, wakes, shards and lists.

use requeue_servers::{Language, Point, Proxy};
use tokio::time::timeout;

use super::cuts::hash_of;
use super::faults::RIGHTS;
use super::*;
use crate::engine::{Ask, Failure, Finish, GroupChange};
use crate::types::group::GroupBy;
use crate::types::rate::Rate;
use crate::{Add, Queue, Store};

const LONG: Duration = Duration::from_secs(900);
const PATTERN: &str = "^[^/]*";
/// The names of the Redis keys, except the settings, without which claims cannot enforce limits.
const PARTS: [&str; 3] = ["turns", "in-flight", "leases"];

async fn grouped(url: &str, name: &str, group_by: &str) -> (Redis, Place) {
    let engine = Redis::connect(options(url)).await.expect("the engine connects");
    engine.migrate_schema().await.expect("the schema is created");
    let settings =
        Settings { group_by: Some(group_by.into()), group_limit: Some(1), ..Settings::default() };
    let place = engine.open_queue(name, settings).await.expect("the queue opens");
    (engine, place)
}

/// Adds keys. The group of a key is the part before the slash.
async fn add(engine: &Redis, place: &Place, keys: &[&str], add: Add) {
    for &key in keys {
        let group = key.split('/').next().map(Arc::from);
        let ask = Ask { group, ..Ask::new(key, add) };
        engine.add_keys(place, vec![ask]).await.expect("added");
    }
}

/// Claims until no key can be delivered, and no shard is being repaired.
async fn claim_all(engine: &Redis, place: &Place) -> Vec<crate::engine::Delivery> {
    let claimed = async {
        let mut all = Vec::new();
        loop {
            let claimed = engine.claim_keys(place, Claim { max: 9, ..ONE }).await.expect("claimed");
            let is_last = claimed.next.is_none_or(|next| next > Duration::from_secs(1));
            if claimed.items.is_empty() && is_last {
                break all;
            }
            all.extend(claimed.items);
        }
    };
    timeout(LONG, claimed).await.expect("the repair completes")
}

fn names(items: &[crate::engine::Delivery]) -> Vec<String> {
    let mut names: Vec<_> = items
        .iter()
        .map(|out| format!("{}: {}", out.group.as_deref().expect("a group"), out.key))
        .collect();
    names.sort();
    names
}

async fn finish_all(engine: &Redis, place: &Place, items: Vec<crate::engine::Delivery>) {
    for out in items {
        let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
        let answer = engine.finish_deliveries(place, vec![end]).await.expect("answered");
        assert_eq!(answer, [true]);
    }
}

/// Asserts that no key is ready or in flight.
fn assert_nothing_is_left(server: &Server, name: &str) {
    let part = |part| format!("requeue:{{{name}/0.0}}:{part}");
    assert_eq!(server.cli(&["exists", &part("turns"), &part("leases")]), "0");
    assert_eq!(server.cli(&["hgetall", &part("in-flight")]), "\u{1}\n0");
}

#[tokio::test]
async fn a_shard_that_has_lost_a_part_of_its_groups_is_repaired_and_keeps_their_limits() {
    let Some(server) = Server::shared() else { return };
    let pairs = PARTS.map(|part| PARTS.into_iter().filter(|other| *other != part).collect());
    let lost = PARTS.map(|part| vec![part]).into_iter().chain(pairs).chain([PARTS.to_vec()]);
    for (parts, group_by) in lost.flat_map(|parts| [(parts.clone(), ""), (parts, PATTERN)]) {
        let name = name("lost");
        let (engine, place) = grouped(&server.url(""), &name, group_by).await;
        add(&engine, &place, &["p/1"], Add::now()).await;
        for out in claim_all(&engine, &place).await {
            let failure = Failure::new(out.asked, "no");
            let end = End { key: out.key, epoch: out.epoch, how: Finish::GiveUp(failure) };
            engine.finish_deliveries(&place, vec![end]).await.expect("answered");
        }
        add(&engine, &place, &["w/1"], Add::after(LONG)).await;
        add(&engine, &place, &["a/1", "a/2", "b/1", "b/2"], Add::now()).await;
        let first = claim_all(&engine, &place).await;
        assert_eq!(names(&first), ["a: a/1", "b: b/1"]);
        add(&engine, &place, &["c/1"], Add::now()).await;

        for part in &parts {
            let key = format!("requeue:{{{name}/0.0}}:{part}");
            assert_eq!(server.cli(&["del", &key]), "1", "{key}");
        }
        let second = claim_all(&engine, &place).await;
        assert_eq!(names(&second), ["c: c/1"], "{parts:?}, {group_by:?}: the limit is kept");
        finish_all(&engine, &place, first).await;
        finish_all(&engine, &place, second).await;
        let third = claim_all(&engine, &place).await;
        assert_eq!(names(&third), ["a: a/2", "b: b/2"], "{parts:?}, {group_by:?}");
        let page = engine.read_page(&place, None, None, 9).await.expect("a page");
        let found: Vec<_> =
            page.iter().map(|entry| (entry.key.to_string(), entry.group.as_deref())).collect();
        let expected = [
            ("a/2".to_owned(), Some("a")),
            ("b/2".to_owned(), Some("b")),
            ("p/1".to_owned(), Some("p")),
            ("w/1".to_owned(), Some("w")),
        ];
        assert_eq!(found, expected, "{parts:?}, {group_by:?}");
        finish_all(&engine, &place, third).await;
        let keys = ["p/1", "w/1"].map(Key::from).to_vec();
        engine.cancel_keys(&place, keys, None).await.expect("cancelled");
        assert_nothing_is_left(server, &name);
    }
}

#[tokio::test]
async fn a_key_that_leaves_flight_before_a_repair_holds_no_slot_afterwards() {
    let Some(server) = Server::shared() else { return };
    for part in ["in-flight", "leases"] {
        let name = name(part);
        let (engine, place) = grouped(&server.url(""), &name, PATTERN).await;
        add(&engine, &place, &["a/1", "a/2", "b/1", "b/2"], Add::now()).await;
        let mut items = claim_all(&engine, &place).await;
        assert_eq!(names(&items), ["a: a/1", "b: b/1"]);
        assert_eq!(server.cli(&["del", &format!("requeue:{{{name}/0.0}}:{part}")]), "1");
        let at = items.iter().position(|out| &*out.key == b"a/1").expect("it was claimed");
        let first = items.remove(at);
        finish_all(&engine, &place, vec![first]).await;
        items.extend(claim_all(&engine, &place).await);
        assert_eq!(names(&items), ["a: a/2", "b: b/1"], "{part}");
        finish_all(&engine, &place, items).await;
        let items = claim_all(&engine, &place).await;
        assert_eq!(names(&items), ["b: b/2"], "{part}");
        finish_all(&engine, &place, items).await;
        assert_nothing_is_left(server, &name);
    }
}

/// Another client changes the number of keys in flight of one group.
#[tokio::test]
async fn a_wrong_number_of_a_group_is_counted_again() {
    let Some(server) = Server::shared() else { return };
    for number in ["", "0", "5", "-1", "0.5", "nan", "inf", "many"] {
        for is_reviewed in [false, true] {
            let name = name("number");
            let (engine, place) = grouped(&server.url(""), &name, PATTERN).await;
            add(&engine, &place, &["a/1", "b/1"], Add::now()).await;
            let first = claim_all(&engine, &place).await;
            assert_eq!(names(&first), ["a: a/1", "b: b/1"]);
            let key = format!("requeue:{{{name}/0.0}}:in-flight");
            match number {
                "" => server.cli(&["hdel", &key, "a"]),
                _ => server.cli(&["hset", &key, "a", number]),
            };
            if is_reviewed {
                engine.next_schedules(&place, 0, 9).await.expect("read");
            }
            let (a, b): (Vec<_>, Vec<_>) =
                first.into_iter().partition(|out| out.group.as_deref() == Some("a"));
            if is_reviewed {
                add(&engine, &place, &["a/2"], Add::now()).await;
                assert_eq!(claim_all(&engine, &place).await, [], "{number:?}: the limit is kept");
                finish_all(&engine, &place, a).await;
            } else {
                finish_all(&engine, &place, a).await;
                add(&engine, &place, &["a/2"], Add::now()).await;
            }
            if number == "5" {
                // No single operation detects this change. The look at the schedules does.
                engine.next_schedules(&place, 0, 9).await.expect("read");
            }
            add(&engine, &place, &["a/3"], Add::now()).await;
            let second = claim_all(&engine, &place).await;
            assert_eq!(names(&second), ["a: a/2"], "{number:?}, {is_reviewed}");
            finish_all(&engine, &place, second).await;
            let third = claim_all(&engine, &place).await;
            assert_eq!(names(&third), ["a: a/3"], "{number:?}, {is_reviewed}");
            finish_all(&engine, &place, third).await;
            finish_all(&engine, &place, b).await;
            assert_nothing_is_left(server, &name);
        }
    }
}

/// The leases are lost between the last two steps of a repair.
#[tokio::test]
async fn keys_in_flight_are_not_counted_without_their_leases() {
    let Some(server) = Server::shared() else { return };
    let name = name("count");
    let (engine, place) = grouped(&server.url(""), &name, PATTERN).await;
    add(&engine, &place, &["a/1", "a/2"], Add::now()).await;
    let first = claim_all(&engine, &place).await;
    assert_eq!(server.cli(&["del", &format!("requeue:{{{name}/0.0}}:leases")]), "1");
    let shards = engine.shards_of(&place).expect("the queue is open");
    let mut count = engine.nodes.scripts.repair.on(&shards[0]);
    count.arg(16).arg(0);
    engine.nodes.run_script(shards[0].slot, &count).await.expect("counted");
    assert_eq!(claim_all(&engine, &place).await, [], "the limit is kept");
    finish_all(&engine, &place, first).await;
    assert_eq!(names(&claim_all(&engine, &place).await), ["a: a/2"]);
}

#[tokio::test]
async fn a_queue_that_has_lost_its_settings_gets_its_limit_back_when_it_is_opened() {
    let Some(server) = Server::shared() else { return };
    let name = name("settings");
    let (engine, place) = grouped(&server.url(""), &name, "").await;
    engine.set_group_limit(&place, Some(2)).await.expect("set");
    assert_eq!(server.cli(&["del", &format!("requeue:{{{name}/0.0}}:group-settings")]), "1");
    let (engine, place) = grouped(&server.url(""), &name, "").await;
    add(&engine, &place, &["a/1", "a/2", "a/3"], Add::now()).await;
    assert_eq!(claim_all(&engine, &place).await.len(), 2);
    let info = engine.list_queues().await.expect("listed");
    let info = info.iter().find(|info| info.name == name).expect("the queue exists");
    assert_eq!((&info.group_by, info.group_limit), (&Some(GroupBy::Add), Some(2)));
}

#[tokio::test]
async fn all_keys_of_a_group_are_in_one_shard() {
    let Some(server) = Server::shared() else { return };
    let url = format!("{}?shards=7", server.url(""));
    let (engine, place) = grouped(&url, &name("shards"), PATTERN).await;
    assert_eq!(engine.shard_count(&place), 7);
    let shard = |key: String| engine.shard_of(&place, &Key::from(key));
    let shards: std::collections::BTreeSet<_> = (0..50)
        .map(|group| {
            let first = shard(format!("g{group}/0"));
            assert!((1..20).all(|key| shard(format!("g{group}/{key}")) == first));
            first
        })
        .collect();
    assert_eq!(shards.len(), 7);
    // If adds name the groups, the group of a key cannot be computed from the key. The queue then has one shard.
    let (engine, place) = grouped(&url, &name("shards"), "").await;
    assert_eq!(engine.shard_count(&place), 1);
}

#[tokio::test]
async fn a_store_lists_groups_with_keys_or_settings() {
    let Some(server) = Server::shared() else { return };
    for url in [server.url(""), format!("{}?shards=3", server.url(""))] {
        let (engine, place) = grouped(&url, &name("list"), PATTERN).await;
        add(&engine, &place, &["a/1", "a/2", "c/1"], Add::now()).await;
        add(&engine, &place, &["c/2", "d/1"], Add::after(LONG)).await;
        for change in [GroupChange::Limit(Some(7)), GroupChange::Weight(3)] {
            engine.change_group(&place, "b", change).await.expect("changed");
        }
        engine.change_group(&place, "c", GroupChange::Paused(true)).await.expect("changed");
        assert_eq!(names(&claim_all(&engine, &place).await), ["a: a/1"]);
        let all = engine.list_groups(&place, None, 9).await.expect("listed");
        let found: Vec<_> = all
            .iter()
            .map(|info| {
                let StateCounts { ready, waiting, in_flight, .. } = info.counts;
                let settings = (info.limit, info.weight, info.is_paused);
                (&*info.name, [ready, waiting, in_flight], settings)
            })
            .collect();
        let expected = [
            ("a", [1, 0, 1], (Some(1), 1, false)),
            ("b", [0, 0, 0], (Some(7), 3, false)),
            ("c", [1, 1, 0], (Some(1), 1, true)),
            ("d", [0, 1, 0], (Some(1), 1, false)),
        ];
        assert_eq!(found, expected);
        let page = engine.list_groups(&place, Some("a"), 2).await.expect("listed");
        let names: Vec<_> = page.iter().map(|info| &*info.name).collect();
        assert_eq!(names, ["b", "c"]);
    }
}

async fn open(store: &Store, name: &str) -> Queue {
    let opening = store.queue(name).group_by(PATTERN).group_limit(1);
    // If the process were not woken, it would wait for the duration of the lease.
    opening.lease(LONG * 9).poll(LONG * 9).open().await.expect("the queue opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_slot_or_a_change_of_settings_wakes_another_process() {
    let Some(server) = Server::start() else { return };
    let (first, second) = (store(&server.url("")).await, store(&server.url("")).await);
    for what in ["succeed", "fail", "limit", "queue limit", "resume"] {
        let (holder, waiter) = (open(&first, what).await, open(&second, what).await);
        holder.add_all(["a/1", "a/2"]).await.expect("added");
        let item = holder.get().await.expect("the queue is open");
        let other = if item.as_str() == Some("a/1") { "a/2" } else { "a/1" };
        if what == "resume" {
            holder.group("a").pause().await.expect("paused");
            holder.group("a").set_limit(Some(2)).await.expect("set");
        }
        let got = tokio::spawn(async move { waiter.get().await.map(|item| item.key().clone()) });
        waiting(&server, 1).await;
        match what {
            "succeed" => item.succeed().await.expect("the lease is held"),
            "fail" => item.give_up("no").await.expect("the lease is held"),
            "limit" => holder.group("a").set_limit(Some(2)).await.expect("set"),
            "queue limit" => holder.set_group_limit(Some(2)).await.expect("set"),
            _ => holder.group("a").resume().await.expect("resumed"),
        }
        let key = timeout(LONG, got).await.expect("the process is woken").expect("no panic");
        assert_eq!(key, Some(other.into()), "{what}");
        waiting(&server, 0).await;
    }
}

#[tokio::test]
async fn only_a_key_that_may_be_delivered_wakes_a_process() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = grouped(&server.url(""), &name("add"), PATTERN).await;
    let shards = engine.shards_of(&place).expect("the queue is open");
    let is_woken = async || {
        let mut take = redis::cmd("DEL");
        take.arg(shards[0].wake());
        let taken = engine.nodes.run_command(shards[0].slot, &take).await.expect("answered");
        values::number(taken).expect("a number") == 1
    };
    is_woken().await;
    add(&engine, &place, &["a/1"], Add::now()).await;
    assert!(is_woken().await, "the key is ready");
    let items = claim_all(&engine, &place).await;
    add(&engine, &place, &["a/2"], Add::now()).await;
    assert!(!is_woken().await, "the group is at its limit");
    add(&engine, &place, &["b/1"], Add::now()).await;
    assert!(is_woken().await, "another group is not");
    finish_all(&engine, &place, items).await;
    assert!(is_woken().await, "the group has a free slot");
    engine.change_group(&place, "c", GroupChange::Paused(true)).await.expect("changed");
    is_woken().await;
    add(&engine, &place, &["c/1"], Add::now()).await;
    assert!(!is_woken().await, "the group is paused");
}

#[tokio::test]
async fn groups_that_no_wake_has_named_are_found_by_a_search() {
    // There are more groups than a few lookups read, and more than wakes can name.
    const MANY: usize = 2500;
    const FREED: usize = 300;
    let Some(server) = Server::shared() else { return };
    let (engine, place) = grouped(&server.url(""), &name("many"), PATTERN).await;
    let _wakes = engine.subscribe_wakes(&place);
    for n in [1, 2] {
        let ask = |group| Ask {
            group: Some(format!("{group}").into()),
            ..Ask::new(format!("{group}/{n}"), Add::now())
        };
        let asks: Vec<_> = (0..MANY).map(ask).collect();
        for asks in asks.chunks(500) {
            engine.add_keys(&place, asks.to_vec()).await.expect("added");
        }
    }
    // The closure claims until a search of all groups has found no key.
    let claim_all = async || {
        let claim = Claim { max: 200, lease: LONG, ..ONE };
        let mut all = Vec::new();
        loop {
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            if claimed.items.is_empty() && !claimed.next.is_some_and(|next| next.is_zero()) {
                break all;
            }
            all.extend(claimed.items);
        }
    };
    let mut held = claim_all().await;
    assert_eq!(held.len(), MANY);
    let ends = held.drain(..FREED);
    let ends = ends.map(|out| End { key: out.key, epoch: out.epoch, how: Finish::Succeed });
    engine.finish_deliveries(&place, ends.collect()).await.expect("finished");
    assert_eq!(claim_all().await.len(), FREED);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_holds_no_slot_of_its_group() {
    let Some(server) = Server::shared() else { return };
    for state in ["ready", "in flight"] {
        let name = name("damaged");
        let (engine, place) = grouped(&server.url(""), &name, PATTERN).await;
        add(&engine, &place, &["a/1"], Add::now()).await;
        let part = |part: &str| format!("requeue:{{{name}/0.0}}:{part}");
        if state == "in flight" {
            assert_eq!(names(&claim_all(&engine, &place).await), ["a: a/1"]);
            // This command lets the lease expire.
            server.cli(&["zadd", &part("leases"), "1", "a/1"]);
        }
        let write = r"return redis.call('hset', KEYS[1], 'a/1', 'a\0not a row')";
        server.cli(&["eval", write, "1", &part("rows")]);
        add(&engine, &place, &["a/2"], Add::now()).await;
        let items = claim_all(&engine, &place).await;
        assert_eq!(names(&items), ["a: a/2"], "{state}");
        let entry = engine.look_up(&place, &"a/1".into()).await.expect("looked up");
        let entry = entry.expect("the row is kept");
        assert_eq!((entry.state, entry.group.as_deref()), (State::Damaged, Some("a")));
        // The add replaces the damaged row.
        add(&engine, &place, &["a/1"], Add::now()).await;
        assert_eq!(claim_all(&engine, &place).await, [], "{state}: the group is at its limit");
        finish_all(&engine, &place, items).await;
        let items = claim_all(&engine, &place).await;
        assert_eq!(names(&items), ["a: a/1"], "{state}");
        finish_all(&engine, &place, items).await;
        assert_nothing_is_left(server, &name);
    }
}

#[tokio::test]
async fn a_row_without_a_group_is_set_aside() {
    let Some(server) = Server::shared() else { return };
    let name = name("groupless");
    let (engine, place) = grouped(&server.url(""), &name, PATTERN).await;
    let part = |part: &str| format!("requeue:{{{name}/0.0}}:{part}");
    let write = r"return redis.call('hset', KEYS[1], 'bad', '\255 not a row')";
    server.cli(&["eval", write, "1", &part("rows")]);
    server.cli(&["zadd", &part("normal"), "1", "bad"]);
    add(&engine, &place, &["a/1"], Add::now()).await;
    for _ in 0..2 {
        engine.claim_keys(&place, ONE).await.expect("claimed");
    }
    let entry = engine.look_up(&place, &"bad".into()).await.expect("looked up");
    let entry = entry.expect("the row is kept");
    assert_eq!((entry.state, entry.group), (State::Damaged, None));
}

#[tokio::test]
async fn queues_with_groups_need_one_more_right() {
    let Some(server) = Server::start() else { return };
    store(&server.url("")).await;
    let user = |name: &str, more: &str| {
        let rights = format!("{RIGHTS} {more}");
        let rights: Vec<_> = rights.split_whitespace().collect();
        server.cli(&[&["acl", "setuser", name], &rights[..]].concat());
        server.url(&format!("{name}:s3cret@"))
    };
    let poor = Store::connect(&user("poor", "")).await.expect("the client may connect");
    let refused = poor.queue("q").group_by(PATTERN).group_limit(1).open().await;
    let error = chain(&refused.expect_err("a command is not permitted"));
    assert!(error.contains("can't run this command"), "{error}");
    let store =
        Store::connect(&user("worker", "+zremrangebylex")).await.expect("the client may connect");
    let queue = open(&store, "q").await;
    queue.add_all(["a/1", "a/2", "b/1"]).await.expect("added");
    queue.group("b").pause().await.expect("paused");
    queue.set_group_limit(Some(3)).await.expect("set");
    for _ in 0..2 {
        queue.get().await.expect("the queue is open").succeed().await.expect("the lease is held");
    }
    let groups = queue.groups(None, 9).await.expect("listed");
    assert!(groups.len() == 1 && groups[0].is_paused && groups[0].counts.ready == 1, "{groups:?}");
}

fn per_second(starts: u32) -> Rate {
    Rate::new(starts, Duration::from_secs(1))
}

/// Returns the rate in the record of a queue, and the rate that claims use.
async fn rates(engine: &Redis, place: &Place) -> (Option<Rate>, Option<Rate>) {
    let listed = engine.list_queues().await.expect("listed");
    let info = listed.into_iter().find(|info| info.name == *place.name).expect("it is listed");
    let throttle = engine.read_rate(place).await.expect("read");
    (info.rate, throttle.map(|throttle| throttle.rate))
}

/// A process has stopped after it has set a rate, but before it has changed the record.
#[tokio::test]
async fn an_opener_makes_the_record_say_the_rate_that_claims_keep() {
    let Some(server) = Server::shared() else { return };
    let name = name("rates");
    let (engine, place) = grouped(&server.url(""), &name, "").await;
    let record = format!("requeue:{{{name}}}:queue");
    for (rate, stale) in [
        (Some(per_second(20)), Some(per_second(10))),
        (Some(per_second(20)), None),
        (None, Some(per_second(10))),
    ] {
        engine.set_rate(&place, rate).await.expect("set");
        match stale {
            Some(stale) => server.cli(&["hset", &record, "rate", &stale.to_stored()]),
            None => server.cli(&["hdel", &record, "rate"]),
        };
        assert_eq!(rates(&engine, &place).await, (stale, rate));
        let opened = engine.find_queue(&name).await.expect("opened").expect("it exists");
        assert_eq!(opened.rate, rate, "not {stale:?}");
        assert_eq!(rates(&engine, &place).await, (rate, rate));
    }
}

#[tokio::test]
async fn a_worker_restores_a_rate_that_the_server_has_lost() {
    let Some(server) = Server::shared() else { return };
    let name = name("evicted");
    let (engine, place) = grouped(&server.url(""), &name, "").await;
    let review = async || engine.next_schedules(&place, 0, 9).await.expect("read");
    for rate in [Some(per_second(10)), None] {
        engine.set_rate(&place, rate).await.expect("set");
        let paused = format!("requeue:{{{name}/0.0}}:paused");
        assert_eq!(server.cli(&["del", &paused]), "1");
        assert_eq!(rates(&engine, &place).await, (rate, None));
        review().await;
        assert_eq!(rates(&engine, &place).await, (rate, rate));
    }
    // A removed rate stays removed, even if the record still contains it.
    engine.set_rate(&place, None).await.expect("set");
    server.cli(&["hset", &format!("requeue:{{{name}}}:queue"), "rate", "10 1000000 1"]);
    review().await;
    assert_eq!(rates(&engine, &place).await.1, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_that_changes_while_the_first_one_is_recorded_stays_in_the_record() {
    let Some(server) = Server::start() else { return };
    for later in [Some(per_second(20)), None] {
        let name = name("raced");
        let (engine, place) = grouped(&server.url(""), &name, "").await;
        let proxy = Proxy::start(Language::Redis, server.port());
        let (late, of) = grouped(&format!("redis://127.0.0.1:{}", proxy.port()), &name, "").await;
        let held = proxy.hold(&hash_of(&Scripts::new(CLOCK).record), Point::Request);
        let first = async move { late.set_first_rate(&of, per_second(10)).await };
        let first = tokio::spawn(first);
        held.happened();
        engine.set_rate(&place, later).await.expect("set");
        held.release();
        first.await.expect("the task does not panic").expect("set");
        assert_eq!(rates(&engine, &place).await, (later, later));
    }
}

//! Tests groups through the API, with SQLite: invalid settings and names, limits, pauses and explanations.

use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::queue::Queue;
use crate::api::store::{OpenOptions, Store};
use crate::client::item::Item;
use crate::types::add::Added;
use crate::types::error::{ErrorKind, UpdateError, chain};
use crate::types::group::GroupBy;
use crate::types::inspect::State;

/// The interval of polls and the duration of leases. No test waits for either of them.
const NEVER: Duration = Duration::from_secs(3600);
/// The time limit for each wait.
const LATEST: Duration = Duration::from_secs(900);
const PATTERN: &str = "^[^/]*";

pub(super) async fn store_in(dir: &TempDir) -> Store {
    let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    let store = Store::connect(&url).await.expect("the store opens");
    store.migrate().await.expect("the schema is created");
    store
}

fn options(store: &Store) -> OpenOptions {
    store.queue("q").poll(NEVER).lease(NEVER).claim_ahead(0).worker("w1")
}

async fn open(store: &Store, by: impl Into<GroupBy>, limit: u32) -> Queue {
    options(store).group_by(by).group_limit(limit).open().await.expect("the queue opens")
}

async fn get_all(queue: &Queue) -> Vec<Item> {
    timeout(LATEST, queue.get_many(10)).await.expect("a key is ready")
}

fn keys(items: &[Item]) -> Vec<String> {
    items.iter().map(|item| item.key().to_string()).collect()
}

fn waiting(queue: &Queue) -> JoinHandle<Vec<Item>> {
    let queue = queue.clone();
    tokio::spawn(async move { queue.get_many(10).await })
}

/// Reads the counts until the claims of waiting getters have taken effect. Returns the number of keys in flight.
async fn in_flight(queue: &Queue) -> u64 {
    let mut counted = 0;
    for _ in 0..3 {
        counted = queue.counts().await.expect("counted").in_flight;
    }
    counted
}

fn refused(result: Result<(), UpdateError>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    error.to_string()
}

#[tokio::test]
async fn invalid_options_of_groups_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let new = || store.queue("q");
    for (options, why) in [
        (new().group_by(PATTERN).group_limit(0), "invalid limit 0 of its groups"),
        (new().group_limit(1), "it does not exist, and a limit of its groups needs `group_by`"),
        (new().group_by(""), "the pattern of its groups is empty"),
        (
            new().group_by("("),
            r#"the pattern "(" of its groups is not a regular expression: unclosed group"#,
        ),
    ] {
        let error = options.open().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(store.queues().await.expect("listed").is_empty(), "no queue was created");
}

#[tokio::test]
async fn invalid_groups_are_refused_by_each_operation() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = options(&store).group_by(GroupBy::Add).open().await.expect("the queue opens");
    let long = "x".repeat(10_000);
    let names = [
        (&*long, "has 10000 bytes; at most 100 are allowed"),
        ("a\nb", "has control characters"),
        ("a\0", "has control characters"),
    ];
    for (name, why) in names {
        let group = queue.group(name);
        let error = group.add("k").await.expect_err("refused");
        assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Invalid, false));
        let error = error.to_string();
        let listed = group.info().await.expect_err("refused").to_string();
        let cancelled = refused(group.cancel_all(None).await.map(drop));
        for said in [error, listed, cancelled, refused(group.pause().await)] {
            assert!(said.contains(why) && said.len() < 300, "{said}");
        }
        refused(group.resume().await);
        refused(group.set_limit(Some(1)).await);
        refused(group.set_weight(1).await);
    }
    let group = queue.group("a");
    assert!(refused(group.set_limit(Some(0)).await).contains("invalid limit 0"));
    assert!(refused(queue.set_group_limit(Some(0)).await).contains("invalid limit 0"));
    assert!(refused(group.set_weight(0).await).contains("invalid weight 0"));
    assert_eq!(queue.groups(None, 10).await.expect("listed"), []);
    assert_eq!(queue.counts().await.expect("counted").ready, 0);
}

#[tokio::test]
async fn a_queue_without_groups_refuses_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = options(&store).open().await.expect("the queue opens");
    let group = queue.group("acme");
    let error = group.add("k").await.expect_err("refused").to_string();
    assert!(
        error.contains("names the group \"acme\", and the queue \"q\" has no groups"),
        "{error}"
    );
    for said in [
        refused(group.pause().await),
        refused(group.set_weight(2).await),
        refused(group.cancel_all(State::Ready).await.map(drop)),
        refused(queue.set_group_limit(None).await),
        queue.groups(None, 10).await.expect_err("refused").to_string(),
        group.info().await.expect_err("refused").to_string(),
    ] {
        assert!(said.contains("the queue \"q\" has no groups"), "{said}");
    }
    queue.add("k").await.expect("added");
    let entry = queue.look_up("k").await.expect("looked up").expect("it was added");
    assert_eq!(entry.group, None);
    assert_eq!(get_all(&queue).await[0].group(), None);
}

#[tokio::test]
async fn processes_agree_on_the_groups_of_a_queue() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, other) = (store_in(&dir).await, store_in(&dir).await);
    let queue = |name: &str| (one.queue(name), other.queue(name));
    let by_pattern = r#"extracted by the pattern "^[^/]*""#;
    for ((first, second), why) in [
        ((queue("none").0, queue("none").1.group_by(PATTERN)), ["it has no groups", by_pattern]),
        (
            (queue("add").0.group_by(GroupBy::Add), queue("add").1.group_by(PATTERN)),
            ["its groups are named by each add", by_pattern],
        ),
        (
            (queue("pattern").0.group_by(PATTERN), queue("pattern").1.group_by("^.")),
            [by_pattern, r#"extracted by the pattern "^.""#],
        ),
        (
            (
                queue("limit").0.group_by(PATTERN).group_limit(2),
                queue("limit").1.group_by(PATTERN).group_limit(3),
            ),
            ["the limit of its groups is 2, not 3", "call `Queue::set_group_limit`"],
        ),
        (
            (
                queue("unlimited").0.group_by(PATTERN),
                queue("unlimited").1.group_by(PATTERN).group_limit(3).must_exist(),
            ),
            ["its groups have no limit, and the option says 3", "`Queue::set_group_limit`"],
        ),
        (
            (queue("ungrouped").0, queue("ungrouped").1.group_limit(3)),
            ["it has no groups, and the option says a limit of 3", "or use another queue"],
        ),
    ] {
        first.open().await.expect("the queue opens");
        let error = second.open().await.expect_err("another setting");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(why.iter().all(|why| error.to_string().contains(why)), "{error}");
    }

    // Without these options, or with equal options, the queue opens with its stored settings.
    let queue = other.queue("limit").open().await.expect("the queue opens");
    queue.set_group_limit(Some(3)).await.expect("set");
    queue.add("a/1").await.expect("added");
    let info = queue.group("a").info().await.expect("read").expect("it has a key");
    assert_eq!((info.limit, info.counts.ready), (Some(3), 1));
    one.queue("limit").group_by(PATTERN).group_limit(3).open().await.expect("equal settings");
    // A limit without a pattern is valid, because adds may name the groups.
    one.queue("limit").group_limit(3).open().await.expect("an equal limit");
    let error = one.queue("limit").group_limit(2).open().await.expect_err("another limit");
    assert!(error.to_string().contains("the limit of its groups is 3, not 2"), "{error}");
    let infos = one.queues().await.expect("listed");
    let found: Vec<_> =
        infos.iter().map(|info| (info.group_by.clone(), info.group_limit)).collect();
    let pattern = Some(GroupBy::from(PATTERN));
    let all = [
        (Some(GroupBy::Add), None),
        (pattern.clone(), Some(3)),
        (None, None),
        (pattern.clone(), None),
        (None, None),
        (pattern, None),
    ];
    assert_eq!(found, all);
}

#[tokio::test]
async fn a_key_keeps_its_group_while_it_has_a_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = options(&store).group_by(GroupBy::Add).open().await.expect("the queue opens");
    let group = async || queue.look_up("k").await.expect("looked up").and_then(|entry| entry.group);
    assert_eq!(queue.group("a").add("k").await.expect("added"), Added::New);
    assert_eq!(queue.group("b").add("k").await.expect("added"), Added::Coalesced);
    assert_eq!(group().await.as_deref(), Some("a"));
    let item = get_all(&queue).await.pop().expect("a key");
    assert_eq!(queue.group("b").add("k").await.expect("added"), Added::Dirty);
    assert_eq!((item.group(), group().await.as_deref()), (Some("a"), Some("a")));
    item.succeed().await.expect("the lease is held");
    let item = get_all(&queue).await.pop().expect("the second run");
    assert_eq!(item.group(), Some("a"));
    item.give_up("no").await.expect("the lease is held");
    // A parked key also has a state.
    assert_eq!(queue.add("k").await.expect("added"), Added::Revived);
    assert_eq!(group().await.as_deref(), Some("a"));
    assert!(queue.cancel("k").await.expect("cancelled"));
    assert_eq!(queue.group("b").add("k").await.expect("added"), Added::New);
    assert_eq!(group().await.as_deref(), Some("b"));
    assert!(queue.cancel("k").await.expect("cancelled"));
    queue.add("k").await.expect("added");
    assert_eq!(group().await.as_deref(), Some(""));
}

#[tokio::test]
async fn a_paused_group_delivers_nothing_until_it_is_resumed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, other) = (store_in(&dir).await, store_in(&dir).await);
    let queue = open(&store, PATTERN, 5).await;
    let elsewhere = options(&other).open().await.expect("the queue opens");
    elsewhere.group("a").pause().await.expect("paused");
    queue.add_all(["a/1", "b/1", "a/2"]).await.expect("added");
    assert_eq!(keys(&get_all(&queue).await), ["b/1"]);
    let info = queue.group("a").info().await.expect("read").expect("it has keys");
    assert!(info.is_paused && info.counts.ready == 2, "{info:?}");
    let explained = queue.explain("a/1").await.expect("explained");
    assert!(explained.ends_with(r#", but throttled by group "a", which is paused"#), "{explained}");
    let getter = waiting(&queue);
    in_flight(&queue).await;
    assert!(!getter.is_finished(), "nothing is delivered");
    queue.group("a").resume().await.expect("resumed");
    let items = timeout(LATEST, getter).await.expect("the resume wakes the getter");
    assert_eq!(keys(&items.expect("no panic")), ["a/1", "a/2"]);
}

#[tokio::test]
async fn processes_share_the_limit_of_a_group() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, other) = (store_in(&dir).await, store_in(&dir).await);
    let queue = open(&store, PATTERN, 3).await;
    let elsewhere = options(&other).poll(Duration::from_millis(10));
    let elsewhere = elsewhere.open().await.expect("the queue opens");
    queue.add_all(["a/1", "a/2", "a/3", "a/4", "a/5", "b/1"]).await.expect("added");
    let mut held = queue.get_many(2).await;
    assert_eq!(keys(&held), ["a/1", "b/1"]);
    held.extend(queue.get_many(1).await);
    let others = get_all(&elsewhere).await;
    assert_eq!((others.len(), in_flight(&queue).await), (1, 4), "{others:?}");
    // The limit of the group overrides the limit of the queue.
    queue.group("a").set_limit(Some(4)).await.expect("set");
    assert_eq!(keys(&get_all(&elsewhere).await), ["a/4"]);
    held.remove(0).succeed().await.expect("the lease is held");
    assert_eq!(keys(&get_all(&elsewhere).await), ["a/5"]);
}

#[tokio::test]
async fn a_lower_limit_applies_to_later_claims() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = open(&store, PATTERN, 3).await;
    queue.add_all(["a/1", "a/2", "a/3", "a/4", "a/5"]).await.expect("added");
    let mut held = get_all(&queue).await;
    assert_eq!(held.len(), 3);
    queue.set_group_limit(Some(1)).await.expect("set");
    let getter = waiting(&queue);
    for left in [2, 1] {
        held.remove(0).succeed().await.expect("the lease is held");
        assert_eq!(in_flight(&queue).await, left);
    }
    assert!(!getter.is_finished(), "one key is in flight");
    held.remove(0).succeed().await.expect("the lease is held");
    let items = timeout(LATEST, getter).await.expect("a free slot").expect("no panic");
    assert_eq!(keys(&items), ["a/4"]);
    queue.set_group_limit(None).await.expect("set");
    assert_eq!(keys(&get_all(&queue).await), ["a/5"]);
}

/// The next poll is in an hour, so only a wake can deliver the key in time.
#[tokio::test]
async fn a_getter_takes_the_slot_that_a_completion_frees() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = open(&store, PATTERN, 1).await;
    queue.add_all(["a/1", "a/2", "a/3"]).await.expect("added");
    let mut held = get_all(&queue).await;
    for (n, next) in ["a/2", "a/3"].into_iter().enumerate() {
        let getter = waiting(&queue);
        assert_eq!(in_flight(&queue).await, 1);
        let item = held.pop().expect("one key is in flight");
        if n == 0 {
            item.succeed().await.expect("the lease is held");
        } else {
            item.give_up("no").await.expect("the lease is held");
        }
        held = timeout(LATEST, getter).await.expect("a free slot").expect("no panic");
        assert_eq!(keys(&held), [next]);
    }
}

#[tokio::test]
async fn a_throttled_key_names_the_keys_in_flight() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = open(&store, PATTERN, 1).await;
    let keys = (0..14).map(|n| format!("acme/{n:02}")).chain(["zeta/1".to_owned(), "/".to_owned()]);
    queue.add_all(keys).await.expect("added");
    let explain = async |key: &str| {
        let said = queue.explain(key).await.expect("explained");
        let rest = said.split_once("ready for ").expect("it is ready").1;
        rest.split_once('s').expect("a time").1.to_owned()
    };
    assert_eq!(explain("acme/13").await, r#" in group "acme", 0 of 1 in flight"#);
    assert_eq!(explain("/").await, r#" in group "", 0 of 1 in flight"#);
    let held = queue.get_many(3).await;
    assert_eq!(held.len(), 3);
    let only = r#", but throttled by group "acme": 1 of 1 in flight ("w1": acme/00)"#;
    assert_eq!(explain("acme/13").await, only);
    queue.group("acme").set_limit(Some(5)).await.expect("set");
    assert_eq!(explain("acme/13").await, r#" in group "acme", 1 of 5 in flight"#);
    let more = get_all(&queue).await;
    assert_eq!(more.len(), 4);
    queue.group("acme").set_limit(Some(12)).await.expect("set");
    let other = options(&store).worker("w2").open().await.expect("the queue opens");
    let others = get_all(&other).await;
    assert_eq!(others.len(), 7);
    let ten =
        r#", but throttled by group "acme": 12 of 12 in flight ("w1": acme/00, acme/01, acme/02, "#
            .to_owned()
            + r#"acme/03, acme/04; "w2": acme/05, acme/06, acme/07, acme/08, acme/09; and 2 more)"#;
    assert_eq!(explain("acme/13").await, ten);
    queue.pause().await.expect("paused");
    assert_eq!(explain("acme/13").await, ", but the queue is paused");
}

#[tokio::test]
async fn a_group_is_cancelled_and_read_without_its_neighbours() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = options(&store).group_by(GroupBy::Add).open().await.expect("the queue opens");
    let names = ["", "a", "a b", "aa", "b", "é"];
    for (n, name) in names.iter().enumerate() {
        let keys = (0..=n).map(|key| format!("{name}:{key}"));
        queue.group(*name).add_all(keys).await.expect("added");
    }
    queue.group("only settings").set_weight(7).await.expect("set");
    for (n, name) in names.iter().enumerate() {
        let info = queue.group(*name).info().await.expect("read").expect("it has keys");
        assert_eq!((&*info.name, info.counts.ready, info.weight), (*name, n as u64 + 1, 1));
    }
    let info = queue.group("only settings").info().await.expect("read").expect("it has settings");
    assert_eq!((info.weight, info.counts.ready), (7, 0));
    assert_eq!(queue.group("a ").info().await.expect("read"), None);

    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = queue.groups(after.as_deref(), 2).await.expect("listed");
        after = page.last().map(|group| group.name.clone());
        listed.extend(page.into_iter().map(|group| group.name));
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["", "a", "a b", "aa", "b", "only settings", "é"]);

    assert_eq!(queue.group("a").cancel_all(State::Parked).await.expect("cancelled"), 0);
    assert_eq!(queue.group("a").cancel_all(None).await.expect("cancelled"), 2);
    assert_eq!(queue.group("").cancel_all(State::Ready).await.expect("cancelled"), 1);
    assert_eq!(queue.counts().await.expect("counted").ready, 3 + 4 + 5 + 6);
}

/// The pattern is checked when the queue opens. The extracted name is checked when a key is added.
#[tokio::test]
async fn a_pattern_that_extracts_a_long_name_refuses_the_key_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = open(&store, PATTERN, 1).await;
    let long = "x".repeat(101) + "/1";
    let error = queue.add(&*long).await.expect_err("refused");
    assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Invalid, false));
    let said = chain(&error);
    assert!(said.contains("has 101 bytes; at most 100 are allowed"), "{said}");
    let error = queue.group("b").add("a/1").await.expect_err("refused").to_string();
    assert!(
        error.contains(r#"names the group "b""#) && error.contains(r#"extracts "a""#),
        "{error}"
    );
    queue.group("a").add("a/1").await.expect("added");
    assert_eq!(get_all(&queue).await[0].group(), Some("a"));
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn metrics_show_a_pause_and_the_ready_keys_of_full_groups() {
    async fn look(queue: &Queue) -> requeue::metrics::Sample {
        queue.recent_counts().await.expect("counted");
        queue.recent_look().await.expect("read");
        queue.sample().expect("counted")
    }
    let dir = tempfile::tempdir().expect("a directory");
    let store = store_in(&dir).await;
    let queue = open(&store, PATTERN, 1).await;
    let none = look(&queue).await.at_group_limit.expect("groups have a limit");
    assert_eq!(none, requeue::metrics::AtGroupLimit::default(), "the queue has no keys");
    let queue = open(&store, PATTERN, 1).await;
    queue.add_all(["a/1", "a/2", "a/3", "b/1", "c/1", "c/2"]).await.expect("added");
    let items = get_all(&queue).await;
    queue.group("c").pause().await.expect("paused");
    assert_eq!(keys(&items), ["a/1", "b/1", "c/1"]);
    let sample = look(&queue).await;
    let at_limit = sample.at_group_limit.expect("groups have a limit");
    // No key of `b` is ready, and `c` is paused.
    assert_eq!((sample.paused, sample.depth, at_limit.keys), (Some(false), 3, 2));
    assert!(at_limit.oldest > Duration::ZERO, "{at_limit:?}");
    assert_eq!(sample.times.oldest_ready, Duration::ZERO, "each ready key is held back");

    // The values are read again. The queue is now paused, and no group has reached its limit.
    queue.pause().await.expect("paused");
    for item in items {
        item.retry("no").await.expect("the lease is held");
    }
    assert_eq!(queue.sample().expect("counted").consecutive.counts[0], 3);
    let other = look(&open(&store, PATTERN, 1).await).await;
    let at_limit = other.at_group_limit.expect("groups have a limit");
    assert_eq!((other.paused, at_limit), (Some(true), requeue::metrics::AtGroupLimit::default()));
    assert_eq!(other.consecutive.counts[0], 0, "the runs of another process");
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn metrics_keep_the_last_look_if_the_store_cannot_list_groups() {
    use crate::client::look::read_look;
    use crate::engine::{Place, Settings};
    use crate::tests::engine::{Memory, Mishap};

    let settings =
        Settings { group_by: Some("".into()), group_limit: Some(1), ..Settings::default() };
    let (engine, place) = (Memory::new(), Place::new(1, "q", settings));
    let shown = async |mishap| {
        engine.fail([Mishap::Fine, mishap]);
        let mut sample = requeue::metrics::Sample::default();
        let look = read_look(&engine, &place, true, 0).await;
        look.map(|look| {
            look.add_to(&mut sample, Duration::ZERO);
            sample.at_group_limit.is_some()
        })
    };
    assert!(shown(Mishap::Fine).await.expect("read"));
    // The role has no right to read the groups.
    assert!(!shown(Mishap::Refused).await.expect("read"));
    shown(Mishap::Absent).await.expect_err("the groups are unknown");
}

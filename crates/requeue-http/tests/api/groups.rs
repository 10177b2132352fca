//! The groups of a queue in a store.

use requeue_http::Site;
use requeue_store::{GroupBy, OpenOptions, Queue, Rate};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::admin::{act, post, token};
use crate::client::get;
use crate::queues::open_store;
use crate::{Keys, Served};

/// A served queue in a file.
pub(crate) fn served(options: impl Fn(OpenOptions) -> OpenOptions) -> (Served, Queue, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        let opening = store.queue("orders").worker("w1").claim_ahead(0);
        options(opening).open().await.expect("the queue opens")
    });
    let served = Served::within(runtime, Site::of_store(queue.clone()).admin(token()));
    (served, queue, dir)
}

fn groups(served: &Served, query: &str) -> Value {
    let answer = get(served.address, &format!("/api/v1/groups{query}"));
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()
}

fn names(list: &Value) -> Vec<&str> {
    let groups = list["groups"].as_array().expect("a list");
    groups.iter().map(|group| group["name"].as_str().expect("text")).collect()
}

#[test]
fn groups_are_listed_by_name_or_by_a_number() {
    let (served, queue, _dir) = served(|opening| opening.group_by("^[^/]*").group_limit(2));
    let runtime = &served.runtime;
    runtime.block_on(async {
        queue.add_all(["b/1", "a/1", "a/2", "a/3", "c/1", "c/2"]).await.expect("added");
        queue.add_after("d/1", std::time::Duration::from_secs(3600)).await.expect("added");
        queue.group("settings only").set_weight(7).await.expect("set");
        let rate = Rate::new(7, std::time::Duration::from_secs(60)).burst(9);
        queue.group("a").set_rate(Some(rate)).await.expect("set");
    });
    let items = runtime.block_on(queue.get_many(1));
    assert_eq!(items[0].group(), Some("a"));
    for (query, expected, more) in [
        ("", vec!["a", "b", "c", "d", "settings only"], false),
        ("?limit=2", vec!["a", "b"], true),
        ("?q=ON", vec!["settings only"], false),
        ("?sort=name&order=desc&limit=1", vec!["settings only"], true),
        ("?sort=ready&order=desc&limit=3", vec!["a", "c", "b"], true),
        ("?sort=running&order=desc&limit=1", vec!["a"], true),
        ("?sort=waiting&order=desc&limit=1", vec!["d"], true),
        ("?sort=oldest&limit=2", vec!["d", "settings only"], true),
    ] {
        let list = groups(&served, query);
        assert_eq!((names(&list), &list["more"]), (expected, &json!(more)), "{query}");
        assert_eq!(list["looked_at"], json!(5), "{query}");
    }
    let mut list = groups(&served, "");
    assert!(list["groups"][0]["oldest"].take().is_f64(), "{list}");
    let first = json!({
        "name": "a", "ready": 2, "waiting": 0, "running": 1, "dirty": 0, "parked": 0,
        "oldest": null, "limit": 2, "rate": { "starts": 7, "per": 60.0, "burst": 9 }, "weight": 1,
        "paused": false,
    });
    assert_eq!(list["groups"][0], first);
    for (query, parameter) in [
        ("?sort=limit", "sort"),
        ("?order=desc", "order"),
        ("?limit=0", "limit"),
        ("?limit=10001", "limit"),
    ] {
        let answer = get(served.address, &format!("/api/v1/groups{query}"));
        assert_eq!((answer.status, &answer.json()["parameter"]), (400, &json!(parameter)));
    }
    assert!(get(served.address, "/").text().contains("data-groups=\"1\""));

    // The OpenAPI description contains the fields of the list, and those of a change.
    let doc = get(served.address, "/api/v1/openapi.json").json();
    let schema = |name: &str| doc["components"]["schemas"][name]["properties"].clone();
    let fields =
        |value: &Value| value.as_object().expect("fields").keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&schema("Groups")), fields(&list));
    assert_eq!(fields(&schema("Group")), fields(&first));
    assert_eq!(fields(&schema("StartRate")), fields(&first["rate"]));
    assert_eq!(fields(&schema("GroupChange")), ["group", "limit", "rate", "state", "weight"]);
}

#[test]
fn each_action_changes_a_group() {
    let (served, queue, _dir) = served(|opening| opening.group_by(GroupBy::Add).group_limit(2));
    let added = json!({ "keys": [
        { "key": "k1", "group": "acme" }, { "key": "k2", "group": "acme" }, { "key": "k3" },
    ] });
    assert_eq!(act(&served, "add", added)["results"], json!(["new", "new", "new"]));
    assert_eq!(names(&groups(&served, "")), ["", "acme"]);
    let done = json!({ "cancelled": 0 });
    let acme = || groups(&served, "?q=acme")["groups"][0].clone();
    for (action, change, field, value) in [
        ("group-pause", json!({ "group": "acme" }), "paused", json!(true)),
        ("group-resume", json!({ "group": "acme" }), "paused", json!(false)),
        ("group-limit", json!({ "group": "acme", "limit": 5 }), "limit", json!(5)),
        ("group-limit", json!({ "group": "acme", "limit": null }), "limit", json!(2)),
        ("group-limit", json!({ "limit": 3 }), "limit", json!(3)),
        ("group-limit", json!({ "limit": null }), "limit", json!(null)),
        ("group-weight", json!({ "group": "acme", "weight": 4 }), "weight", json!(4)),
    ] {
        assert_eq!(act(&served, action, change.clone()), done, "{action}");
        assert_eq!(acme()[field], value, "{action} {change}");
    }
    let cancel =
        |state: &str| act(&served, "group-cancel", json!({ "group": "acme", "state": state }));
    assert_eq!(cancel("waiting"), done);
    assert_eq!(cancel("ready"), json!({ "cancelled": 2 }));
    assert_eq!(served.runtime.block_on(queue.counts()).expect("counted").ready, 1);
    let allowed = act(&served, "authenticate", json!({}))["actions"].clone();
    let allowed: Vec<_> = allowed.as_array().expect("a list").iter().skip(8).take(6).collect();
    let actions = ["pause", "resume", "limit", "rate", "weight", "cancel"];
    let actions = actions.map(|action| json!(format!("group-{action}")));
    assert_eq!(allowed, actions.each_ref());
}

#[test]
fn a_change_of_a_group_that_is_not_valid_names_the_value_and_changes_nothing() {
    let (served, _queue, _dir) = served(|opening| opening.group_by(GroupBy::Add).group_limit(2));
    let long = "x".repeat(10_000);
    for (action, change, error) in [
        (
            "group-limit",
            json!({ "group": "a", "limit": 0 }),
            "invalid limit 0 of a group: use at least 1",
        ),
        ("group-limit", json!({ "limit": 0 }), "invalid limit 0"),
        ("group-limit", json!({}), "limit: missing; pass a number from 1, or null"),
        ("group-limit", json!({ "group": "a" }), "limit: missing"),
        ("group-pause", json!({ "group": "a", "limit": null }), "limit: only for group-limit"),
        ("group-limit", json!({ "group": "a", "limit": -1 }), "integer `-1`"),
        ("group-weight", json!({ "group": "a", "weight": 0 }), "invalid weight 0 of a group"),
        (
            "group-rate",
            json!({ "group": "a", "rate": { "starts": 0, "per": 1 } }),
            "invalid rate 0/s with a burst of 1: use at least 1 start",
        ),
        (
            "group-rate",
            json!({ "group": "a", "rate": { "starts": 1, "per": -1 } }),
            "rate: invalid time -1: use a number of seconds above 0",
        ),
        (
            "group-rate",
            json!({ "group": "a", "rate": { "starts": 2, "per": 60, "burst": 0 } }),
            "invalid rate 2/m with a burst of 0",
        ),
        ("group-rate", json!({ "rate": { "starts": 1, "per": 1 } }), "group: missing"),
        ("group-rate", json!({ "group": "a", "rate": "10/s" }), "\"10/s\""),
        ("rate", json!({}), "missing field `rate`"),
        ("rate", json!({ "rate": { "starts": 1, "per": 0 } }), "invalid rate 1/0ns with a burst"),
        ("group-weight", json!({ "group": "a" }), "weight: missing"),
        ("group-pause", json!({}), "group: missing"),
        ("group-pause", json!({ "group": "a", "limit": 2 }), "limit: only for group-limit"),
        ("group-pause", json!({ "group": "a", "wieght": 2 }), "unknown field `wieght`"),
        ("group-pause", json!({ "group": long }), "has 10000 bytes; at most 100 are allowed"),
        ("group-pause", json!({ "group": "a\nb" }), "has control characters"),
        ("group-cancel", json!({ "group": "a", "state": "idle" }), "state: "),
        ("add", json!({ "keys": [{ "key": "k", "group": long }] }), "has 10000 bytes"),
    ] {
        let answer = post(&served, action, &change);
        let said = answer.json()["error"].as_str().expect("a text").to_owned();
        assert_eq!(answer.status, 400, "{action} {change}: {said}");
        assert!(said.contains(error), "{action} {change}: {said}");
    }
    let none = json!({ "keys": 0, "oldest": null, "groups": 0, "group": null });
    let expected = json!({
        "groups": [], "held": { "paused": none, "limit": none, "rate": none },
        "looked_at": 0, "more": false,
    });
    assert_eq!(groups(&served, ""), expected);
}

#[test]
fn a_throttled_key_names_its_group_and_the_keys_in_flight() {
    let (served, queue, _dir) = served(|opening| opening.group_by("^[^/]*").group_limit(2));
    let runtime = &served.runtime;
    runtime.block_on(queue.add_all(["a/1", "a/2", "a/3", "b/1"])).expect("added");
    let key = |key: &str| get(served.address, &format!("/api/v1/key?key={key}")).json();
    let why = |name: &str| key(name)["why"].as_str().expect("a sentence").to_owned();
    assert!(why("a/3").ends_with(r#" in group "a", 0 of 2 in flight"#), "{}", why("a/3"));
    let items = runtime.block_on(queue.get_many(4));
    assert_eq!(items.len(), 3);
    let throttled = r#", but throttled by group "a": 2 of 2 in flight ("w1": a/1, a/2)"#;
    assert!(why("a/3").ends_with(throttled), "{}", why("a/3"));
    assert_eq!(key("a/1")["detail"]["group"], json!("a"));
    // The list does not read the settings of groups.
    let list = get(served.address, "/api/v1/keys?state=ready").json();
    assert_eq!(list["keys"][0]["detail"], json!({ "group": "a" }));
    assert!(!list["keys"][0]["why"].to_string().contains("group"), "{list}");
    act(&served, "group-pause", json!({ "group": "a" }));
    let paused = r#", but throttled by group "a", which is paused"#;
    assert!(why("a/3").ends_with(paused), "{}", why("a/3"));
}

#[test]
fn a_queue_without_groups_has_no_list_of_them() {
    let (of_store, _queue, _dir) = served(|opening| opening);
    let of_memory = Served::new(Site::builder(Keys::new()).admin(token()));
    for served in [of_store, of_memory] {
        let list = get(served.address, "/api/v1/groups");
        let paused = post(&served, "group-pause", &json!({ "group": "a" }));
        for answer in [list, paused] {
            assert_eq!(answer.status, 404);
            assert!(answer.text().contains("this queue has no groups"), "{}", answer.text());
        }
        let added = post(&served, "add", &json!({ "keys": [{ "key": "k", "group": "a" }] }));
        assert_eq!((added.status, &added.json()["parameter"]), (400, &json!("keys")));
        assert!(get(served.address, "/").text().contains("data-groups=\"0\""));
        let allowed = act(&served, "authenticate", json!({}))["actions"].to_string();
        assert!(!allowed.contains("group"), "{allowed}");
    }
}

//! The schedules of a queue in a store.

use requeue_http::Site;
use requeue_store::GroupBy;
use serde_json::{Value, json};

use crate::admin::{act, post, token};
use crate::client::get;
use crate::groups::served;
use crate::{Keys, Served};

fn schedules(served: &Served, query: &str) -> Value {
    let answer = get(served.address, &format!("/api/v1/schedules{query}"));
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()
}

fn keys(list: &Value) -> Vec<&str> {
    let schedules = list["schedules"].as_array().expect("a list");
    schedules.iter().map(|schedule| schedule["key"].as_str().expect("text")).collect()
}

#[test]
fn schedules_are_listed_by_key_or_by_their_next_time() {
    let (served, _queue, _dir) = served(|opening| opening);
    let none = json!({ "schedules": [], "looked_at": 0, "more": false });
    assert_eq!(schedules(&served, ""), none);
    for (key, spec) in [("a", "every 3h"), ("b", "every 1h"), ("pause", "every 2h")] {
        act(&served, "schedule-add", json!({ "key": key, "spec": spec }));
    }
    act(&served, "schedule-pause", json!({ "key": "pause" }));
    for (query, expected, more) in [
        ("", vec!["a", "b", "pause"], false),
        ("?limit=2", vec!["a", "b"], true),
        ("?q=AU", vec!["pause"], false),
        ("?sort=key&order=desc&limit=1", vec!["pause"], true),
        ("?sort=due_in", vec!["b", "a", "pause"], false),
        ("?sort=due_in&order=desc", vec!["pause", "a", "b"], false),
    ] {
        let list = schedules(&served, query);
        assert_eq!((keys(&list), &list["more"]), (expected, &json!(more)), "{query}");
        assert_eq!(list["looked_at"], json!(3), "{query}");
    }
    for (query, parameter) in [
        ("?sort=zone", "sort"),
        ("?order=desc", "order"),
        ("?limit=0", "limit"),
        ("?limit=10001", "limit"),
    ] {
        let answer = get(served.address, &format!("/api/v1/schedules{query}"));
        assert_eq!((answer.status, &answer.json()["parameter"]), (400, &json!(parameter)));
    }
    assert!(get(served.address, "/").text().contains("data-schedules=\"1\""));

    // The OpenAPI description contains the fields of the list, and those of a change.
    let list = schedules(&served, "");
    let doc = get(served.address, "/api/v1/openapi.json").json();
    let schema = |name: &str| doc["components"]["schemas"][name]["properties"].clone();
    let fields =
        |value: &Value| value.as_object().expect("fields").keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&schema("Schedules")), fields(&list));
    assert_eq!(fields(&schema("Schedule")), fields(&list["schedules"][0]));
    let change = ["group", "key", "key_base64", "priority", "spec", "zone"];
    assert_eq!(fields(&schema("ScheduleChange")), change);
}

#[test]
fn each_action_changes_a_schedule() {
    let (served, _queue, _dir) = served(|opening| opening.group_by(GroupBy::Add));
    let (done, not) = (json!({ "changed": true }), json!({ "changed": false }));
    let first = || {
        let mut first = schedules(&served, "")["schedules"][0].take();
        let due_in = first["due_in"].take();
        // In UTC, the time is 8 o'clock in winter, and 7 o'clock in summer.
        let next_at = first["next_at"].take().as_f64();
        assert!(next_at.is_none_or(|at| at % 3600.0 == 0.0), "{next_at:?}");
        (first, due_in)
    };
    let change = json!({
        "key": "report", "spec": "0 9 * * *", "zone": "Europe/Berlin", "priority": -1, "group": "g",
    });
    assert_eq!(act(&served, "schedule-add", change), done);
    let (found, due_in) = first();
    let expected = json!({
        "key": "report", "key_base64": "cmVwb3J0", "spec": "0 9 * * *", "zone": "Europe/Berlin",
        "due_in": null, "next_at": null, "paused": false, "error": null, "priority": -1, "group": "g",
    });
    assert_eq!(found, expected);
    assert!(due_in.as_f64().is_some_and(|due_in| due_in <= 25.0 * 3600.0), "{due_in}");
    let key = json!({ "key_base64": "cmVwb3J0" });
    assert_eq!(act(&served, "schedule-pause", key.clone()), done);
    assert_eq!((&first().0["paused"], first().1), (&json!(true), json!(null)));
    assert_eq!(act(&served, "schedule-resume", key.clone()), done);
    assert_eq!(first().0["paused"], json!(false));
    let why = |key: &str| {
        let row = get(served.address, &format!("/api/v1/key?key={key}")).json();
        (row["state"].clone(), row["why"].as_str().map(str::to_owned))
    };
    let (state, said) = why("report");
    assert_eq!(state, json!("idle"));
    assert!(said.is_some_and(|said| said.starts_with("not in the queue; its schedule ")));
    act(&served, "schedule-add", json!({ "key": "report", "spec": "@daily" }));
    assert_eq!((&first().0["spec"], &first().0["zone"]), (&json!("@daily"), &json!("UTC")));
    assert_eq!(act(&served, "schedule-remove", key.clone()), done);
    for action in ["schedule-remove", "schedule-pause", "schedule-resume"] {
        assert_eq!(act(&served, action, key.clone()), not, "{action}");
    }
    assert_eq!(get(served.address, "/api/v1/key?key=report").status, 404);
    let allowed = act(&served, "authenticate", json!({}))["actions"].to_string();
    let actions = "\"schedule-add\",\"schedule-remove\",\"schedule-pause\",\"schedule-resume\",";
    assert!(allowed.contains(actions), "{allowed}");
}

#[test]
fn a_change_of_a_schedule_that_is_not_valid_names_the_value_and_changes_nothing() {
    let (served, _queue, _dir) = served(|opening| opening);
    for (action, change, error) in [
        ("schedule-add", json!({ "key": "k" }), "spec: missing; pass a cron expression"),
        ("schedule-add", json!({ "spec": "@daily" }), "a key has either key or key_base64"),
        ("schedule-add", json!({ "key": "k", "key_base64": "", "spec": "@daily" }), "key: "),
        ("schedule-add", json!({ "key_base64": "?", "spec": "@daily" }), "is not base64"),
        ("schedule-add", json!({ "key": "k", "spec": "0 0 30 2 *" }), "it has no date"),
        ("schedule-add", json!({ "key": "k", "spec": "every 0s" }), "use at least 1ms"),
        ("schedule-add", json!({ "key": "k", "spec": "every 5m", "zone": "UTC" }), "no time zone"),
        ("schedule-add", json!({ "key": "k", "spec": "@daily", "zone": "Mars" }), "\"Mars\""),
        ("schedule-add", json!({ "key": "k", "spec": "@daily", "group": "g" }), "has no groups"),
        ("schedule-add", json!({ "key": "x".repeat(3000), "spec": "@daily" }), "2,048 bytes"),
        ("schedule-pause", json!({}), "a key has either key or key_base64"),
        ("schedule-pause", json!({ "key": "k", "zone": "UTC" }), "zone: only for schedule-add"),
        ("schedule-pause", json!({ "key": "k", "when": "@daily" }), "unknown field `when`"),
    ] {
        let answer = post(&served, action, &change);
        let said = answer.json()["error"].as_str().expect("a text").to_owned();
        assert_eq!(answer.status, 400, "{action} {change}: {said}");
        assert!(said.contains(error), "{action} {change}: {said}");
    }
    assert_eq!(keys(&schedules(&served, "")), [""; 0]);
}

#[test]
fn a_queue_in_memory_has_no_schedules() {
    let served = Served::new(Site::builder(Keys::new()).admin(token()));
    let list = get(served.address, "/api/v1/schedules");
    let paused = post(&served, "schedule-pause", &json!({ "key": "a" }));
    for answer in [list, paused] {
        assert_eq!(answer.status, 404);
        assert!(answer.text().contains("this queue has no schedules"), "{}", answer.text());
    }
    assert!(get(served.address, "/").text().contains("data-schedules=\"0\""));
    let allowed = act(&served, "authenticate", json!({}))["actions"].to_string();
    assert!(!allowed.contains("schedule"), "{allowed}");
}

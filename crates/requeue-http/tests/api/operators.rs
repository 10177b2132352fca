//! The record of actions: who acted, on what and why.

use requeue::Queue;
use requeue_http::Site;
use serde_json::{Value, json};

use crate::admin::{act, post, token};
use crate::client::get;
use crate::{Keys, Served};

/// The last actions, without their ages.
#[track_caller]
pub(crate) fn recorded(served: &Served) -> Vec<Value> {
    let answer = get(served.address, "/api/v1/actions?limit=20");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut actions = answer.json()["actions"].as_array().expect("a list").clone();
    for action in &mut actions {
        let ago = action.as_object_mut().and_then(|action| action.remove("ago"));
        assert!(ago.and_then(|ago| ago.as_f64()).is_some_and(|ago| ago >= 0.0), "{action}");
    }
    actions
}

pub(crate) fn action(action: &str, by: &str, target: Option<&str>, note: Option<&str>) -> Value {
    json!({ "action": action, "by": by, "target": target, "note": note })
}

/// The operator who paused the queue, and the reason, as the summary shows them.
#[track_caller]
pub(crate) fn paused(served: &Served) -> Value {
    let summary = get(served.address, "/api/v1/summary").json();
    let is_known = summary["paused_by"].is_string();
    assert_eq!(summary["paused_for"].is_number(), is_known, "{summary}");
    json!([summary["status"], summary["paused_by"], summary["paused_note"]])
}

#[test]
fn each_action_is_recorded_with_its_operator_and_note() {
    let queue = Keys::new();
    queue.add_all(["a", "b", "c", "d\n"].map(|key| key.as_bytes().to_vec()));
    let served = Served::new(Site::builder(queue).admin(token()));
    assert_eq!(recorded(&served), [json!(null); 0]);
    assert_eq!(paused(&served), json!(["open", null, null]));

    act(&served, "pause", json!({ "by": "ann", "note": "the API is down" }));
    assert_eq!(paused(&served), json!(["paused", "ann", "the API is down"]));
    let key = |name: &str| json!([{ "key": name }]);
    act(&served, "cancel", json!({ "keys": key("a") }));
    act(&served, "cancel", json!({ "keys": [{ "key": "b" }, { "key": "none" }], "by": "bob" }));
    act(&served, "cancel", json!({ "keys": key("d\n"), "by": "bob", "note": "" }));
    // These actions have no effect, or are those of a program.
    act(&served, "cancel", json!({ "keys": key("a"), "by": "bob" }));
    act(&served, "add", json!({ "keys": key("e") }));
    act(&served, "add", json!({ "keys": key("f"), "by": "bob" }));
    act(&served, "cancel", json!({ "matching": { "q": "" }, "expected": 3, "by": "bob" }));
    let earlier = [
        action("cancel", "bob", Some("3 keys"), None),
        action("add", "bob", Some("f"), None),
        action("cancel", "bob", Some("d\\n"), None),
        action("cancel", "bob", Some("1 key"), None),
        action("cancel", "127.0.0.1", Some("a"), None),
        action("pause", "ann", None, Some("the API is down")),
    ];
    assert_eq!(recorded(&served), earlier);
    assert_eq!(paused(&served), json!(["paused", "ann", "the API is down"]));

    act(&served, "resume", json!({}));
    assert_eq!(paused(&served), json!(["open", null, null]));
    let last = get(served.address, "/api/v1/actions?limit=1").json();
    assert_eq!(last["actions"].as_array().map(Vec::len), Some(1));
    assert_eq!(last["actions"][0]["action"], json!("resume"));
    let all = get(served.address, "/api/v1/actions").json();
    assert_eq!(all["actions"].as_array().map(Vec::len), Some(7));
}

#[test]
fn a_pause_by_the_program_has_no_operator() {
    let queue: Queue<String> = Queue::new();
    let served = Served::new(Site::builder(queue.clone()).admin(token()));
    queue.pause();
    assert_eq!(paused(&served), json!(["paused", null, null]));
    act(&served, "resume", json!({ "by": "ann" }));
    queue.pause();
    assert_eq!(paused(&served), json!(["paused", null, null]));
}

#[test]
fn a_wrong_name_or_note_is_refused_by_its_parameter() {
    let queue = Keys::new();
    queue.add(b"a".to_vec());
    let served = Served::new(Site::builder(queue.clone()).admin(token()));
    let keys = || json!([{ "key": "a" }]);
    for (path, body, parameter) in [
        ("pause", json!({ "by": 7 }), "by"),
        ("pause", json!({ "by": "x".repeat(201) }), "by"),
        ("cancel", json!({ "keys": keys(), "by": "a\u{7}" }), "by"),
        ("cancel", json!({ "keys": keys(), "note": "a\nb" }), "note"),
        ("add", json!({ "keys": keys(), "note": "x".repeat(501) }), "note"),
    ] {
        let answer = post(&served, path, &body);
        assert_eq!(answer.status, 400, "{path} {body}");
        assert_eq!(answer.json()["parameter"], json!(parameter), "{}", answer.text());
    }
    let misspelled = post(&served, "pause", &json!({ "notes": "why" }));
    assert_eq!(misspelled.status, 400, "{}", misspelled.text());
    assert!(!queue.is_paused());
    assert_eq!(queue.len(), 1);
    for query in ["limit=0", "limit=101", "sort=by"] {
        let answer = get(served.address, &format!("/api/v1/actions?{query}"));
        assert_eq!(answer.status, 400, "{query}");
    }
    assert_eq!(recorded(&served), [json!(null); 0]);
}

//! The actions, and the clients that are refused.

use std::time::Duration;

use requeue::{Added, CancelReason, Completion, Queue, ReaddPolicy, clock::FakeClock};
use requeue_http::{AccessToken, Control, History, Run, Section, Site};
use serde_json::{Value, json};

use crate::client::{Answer, ask, get, send};
use crate::{Keys, Served};

pub(crate) const TOKEN: &str = "0123456789abcdef";

pub(crate) fn token() -> AccessToken {
    AccessToken::new(TOKEN).expect("it is long enough")
}

#[track_caller]
pub(crate) fn post(served: &Served, path: &str, body: &Value) -> Answer {
    let server = served.address;
    let head = format!(
        "POST /api/v1/{path} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json"
    );
    send(server, &head, &body.to_string())
}

/// Sends an action that succeeds.
#[track_caller]
pub(crate) fn act(served: &Served, path: &str, body: Value) -> Value {
    let answer = post(served, path, &body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn state(served: &Served, name: &str) -> String {
    let answer = get(served.address, &format!("/api/v1/key?key={name}"));
    match answer.status {
        404 => "none".to_owned(),
        _ => answer.json()["state"].as_str().expect("a state").to_owned(),
    }
}

fn count(served: &Served, query: &str) -> u64 {
    let answer = get(served.address, &format!("/api/v1/count?{query}"));
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()["matched"].as_u64().expect("a number")
}

#[test]
fn a_client_without_the_token_changes_nothing() {
    let queue = Keys::new();
    queue.add(key("a"));
    let served = Served::new(Site::builder(queue.clone()).admin(token()));
    let server = served.address;
    let body = json!({ "keys": [{ "key": "a" }] }).to_string();
    let json = "Content-Type: application/json";
    let right = format!("Authorization: Bearer {TOKEN}");
    let sent = |method: &str, path: &str, headers: &str| {
        let head = format!("{method} /api/v1/{path} HTTP/1.1\r\nHost: {server}\r\n{headers}");
        send(server, &head, &body)
    };
    let groups = ["pause", "resume", "limit", "rate", "weight", "cancel"];
    let groups = groups.map(|action| format!("group-{action}"));
    let others = [
        "authenticate",
        "add",
        "cancel",
        "cancel-run",
        "run-now",
        "revive",
        "pause",
        "rate",
        "resume",
        "claim",
        "renew",
        "complete",
        "fail",
        "release",
    ];
    let schedules = ["schedule-add", "schedule-remove", "schedule-pause", "schedule-resume"];
    for path in others.into_iter().chain(groups.iter().map(|path| &**path)).chain(schedules) {
        let without = sent("POST", path, json);
        assert_eq!((without.status, without.header("www-authenticate")), (401, "Bearer"), "{path}");
        // A token is not read from the address.
        let named = sent("POST", &format!("{path}?token={TOKEN}"), json);
        assert_eq!(named.status, 401, "{path}");
        for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
            let other = sent(method, path, &format!("{json}\r\n{right}"));
            assert_eq!((other.status, other.header("allow")), (405, "POST"), "{method} {path}");
        }
        for site in ["cross-site", "same-site"] {
            let foreign =
                format!("{json}\r\n{right}\r\nSec-Fetch-Site: {site}\r\nSec-Fetch-Mode: cors");
            assert_eq!(sent("POST", path, &foreign).status, 403, "{path}");
        }
        let hosts =
            format!("POST /api/v1/{path} HTTP/1.1\r\nHost: example.org\r\n{json}\r\n{right}");
        assert_eq!(send(server, &hosts, &body).status, 403, "{path}");
    }
    // A form of another site can send only such types.
    for kind in ["", "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded"]
    {
        let answer = sent(
            "POST",
            "cancel",
            &format!("X: y\r\n{kind}\r\n{right}").replace("\r\n\r\n", "\r\n"),
        );
        assert_eq!(answer.status, 415, "{kind}");
    }
    assert_eq!(sent("POST", "cancel", &format!("{json}\r\n{right}\r\n{right}")).status, 401);
    for n in 1..=10 {
        let wrong = format!("{json}\r\nAuthorization: Bearer wrong-{n}");
        let answer = sent("POST", "cancel", &wrong);
        assert_eq!(
            (answer.status, answer.header("www-authenticate")),
            (401, "Bearer error=\"invalid_token\"")
        );
    }
    let limited = sent("POST", "cancel", &format!("{json}\r\n{right}"));
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").parse::<u64>().is_ok_and(|wait| wait <= 61));
    assert!(queue.len() == 1 && !queue.is_paused());

    // Without `admin`, the site stays read-only.
    let served = Served::new(Site::builder(queue.clone()));
    let head =
        format!("POST /api/v1/cancel HTTP/1.1\r\nHost: {}\r\n{right}\r\n{json}", served.address);
    assert_eq!(send(served.address, &head, &body).status, 405);
    assert_eq!(get(served.address, "/api/v1/cancel").status, 404);
    assert_eq!(queue.len(), 1);
}

#[test]
fn bodies_that_are_wrong_are_named() {
    let served = Served::new(Site::builder(Keys::new()).admin(token()));
    for (path, body, status) in [
        ("cancel", json!({}), 400),
        ("cancel", json!({ "keys": [] }), 400),
        ("cancel", json!({ "keys": [{}] }), 400),
        ("cancel", json!({ "keys": [{ "key": "a", "key_base64": "YQ" }] }), 400),
        ("cancel", json!({ "keys": [{ "key": "a" }], "expected": 1 }), 400),
        ("cancel", json!({ "matching": {} }), 400),
        ("cancel", json!({ "matching": { "state": "failing" }, "expected": 0 }), 400),
        ("cancel", json!({ "matching": { "limit": 3 }, "expected": 0 }), 400),
        ("add", json!({ "keys": [{ "key": "a", "after": -1 }] }), 400),
        ("add", json!({ "keys": vec![json!({ "key": "a" }); 1001] }), 400),
        ("add", json!({ "keys": [{ "key": "a".repeat(2 << 20) }] }), 413),
    ] {
        let answer = post(&served, path, &body);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.json()["error"].is_string());
    }
}

/// A queue that refuses keys with an x.
struct Picky(Queue<String>);

impl Control<String> for Picky {
    fn add(&self, key: String, _: Option<Duration>, _: i32) -> Result<Added, String> {
        if key.contains('x') { Err("no x".to_owned()) } else { Ok(self.0.add(key)) }
    }

    fn cancel(&self, key: &String) -> bool {
        self.0.cancel(key).any()
    }

    fn run_now(&self, _: &String, _: i32) -> bool {
        false
    }
}

#[test]
fn an_add_that_fails_names_the_keys_that_were_added() {
    let queue: Queue<String> = Queue::new();
    let site = Site::builder(queue.clone()).control(Picky(queue.clone())).admin(token());
    let served = Served::new(site);
    let invalid = json!({ "keys": [{ "key": "a" }, { "key_base64": "/w==" }] });
    for path in ["add", "cancel"] {
        queue.add("a".to_owned());
        let answer = post(&served, path, &invalid);
        assert_eq!((answer.status, answer.json()["results"].is_null()), (400, true), "{path}");
        assert_eq!(queue.len(), 1, "{path}: an invalid key is found before any change");
    }
    let refused =
        json!({ "keys": [{ "key": "a" }, { "key": "b" }, { "key": "x" }, { "key": "c" }] });
    let answer = post(&served, "add", &refused);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["results"], json!(["coalesced", "new", null, null]));
    assert_eq!(answer.json()["error"], json!("keys: no x; 2 of 4 keys were added"));
    assert_eq!(queue.len(), 2);
}

#[test]
fn each_action_changes_keys_in_memory_whatever_the_policy() {
    for policy in [ReaddPolicy::Hold, ReaddPolicy::Replace, ReaddPolicy::KeepBoth] {
        let queue = Queue::builder().clock(FakeClock::new()).readd_policy(policy).track_times();
        let queue: Keys = queue.build().expect("the settings are valid");
        let history = History::new();
        let site = Site::builder(queue.clone()).history(&history).admin(token());
        let served = Served::new(site);

        let added = act(
            &served,
            "add",
            json!({ "keys": [
                { "key": "fails" }, { "key_base64": "/w==" }, { "key": "fails", "priority": 3 },
                { "key": "later", "after": 90.0 },
            ]}),
        );
        assert_eq!(added["results"], json!(["new", "new", "coalesced", "new"]), "{policy:?}");
        queue
            .try_get()
            .expect("a key is ready")
            .complete(Completion::RetryAfter(Duration::from_secs(600)));
        assert_eq!(state(&served, "fails"), "backing_off");

        let named = json!({ "keys": [{ "key": "fails" }, { "key": "later" }, { "key": "none" }] });
        let ran = act(&served, "run-now", named.clone());
        assert_eq!(ran, json!({ "changed": 2, "results": [true, true, false] }), "{policy:?}");
        assert_eq!(["fails", "later"].map(|key| state(&served, key)), ["ready", "ready"]);
        assert_eq!(queue.states().total(), 3, "{policy:?}: each key runs once");

        let item = queue.try_get().map(requeue::Item::into_owned).expect("a key is ready");
        let first = json!({ "keys": [{ "key_base64": "/w==" }, { "key": "none" }] });
        for changed in [1, 0] {
            assert_eq!(act(&served, "cancel-run", first.clone())["changed"], json!(changed));
        }
        assert_eq!(item.cancel_reason(), Some(CancelReason::Cancelled));
        assert_eq!(act(&served, "cancel", named)["changed"], json!(2));
        assert_eq!(queue.states().total(), 1, "{policy:?}");
        item.complete(Completion::GiveUp);
        history.gave_up(b"\xff", Run::new(1));
        let parked = json!({ "keys": [{ "key_base64": "/w==" }, { "key": "fails" }] });
        assert_eq!(act(&served, "revive", parked.clone())["results"], json!([true, false]));
        assert_eq!((queue.len(), history_len(&served)), (1, 0));
        queue
            .try_get()
            .map(requeue::Item::into_owned)
            .expect("a key is ready")
            .complete(Completion::GiveUp);
        history.gave_up(b"\xff", Run::new(1));
        // The cancel of a parked key removes it from the list.
        assert_eq!(act(&served, "cancel", parked)["results"], json!([true, false]));
        assert_eq!((queue.len(), history_len(&served)), (0, 0));
    }
}

fn history_len(served: &Served) -> u64 {
    get(served.address, "/api/v1/summary").json()["now"]["parked"].as_u64().expect("a number")
}

#[test]
fn all_keys_that_match_are_changed_if_their_number_was_confirmed() {
    let queue = Keys::new();
    queue.add_all((0..200).map(|n| format!("docs/{n}").into_bytes()));
    queue.add_all((0..100).map(|n| format!("src/{n}").into_bytes()));
    let served = Served::new(Site::builder(queue.clone()).admin(token()));
    let items = queue.get_many(5).now();
    assert_eq!(count(&served, "action=cancel"), 295);
    assert_eq!(count(&served, "action=cancel&q=SRC/"), 100);
    assert_eq!(count(&served, "action=cancel&state=waiting"), 0);
    assert_eq!(count(&served, "action=run-now"), 0);
    let change = |expected: u64| {
        let body = json!({ "matching": { "q": "SRC/", "state": "ready" }, "expected": expected });
        post(&served, "cancel", &body)
    };
    for expected in [0, 10, 90, 112] {
        let refused = change(expected);
        assert_eq!((refused.status, &refused.json()["matched"]), (409, &json!(100)), "{expected}");
    }
    assert_eq!(queue.len(), 295);
    // The number of keys has changed slightly since it was shown.
    let changed = change(105);
    assert_eq!((changed.status, changed.json()), (200, json!({ "changed": 100, "matched": 100 })));
    assert_eq!(queue.len(), 195);
    drop(items);
}

#[test]
fn deliveries_pause_and_go_on() {
    let queue = Keys::new();
    let served = Served::new(Site::builder(queue.clone()).admin(token()));
    let allowed = act(&served, "authenticate", json!({}));
    let all = ["cancel", "cancel-run", "run-now", "revive", "add", "pause", "resume"];
    let work = ["claim", "renew", "complete", "fail", "release"];
    assert_eq!(allowed["actions"], json!([&all[..], &work].concat()));
    assert_eq!(act(&served, "pause", json!({})), json!({ "status": "paused" }));
    assert!(queue.is_paused());
    assert_eq!(act(&served, "resume", json!({})), json!({ "status": "open" }));
    assert!(!queue.is_paused());
}

/// Compares the properties of each response with its schema.
#[test]
fn the_description_has_all_fields_of_the_responses() {
    let queue = Keys::new();
    queue.add(key("a"));
    let history = History::new();
    history.gave_up("b", Run::new(2).error("e").output("o"));
    let section = || Some(Section::new("Replicas", ["name"]).row(["a"]));
    let site = Site::builder(queue).history(&history).admin(token()).jobs(1, || 0).section(section);
    let served = Served::new(site);
    let server = served.address;
    let doc = get(server, "/api/v1/openapi.json").json();
    assert_eq!(doc["openapi"], json!("3.1.0"));
    let schema = |name: &str| {
        let properties = doc["components"]["schemas"][name]["properties"].as_object();
        properties.expect(name).keys().cloned().collect::<Vec<_>>()
    };
    let names = |value: &Value| {
        let mut names: Vec<_> = value.as_object().expect("an object").keys().cloned().collect();
        names.sort_unstable();
        names
    };
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    let summary = get(server, "/api/v1/summary").json();
    assert_eq!(names(&summary), sorted(schema("Summary")));
    assert_eq!(names(&summary["now"]), sorted(schema("Sample")));
    let keys = get(server, "/api/v1/keys").json();
    assert_eq!(names(&keys), sorted(schema("Keys")));
    assert_eq!(names(&keys["keys"][0]), sorted(schema("Row")));
    let sections = get(server, "/api/v1/sections").json();
    assert_eq!(names(&sections), schema("Sections"));
    assert_eq!(names(&sections["sections"][0]), sorted(schema("Section")));
    let mut page = get(server, "/api/v1/key?key=b").json();
    assert_eq!(names(&page["runs"][0]), sorted(schema("Run")));
    let page = page.as_object_mut().expect("an object");
    assert!(page.remove("runs").is_some() && page.remove("missing").is_some());
    assert_eq!(names(&json!(page)), sorted(schema("Row")));

    // Every path has a route with this method, and every reference has its target.
    for (path, methods) in doc["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let method = method.to_uppercase();
            let events = path.ends_with("/events");
            let head = format!(
                "{} {path} HTTP/1.1\r\nHost: {server}",
                if events { "HEAD" } else { &method }
            );
            let answer = ask(server, &head);
            let error = String::from_utf8_lossy(&answer.body);
            assert!(
                answer.status != 405 && !error.contains("no such path"),
                "{method} {path}: {error}"
            );
        }
    }
    let text = doc.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().expect("a pointer");
        assert!(doc.pointer(pointer).is_some(), "{pointer}");
    }
}

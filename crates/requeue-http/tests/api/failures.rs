//! `/api/v1/failures`, and the filter for one of its groups.

use std::time::Duration;

use requeue::{Completion, Item, Queue};
use requeue_http::{History, Run, Site};
use serde_json::{Value, json};

use crate::admin::{act, token};
use crate::client::get;
use crate::{Keys, Served, queue};

/// Returns the error, the keys and the parked keys of each group.
fn groups(answer: &Value) -> Vec<(&str, u64, u64)> {
    let number = |group: &Value, name: &str| group[name].as_u64().expect("a number");
    let groups = answer["failures"].as_array().expect("a list").iter();
    let group = |group| (number(group, "keys"), number(group, "parked"));
    groups.map(|it| (it["error"].as_str().expect("text"), group(it).0, group(it).1)).collect()
}

/// Adds a key, and fails its run.
fn fail(queue: &Keys, history: &History, key: &str, error: &str, completion: Completion) {
    queue.add(key.as_bytes().to_vec());
    queue.try_get().map(Item::into_owned).expect("a key is ready").complete(completion);
    let run = Run::new(1).error(error);
    match completion {
        Completion::GiveUp => history.gave_up(key, run),
        _ => history.failed(key, run),
    }
}

#[test]
fn failing_keys_are_grouped_by_their_errors() {
    let (queue, _clock) = queue();
    let history = History::new();
    let later = Completion::RetryAfter(Duration::from_secs(90));
    for n in 0..5 {
        let error = format!("no answer for acme/{n} within {n}s");
        fail(&queue, &history, &format!("acme/{n}"), &error, Completion::GiveUp);
    }
    fail(&queue, &history, "globex/1", "no answer for globex/1 within 30s", later);
    fail(&queue, &history, "globex/2", "exit status: 2", later);
    queue.add(b"fine".to_vec());
    let served = Served::new(Site::builder(queue.clone()).history(&history).admin(token()));
    let answer = get(served.address, "/api/v1/failures").json();
    let slow = "no answer for KEY within #s";
    assert_eq!(groups(&answer), [(slow, 6, 5), ("exit status: 2", 1, 0)]);
    assert_eq!((&answer["keys"], &answer["waiting"]), (&json!(7), &json!(2)));
    assert_eq!((&answer["more"], &answer["cut"]), (&json!(false), &json!(false)));
    let group = &answer["failures"][0];
    assert_eq!(group["failures"], json!(6));
    assert_eq!(
        (&group["key"], &group["sample"]),
        (&json!("acme/4"), &json!("no answer for acme/4 within 4s"))
    );
    assert!(group["last"].as_f64() <= group["first"].as_f64() && group["last"].is_number());
    let first = get(served.address, "/api/v1/failures?limit=1").json();
    assert_eq!(
        (groups(&first).len(), &first["more"], &first["keys"]),
        (1, &json!(true), &json!(7))
    );
    assert_eq!(get(served.address, "/api/v1/failures?limit=0").status, 400);

    // The properties are the same as in the OpenAPI description.
    let doc = get(served.address, "/api/v1/openapi.json").json();
    for (schema, value) in [("Failures", &answer), ("FailureGroup", group)] {
        let described = doc["components"]["schemas"][schema]["properties"].as_object();
        let described: Vec<_> = described.expect(schema).keys().collect();
        assert_eq!(value.as_object().expect(schema).keys().collect::<Vec<_>>(), described);
    }

    // The next requests list the keys of a group, and revive them.
    let error = "error=no%20answer%20for%20KEY%20within%20%23s";
    let keys = get(served.address, &format!("/api/v1/keys?{error}&sort=key")).json();
    let names = keys["keys"].as_array().expect("a list").iter().map(|row| &row["key"]);
    let expected = ["acme/0", "acme/1", "acme/2", "acme/3", "acme/4", "globex/1"].map(Value::from);
    assert!(names.eq(&expected), "{keys}");
    let keys = get(served.address, "/api/v1/keys?error=exit%20status:%202").json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1));
    let count = format!("/api/v1/count?action=revive&state=parked&{error}");
    assert_eq!(get(served.address, &count).json(), json!({ "matched": 5 }));
    let matching = json!({ "state": "parked", "q": "acme/", "error": slow });
    let revived = act(&served, "revive", json!({ "matching": matching, "expected": 5 }));
    assert_eq!(revived, json!({ "changed": 5, "matched": 5 }));
    // The revived keys are ready, and no longer failing.
    let answer = get(served.address, "/api/v1/failures").json();
    assert_eq!(groups(&answer), [("exit status: 2", 1, 0), (slow, 1, 0)]);
}

#[test]
fn without_a_history_the_errors_are_unknown() {
    let (queue, _clock) = queue();
    queue.add(b"a".to_vec());
    queue.try_get().expect("a key is ready").retry();
    let served = Served::new(Site::builder(queue));
    let answer = get(served.address, "/api/v1/failures").json();
    assert_eq!(groups(&answer), [("unknown error", 1, 0)]);
    let group = &answer["failures"][0];
    assert_eq!(
        (&group["first"], &group["last"], &group["sample"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let keys = get(served.address, "/api/v1/keys?error=unknown+error").json();
    assert_eq!(keys["keys"][0]["key"], json!("a"));
}

#[test]
fn the_target_for_ready_keys_is_in_the_summary() {
    let target = |site: requeue_http::Builder<Vec<u8>>| {
        get(Served::new(site).address, "/api/v1/summary").json()["target"].clone()
    };
    assert_eq!(target(Site::builder(Keys::new())), Value::Null);
    let site = Site::builder(Queue::new()).target(Duration::from_millis(1500));
    assert_eq!(target(site), json!(1.5));
}

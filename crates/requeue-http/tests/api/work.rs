//! The requests of workers.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use requeue_http::{AccessToken, Role, Site};
use serde_json::{Value, json};

use crate::admin::{TOKEN, act, post, token};
use crate::client::{get, send};
use crate::{Keys, Served};

/// A site of an empty queue that retries failed keys immediately, and what the test must keep.
struct Source {
    name: &'static str,
    served: Served,
    _kept: Option<tempfile::TempDir>,
}

const SHORT: Duration = Duration::from_millis(1);

fn sources() -> Vec<Source> {
    let queue: Keys = requeue::Queue::builder().backoff(SHORT, SHORT).build().expect("valid");
    let served = Served::new(Site::builder(queue).admin(token()));
    let memory = Source { name: "memory", served, _kept: None };
    #[cfg(feature = "store")]
    return vec![memory, stored()];
    #[cfg(not(feature = "store"))]
    return vec![memory];
}

#[cfg(feature = "store")]
fn stored() -> Source {
    let dir = tempfile::tempdir().expect("a directory");
    let served = serve_store(dir.path());
    Source { name: "store", served, _kept: Some(dir) }
}

/// Serves the queue in the file in `dir`, as another process does.
#[cfg(feature = "store")]
fn serve_store(dir: &std::path::Path) -> Served {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = crate::queues::open_store(dir).await;
        store.queue("mail").backoff(SHORT, SHORT).open().await.expect("the queue opens")
    });
    Served::within(runtime, Site::of_store(queue).admin(token()))
}

fn add(served: &Served, key: &str) {
    act(served, "add", json!({ "keys": [{ "key": key }] }));
}

/// Claims up to `max` keys, and waits for at least one of them.
#[track_caller]
fn claim(served: &Served, max: u64, lease: u64) -> Vec<Value> {
    loop {
        let body = json!({ "worker": "w", "max": max, "wait": 60, "lease": lease });
        let claims = act(served, "claim", body);
        let claims = claims["claims"].as_array().expect("a list").clone();
        if !claims.is_empty() {
            return claims;
        }
    }
}

/// Claims one key. Returns the claim, as other requests name it, and the attempt.
#[track_caller]
fn claim_one(served: &Served, lease: u64) -> (Value, u64) {
    let claimed = claim(served, 1, lease).remove(0);
    let attempt = claimed["attempt"].as_u64().expect("a number");
    (json!({ "key": claimed["key"], "token": claimed["token"] }), attempt)
}

/// Sends a request about one claim. Returns the status, the result, and the error.
#[track_caller]
fn end(served: &Served, path: &str, claim: &Value) -> (u16, String, String) {
    let answer = post(served, path, &json!({ "claims": [claim] }));
    let (status, body) = (answer.status, answer.json());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let result = text(&body["results"][0]["result"]);
    assert_eq!(body["error"], body["results"][0]["error"], "{body}");
    (status, result, text(&body["error"]))
}

#[track_caller]
fn end_well(served: &Served, path: &str, claim: &Value) -> String {
    let (status, result, error) = end(served, path, claim);
    assert_eq!((status, &*error), (200, ""), "{path} {claim}");
    result
}

fn state(served: &Served, key: &str) -> Value {
    get(served.address, &format!("/api/v1/key?key={key}")).json()["state"].clone()
}

#[test]
fn a_worker_claims_renews_and_completes_keys() {
    for Source { name, served, .. } in sources() {
        let none = act(&served, "claim", json!({ "worker": "w", "wait": 0 }));
        assert_eq!(none, json!({ "claims": [] }), "{name}");
        let key = json!({ "key": "a", "priority": 1 });
        act(&served, "add", json!({ "keys": [key, { "key_base64": "/w==" }] }));
        let mut claims = claim(&served, 10, 30);
        if claims.len() < 2 {
            claims.extend(claim(&served, 10, 30));
        }
        // The store may deliver the oldest key first.
        claims.sort_by_key(|claim| claim["key"].is_null());
        let mut tokens: Vec<u64> = claims
            .iter()
            .map(|claim| claim["token"].as_str().expect("text").parse().expect("a number"))
            .collect();
        tokens.dedup();
        assert_eq!(tokens.len(), 2, "{name}: {claims:?}");
        let expected = json!({
            "key": "a", "token": tokens[0].to_string(),
            "attempt": 1, "adds": 1, "flags": 0, "priority": 1, "group": null,
        });
        assert_eq!(claims[0], expected, "{name}");
        assert_eq!(claims[1]["key_base64"], json!("/w=="), "{name}: {claims:?}");
        assert_eq!(claims[1]["key"], Value::Null, "{name}");
        assert_eq!(state(&served, "a"), json!("running"), "{name}");

        let named = json!([
            { "key": "a", "token": claims[0]["token"] },
            { "key_base64": "/w==", "token": claims[1]["token"] },
        ]);
        let until_empty = json!({ "worker": "w", "wait": 0, "until_empty": true });
        assert_eq!(act(&served, "claim", until_empty.clone()), none, "{name}: keys are in flight");
        let renewed = act(&served, "renew", json!({ "claims": named, "lease": 3600 }));
        let both =
            |result: &str| json!({ "results": [{ "result": result }, { "result": result }] });
        assert_eq!(renewed, both("renewed"), "{name}");
        let done = act(&served, "complete", json!({ "claims": named }));
        assert_eq!(done, both("completed"), "{name}");
        let none = act(&served, "claim", json!({ "worker": "w", "wait": 0.0 }));
        assert_eq!(none, json!({ "claims": [] }), "{name}");
        let empty = act(&served, "claim", until_empty);
        assert_eq!(empty, json!({ "claims": [], "empty": true }), "{name}");
    }
}

#[test]
fn a_claim_waits_for_a_key() {
    for Source { name, served, .. } in sources() {
        let claimed = std::thread::scope(|scope| {
            let claimed = scope.spawn(|| claim_one(&served, 30));
            add(&served, "a");
            claimed.join().expect("no panic")
        });
        assert_eq!(claimed.1, 1, "{name}");
        assert_eq!(end_well(&served, "complete", &claimed.0), "completed", "{name}");
    }
}

#[test]
fn a_claim_that_has_ended_is_refused_with_its_cause() {
    for Source { name, served, .. } in sources() {
        add(&served, "a");
        let (claimed, _) = claim_one(&served, 30);
        assert_eq!(end_well(&served, "complete", &claimed), "completed", "{name}");
        let unknown = json!({ "key": "never", "token": "7" });
        for path in ["complete", "fail", "release", "renew"] {
            let (status, result, error) = end(&served, path, &claimed);
            assert_eq!((status, &*result), (409, "lost"), "{name} {path}: {error}");
            let token = claimed["token"].as_str().expect("text");
            let subject = format!("a, token {token}: ");
            assert!(error.starts_with(&subject), "{name} {path}: {error}");
            assert!(error.ends_with("; stop the run and discard its result"), "{error}");
            let (status, result, error) = end(&served, path, &unknown);
            assert_eq!((status, &*result), (409, "lost"), "{name} {path}: {error}");
        }
        // A wrong token does not end the claim of another worker.
        add(&served, "b");
        let (held, _) = claim_one(&served, 30);
        let wrong = json!({ "key": "b", "token": "1" });
        assert_eq!(end(&served, "complete", &wrong).0, 409, "{name}");
        let both = json!({ "claims": [wrong, held] });
        let answer = post(&served, "complete", &both);
        assert_eq!(answer.status, 409, "{name}");
        assert_eq!(answer.json()["results"][1], json!({ "result": "completed" }), "{name}");
    }
}

#[test]
fn a_key_is_delivered_again_when_its_lease_expires() {
    for Source { name, served, .. } in sources() {
        add(&served, "a");
        let (first, attempt) = claim_one(&served, 1);
        assert_eq!(attempt, 1, "{name}");
        // The first worker is frozen, and the second one waits until the lease expires.
        let (second, attempt) = claim_one(&served, 30);
        assert_eq!(attempt, 2, "{name}");
        let token = |claim: &Value| {
            let token = claim["token"].as_str().expect("text");
            token.parse::<u64>().expect("a number")
        };
        assert!(token(&second) > token(&first), "{name}: {second} {first}");
        for path in ["renew", "complete", "fail"] {
            let (status, result, error) = end(&served, path, &first);
            assert_eq!((status, &*result), (409, "lost"), "{name} {path}: {error}");
        }
        assert_eq!(end_well(&served, "complete", &second), "completed", "{name}");
        assert_eq!(state(&served, "a"), Value::Null, "{name}");
    }
}

#[test]
fn a_renewed_claim_outlasts_its_first_lease() {
    for Source { name, served, .. } in sources() {
        add(&served, "a");
        let (first, _) = claim_one(&served, 1);
        act(&served, "renew", json!({ "claims": [first], "lease": 600 }));
        add(&served, "b");
        let (second, _) = claim_one(&served, 1);
        assert_eq!(second["key"], json!("b"), "{name}");
        // The lease of `b` expires after the first lease of `a`.
        let (second, attempt) = claim_one(&served, 30);
        assert_eq!((&second["key"], attempt), (&json!("b"), 2), "{name}");
        assert_eq!(end_well(&served, "complete", &first), "completed", "{name}");
    }
}

#[test]
fn a_client_that_is_killed_while_it_waits_loses_no_key() {
    for Source { name, served, .. } in sources() {
        let body = json!({ "worker": "killed", "wait": 60, "lease": 1 }).to_string();
        for _ in 0..3 {
            let mut client = TcpStream::connect(served.address).expect("the server listens");
            write!(
                client,
                "POST /api/v1/claim HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                served.address,
                body.len()
            )
            .expect("the server reads");
        }
        add(&served, "a");
        let (claimed, _) = claim_one(&served, 30);
        assert_eq!(claimed["key"], json!("a"), "{name}");
        assert_eq!(end_well(&served, "complete", &claimed), "completed", "{name}");
    }
}

#[test]
fn a_failure_is_retried_or_given_up_and_a_release_is_none() {
    for Source { name, served, .. } in sources() {
        add(&served, "a");
        let (claimed, _) = claim_one(&served, 30);
        assert_eq!(end_well(&served, "release", &claimed), "released", "{name}");
        let (claimed, attempt) = claim_one(&served, 30);
        assert_eq!(attempt, 1, "{name}");
        let failed = json!({
            "key": "a", "token": claimed["token"],
            "error": "no answer", "exit_status": 7, "output": "lines", "after": 0,
        });
        assert_eq!(end_well(&served, "fail", &failed), "failed", "{name}");
        let (claimed, attempt) = claim_one(&served, 30);
        assert_eq!(attempt, 2, "{name}");
        let failed =
            json!({ "key": "a", "token": claimed["token"], "error": "never", "give_up": true });
        assert_eq!(end_well(&served, "fail", &failed), "parked", "{name}");
    }
}

#[test]
fn a_worker_learns_of_a_cancelled_run() {
    for Source { name, served, .. } in sources() {
        add(&served, "a");
        let (claimed, _) = claim_one(&served, 30);
        let cancelled = act(&served, "cancel-run", json!({ "keys": [{ "key": "a" }] }));
        assert_eq!(cancelled["changed"], json!(1), "{name}");
        assert_eq!(end_well(&served, "renew", &claimed), "cancelled", "{name}");
        // A cancelled run neither fails nor runs again.
        assert_eq!(end_well(&served, "fail", &claimed), "cancelled", "{name}");
        assert_eq!(state(&served, "a"), Value::Null, "{name}");
    }
}

#[test]
fn wrong_requests_of_workers_are_named() {
    let claims = |claim: Value| json!({ "claims": [claim] });
    for Source { name, served, .. } in sources() {
        for (path, body, parameter) in [
            ("claim", json!({}), ""),
            ("claim", json!({ "worker": "w", "limit": 1 }), ""),
            ("claim", json!({ "worker": "" }), "worker"),
            ("claim", json!({ "worker": "w\n" }), "worker"),
            ("claim", json!({ "worker": "w".repeat(101) }), "worker"),
            ("claim", json!({ "worker": "w", "max": 0 }), "max"),
            ("claim", json!({ "worker": "w", "max": 257 }), "max"),
            ("claim", json!({ "worker": "w", "wait": -1 }), "wait"),
            ("claim", json!({ "worker": "w", "wait": 61 }), "wait"),
            ("claim", json!({ "worker": "w", "lease": 0.5 }), "lease"),
            ("claim", json!({ "worker": "w", "lease": 1e300 }), "lease"),
            ("renew", json!({ "claims": [] }), "claims"),
            ("renew", json!({ "claims": [{ "key": "a", "token": "1" }], "lease": 0 }), "lease"),
            ("complete", claims(json!({ "key": "a" })), ""),
            ("complete", claims(json!({ "key": "a", "token": 1 })), ""),
            ("complete", claims(json!({ "key": "a", "token": "one" })), "claims"),
            ("complete", claims(json!({ "key": "a", "token": "-1" })), "claims"),
            ("complete", claims(json!({ "token": "1" })), "claims"),
            ("complete", claims(json!({ "key": "a", "token": "1", "error": "e" })), "claims"),
            ("release", claims(json!({ "key": "a", "token": "1", "after": 1 })), "claims"),
            ("fail", claims(json!({ "key": "a", "token": "1", "after": -1 })), "claims"),
        ] {
            let answer = post(&served, path, &body);
            let problem = answer.json();
            assert_eq!(answer.status, 400, "{name} {path} {body}: {problem}");
            let found = problem["parameter"].as_str().unwrap_or_default();
            assert_eq!(found, parameter, "{name} {path} {body}: {problem}");
        }
        let head = format!(
            "POST /api/v1/complete HTTP/1.1\r\nHost: {0}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json",
            served.address
        );
        let answer = send(served.address, &head, "{\"claims\":");
        assert_eq!(answer.status, 400, "{name}");
        let error = answer.json()["error"].to_string();
        assert!(error.contains("the body is not as expected: EOF"), "{name}: {error}");
        assert!(error.contains("/api/v1/openapi.json"), "{name}: {error}");
    }
}

/// Compares the properties of each response with its schema.
#[test]
fn the_description_has_the_fields_of_claims() {
    let Source { served, .. } = sources().remove(0);
    add(&served, "a");
    let doc = get(served.address, "/api/v1/openapi.json").json();
    let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect();
    let schema = |name: &str| -> std::collections::BTreeSet<String> {
        names(&doc["components"]["schemas"][name]["properties"])
    };
    let claimed = claim(&served, 1, 30).remove(0);
    let mut found: std::collections::BTreeSet<String> = names(&claimed);
    found.insert("key_base64".to_owned());
    assert_eq!(found, schema("ClaimedKey"));
    let named = json!({ "claims": [{ "key": "a", "token": "1" }] });
    let refused = post(&served, "complete", &named).json();
    assert_eq!(names(&refused) as std::collections::BTreeSet<_>, schema("ClaimResults"));
    assert_eq!(
        names(&refused["results"][0]) as std::collections::BTreeSet<_>,
        schema("ClaimResult")
    );
}

#[test]
fn a_token_permits_only_what_its_roles_do() {
    let texts = ["read", "add", "work"].map(|role| format!("{role}-0123456789abcdef"));
    let roles = [Role::Read, Role::Add, Role::Work];
    let queue = Keys::new();
    let mut site = Site::builder(queue.clone());
    for (text, role) in texts.iter().zip(roles) {
        site = site.token(role, AccessToken::new(text).expect("it is long enough"));
    }
    let served = Served::new(site);
    let server = served.address;
    let ask_with = |head: &str, token: &str, body: &Value| {
        let head = format!(
            "{head} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json"
        );
        send(server, &head, &body.to_string())
    };
    let key = json!({ "keys": [{ "key": "a" }] });
    for (head, body, permitted) in [
        ("GET /api/v1/keys", json!({}), "read"),
        ("GET /", json!({}), "read"),
        ("POST /api/v1/add", key.clone(), "add"),
        ("POST /api/v1/claim", json!({ "worker": "w", "wait": 0 }), "work"),
        ("POST /api/v1/cancel", key, "admin"),
    ] {
        for text in &texts {
            let answer = ask_with(head, text, &body);
            if text.starts_with(permitted) {
                assert_eq!(answer.status, 200, "{head} {text}: {}", answer.text());
                continue;
            }
            let (role, _) = text.split_once('-').expect("a role");
            if permitted == "read" {
                // A browser asks for another password.
                let challenge = answer.header("www-authenticate");
                assert_eq!((answer.status, challenge), (401, "Basic realm=\"requeue\""), "{text}");
                assert!(answer.text().contains(&format!("the role {role}")), "{}", answer.text());
                continue;
            }
            assert_eq!(answer.status, 403, "{head} {text}");
            let path = head.split(' ').nth(1).expect("a path");
            let error = format!(
                "the token has the role {role}, and {path} needs {permitted}; use a token with that role"
            );
            assert_eq!(answer.json()["error"], json!(error));
        }
    }
    // Reads need a token, and probes do not.
    for refused in [
        get(server, "/api/v1/keys"),
        ask_with("GET /api/v1/keys", "wrong-0123456789abcdef", &json!({})),
    ] {
        let challenge = refused.header("www-authenticate");
        assert_eq!((refused.status, challenge), (401, "Basic realm=\"requeue\""));
    }
    for path in ["/", "/metrics", "/api/v1/openapi.json", "/api/v1/events"] {
        assert_eq!(get(server, path).status, 401, "{path}");
    }
    assert_eq!(get(server, "/healthz").status, 200);
    let allowed = ask_with("POST /api/v1/authenticate", &texts[2], &json!({}));
    let work = json!({ "actions": ["claim", "renew", "complete", "fail", "release"] });
    assert_eq!(allowed.json(), work);
}

#[cfg(feature = "store")]
#[test]
fn a_claim_of_a_store_can_be_completed_at_another_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = serve_store(dir.path());
    add(&first, "a");
    let (claimed, _) = claim_one(&first, 60);
    drop(first);
    let second = serve_store(dir.path());
    assert_eq!(end_well(&second, "renew", &claimed), "renewed");
    let failed =
        json!({ "key": "a", "token": claimed["token"], "error": "no answer", "output": "lines" });
    assert_eq!(end_well(&second, "fail", &failed), "failed");
    let (claimed, attempt) = claim_one(&second, 60);
    assert_eq!(attempt, 2);
    let page = get(second.address, "/api/v1/key?key=a").json();
    assert_eq!(page["runs"][0]["error"], json!("no answer"));
    assert_eq!(page["runs"][0]["worker"], json!("w"), "{page}");
    assert_eq!(end_well(&second, "complete", &claimed), "completed");
}

//! `requeue watch` with an API server that refuses or fails, or with competing writers.

use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::{Answer, Api, Request, failure, list, map};
use crate::support::{Live, directory, end, until};

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";

fn is_list(request: &Request) -> bool {
    request.method == "GET" && request.path.starts_with(MAPS) && !request.is_watch()
}

/// Stops the program after these requests.
fn end_when(live: &Live, api: &Api, is_so: impl Fn(&[Request]) -> bool) {
    until(|| is_so(&api.requests()));
    live.signal(Signal::TERM);
}

/// Refuses these rights.
fn without(verbs: &'static [&'static str]) -> Api {
    Api::new(move |request| match request.reviewed() {
        Some((verb, _)) if verbs.contains(&verb) => {
            let mut review = request.body.clone();
            review["status"] = json!({ "allowed": false, "reason": "no role" });
            Answer::Json(201, review)
        }
        _ => Answer::Default,
    })
}

#[test]
fn a_right_that_is_missing_is_named_at_the_start() {
    let dir = directory("watch_rights");
    let finalizer = &["--finalizer", "a.b/c"][..];
    for (verbs, flags) in [(&["watch"][..], &[][..]), (&["patch"], finalizer)] {
        let args = [&["cm"], flags, &["--", "true"]].concat();
        let ended = end(&mut without(verbs).watch(&dir, &args), "");
        let verb = verbs[0];
        assert_eq!(ended.code(), Some(5), "{}", ended.stderr);
        assert_eq!(
            ended.stderr,
            format!(
                "requeue: user \"jane\" may not {verb} configmaps in namespace ns; allow it by a Role \
                 and a RoleBinding, and check that with `kubectl auth can-i {verb} configmaps -n ns`\n"
            )
        );
    }
    // The cases are all namespaces, another user, and related resources.
    let api = without(&["watch"]);
    let ended = end(&mut api.watch(&dir, &["cm", "-A", "--as", "joe", "--", "true"]), "");
    let part = "`kubectl auth can-i watch configmaps -A --as joe`";
    assert!(ended.stderr.contains(part), "{}", ended.stderr);
    let args = ["cm", "--dry-run", "--all-on", "cm/settings", "--", "true"];
    assert_eq!(end(&mut api.watch(&dir, &args), "").code(), Some(5));
    let of_one = without(&[]);
    let live = Live::spawn(&mut of_one.watch(&dir, &args));
    end_when(&live, &of_one, |requests| requests.iter().any(Request::is_watch));
    live.end();
    let names: Vec<Value> = of_one
        .requests()
        .iter()
        .filter(|request| request.reviewed().is_some())
        .map(|request| request.body["spec"]["resourceAttributes"]["name"].clone())
        .collect();
    assert_eq!(names, [Value::Null, json!("settings")]);
}

#[test]
fn a_server_that_can_not_review_rights_is_watched_all_the_same() {
    let dir = directory("watch_unreviewed");
    for code in [403, 404, 500] {
        let api = Api::new(move |request| match request.reviewed() {
            Some(_) => failure(code, "no reviews"),
            None if is_list(request) => list(&[map("a", 1)]),
            None => Answer::Default,
        });
        let mut live = Live::spawn(&mut api.watch(&dir, &["cm", "--", "echo"]));
        live.wait_for("ns/a");
        live.signal(Signal::TERM);
        live.end();
    }
}

#[test]
fn a_namespace_that_is_not_there_is_warned_of() {
    let dir = directory("watch_nowhere");
    let nowhere = |request: &Request| request.path.starts_with("/api/v1/namespaces/nowhere");
    for (code, is_said) in [(404, true), (403, false)] {
        let api = Api::new(move |request| match request {
            it if nowhere(it) && !it.path.contains("configmaps") => failure(code, "no"),
            _ => Answer::Default,
        });
        let live = Live::spawn(&mut api.watch(&dir, &["cm", "-n", "nowhere", "--", "true"]));
        end_when(&live, &api, |requests| requests.iter().any(Request::is_watch));
        let said = live.end().stderr;
        assert_eq!(said.contains("no such namespace: nowhere"), is_said, "{said}");
    }
}

/// The same reason is reported once per minute.
#[test]
fn each_reason_why_nothing_is_watched_is_said() {
    let dir = directory("watch_reasons");
    let api = Api::new({
        let mut watches = 0;
        move |request| {
            watches += u32::from(request.is_watch());
            match watches {
                _ if !request.is_watch() => Answer::Default,
                1 | 2 => failure(403, "not yours"),
                3 => failure(500, "out of order"),
                _ => failure(403, "not yours"),
            }
        }
    });
    let mut live = Live::spawn(&mut api.watch(&dir, &["cm", "--", "true"]));
    let mut said = Vec::new();
    for why in ["403: not yours", "500: out of order", "403: not yours"] {
        said.push(live.wait_for_message(why));
    }
    let lines = ["403: not yours", "500: out of order", "403: not yours"]
        .map(|why| format!("requeue: watch configmaps in namespace ns: {why}; retrying\n"));
    assert_eq!(said, lines);
    live.signal(Signal::TERM);
    let said = live.end().stderr;
    // The second error was not reported.
    assert_eq!(said.matches("not yours").count(), 2, "{said}");
}

#[test]
fn where_a_connection_failed_is_named() {
    let dir = directory("watch_where");
    let api = Api::new(|_| Answer::Default);
    let mut command = api.watch(&dir, &["cm", "--", "true"]);
    // No process can listen at this port.
    let config = std::fs::read_to_string(dir.join("kubeconfig")).unwrap();
    let config = config.replace(&api.address.to_string(), "127.0.0.1:0");
    std::fs::write(dir.join("kubeconfig"), &config).unwrap();
    let ended = end(&mut command, "");
    assert_eq!(ended.code(), Some(125));
    let start = "requeue: get /api at http://127.0.0.1:0/ (context made-up): ";
    assert!(ended.stderr.starts_with(start), "{}", ended.stderr);

    // This plugin does not exist either.
    let exec = "{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
                command: ./no-such-plugin}";
    let user = format!("users: [{{name: u, user: {{exec: {exec}}}}}]");
    let config = config.replace("users: []", &user).replace("user: ''", "user: u");
    std::fs::write(dir.join("kubeconfig"), config).unwrap();
    let ended = end(&mut command, "");
    assert_eq!(ended.code(), Some(125));
    assert!(
        ended.stderr.contains("(context made-up, exec plugin ./no-such-plugin): "),
        "{}",
        ended.stderr
    );
}

/// A server on which other writers change the object before it is patched. `races` patches are too late, in one of two
/// ways.
fn raced(races: usize, deleted: bool, code: u16, message: &'static str) -> Api {
    let object = move |finalizers: &[Value], version: u32| {
        let mut object = map("a", version);
        object["metadata"]["finalizers"] = json!(finalizers);
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        }
        object
    };
    let finalizers = Arc::new(Mutex::new(if deleted { vec![json!("a.b/c")] } else { vec![] }));
    let (mut left, mut version) = (races, 1);
    Api::new(move |request| {
        let mut finalizers = finalizers.lock().expect("no thread panics");
        let old = object(&finalizers, version);
        if request.method == "PATCH" {
            version += 1;
            if left > 0 {
                left -= 1;
                return failure(code, message);
            }
            *finalizers = if deleted { vec![] } else { vec![json!("a.b/c")] };
            return Answer::Json(200, object(&finalizers, version));
        }
        match request {
            it if is_list(it) => list(&[old]),
            _ => Answer::Default,
        }
    })
}

#[test]
fn a_lost_race_for_a_finalizer_is_no_failure() {
    let dir = directory("watch_raced");
    for deleted in [false, true] {
        let api = raced(3, deleted, 409, "the object has been modified");
        let args = ["cm", "--finalizer", "a.b/c", "--", "echo"];
        let mut live = Live::spawn(&mut api.watch(&dir, &args));
        let patches = |requests: &[Request]| {
            requests.iter().filter(|request| request.method == "PATCH").count() == 4
        };
        if deleted {
            live.wait_for("ns/a");
        }
        end_when(&live, &api, patches);
        let ended = live.end();
        assert!(ended.stderr.contains(" 0 failures"), "{deleted}: {}", ended.stderr);
        // There is no run before the finalizer is added, and one run before it is removed.
        assert_eq!(ended.count("runs"), u64::from(deleted), "{}", ended.stderr);
    }
}

#[test]
fn an_object_that_is_gone_before_its_finalizer_is_off_is_no_failure() {
    let dir = directory("watch_gone");
    let api = raced(1, true, 404, "not found");
    let mut live = Live::spawn(&mut api.watch(&dir, &["cm", "--finalizer", "a.b/c", "--", "echo"]));
    live.wait_for("ns/a");
    end_when(&live, &api, |requests| requests.iter().any(|request| request.method == "PATCH"));
    let ended = live.end();
    assert!(ended.stderr.contains(" 0 failures"), "{}", ended.stderr);
}

/// A ConfigMap whose name and data are these bytes of JSON.
fn raw(name: &str, version: u32, data: &[u8]) -> Vec<u8> {
    let named = if name.is_empty() { String::new() } else { format!(r#""name":"{name}","#) };
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{{named}"namespace":"ns","uid":"{name}","resourceVersion":"{version}"}},"data":"#
    );
    [head.as_bytes(), data, b"}"].concat()
}

/// A tenant who can write objects can neither prevent runs for other objects nor cause another list of all objects.
#[test]
fn hostile_objects_are_named_and_keep_no_other_from_its_run() {
    let dir = directory("watch_hostile");
    let deep =
        |levels: usize| [br#"{"a":"#.repeat(levels), b"1".into(), b"}".repeat(levels)].concat();
    let hostile = move |suffix: &str, version: u32| {
        let big = format!(r#"{{"a":"{}"}}"#, "x".repeat(500_000)).into_bytes();
        let objects = [
            ("deep", deep(130)),
            ("deeper", deep(9_000)),
            ("big", big),
            ("", b"{}".into()),
            ("bytes", b"{\"a\":\"\xff\xc3\x28\xf0\x9f\"}".into()),
            ("good", b"{}".into()),
        ];
        let name =
            |name: &str| if name.is_empty() { String::new() } else { format!("{name}-{suffix}") };
        let raw =
            |(at, (text, data)): (u32, &(&str, Vec<u8>))| raw(&name(text), version + at, data);
        (0..).zip(&objects).map(raw).collect::<Vec<_>>()
    };
    let event = |kind: &str, object: &[u8]| {
        [format!(r#"{{"type":"{kind}","object":"#).as_bytes(), object, b"}\n"].concat()
    };
    let mut watches = 0;
    let api = Api::new(move |request| {
        if is_list(request) {
            let head = br#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":["#;
            let items = hostile("list", 1).join(&b',');
            return Answer::List([&head[..], &items, b"]}"].concat());
        }
        if !request.is_watch() {
            return Answer::Default;
        }
        watches += 1;
        let seen = hostile("watch", 10).into_iter().map(|object| event("ADDED", &object));
        let gone = hostile("watch", 20).into_iter().map(|object| event("DELETED", &object));
        let last = [event("ADDED", &raw("last", 30, b"{}"))];
        let events = seen.chain(gone).chain(last).flatten().collect();
        Answer::Watch(if watches == 1 { events } else { Vec::new() })
    });
    let show = r#"echo "$REQUEUE_EVENT $1""#;
    let mut live = Live::spawn(&mut api.watch(&dir, &["cm", "-j1", "-c", show]));
    live.wait_for("apply ns/last");
    live.signal(Signal::TERM);
    let ended = live.end();
    for name in ["good", "big", "bytes"] {
        for suffix in ["list", "watch"] {
            assert!(ended.text().contains(&format!(" ns/{name}-{suffix}\n")), "{}", ended.text());
        }
    }
    assert!(!ended.text().contains("deep"), "{}", ended.text());
    assert!(!ended.text().contains("ns/\n"), "{}", ended.text());
    for named in ["deep-list", "deep-watch", "deeper-list", "deeper-watch", ""] {
        let why = if named.is_empty() { "it has no name" } else { "recursion limit exceeded" };
        let message =
            format!("configmaps in namespace ns: \"ns/{named}\" cannot be decoded: {why}");
        assert!(ended.stderr.contains(&message), "{message}: {}", ended.stderr);
    }
    // One list tests the right to list, and the other is that of the watcher.
    assert_eq!(
        api.requests().iter().filter(|request| is_list(request)).count(),
        2,
        "{}",
        ended.stderr
    );
}

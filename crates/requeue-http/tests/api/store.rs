//! The site of a queue in a store.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::metrics::Metrics;
use requeue_http::Site;
use requeue_store::{ActionRecord, Add, CancelledRun, Priority, Queue, Rate, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::admin::{act, post, token};
use crate::client::{Events, get};
use crate::operators::{action, paused, recorded};
use crate::queues::open_store;
use crate::{Keys, Served, check_both_formats};

/// A queue in a file, with a key in each state.
async fn queue(dir: &TempDir) -> (Queue, requeue_store::Item) {
    let store = open_store(dir.path()).await;
    let hour = Duration::from_secs(3600);
    let queue = store
        .queue("mail")
        .worker("web <1>")
        .backoff(hour, hour)
        .open()
        .await
        .expect("the queue opens");
    let high = Add::now().priority(Priority::High);
    for key in ["parked", "failing", "running"] {
        queue.add_with(key, high).await.expect("added");
    }
    let mut items = queue.get_many(3).await;
    items.sort_by_key(|item| item.to_string());
    let [failing, parked, running] = items.try_into().expect("all three");
    let mut parked = parked;
    parked.set_exit_status(67);
    parked.set_output("550 no such user\n");
    parked.give_up("no such address").await.expect("the lease is held");
    failing.retry("busy").await.expect("the lease is held");
    queue.add_all(["ready", "ready 2", "running"]).await.expect("added");
    queue.add_after("waiting", hour).await.expect("added");
    (queue, running)
}

fn served() -> (Served, Queue, requeue_store::Item, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let (queue, running) = runtime.block_on(queue(&dir));
    // The first counts are read before the site is built.
    runtime.block_on(queue.recent_counts()).expect("counted");
    let served = Served::within(runtime, Site::of_store(queue.clone()));
    (served, queue, running, dir)
}

fn keys(served: &Served, query: &str) -> Value {
    get(served.address, &format!("/api/v1/keys{query}")).json()
}

fn names(page: &Value) -> Vec<&str> {
    let rows = page["keys"].as_array().expect("rows");
    rows.iter().map(|row| row["key"].as_str().expect("text")).collect()
}

#[test]
fn keys_of_all_processes_are_shown_by_state_and_by_page() {
    let (served, _queue, running, _dir) = served();
    for (query, expected) in [
        ("", vec!["failing", "parked", "ready", "ready 2", "running", "waiting"]),
        ("?state=ready", vec!["ready", "ready 2"]),
        ("?state=waiting", vec!["failing", "waiting"]),
        ("?failed=true", vec!["failing", "parked"]),
        ("?failed=true&state=waiting", vec!["failing"]),
        ("?sort=attempt&order=desc&limit=2", vec!["failing", "parked"]),
        ("?state=running", vec!["running"]),
        ("?state=parked", vec!["parked"]),
        ("?q=READY", vec!["ready", "ready 2"]),
    ] {
        let page = keys(&served, query);
        assert_eq!((names(&page), &page["next"]), (expected, &Value::Null), "{query}");
    }
    let first = keys(&served, "?limit=4");
    let next = first["next"].as_str().expect("another page");
    let second = keys(&served, &format!("?limit=4&cursor={next}"));
    assert_eq!(names(&second), ["running", "waiting"]);
    assert_eq!(second["next"], Value::Null);
    let wrong = get(served.address, "/api/v1/keys?cursor=%21");
    assert_eq!(wrong.status, 400);
    assert_eq!(wrong.json()["parameter"], json!("cursor"));

    let row = get(served.address, "/api/v1/key?key=running").json();
    assert_eq!((&row["state"], &row["again"]), (&json!("running"), &json!(true)));
    assert_eq!(row["detail"]["fencing_token"], json!(running.fencing_token().to_string()));
    assert_eq!(row["detail"]["worker"], json!("web <1>"));
    assert!(!row["why"].as_str().expect("a sentence").contains("web"), "once is enough: {row}");
    let row = get(served.address, "/api/v1/key?key=parked").json();
    assert_eq!((&row["state"], &row["failures"]), (&json!("parked"), &json!(1)));
    assert_eq!(row["error"], json!("no such address"));
    let mut runs = row["runs"].clone();
    let mut take = |name: &str| runs[0].as_object_mut().and_then(|run| run.remove(name));
    let (took, at) = (take("took"), take("at"));
    let is_number = |found: &Option<Value>| found.as_ref().is_some_and(Value::is_number);
    assert!(is_number(&took) && is_number(&at) && row["last_failure"].is_number(), "{row}");
    let run = json!({
        "outcome": "given_up",
        "attempt": 1,
        "worker": "web <1>",
        "exit_status": 67,
        "error": "no such address",
        "output": "550 no such user\n",
    });
    assert_eq!(runs, json!([run]));
    let failing = get(served.address, "/api/v1/key?key=failing").json();
    let [run] = &failing["runs"].as_array().expect("a list")[..] else { panic!("{failing}") };
    assert_eq!((&run["outcome"], &run["exit_status"]), (&json!("failed"), &Value::Null));
    assert_eq!((&run["error"], &run["output"]), (&json!("busy"), &Value::Null));
    assert!(!row["why"].as_str().expect("a sentence").contains("address"), "{row}");
    assert_eq!(get(served.address, "/api/v1/key?key=none").status, 404);
    let too_long = format!("/api/v1/key?key={}", "k".repeat(2049));
    assert_eq!(get(served.address, &too_long).status, 400);
}

#[test]
fn the_past_of_a_key_follows_from_its_failures_its_state_and_the_actions_on_it() {
    let (served, queue, _running, _dir) = served();
    let revive = ActionRecord::new("revive", "ann").target("waiting").note("the API is back");
    served.runtime.block_on(queue.record_action(revive)).expect("recorded");
    let backoff = ("wait", "backoff", "backing off after 1 failure", true);
    for (key, expected) in [
        ("failing", vec![("run", "failed", "attempt 1 failed: busy", false), backoff]),
        (
            "parked",
            vec![
                ("run", "given_up", "attempt 1 failed for the last time: no such address", false),
                ("other", "", "parked after 1 failure", false),
            ],
        ),
        ("running", vec![("run", "", "running", false)]),
        (
            "waiting",
            vec![
                ("other", "", "revived by ann, note: the API is back", false),
                ("wait", "delay", "waiting for its due time", true),
            ],
        ),
        ("none", vec![]),
    ] {
        let past = get(served.address, &format!("/api/v1/timeline?key={key}")).json();
        let told = |event: &Value| {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            let is_left = event["until"].as_f64() > past["now"].as_f64();
            (text("kind"), text("cause") + &text("outcome"), text("text"), is_left)
        };
        let events = past["events"].as_array().expect("a list").iter();
        // On a slow machine, a key is ready for a while before its run.
        let events = events.filter(|event| event["cause"] != json!("ready")).map(told);
        let expected = expected.into_iter().map(|(kind, of, text, is_left)| {
            (kind.to_owned(), of.to_owned(), text.to_owned(), is_left)
        });
        assert_eq!(events.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{key}");
        let note = past["note"].as_str().expect("text");
        assert!(past["recorded"] == json!(false) && note.starts_with("the store keeps"), "{past}");
    }
}

#[test]
fn the_last_runs_of_a_key_in_a_store_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let hour = Duration::from_secs(3600);
        let store = open_store(dir.path()).await;
        let queue = store.queue("mail").backoff(hour, hour).open().await.expect("the queue opens");
        queue.add("k").await.expect("added");
        queue.add("k").await.expect("added");
        let item = queue.get().await.expect("the queue is open");
        queue.add("k").await.expect("added");
        item.succeed().await.expect("the lease is held");
        let item = queue.get().await.expect("the queue is open");
        item.retry("busy").await.expect("the lease is held");
        queue
    });
    let served = Served::within(runtime, Site::of_store(queue));
    let past = get(served.address, "/api/v1/timeline?key=k").json();
    let events = past["events"].as_array().expect("a list").iter();
    let events = events.filter(|event| event["cause"] != json!("ready"));
    let told: Vec<_> = events.map(|event| event["text"].as_str().expect("text")).collect();
    let expected =
        ["run succeeded, for 2 adds", "attempt 1 failed: busy", "backing off after 1 failure"];
    assert_eq!(told, expected, "{past}");
}

#[test]
fn a_ready_key_of_a_store_waits_for_its_group_or_its_queue() {
    let (served, queue, _dir) = crate::groups::served(|it| it.group_by("^[^/]*").group_limit(1));
    let present = |cause: &str| {
        let past = get(served.address, "/api/v1/timeline?key=a/2").json();
        assert_eq!(past["events"][0]["cause"], json!(cause), "{past}");
    };
    served.runtime.block_on(async {
        queue.add_all(["a/1", "a/2"]).await.expect("added");
    });
    present("ready");
    let _items = served.runtime.block_on(queue.get_many(1));
    present("group_limit");
    served.runtime.block_on(queue.group("a").pause()).expect("paused");
    present("group_paused");
    served.runtime.block_on(queue.pause()).expect("paused");
    present("queue_paused");
}

#[test]
fn answers_do_not_depend_on_tables_that_only_add_to_them() {
    let hour = Duration::from_secs(3600);
    let soon = Duration::from_millis(1);
    let (served, queue, dir) = crate::groups::served(|opening| opening.backoff(soon, soon));
    served.runtime.block_on(async {
        queue.add("a").await.expect("added");
        for _ in 0..2 {
            let item = queue.get_many(1).await.remove(0);
            item.retry("busy").await.expect("the lease is held");
        }
        queue.add_after("b", hour).await.expect("added");
    });
    let first = || {
        let failing = get(served.address, "/api/v1/failures").json();
        assert_eq!(failing["keys"], json!(1), "{failing}");
        failing["failures"][0]["first"].clone()
    };
    let past =
        || get(served.address, "/api/v1/timeline?key=b").json()["events"][0]["cause"].clone();
    assert!(first().is_number(), "{}", first());
    assert_eq!(past(), json!("delay"));
    let file = rusqlite::Connection::open(dir.path().join("queues.db")).expect("the file opens");
    file.execute_batch("drop table attempts; drop table actions").expect("dropped");
    assert_eq!((first(), past()), (Value::Null, json!("delay")));
    // The other values of a failing key are known.
    let page = get(served.address, "/api/v1/key?key=a").json();
    let known = (&page["failures"], &page["error"], &page["runs"]);
    assert_eq!(known, (&json!(2), &json!("busy"), &json!([])));
    let missing = "the store did not return the last failures, so they are missing here";
    assert_eq!(page["missing"], json!(missing));
    let timeline = get(served.address, "/api/v1/timeline?key=a").json();
    assert_eq!(timeline["events"][0]["kind"], json!("wait"), "{timeline}");
    let note = timeline["note"].as_str().unwrap_or_default();
    assert!(note.starts_with(missing), "{note}");
    assert_eq!(get(served.address, "/api/v1/key?key=b").json()["missing"], Value::Null);
}

#[test]
fn the_summary_has_the_numbers_of_the_store_and_of_this_process() {
    let (served, queue, running, _dir) = served();
    let summary = loop {
        // The task that reads the store may not have run yet.
        let summary = get(served.address, "/api/v1/summary").json();
        if summary["now"]["keys"] == json!(6) && summary["longest"] != json!([]) {
            break summary;
        }
        std::thread::yield_now();
    };
    let now = &summary["now"];
    for (name, number) in [("ready", 2), ("waiting", 2), ("running", 1), ("parked", 1)] {
        assert_eq!(now[name], json!(number), "{name}");
    }
    assert_eq!((&now["backing_off"], &now["damaged"]), (&Value::Null, &json!(0)));
    assert_eq!((&now["adds"], &now["runs"], &now["failures"]), (&json!(7), &json!(3), &json!(2)));
    assert_eq!(summary["title"], json!("mail"));
    assert_eq!(summary["status"], json!("open"));
    assert_eq!(summary["given_up"], json!(1));
    assert_eq!(summary["longest"][0]["key"], json!("running"));
    let page = get(served.address, "/");
    let page = page.text();
    assert!(page.contains("class=\"count backing_off\" hidden"), "{page}");
    assert!(page.contains("class=\"count parked\" ><"), "{page}");
    assert_eq!(get(served.address, "/readyz").status, 200);
    served.runtime.block_on(running.succeed()).expect("the lease is held");
    queue.shut_down();
    assert_eq!(get(served.address, "/readyz").status, 503);
}

#[test]
fn the_work_of_all_processes_is_shown_per_minute() {
    let (served, _queue, _running, dir) = served();
    let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    let other = served.runtime.block_on(async {
        let store = Store::connect(&url).await.expect("the store opens");
        let queue = store.queue("mail").worker("other").open().await.expect("the queue opens");
        queue.get().await.expect("the queue is open").succeed().await.expect("the lease is held");
        queue.add("more").await.expect("added");
        queue.activity(Duration::ZERO).await.expect("written");
        queue
    });
    let activity = get(served.address, "/api/v1/activity?since=600").json();
    let total = &activity["total"];
    let [adds, runs, successes, failures, given_up] =
        ["adds", "runs", "successes", "failures", "given_up"].map(|name| &total[name]);
    assert_eq!(
        [adds, runs, successes, failures, given_up],
        [8, 4, 1, 2, 1].map(Value::from).each_ref()
    );
    assert!(total["worked_p50"].is_number() && activity["minutes"][0]["ago"].is_number());
    let workers: Vec<_> = activity["workers"].as_array().expect("workers").iter().collect();
    let workers: Vec<_> =
        workers.iter().map(|worker| (&worker["name"], &worker["running"][0]["key"])).collect();
    let running = json!("running");
    assert_eq!(workers, [(&json!("other"), &Value::Null), (&json!("web <1>"), &running)]);
    let site = Served::within(Runtime::new().expect("a runtime"), Site::of_store(other));
    let shown = get(site.address, "/api/v1/activity?since=600").json();
    assert_eq!(shown["total"], *total, "both processes show the same numbers");

    let doc = get(served.address, "/api/v1/openapi.json").json();
    for (schema, value) in [
        ("Activity", &activity),
        ("Tally", total),
        ("Minute", &activity["minutes"][0]),
        ("Worker", &activity["workers"][0]),
    ] {
        let described = doc["components"]["schemas"][schema]["properties"].as_object();
        let named: std::collections::BTreeSet<_> =
            value.as_object().expect(schema).keys().collect();
        assert_eq!(named, described.expect(schema).keys().collect(), "{schema}");
    }
    for since in ["604801", "-1", "1h"] {
        let refused = get(served.address, &format!("/api/v1/activity?since={since}"));
        assert_eq!((refused.status, &refused.json()["parameter"]), (400, &json!("since")));
    }
    let summary = loop {
        // The task that reads the store may not have run yet.
        let summary = get(served.address, "/api/v1/summary").json();
        if summary["hour"]["runs"] == json!(4) {
            break summary;
        }
        std::thread::yield_now();
    };
    assert_eq!(summary["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(summary["given_up"], json!(1));
}

#[test]
fn minutes_are_summed_and_errors_are_grouped_for_all_processes() {
    let (served, queue, running, _dir) = served();
    served.runtime.block_on(running.retry("busy: 12 of 12")).expect("the lease is held");
    let activity = get(served.address, "/api/v1/activity?since=604800&parts=168").json();
    assert_eq!((&activity["step"], &activity["total"]["adds"]), (&json!(3600.0), &json!(7)));
    let parts = activity["minutes"].as_array().expect("parts").iter();
    assert_eq!(parts.map(|part| part["adds"].as_u64().unwrap()).sum::<u64>(), 7);
    for parts in ["0", "10081", "x"] {
        let refused = get(served.address, &format!("/api/v1/activity?parts={parts}"));
        assert_eq!((refused.status, &refused.json()["parameter"]), (400, &json!("parts")));
    }

    let of = |answer: &Value, name: &str| {
        let groups = answer["failures"].as_array().expect("groups").iter();
        groups.map(|group| group[name].clone()).collect::<Vec<_>>()
    };
    let failures = get(served.address, "/api/v1/failures").json();
    let errors = ["busy", "busy: # of #", "no such address"].map(Value::from);
    assert_eq!(of(&failures, "error"), errors);
    assert_eq!(of(&failures, "parked"), [0, 0, 1].map(Value::from));
    assert_eq!((&failures["keys"], &failures["waiting"]), (&json!(3), &json!(2)));
    assert!(failures["failures"][2]["last"].is_number(), "{failures}");
    let keys = keys(&served, "?error=busy:+%23+of+%23");
    assert_eq!(names(&keys), ["running"]);
    drop(queue);
}

#[test]
fn the_first_failure_of_an_error_is_known_from_the_last_failures_of_its_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        let soon = std::time::Duration::from_millis(1);
        let queue = store.queue("mail").backoff(soon, soon).open().await.expect("the queue opens");
        for (key, errors) in [
            ("all are kept", &["busy", "busy"][..]),
            ("the first is kept", &["other", "gone", "gone"]),
            ("an older one may be the first", &["late", "late", "late", "late"]),
        ] {
            queue.add(key).await.expect("added");
            for (n, error) in errors.iter().enumerate() {
                let item = queue.get().await.expect("the key is due");
                let is_last = n + 1 == errors.len();
                let ended =
                    if is_last { item.give_up(*error).await } else { item.retry(*error).await };
                ended.expect("the lease is held");
            }
        }
        queue
    });
    let served = Served::within(runtime, Site::of_store(queue));
    let failures = get(served.address, "/api/v1/failures").json();
    let groups = failures["failures"].as_array().expect("groups");
    let firsts = groups.iter().map(|group| (&group["error"], group["first"].as_f64()));
    let firsts: Vec<_> = firsts.map(|(error, first)| (error.as_str(), first.is_some())).collect();
    assert_eq!(firsts, [(Some("busy"), true), (Some("gone"), true), (Some("late"), false)]);
    let times = |group: &Value| ["first", "last"].map(|name| group[name].as_f64());
    assert!(times(&groups[0])[0] > times(&groups[0])[1], "{failures}");
}

#[test]
fn metrics_of_a_queue_in_a_store_have_families_in_both_formats() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let queue = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        let queue = store.queue("mail").metrics(&metrics).open().await.expect("the queue opens");
        queue.recent_counts().await.expect("counted");
        queue.recent_activity().await.expect("read");
        queue.add("a").await.expect("added");
        queue
    });
    let served = Served::within(runtime, Site::of_store(queue).registry(Arc::new(registry)));
    let shown = check_both_formats(served.address);
    assert!(shown.contains("\nworkqueue_parked{name=\"mail\"} 0\n"), "{shown}");
    assert!(shown.contains("\nworkqueue_fleet_workers{name=\"mail\"} 0\n"), "{shown}");
}

#[test]
fn a_damaged_row_is_shown_and_hides_no_other() {
    let Some(server) = requeue_servers::Redis::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = Store::connect(&server.url("")).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let queue = store.queue("mail").open().await.expect("the queue opens");
        queue.add_all(["bad", "ready"]).await.expect("added");
        queue
    });
    let rows = server.cli(&["keys", "*:rows"]);
    server.cli(&["hset", rows.trim(), "bad", "not a row"]);
    let served = Served::within(runtime, Site::of_store(queue));
    assert_eq!(names(&keys(&served, "")), ["bad", "ready"]);
    assert_eq!(names(&keys(&served, "?state=damaged")), ["bad"]);
    let row = get(served.address, "/api/v1/key?key=bad").json();
    assert_eq!(row["state"], json!("damaged"));
    assert_eq!(row["error"], json!("the row has 9 bytes"));
    assert_eq!(get(served.address, "/api/v1/summary").status, 200);
}

#[test]
fn each_action_changes_keys_of_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let hour = std::time::Duration::from_secs(3600);
    let queue = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        store.queue("mail").backoff(hour, hour).open().await.expect("the queue opens")
    });
    let served = Served::within(runtime, Site::of_store(queue.clone()).admin(token()));
    let state = |key: &str| {
        let answer = get(served.address, &format!("/api/v1/key?key={key}"));
        if answer.status == 404 { json!("none") } else { answer.json()["state"].clone() }
    };
    let block_on =
        |future| served.runtime.block_on::<std::pin::Pin<Box<dyn Future<Output = _>>>>(future);

    let added = act(
        &served,
        "add",
        json!({ "keys": [
            { "key": "a" }, { "key": "a" }, { "key": "later", "after": 90, "priority": 1 },
        ]}),
    );
    let results: Vec<_> = added["results"].as_array().expect("a list").iter().collect();
    assert!(results.contains(&&json!("new")) && results.contains(&&json!("coalesced")), "{added}");
    let item = block_on(Box::pin(queue.get())).expect("a key is ready");
    served.runtime.block_on(item.retry("busy")).expect("the lease is held");
    assert_eq!(state("a"), json!("waiting"));
    let named = json!({ "keys": [{ "key": "a" }, { "key": "later" }, { "key": "none" }] });
    let ran = act(&served, "run-now", named.clone());
    assert_eq!(ran, json!({ "changed": 2, "results": [true, true, false] }));
    assert_eq!((state("a"), state("later")), (json!("ready"), json!("ready")));

    // The higher priority comes first.
    let item = block_on(Box::pin(queue.get())).expect("a key is ready");
    assert_eq!(item.key().as_str(), Some("later"));
    let run = act(&served, "cancel-run", named.clone());
    assert_eq!(run, json!({ "changed": 1, "results": [false, true, false] }));
    served.runtime.block_on(item.cancelled());
    served.runtime.block_on(item.give_up("no such address")).expect("the lease is held");
    assert_eq!(act(&served, "revive", named.clone())["results"], json!([false, true, false]));
    assert_eq!(act(&served, "cancel", named)["changed"], json!(2));
    assert_eq!((state("a"), state("later")), (json!("none"), json!("none")));

    let keys: Vec<_> =
        (0..300).map(|n| json!({ "key": format!("key/{n}"), "after": 60 })).collect();
    act(&served, "add", json!({ "keys": keys }));
    let counted = get(served.address, "/api/v1/count?action=run-now&q=/1").json();
    assert_eq!(counted, json!({ "matched": 111 }));
    let body = json!({ "matching": { "q": "/1", "state": "waiting" }, "expected": 111 });
    assert_eq!(act(&served, "run-now", body), json!({ "changed": 111, "matched": 111 }));
    let counts = served.runtime.block_on(queue.counts()).expect("counted");
    assert_eq!((counts.ready, counts.waiting), (111, 189));
    let allowed = act(&served, "authenticate", json!({}));
    let allowed = allowed["actions"].as_array().expect("a list");
    let all = ["cancel", "cancel-run", "run-now", "revive", "add", "pause", "resume", "rate"];
    assert_eq!(allowed[..all.len()], all);
}

#[test]
fn the_rate_of_a_queue_and_of_a_group_is_set_for_all_workers() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    let (store, queue) = runtime.block_on(async {
        let store = Store::connect(&url).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let queue = store.queue("orders").group_by("^[^/]*").open().await;
        (store, queue.expect("the queue opens"))
    });
    let served = Served::within(runtime, Site::of_store(queue.clone()).admin(token()));
    let of_queue = || served.runtime.block_on(store.queues()).expect("listed")[0].rate;
    let of_group = || {
        let info = served.runtime.block_on(queue.group("acme").info()).expect("read");
        info.expect("it has settings").rate
    };
    let minute = Duration::from_secs(60);
    let rate = json!({ "starts": 90, "per": 60.0, "burst": 4 });
    let answer = json!({ "rate": &rate });
    assert_eq!(act(&served, "rate", answer.clone()), answer);
    assert_eq!(of_queue(), Some(Rate::new(90, minute).burst(4)));
    let change = json!({ "group": "acme", "rate": { "starts": 7, "per": 0.001 } });
    act(&served, "group-rate", change);
    assert_eq!(of_group(), Some(Rate::new(7, minute / 60_000)));
    assert_eq!(get(served.address, "/api/v1/summary").json()["rate"], rate);
    act(&served, "rate", json!({ "rate": null }));
    assert_eq!(get(served.address, "/api/v1/summary").json()["rate"], json!(null));
    // Another process sets the rate.
    let set = queue.set_rate(Some(Rate::new(90, minute).burst(4)));
    served.runtime.block_on(set).expect("set");
    while get(served.address, "/api/v1/summary").json()["rate"] != rate {
        std::thread::yield_now();
    }
    served.runtime.block_on(queue.set_rate(None)).expect("set");
    act(&served, "group-rate", json!({ "group": "acme", "rate": null }));
    assert_eq!((of_queue(), of_group()), (None, None));

    let served = Served::new(Site::builder(Keys::new()).admin(token()));
    let refused = post(&served, "rate", &answer);
    assert_eq!(refused.status, 404);
    assert!(refused.text().contains("only a queue in a store has one"), "{}", refused.text());
}

#[test]
fn a_queue_in_a_store_is_paused_for_all_workers() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let (queue, other) = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        let open = async || store.queue("mail").open().await.expect("the queue opens");
        (open().await, open().await)
    });
    runtime.block_on(queue.add("a")).expect("added");
    let served = Served::within(runtime, Site::of_store(queue).admin(token()));
    let why = || get(served.address, "/api/v1/key?key=a").json()["why"].to_string();
    assert_eq!(act(&served, "pause", json!({})), json!({ "status": "paused" }));
    assert!(served.runtime.block_on(other.is_paused()).expect("answered"));
    assert!(why().contains(", but the queue is paused"), "{}", why());
    assert_eq!(get(served.address, "/readyz").status, 200);
    assert_eq!(act(&served, "resume", json!({})), json!({ "status": "open" }));
    assert!(!why().contains("paused"), "{}", why());

    // Another process pauses the queue.
    served.runtime.block_on(other.pause()).expect("paused");
    while get(served.address, "/api/v1/summary").json()["status"] != json!("paused") {
        std::thread::yield_now();
    }

    // Debounced adds and cancelled runs are shown.
    served.runtime.block_on(async {
        other.resume().await.expect("resumed");
        let item = other.get().await.expect("the queue is open");
        let cancelled = other.cancel_running("a").await.expect("answered");
        assert_eq!(cancelled, CancelledRun::Cancelled);
        assert!(why().contains("its run was cancelled"), "{}", why());
        drop(item);
        let (quiet, most) = (Duration::from_secs(3600), Duration::from_secs(7200));
        let _ = other.add_with("b", Add::debounce(quiet).at_most(most)).await.expect("added");
    });
    let row = get(served.address, "/api/v1/key?key=b").json();
    let why = row["why"].as_str().expect("a sentence");
    assert!(why.starts_with("due in ") && why.contains("further adds postpone it"), "{row}");
}

#[test]
fn an_add_whose_answer_was_lost_is_unknown() {
    let Some(server) = requeue_servers::Redis::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        // The server has no replica that could confirm an add.
        let url = format!("{}?wait=1", server.url(""));
        let store = Store::connect(&url).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let opened = store.queue("mail").add_timeout(Duration::from_secs(1)).open().await;
        opened.expect("the queue opens")
    });
    let served = Served::within(runtime, Site::of_store(queue).admin(token()));
    let added = post(&served, "add", &json!({ "keys": [{ "key": "a" }] }));
    let (status, added) = (added.status, added.json());
    assert_eq!((status, &added["results"]), (503, &json!(["unknown"])), "{added}");
    let error = added["error"].as_str().expect("a text");
    assert!(error.ends_with("0 of 1 keys were added, and 1 may have been added"), "{error}");
}

/// A server that stalls keeps its connections, and a server that stops closes them. The state is read separately from
/// the counts, which can take long.
#[test]
fn a_site_follows_a_store_that_stalls_and_then_stops() {
    let Some(server) = requeue_servers::Postgres::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = Store::connect(&server.database()).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store.queue("mail").open().await.expect("the queue opens")
    });
    runtime.block_on(queue.add("a")).expect("added");
    let served = Served::within(runtime, Site::of_store(queue.clone()));
    let mut events = Events::of(served.address);
    let mut until = |is_so: &dyn Fn(&Value) -> bool| loop {
        let (_, tick) = events.next().expect("the site has not ended");
        if is_so(&tick) {
            break tick;
        }
    };
    let until_ready = |status| {
        while get(served.address, "/readyz").status != status {
            std::thread::yield_now();
        }
    };
    until(&|tick| tick["now"]["ready"] == json!(1));
    until_ready(200);

    server.freeze();
    let tick = until(&|tick| tick["status"] == json!("unreachable"));
    until_ready(503);
    // The last numbers are shown, with their age.
    assert_eq!(tick["now"]["ready"], json!(1));
    let age = |tick: &Value| tick["now"]["counts_age"].as_f64().expect("counted");
    let first = age(&tick);
    until(&|tick| age(tick) > first);

    server.thaw();
    until(&|tick| tick["status"] == json!("open"));
    until_ready(200);
    served.runtime.block_on(queue.add("b")).expect("added");
    until(&|tick| tick["now"]["ready"] == json!(2));

    server.stop();
    until(&|tick| tick["status"] == json!("unreachable"));
    until_ready(503);
}

#[test]
fn actions_are_recorded_in_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        store.queue("mail").group_by("^[^/]*").open().await.expect("the queue opens")
    });
    let served = Served::within(runtime, Site::of_store(queue.clone()).admin(token()));
    let runtime = served.runtime.handle();
    act(&served, "pause", json!({ "by": "ann", "note": "why" }));
    // The site knows immediately what it has recorded.
    assert_eq!(paused(&served), json!(["paused", "ann", "why"]));
    let group = || json!({ "group": "acme", "by": "ann" });
    let with = |name: &str, value: Value| {
        let mut body = group();
        body[name] = value;
        body
    };
    act(&served, "group-pause", with("note", json!("too many")));
    act(&served, "group-limit", with("limit", json!(3)));
    act(&served, "group-limit", json!({ "limit": null }));
    let rate = || json!({ "starts": 10, "per": 60.0 });
    act(&served, "group-rate", with("rate", rate()));
    act(&served, "group-cancel", group());
    act(&served, "rate", json!({ "rate": rate(), "by": "ann" }));
    let schedule = json!({ "key": "acme/daily", "spec": "@daily", "by": "ann" });
    act(&served, "schedule-add", schedule);
    act(&served, "schedule-remove", json!({ "key": "acme/none", "by": "ann" }));
    let program = ActionRecord::new("revive", "bob@ops-1").target("9 keys");
    runtime.block_on(queue.record_action(program)).expect("recorded");
    let of = |name: &str, target: &str| action(name, "ann", Some(target), None);
    let expected = [
        action("revive", "bob@ops-1", Some("9 keys"), None),
        of("schedule-add", "acme/daily"),
        of("rate", "10 per 60 s"),
        of("group-rate", "acme: 10 per 60 s"),
        action("group-limit", "127.0.0.1", Some("groups without another limit: none"), None),
        of("group-limit", "acme: 3"),
        action("group-pause", "ann", Some("acme"), Some("too many")),
        action("pause", "ann", None, Some("why")),
    ];
    assert_eq!(recorded(&served), expected);
    let by: Vec<_> =
        runtime.block_on(queue.last_actions(2)).expect("read").into_iter().map(|a| a.by).collect();
    assert_eq!(by, ["bob@ops-1", "ann"]);

    // Another process resumes and pauses the queue.
    runtime.block_on(async {
        queue.resume().await.expect("resumed");
        queue.pause().await.expect("paused");
        queue.record_action(ActionRecord::new("pause", "cron")).await.expect("recorded");
    });
    while paused(&served) != json!(["paused", "cron", null]) {
        std::thread::yield_now();
    }
}

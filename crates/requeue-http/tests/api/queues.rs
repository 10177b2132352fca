//! The site of all queues of a store.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use requeue::metrics::Metrics;
use requeue_http::{AccessToken, Role, Site};
use requeue_servers::Redis;
use requeue_store::{Add, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::admin::{TOKEN, token};
use crate::client::{Events, ask, get, send};
use crate::{Served, check_both_formats};

/// Opens the store in a file in `dir`, which may not exist yet.
pub(crate) async fn open_store(dir: &Path) -> Store {
    let url = format!("sqlite:{}", dir.join("queues.db").display());
    let store = Store::connect(&url).await.expect("the store opens");
    store.migrate().await.expect("the schema is made");
    store
}

/// A site of a store with the queues `mail`, with keys in all states, and `a/b <c>`, which is empty.
fn served() -> (Served, Store, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let store = runtime.block_on(async {
        let store = open_store(dir.path()).await;
        store.queue("a/b <c>").open().await.expect("the queue opens");
        let mail = store.queue("mail").open().await.expect("the queue opens");
        mail.add_all(["parked", "running"]).await.expect("added");
        let mut items = mail.get_many(2).await;
        items.sort_by_key(|item| item.to_string());
        let [parked, running] = items.try_into().expect("both");
        parked.give_up("no such address").await.expect("the lease is held");
        // The run stays in flight, like that of a killed worker.
        std::mem::forget(running);
        mail.add("ready").await.expect("added");
        let later = Add::after(Duration::from_secs(3600));
        mail.add_with("waiting", later).await.expect("added");
        // This call writes the numbers of this process.
        mail.activity(Duration::ZERO).await.expect("read");
        store
    });
    let site = Site::of_all_queues(store.clone(), |opening| opening).admin(token());
    (Served::within(runtime, site), store, dir)
}

fn list(served: &Served, query: &str) -> Value {
    get(served.address, &format!("/api/v1/queues{query}")).json()
}

/// Waits until the list meets a condition, and returns it. The first list may not contain all numbers.
fn list_when(served: &Served, is_met: impl Fn(&[Value]) -> bool) -> Value {
    loop {
        let list = list(served, "");
        if is_met(list["queues"].as_array().expect("rows")) {
            return list;
        }
        std::thread::yield_now();
    }
}

fn names(list: &Value) -> Vec<&str> {
    let rows = list["queues"].as_array().expect("rows");
    rows.iter().map(|row| row["name"].as_str().expect("text")).collect()
}

#[test]
fn all_queues_are_listed_with_their_numbers() {
    let (served, _store, _dir) = served();
    let is_read = |rows: &[Value]| rows.iter().all(|row| row["ready"].is_u64());
    let listed = list_when(&served, is_read);
    let [empty, mail] = &listed["queues"].as_array().expect("rows")[..] else {
        panic!("two queues: {listed}")
    };
    assert_eq!(
        (&empty["name"], &empty["path"]),
        (&json!("a/b <c>"), &json!("queues/a%2Fb%20%3Cc%3E/"))
    );
    let numbers = |row: &Value| {
        ["ready", "waiting", "running", "parked", "damaged", "failed", "given_up"]
            .map(|name| row[name].as_u64().expect(name))
    };
    assert_eq!(numbers(empty), [0; 7]);
    assert_eq!((&empty["oldest"], &empty["runs"]), (&Value::Null, &json!(0.0)));
    assert_eq!(numbers(mail), [1, 1, 1, 1, 0, 1, 1]);
    assert!(mail["oldest"].as_f64() > Some(0.0) && mail["workers"].is_u64(), "{mail}");
    // Two runs and a failure happened in the last four to five minutes.
    let [runs, failures] = ["runs", "failures"].map(|name| mail[name].as_f64().expect(name));
    assert!((0.006..=0.009).contains(&runs), "{runs}");
    assert!((0.003..=0.005).contains(&failures), "{failures}");
    assert_eq!((&mail["paused"], &mail["error"]), (&json!(false), &Value::Null));

    let doc = get(served.address, "/api/v1/openapi.json").json();
    for (schema, value) in [("Queues", &listed), ("Queue", mail)] {
        let described = doc["components"]["schemas"][schema]["properties"].as_object();
        let named: BTreeSet<_> = value.as_object().expect(schema).keys().collect();
        assert_eq!(named, described.expect(schema).keys().collect(), "{schema}");
    }
    let sorts = doc["paths"]["/api/v1/queues"]["get"]["parameters"][2]["schema"]["enum"].clone();
    for sort in sorts.as_array().expect("names").iter().filter(|sort| **sort != json!("name")) {
        let sort = sort.as_str().expect("text");
        let sorted = list(&served, &format!("?sort={sort}&order=desc"));
        assert_eq!(names(&sorted), ["mail", "a/b <c>"], "{sort}");
    }
    assert_eq!(names(&list(&served, "?q=AIL")), ["mail"]);
    let first = list(&served, "?limit=1");
    assert_eq!((names(&first), &first["more"]), (vec!["a/b <c>"], &json!(true)));
    for (query, parameter) in [("?limit=0", "limit"), ("?sort=age", "sort"), ("?x=1", "x")] {
        let refused = get(served.address, &format!("/api/v1/queues{query}"));
        assert_eq!((refused.status, &refused.json()["parameter"]), (400, &json!(parameter)));
    }
}

#[test]
fn each_queue_has_its_page_and_its_api_below_its_name() {
    let (served, store, _dir) = served();
    let server = served.address;
    let below = "/queues/a%2Fb%20%3Cc%3E";
    for (path, beside) in [("", "a%2Fb%20%3Cc%3E/"), ("/", ""), ("/?key=x", "")] {
        let page = get(server, &format!("{below}{path}"));
        let link = format!("<p id=\"all-queues\" ><a href=\"{beside}../../\">");
        assert!(page.status == 200 && page.text().contains(&link), "{path}: {}", page.text());
        assert!(page.text().contains("<h1>a/b &lt;c&gt;</h1>"));
    }
    let summary = get(server, &format!("{below}/api/v1/summary")).json();
    assert_eq!(summary["queue"], json!("a/b <c>"));
    let found = get(server, "/queues/mail/api/v1/keys?state=ready&limit=1").json();
    assert_eq!(found["keys"][0]["key"], json!("ready"));
    assert_eq!(get(server, "/queues/mail/nothing").status, 404);
    for path in ["/queues/none/", "/queues/%ff/", "/queues/", "/queues", "/api/v1/summary"] {
        let refused = get(server, path);
        assert_eq!(refused.status, 404, "{path}");
        assert!(refused.text().contains("/ lists the queues"), "{path}: {}", refused.text());
    }

    // Actions need the token, and change only their queue.
    let act = |path: &str, headers: &str, body: &Value| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {server}\r\n{headers}Content-Type: application/json"
        );
        send(server, &head, &body.to_string())
    };
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let body = json!({ "keys": [{ "key": "new" }] });
    let add = format!("{below}/api/v1/add");
    assert_eq!(act(&add, "", &body).status, 401);
    assert_eq!(act("/api/v1/add", &right, &body).status, 405);
    assert_eq!(act("/api/v1/queues", &right, &body).status, 405);
    let added = act(&add, &right, &body);
    assert_eq!(added.json(), json!({ "results": ["new"] }));
    assert_eq!(act(&format!("{below}/api/v1/pause"), &right, &json!({})).status, 200);
    let listed = list_when(&served, |rows| rows[0]["ready"] == json!(1));
    let paused = listed["queues"].as_array().expect("rows").iter().map(|row| &row["paused"]);
    assert_eq!(paused.collect::<Vec<_>>(), [&json!(true), &json!(false)]);
    drop(store);
}

#[test]
fn requests_of_other_sites_reach_no_queue() {
    let (served, _store, _dir) = served();
    let server = served.address;
    for path in
        ["/", "/api/v1/queues", "/queues/mail/", "/queues/mail/api/v1/keys", "/queues/none/"]
    {
        let refused = ask(server, &format!("GET {path} HTTP/1.1\r\nHost: example.org"));
        assert_eq!(refused.status, 403, "{path}");
        let head = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nSec-Fetch-Site: cross-site");
        let refused = ask(server, &head);
        assert_eq!(refused.status, 403, "{path}");
        assert_eq!(refused.header("x-frame-options"), "DENY", "{path}");
    }
}

#[test]
fn queues_come_and_go_while_they_are_served() {
    let (served, store, _dir) = served();
    let has = |name: &'static str| {
        move |rows: &[Value]| rows.iter().any(|row| row["name"] == json!(name))
    };
    let new = served.runtime.block_on(async {
        let new = store.queue("new").open().await.expect("the queue opens");
        new.add("a").await.expect("added");
        new
    });
    list_when(&served, has("new"));
    let mut events = Events::at(served.address, "/queues/new/api/v1/events");
    assert_eq!(events.next().expect("an event").0, "history");
    served.runtime.block_on(store.force_drop_queue("new")).expect("dropped");
    list_when(&served, |rows| !has("new")(rows));
    assert_eq!(get(served.address, "/queues/new/").status, 404);
    // The open dashboards of the queue are notified.
    while events.next().expect("the end comes first").0 != "ended" {}

    // A queue that is created again is another queue.
    served.runtime.block_on(async {
        let again = store.queue("new").open().await.expect("the queue opens");
        again.add_all(["b", "c"]).await.expect("added");
    });
    list_when(&served, |rows| {
        rows.iter().any(|row| row["name"] == json!("new") && row["ready"] == json!(2))
    });
    let found = get(served.address, "/queues/new/api/v1/keys").json();
    assert_eq!(found["keys"].as_array().map(Vec::len), Some(2));
    drop(new);
}

#[test]
fn a_queue_that_is_created_again_at_once_gets_another_site() {
    let (served, store, _dir) = served();
    assert_eq!(get(served.address, "/queues/mail/api/v1/key?key=ready").status, 200);
    let mut events = Events::at(served.address, "/queues/mail/api/v1/events");
    served.runtime.block_on(async {
        store.force_drop_queue("mail").await.expect("dropped");
        store.queue("mail").open().await.expect("the queue opens").add("b").await.expect("added");
    });
    while events.next().expect("the end comes first").0 != "ended" {}
    assert_eq!(get(served.address, "/queues/mail/api/v1/key?key=b").status, 200);
}

#[test]
fn a_queue_that_cannot_be_read_shows_the_error_instead_of_numbers() {
    let (served, _store, dir) = served();
    let file = rusqlite::Connection::open(dir.path().join("queues.db")).expect("the file opens");
    file.execute_batch("ALTER TABLE activity RENAME TO elsewhere").expect("renamed");
    let listed = list_when(&served, |rows| rows.iter().all(|row| row["error"].is_string()));
    for row in listed["queues"].as_array().expect("rows") {
        assert!(row["error"].as_str().expect("text").contains("activity"), "{row}");
        assert_eq!((&row["ready"], &row["runs"]), (&Value::Null, &Value::Null));
    }
    file.execute_batch("ALTER TABLE elsewhere RENAME TO activity").expect("renamed");
    list_when(&served, |rows| {
        rows.iter().all(|row| row["ready"].is_u64() && row["error"].is_null())
    });

    // Without the table of queues, the last list is returned, with the error.
    assert_eq!(get(served.address, "/readyz").status, 200);
    file.execute_batch("ALTER TABLE queues RENAME TO elsewhere").expect("renamed");
    let listed = loop {
        let listed = list(&served, "");
        if listed["error"].is_string() {
            break listed;
        }
        std::thread::yield_now();
    };
    assert_eq!(names(&listed), ["a/b <c>", "mail"]);
    assert_eq!(get(served.address, "/readyz").status, 503);
}

#[test]
fn metrics_have_the_names_of_all_queues() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let store = runtime.block_on(open_store(dir.path()));
    for name in ["mail", "idle"] {
        runtime.block_on(store.queue(name).open()).expect("the queue opens");
    }
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let site = Site::of_all_queues(store, move |opening| opening.metrics(&metrics));
    let served = Served::within(runtime, site.registry(Arc::new(registry)));
    let depth = |name: &str| format!("\nworkqueue_depth{{name=\"{name}\"}} 0\n");
    // The first scrapes wait for the numbers for a short time.
    while ["mail", "idle"]
        .iter()
        .any(|name| !get(served.address, "/metrics").text().contains(&depth(name)))
    {}
    let shown = check_both_formats(served.address);
    assert!(shown.contains("\nworkqueue_fleet_workers{name=\"idle\"} 0\n"), "{shown}");
}

#[test]
fn all_queues_can_be_mounted_below_a_path() {
    let (served, store, _dir) = served();
    let site = Site::of_all_queues(store, |opening| opening);
    let inside = served.runtime.enter();
    let app = Router::new().nest_service("/ops/jobs", site.build().router());
    drop(inside);
    let listener = served.runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let server = listener.local_addr().expect("an address");
    served.runtime.spawn(async move { axum::serve(listener, app).await });
    for (path, beside) in [("/ops/jobs", "jobs/"), ("/ops/jobs/", "")] {
        let page = get(server, path);
        let script = format!("src=\"{beside}queues.js\"");
        assert!(page.status == 200 && page.text().contains(&script), "{path}: {}", page.text());
    }
    for path in [
        "queues.js",
        "list.js",
        "api/v1/queues",
        "queues/mail",
        "queues/mail/",
        "queues/mail/app.js",
    ] {
        assert_eq!(get(server, &format!("/ops/jobs/{path}")).status, 200, "{path}");
    }
    let page = get(server, "/ops/jobs/queues/mail");
    assert!(page.text().contains("src=\"mail/app.js\""), "{}", page.text());
}

#[test]
fn a_large_queue_on_redis_is_walked_without_an_order() {
    const KEYS: usize = 10_500;
    let Some(server) = Redis::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let queue = runtime.block_on(async {
        let store = Store::connect(&server.url("")).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let queue = store.queue("mail").open().await.expect("the queue opens");
        queue.add_all((0..KEYS).map(|n| format!("{n:05}"))).await.expect("added");
        queue
    });
    let served = Served::within(runtime, Site::of_store(queue));
    let walk = |filter: &str| {
        let (mut found, mut cursor, mut pages) = (BTreeSet::new(), String::new(), 0);
        loop {
            let path = format!("/api/v1/keys?limit=100{filter}{cursor}");
            let page = get(served.address, &path).json();
            let rows = page["keys"].as_array().expect("rows");
            found.extend(rows.iter().map(|row| row["key"].as_str().expect("text").to_owned()));
            pages += 1;
            let Some(next) = page["next"].as_str() else { return (found, pages) };
            cursor = format!("&cursor={}", next.replace('+', "%2B"));
        }
    };
    let (found, pages) = walk("");
    assert!(found.len() == KEYS && pages > 5, "{} keys, {pages} pages", found.len());
    let all = (0..KEYS).map(|n| format!("{n:05}"));
    assert_eq!(walk("&q=0042").0, all.filter(|key| key.contains("0042")).collect());
    assert!(walk("&state=waiting").0.is_empty() && walk("&state=parked").0.is_empty());
    // No response contained these positions: one of another shard, and one that is not a number.
    for (cursor, status) in [("cwABMA", 200), ("cwAAeA", 400), ("cwA", 400), ("eA", 400)] {
        let answer = get(served.address, &format!("/api/v1/keys?cursor={cursor}"));
        assert_eq!(answer.status, status, "{cursor}: {}", answer.text());
    }
}

#[test]
fn a_client_without_a_token_opens_no_queue() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let store = runtime.block_on(open_store(dir.path()));
    let reader = AccessToken::new("read-0123456789abcdef").expect("it is long enough");
    let site = Site::of_all_queues(store, |opening| opening);
    let served = Served::within(runtime, site.admin(token()).token(Role::Read, reader));
    let server = served.address;
    // A queue that does not exist is looked up in the store only after the check, so the answer is not 404.
    for (method, path, token, status) in [
        ("GET", "", "wrong", 401),
        ("GET", "/", "wrong", 401),
        ("GET", "/api/v1/keys", "wrong", 401),
        ("GET", "/api/v1/keys", "read-0123456789abcdef", 404),
        ("GET", "/healthz", "", 404),
        ("GET", "/api/v1/add", TOKEN, 405),
        ("POST", "/api/v1/keys", TOKEN, 405),
        ("POST", "/api/v1/add", "wrong", 401),
        ("POST", "/api/v1/add", "read-0123456789abcdef", 403),
        ("POST", "/api/v1/add", TOKEN, 404),
    ] {
        let head = format!(
            "{method} /queues/none{path} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json"
        );
        let answer = send(server, &head, "{}");
        assert_eq!(answer.status, status, "{method} {path} {token}: {}", answer.text());
    }
}

//! Tests of the API over loopback.

mod admin;
mod client;
mod events;
mod failures;
#[cfg(feature = "store")]
mod groups;
mod keys;
mod operators;
#[cfg(feature = "store")]
mod queues;
mod refusals;
#[cfg(feature = "store")]
mod schedules;
#[cfg(feature = "store")]
mod store;
mod timeline;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use client::{ask, get};
use prometheus_client::registry::Registry;
use requeue::clock::FakeClock;
use requeue::metrics::Metrics;
use requeue::{Queue, ReaddPolicy};
use requeue_http::{Builder, Detail, Section, Site};
use requeue_servers::check_metrics;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

type Keys = Queue<Vec<u8>>;

/// A site on a separate port.
struct Served {
    site: Site,
    address: SocketAddr,
    server: JoinHandle<std::io::Result<()>>,
    runtime: Runtime,
}

impl Served {
    fn new<K: 'static>(site: Builder<K>) -> Self {
        Self::within(Runtime::new().expect("a runtime"), site)
    }

    fn within<K: 'static>(runtime: Runtime, site: Builder<K>) -> Self {
        let _inside = runtime.enter();
        let site = site.build();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let served = site.clone();
        let server = runtime.spawn(async move { served.serve(listener).await });
        Self { site, address, server, runtime }
    }
}

/// A queue that keeps times, with a fake clock.
fn queue() -> (Keys, FakeClock) {
    let clock = FakeClock::new();
    let queue = Queue::builder().clock(clock.clone()).readd_policy(ReaddPolicy::Hold).track_times();
    (queue.build().expect("the settings are valid"), clock)
}

#[test]
fn the_summary_has_counts_ages_and_what_runs_longest() {
    let (queue, clock) = queue();
    queue.add_all((0..5).map(|n| vec![b'a' + n]));
    queue.add(b"a".to_vec());
    let first = queue.try_get().unwrap();
    clock.advance(Duration::from_secs(60));
    let second = queue.try_get().unwrap();
    queue.try_get().unwrap().retry();
    queue.add_after(b"later".to_vec(), Duration::from_secs(1));
    clock.advance(Duration::from_secs(0));

    let served = Served::new(Site::builder(queue.clone()).title("letters"));
    let summary = get(served.address, "/api/v1/summary").json();
    assert_eq!(summary["title"], json!("letters"));
    assert_eq!(summary["status"], json!("open"));
    let now = &summary["now"];
    for (name, number) in [
        ("keys", 6),
        ("ready", 2),
        ("running", 2),
        ("waiting", 1),
        ("backing_off", 1),
        ("dirty", 0),
        ("adds", 7),
        ("coalesced", 1),
        ("runs", 3),
        ("failures", 1),
        ("queued", 3),
        ("worked", 1),
    ] {
        assert_eq!(now[name], json!(number), "{name}");
    }
    assert_eq!(now["queued_seconds"], json!(120.0));
    assert_eq!((&now["parked"], &now["damaged"]), (&json!(null), &json!(null)));
    assert_eq!(summary["jobs"], json!(null));
    assert_eq!(summary["oldest_ready"], json!(60.0));
    assert_eq!(summary["longest_running"], json!(60.0));
    let longest = summary["longest"].as_array().unwrap();
    let keys: Vec<_> = longest.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(longest[0]["why"], json!("in flight, for 60.0s"));
    drop((first, second));
}

#[test]
fn the_program_adds_tables_and_the_reasons_of_keys() {
    let (queue, _) = queue();
    queue.add_after(b"a".to_vec(), Duration::from_secs(5));
    queue.add(b"b".to_vec());
    let site = Site::builder(queue)
        .detail(|key| match &key[..] {
            b"a" => Detail::new().why("waits for its upload"),
            _ => Detail::new(),
        })
        .section(|| Some(Section::new("Replicas", ["name", "shards"]).row(["<a>", "3"]).row(["b"])))
        .section(|| None)
        .section(|| panic!("on purpose"))
        .section(|| Some(Section::new("Empty", ["name"])));
    let served = Served::new(site);
    let expected = json!({ "sections": [
        { "title": "Replicas", "columns": ["name", "shards"], "rows": [["<a>", "3"], ["b", ""]] },
        { "title": "Empty", "columns": ["name"], "rows": [] },
    ] });
    assert_eq!(get(served.address, "/api/v1/sections").json(), expected);
    assert_eq!(get(served.address, "/api/v1/sections?a=b").status, 400);
    let why =
        |key: &str| get(served.address, &format!("/api/v1/key?key={key}")).json()["why"].clone();
    assert_eq!(why("a"), json!("waiting; ready in 5.0s; waits for its upload"));
    assert!(!why("b").as_str().unwrap().contains("upload"));
    let page = get(served.address, "/");
    assert!(page.text().contains("data-sections=\"4\""));
}

#[test]
fn without_times_there_are_none_and_all_else_works() {
    let queue = Keys::new();
    queue.add_all([b"a".to_vec(), b"b".to_vec()]);
    let item = queue.try_get().unwrap();
    let served = Served::new(Site::builder(queue.clone()));
    let summary = get(served.address, "/api/v1/summary").json();
    assert_eq!(summary["title"], json!("requeue"));
    assert_eq!(summary["times"], json!(false));
    assert_eq!(summary["longest_running"], json!(null));
    let running = get(served.address, "/api/v1/keys?state=running").json();
    assert_eq!(running["keys"][0]["key"], json!("a"));
    assert_eq!(running["keys"][0]["age"], json!(null));
    assert_eq!(running["keys"].as_array().unwrap().len(), 1);
    drop(item);
}

#[test]
fn the_status_follows_the_queue() {
    let (queue, _) = queue();
    queue.add(b"a".to_vec());
    let served = Served::new(Site::builder(queue.clone()));
    let status = || {
        let summary = get(served.address, "/api/v1/summary").json();
        summary["status"].as_str().unwrap().to_owned()
    };
    queue.pause();
    assert_eq!(status(), "paused");
    queue.resume();
    queue.close();
    assert_eq!(status(), "closed");
    assert_eq!(get(served.address, "/readyz").status, 200);
    queue.shut_down();
    assert_eq!(status(), "shut_down");
    assert_eq!(get(served.address, "/readyz").status, 503);
    assert_eq!(get(served.address, "/healthz").text(), "ok\n");
}

#[test]
fn readiness_and_health_are_the_programs_to_refuse() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let [ready, healthy] = [false, false].map(|no| Arc::new(AtomicBool::new(no)));
    let asked = [&ready, &healthy].map(Arc::clone);
    let [is_ready, is_healthy] = asked.map(|asked| move || asked.load(Ordering::SeqCst));
    let served = Served::new(Site::builder(Keys::new()).ready(is_ready).healthy(is_healthy));
    let statuses = || ["/readyz", "/healthz"].map(|path| get(served.address, path).status);
    assert_eq!(statuses(), [503, 503]);
    ready.store(true, Ordering::SeqCst);
    assert_eq!(statuses(), [200, 503]);
    healthy.store(true, Ordering::SeqCst);
    assert_eq!(statuses(), [200, 200]);
}

/// Checks each family in both formats. Returns the response to a client without an `Accept` header.
#[track_caller]
fn check_both_formats(server: SocketAddr) -> String {
    let classic = get(server, "/metrics");
    assert_eq!(classic.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let asked = format!("GET /metrics HTTP/1.1\r\nHost: {server}\r\n{accept}");
    let open = ask(server, &asked);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), kind);
    assert_eq!(
        [&classic, &open].map(|answer| (answer.status, answer.header("vary"))),
        [(200, "Accept"); 2]
    );
    let families = check_metrics(classic.text(), false);
    // The first reads of a store add families. A family that was added between the two requests is in one of them.
    if families != check_metrics(get(server, "/metrics").text(), false) {
        return check_both_formats(server);
    }
    let without_suffix: Vec<_> =
        families.iter().map(|name| name.trim_end_matches("_total")).collect();
    assert_eq!(without_suffix, check_metrics(open.text(), true));
    classic.text().to_owned()
}

#[test]
fn metrics_are_those_of_the_registry_or_none() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let queue: Keys = Queue::builder().name("letters").metrics(&metrics).build().unwrap();
    queue.add(b"a".to_vec());
    let served = Served::new(Site::builder(queue).registry(Arc::new(registry)));
    let shown = check_both_formats(served.address);
    assert!(shown.contains("\nworkqueue_depth{name=\"letters\"} 1\n"), "{shown}");
    // The title is the name of the queue by default.
    let summary = get(served.address, "/api/v1/summary").json();
    assert_eq!((&summary["title"], &summary["queue"]), (&json!("letters"), &json!("letters")));

    let served = Served::new(Site::builder(Keys::new()));
    assert_eq!(get(served.address, "/metrics").status, 404);
}

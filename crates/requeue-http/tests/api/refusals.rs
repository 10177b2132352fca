//! Requests that are refused, and the security headers.

use requeue_http::Site;
use serde_json::json;

use crate::client::{ask, get};
use crate::{Keys, Served};

const PATHS: [&str; 33] = [
    "/",
    "/style.css",
    "/plot.css",
    "/overview.css",
    "/keys.css",
    "/admin.css",
    "/admin.js",
    "/api/v1/openapi.json",
    "/api.js",
    "/app.js",
    "/charts.js",
    "/dom.js",
    "/failures.js",
    "/standing.js",
    "/key.js",
    "/timeline.js",
    "/view.js",
    "/format.js",
    "/groups.js",
    "/schedules.js",
    "/list.js",
    "/plot.js",
    "/sections.js",
    "/table.js",
    "/icon.svg",
    "/healthz",
    "/readyz",
    "/api/v1/summary",
    "/api/v1/keys",
    "/api/v1/key?key=a",
    "/api/v1/timeline?key=a",
    "/api/v1/sections",
    "/nothing",
];

#[test]
fn errors_name_the_parameter_that_is_wrong() {
    let served = Served::new(Site::builder(Keys::new()));
    for (query, parameter) in [
        ("keys?state=stuck", "state"),
        ("keys?state=Ready", "state"),
        ("keys?limit=0", "limit"),
        ("keys?limit=257", "limit"),
        ("keys?limit=-1", "limit"),
        ("keys?limit=ten", "limit"),
        ("keys?cursor=x", "cursor"),
        ("keys?cursor=99999999999", "cursor"),
        ("keys?cursor=0", "cursor"),
        ("keys?cursor=000000000000000000000000", "cursor"),
        ("keys?cursor=%c3%a9%c3%a9%c3%a9%c3%a9%c3%a9%c3%a9%c3%a9%c3%a9%c3%a9", "cursor"),
        ("keys?cursor=%ff", "cursor"),
        ("keys?q=%ff", "q"),
        ("keys?q=a&q=b", "q"),
        ("keys?sort=why", "sort"),
        ("keys?sort=age&order=up", "order"),
        ("keys?order=desc", "order"),
        ("keys?sort=age&cursor=x", "cursor"),
        ("keys?sort=age&limit=1001", "limit"),
        ("keys?failed=yes", "failed"),
        ("keys?state=failing", "state"),
        ("summary?a", "a"),
        ("key", "key"),
        ("key?key_base64=!", "key_base64"),
        ("key?key=a&key_base64=YQ", "key_base64"),
    ] {
        let answer = get(served.address, &format!("/api/v1/{query}"));
        let problem = answer.json();
        assert_eq!((answer.status, &problem["parameter"]), (400, &json!(parameter)), "{query}");
        assert!(problem["error"].as_str().unwrap().starts_with(&format!("{parameter}: ")));
    }
    let answer = get(served.address, "/api/v1/nothing");
    assert_eq!(
        (answer.status, answer.json()),
        (404, json!({ "error": "no such path; the dashboard is at /" }))
    );
}

#[test]
fn foreign_hosts_are_refused_whatever_they_ask_for() {
    let served = Served::new(Site::builder(Keys::new()).host("build.example.org"));
    let server = served.address;
    for path in PATHS {
        for host in ["example.org", "127.0.0.1.example.org:80", "10.0.0.1"] {
            let answer = ask(server, &format!("GET {path} HTTP/1.1\r\nHost: {host}"));
            assert_eq!(answer.status, 403, "{path} {host}");
            assert!(answer.json()["error"].as_str().unwrap().contains(host));
        }
        // The host is named in the request line.
        let head = format!("GET http://example.org{path} HTTP/1.1\r\nHost: localhost");
        assert_eq!(ask(server, &head).status, 403, "{path}");
    }
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: example.org";
    assert!([400, 403].contains(&ask(server, head).status));
    for host in ["localhost", "localhost:1", "[::1]:80", "build.example.org"] {
        assert_eq!(ask(server, &format!("GET / HTTP/1.1\r\nHost: {host}")).status, 200, "{host}");
    }
}

/// A page of another site cannot read a response, but could measure its duration, because a search that finds a key is
/// faster.
#[test]
fn other_sites_are_refused_before_any_key_is_looked_for() {
    let queue = Keys::new();
    queue.add(b"secret".to_vec());
    let served = Served::new(Site::builder(queue));
    let server = served.address;
    let asked = |path: &str, headers: &str| {
        ask(server, &format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n{headers}"))
    };
    let foreign = |site: &str, mode: &str, dest: &str| {
        format!("Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: {dest}")
    };
    for path in PATHS.into_iter().chain(["/api/v1/keys?q=secret", "/api/v1/events"]) {
        let several = "same-origin\r\nSec-Fetch-Site: cross-site";
        for site in ["cross-site", "same-site", "Cross-Site", "", several] {
            for (mode, dest) in [
                ("no-cors", "empty"),
                ("cors", "empty"),
                ("no-cors", "image"),
                ("navigate", "iframe"),
            ] {
                let answer = asked(path, &foreign(site, mode, dest));
                assert_eq!(answer.status, 403, "{path} {site} {mode} {dest}");
            }
            // A link that a user follows to the dashboard.
            let status = asked(path, &foreign(site, "navigate", "document")).status;
            assert_eq!(status == 403, path.starts_with("/api/"), "{path} {site}");
        }
    }
    // The dashboard itself, a typed address, and a client that is not a browser.
    for headers in [&foreign("same-origin", "cors", "empty"), "Sec-Fetch-Site: none", "X: y"] {
        assert_eq!(asked("/api/v1/keys?q=secret", headers).status, 200, "{headers}");
    }
}

#[test]
fn nothing_can_be_changed() {
    let served = Served::new(Site::builder(Keys::new()));
    let server = served.address;
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in PATHS {
            let answer = ask(server, &format!("{method} {path} HTTP/1.1\r\nHost: {server}"));
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.header("allow"), "GET, HEAD");
        }
    }
    for path in PATHS {
        let (head, whole) = (format!("HEAD {path} HTTP/1.1\r\nHost: {server}"), get(server, path));
        let answer = ask(server, &head);
        assert_eq!((answer.status, answer.body.len()), (whole.status, 0), "{path}");
        assert_eq!(answer.header("content-type"), whole.header("content-type"), "{path}");
    }
}

#[test]
fn every_answer_is_strict_with_browsers() {
    let served = Served::new(Site::builder(Keys::new()));
    let server = served.address;
    let foreign = ask(server, "GET / HTTP/1.1\r\nHost: example.org");
    let post = ask(server, &format!("POST / HTTP/1.1\r\nHost: {server}"));
    for answer in PATHS.map(|path| get(server, path)).into_iter().chain([foreign, post]) {
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
}

#[test]
fn the_page_finds_what_belongs_to_it_wherever_it_is_mounted() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let site = Site::builder(Keys::new()).title("a <b> & \"c\"").build();
    let app = axum::Router::new()
        .nest_service("/some/queue", site.router())
        .nest("/other", site.router());
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, app).await });
    let page = get(server, "/some/queue");
    assert!(page.text().contains("src=\"queue/app.js\""));
    assert!(page.text().contains("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
    assert!(get(server, "/other").text().contains("src=\"other/app.js\""));
    assert_eq!(get(server, "/other/app.js").status, 200);
    let page = get(server, "/some/queue/");
    assert_eq!(page.status, 200);
    assert!(page.text().contains("src=\"app.js\""));
    for path in PATHS {
        let own = get(server, &format!("/some/queue{path}"));
        let status = if ["/api/v1/key?key=a", "/nothing"].contains(&path) { 404 } else { 200 };
        assert_eq!(own.status, status, "{path}");
        assert_eq!(own.header("x-content-type-options"), "nosniff", "{path}");
    }
}

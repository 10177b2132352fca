//! Fuzzes the requests to the dashboard and the API.

use std::collections::BTreeSet;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode, Uri, header};
use requeue::Queue;
use requeue_http::Site;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower_service::Service;

/// The number of keys in the queue. Some of them are in flight.
const KEYS: u32 = 300;
const RUNNING: usize = 20;

/// The input consists of a line with the method and the target, in which `NEXT` stands for the
/// cursor of an earlier page. The lines of headers follow.
///
/// Oracle: each response has the headers for browsers, and a status that the request explains. Only
/// `GET` and `HEAD` requests to a name of this machine are answered. A cursor that the server did
/// not issue is refused, and a walk through all pages returns each key exactly once.
pub fn http(data: &[u8]) {
    thread_local! {
        static FIXTURE: Fixture = Fixture::new();
    }
    FIXTURE.with(|fixture| fixture.runtime.block_on(fixture.attempt(data)));
}

struct Fixture {
    runtime: Runtime,
    router: Router,
    /// A valid cursor of each order.
    next: [String; 2],
}

impl Fixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let inside = runtime.enter();
        let queue = Queue::builder().track_times().build().expect("the settings are valid");
        queue.add_all((0..KEYS).map(|n| match n % 3 {
            0 => format!("key/{n}").into_bytes(),
            1 => n.to_le_bytes().to_vec(),
            _ => format!("\u{202e}\\ <{n}>\n").into_bytes(),
        }));
        for _ in 0..RUNNING {
            // The key stays in flight as long as this thread lives.
            std::mem::forget(
                queue.try_get().map(requeue::Item::into_owned).expect("a key is ready"),
            );
        }
        let router = Site::builder(queue).build().router();
        drop(inside);
        let mut fixture = Self { runtime, router, next: [const { String::new() }; 2] };
        let next = ["", "&state=running"].map(|state| {
            let request = get(&format!("/api/v1/keys?limit=3{state}"));
            let page = fixture.runtime.block_on(fixture.json(request));
            page["next"].as_str().expect("a cursor").to_owned()
        });
        fixture.next = next;
        fixture
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        match self.router.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    async fn json(&self, request: Request<Body>) -> Value {
        let body = self.answer(request).await.into_body();
        let body = to_bytes(body, usize::MAX).await.expect("the body is in memory");
        serde_json::from_slice(&body).expect("JSON")
    }

    async fn attempt(&self, data: &[u8]) {
        let Some(request) = self.request(data) else { return };
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let is_local = hosts.all(|host| may_be_local(host.as_bytes()))
            && uri.authority().is_none_or(|authority| may_be_local(authority.as_str().as_bytes()));
        let response = self.answer(request).await;
        let (status, path) = (response.status(), uri.path());

        for name in ["content-security-policy", "x-content-type-options", "x-frame-options"] {
            assert_eq!(response.headers().get_all(name).iter().count(), 1, "{name} of {uri}");
        }
        assert!([200, 400, 403, 404, 405].contains(&status.as_u16()), "{method} {uri}: {status}");
        let is_read = [Method::GET, Method::HEAD].contains(&method);
        assert!(status != StatusCode::OK || (is_read && is_local), "{method} {uri}: {status}");
        assert!(is_read || [403, 405].contains(&status.as_u16()), "{method} {uri}: {status}");
        // The stream of events never ends.
        if method != Method::GET || path == "/api/v1/events" {
            return;
        }
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("the body is in memory");
        if status != StatusCode::OK {
            let said: Value = serde_json::from_slice(&body).expect("JSON");
            assert!(said["error"].as_str().is_some_and(|error| !error.is_empty()), "{uri}: {said}");
        } else if path == "/api/v1/keys" {
            self.walk(&uri, serde_json::from_slice(&body).expect("JSON")).await;
        } else if path.starts_with("/api/") {
            let _: Value = serde_json::from_slice(&body).expect("JSON");
        }
    }

    fn request(&self, data: &[u8]) -> Option<Request<Body>> {
        let mut lines = data.split(|&byte| byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let (method, target) = first.split_once(' ')?;
        let next = &self.next[usize::from(target.contains("running"))];
        let mut request = Request::builder().method(method).uri(target.replace("NEXT", next));
        for line in lines {
            let colon = line.iter().position(|&byte| byte == b':')?;
            request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
        }
        request.body(Body::empty()).ok()
    }

    /// Walks from a page to the last page.
    async fn walk(&self, uri: &Uri, mut page: Value) {
        let params: Vec<_> = uri.query().unwrap_or_default().split('&').collect();
        let cursor = params.iter().find_map(|param| param.strip_prefix("cursor="));
        let is_parked = params.contains(&"state=parked");
        if let Some(cursor) = cursor.filter(|cursor| !cursor.is_empty() && !is_parked) {
            assert!(self.next.iter().any(|next| next == cursor), "{uri} was not refused");
        }
        let others: Vec<_> = params
            .iter()
            .filter(|param| !param.contains("cursor") && !param.contains('%'))
            .collect();
        let (mut seen, mut pages) = (BTreeSet::new(), 0);
        loop {
            for row in page["keys"].as_array().expect("a list") {
                let key = row["key_base64"].as_str().expect("the keys are short").to_owned();
                assert!(seen.insert(key), "{uri}: {row} twice");
            }
            let Some(next) = page["next"].as_str() else { break };
            // The parameter may be an escaped form of the name of the cursor.
            if params.iter().any(|param| param.contains('%')) {
                return;
            }
            pages += 1;
            assert!(pages <= KEYS, "{uri} does not end");
            let query: String = others.iter().map(|param| format!("{param}&")).collect();
            page = self.json(get(&format!("/api/v1/keys?{query}cursor={next}"))).await;
        }
        let is_whole = others.iter().all(|param| param.is_empty() || param.starts_with("limit="));
        if cursor.is_none_or(str::is_empty) && is_whole && others.len() == params.len() {
            assert_eq!(seen.len(), KEYS as usize, "{uri}");
        }
    }
}

fn get(target: &str) -> Request<Body> {
    Request::get(target).body(Body::empty()).expect("a request")
}

/// Returns true if a host contains a name of this machine.
fn may_be_local(host: &[u8]) -> bool {
    let host = host.to_ascii_lowercase();
    let has = |part: &[u8]| host.windows(part.len()).any(|window| window == part);
    has(b"localhost") || has(b"127.") || has(b"::") || has(b"0:1")
}

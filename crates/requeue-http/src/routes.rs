//! The routes of the site of one queue, and the checks that each request must pass.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{OriginalUri, RawQuery, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus_client::encoding::text;

use crate::access::Access;
use crate::actions;
use crate::api::{
    Action, GroupAction, KeyList, NOT_IN_QUEUE, Named, ScheduleAction, Status, WorkAction,
    is_action,
};
use crate::events;
use crate::exposition::Format;
use crate::failures::Failures;
use crate::groups;
use crate::hosts::Hosts;
use crate::params::{Params, Problem, json, no_key};
use crate::recording::export_recording;
use crate::schedules;
use crate::sections::read_sections;
use crate::source::{Begin, Column, Found, Selection, Sort, Walk};
use crate::state::{Settings, SiteState};
use crate::time::unix_time;
use crate::work;

type Site = State<Arc<SiteState>>;
/// The status and the text of the response to a probe.
pub(crate) type Probe = (StatusCode, &'static str);

/// Returns the routes of the actions. Only a site with a token that permits actions has them.
fn action_routes() -> Router<Arc<SiteState>> {
    let mut router = Router::new()
        .route("/api/v1/count", get(actions::count_keys))
        .route("/api/v1/authenticate", post(actions::authenticate))
        .route("/api/v1/add", post(actions::add_keys))
        .route("/api/v1/rate", post(actions::set_rate))
        .route("/api/v1/pause", post(|site, request| actions::set_paused(site, request, true)))
        .route("/api/v1/resume", post(|site, request| actions::set_paused(site, request, false)));
    for &(name, action) in Action::NAMES {
        let path = format!("/api/v1/{name}");
        router = router
            .route(&path, post(move |site, request| actions::change_keys(site, request, action)));
    }
    for &(name, action) in GroupAction::NAMES {
        let path = format!("/api/v1/{name}");
        router = router
            .route(&path, post(move |site, request| groups::change_group(site, request, action)));
    }
    for &(name, action) in ScheduleAction::NAMES {
        let path = format!("/api/v1/{name}");
        let change = move |site, request| schedules::change_schedule(site, request, action);
        router = router.route(&path, post(change));
    }
    for &(name, action) in WorkAction::NAMES {
        let path = format!("/api/v1/{name}");
        router = router
            .route(&path, post(move |site, request| work::answer_worker(site, request, action)));
    }
    router
}

/// Returns the routes of the files that the page of one queue and the page of all queues load.
pub(crate) fn shared_files<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/api/v1/openapi.json", get(|| asset(JSON, include_str!("../assets/openapi.json"))))
        .route("/style.css", get(|| asset(STYLE, include_str!("../assets/style.css"))))
        .route("/keys.css", get(|| asset(STYLE, include_str!("../assets/keys.css"))))
        .route("/admin.css", get(|| asset(STYLE, include_str!("../assets/admin.css"))))
        .route("/format.js", get(|| asset(SCRIPT, include_str!("../assets/format.js"))))
        .route("/api.js", get(|| asset(SCRIPT, include_str!("../assets/api.js"))))
        .route("/list.js", get(|| asset(SCRIPT, include_str!("../assets/list.js"))))
        .route("/icon.svg", get(|| asset("image/svg+xml", include_str!("../assets/icon.svg"))))
}

pub(crate) fn router(site: Arc<SiteState>) -> Router {
    let actions = if site.access.permits_actions() { action_routes() } else { Router::new() };
    Router::new()
        .merge(actions)
        .merge(shared_files())
        .route("/admin.js", get(|| asset(SCRIPT, include_str!("../assets/admin.js"))))
        .route("/", get(serve_page))
        .route("/plot.css", get(|| asset(STYLE, include_str!("../assets/plot.css"))))
        .route("/overview.css", get(|| asset(STYLE, include_str!("../assets/overview.css"))))
        .route("/app.js", get(|| asset(SCRIPT, include_str!("../assets/app.js"))))
        .route("/plot.js", get(|| asset(SCRIPT, include_str!("../assets/plot.js"))))
        .route("/dom.js", get(|| asset(SCRIPT, include_str!("../assets/dom.js"))))
        .route("/standing.js", get(|| asset(SCRIPT, include_str!("../assets/standing.js"))))
        .route("/failures.js", get(|| asset(SCRIPT, include_str!("../assets/failures.js"))))
        .route("/charts.js", get(|| asset(SCRIPT, include_str!("../assets/charts.js"))))
        .route("/view.js", get(|| asset(SCRIPT, include_str!("../assets/view.js"))))
        .route("/key.js", get(|| asset(SCRIPT, include_str!("../assets/key.js"))))
        .route("/timeline.js", get(|| asset(SCRIPT, include_str!("../assets/timeline.js"))))
        .route("/table.js", get(|| asset(SCRIPT, include_str!("../assets/table.js"))))
        .route("/sections.js", get(|| asset(SCRIPT, include_str!("../assets/sections.js"))))
        .route("/groups.js", get(|| asset(SCRIPT, include_str!("../assets/groups.js"))))
        .route("/schedules.js", get(|| asset(SCRIPT, include_str!("../assets/schedules.js"))))
        .route("/actions.js", get(|| asset(SCRIPT, include_str!("../assets/actions.js"))))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/summary", get(summary))
        .route("/api/v1/keys", get(list_keys))
        .route("/api/v1/key", get(show_key))
        .route("/api/v1/timeline", get(show_timeline))
        .route("/api/v1/recording", get(export_recording))
        .route("/api/v1/failures", get(list_failures))
        .route("/api/v1/groups", get(groups::list_groups))
        .route("/api/v1/schedules", get(schedules::list_schedules))
        .route("/api/v1/activity", get(show_activity))
        .route("/api/v1/actions", get(actions::list_actions))
        .route("/api/v1/queues", get(no_queues))
        .route("/api/v1/sections", get(list_sections))
        .route("/api/v1/events", get(stream_events))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "no such path; the dashboard is at /")
        })
        .layer(from_fn_with_state(Arc::clone(&site), guard_request))
        .with_state(site)
}

/// Returns the routes that are served on the connections reserved for probes.
pub(crate) fn probe_router(site: Arc<SiteState>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(async || Problem::busy("too many connections"))
        .layer(from_fn_with_state(Arc::clone(&site), guard_request))
        .with_state(site)
}

// --- Access -------------------------------------------------------------------------

/// The delay before the response to a client that has sent too many wrong tokens.
const REFUSAL_DELAY: Duration = Duration::from_millis(100);
/// The security headers of every response.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

async fn guard_request(State(site): Site, request: Request, next: Next) -> Response {
    let is_action = site.access.permits_actions() && is_action(request.uri().path());
    let access = check_origin(&site.settings.hosts, &request)
        .and_then(|()| check_access(&site.access, is_action, request.uri().path(), &request));
    run_guarded(access, request, next).await
}

/// Passes the request to its handler, or refuses it if `access` is an error.
pub(crate) async fn run_guarded(
    access: Result<(), Problem>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match access {
        Err(refusal) => refusal.into_response(),
        Ok(()) => next.run(request).await,
    };
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        // Without the delay, a client that repeats its requests immediately would take much
        // processor time.
        tokio::time::sleep(REFUSAL_DELAY).await;
    }
    // Error responses also need these headers, because another site must not show them in a frame.
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns an error if the request names a host that is not allowed, or if a page of another site
/// sent it.
pub(crate) fn check_origin(allowed: &Hosts, request: &Request) -> Result<(), Problem> {
    // The host in the URI and all `Host` headers are checked. Otherwise, a proxy could use one of
    // them, and this server another.
    let hosts = request.headers().get_all(header::HOST);
    let named = request.uri().authority().map(|authority| authority.as_str());
    let mut hosts = hosts.iter().map(|host| host.to_str().unwrap_or_default()).chain(named);
    // A request without a host is allowed, because it does not come from a browser.
    if let Some(host) = hosts.find(|host| !allowed.is_allowed(host)) {
        let error = format!(
            "host {host:?} is not allowed; use localhost, or allow it (Builder::host, --tls-cert)"
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, error));
    }
    if is_foreign(request) {
        let error = "request from another site refused; open this address in a new tab";
        return Err(Problem::new(StatusCode::FORBIDDEN, error));
    }
    Ok(())
}

/// Returns an error if the method does not fit the path, or if a read lacks the token that reads
/// need. The handlers of actions check their tokens themselves. `path` is relative to the site of
/// the queue.
pub(crate) fn check_access(
    access: &Access,
    is_action: bool,
    path: &str,
    request: &Request,
) -> Result<(), Problem> {
    let is_probe = ["/healthz", "/readyz"].contains(&path);
    let (error, allowed) = match *request.method() {
        Method::POST if is_action => return Ok(()),
        Method::GET | Method::HEAD if is_probe => return Ok(()),
        Method::GET | Method::HEAD if !is_action => return access.check_read(request),
        _ if is_action => ("an action needs POST", "POST"),
        _ => ("read-only: only GET and HEAD are allowed", "GET, HEAD"),
    };
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, error);
    Err(problem.with_header(header::ALLOW, HeaderValue::from_static(allowed)))
}

/// Returns true if a page of another site sent the request.
///
/// That page cannot read the response. However, it could measure the time of the response, and thus
/// find out which keys exist. Links from other sites to the dashboard are allowed. Links from other
/// sites to the API are refused.
fn is_foreign(request: &Request) -> bool {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_link = header("sec-fetch-mode") == Some("navigate")
        && header("sec-fetch-dest") == Some("document")
        && !request.uri().path().starts_with("/api/");
    // Only browsers send this header.
    let sites = request.headers().get_all("sec-fetch-site");
    !sites.iter().all(|site| site == "same-origin" || site == "none") && !is_link
}

// --- Dashboard ---------------------------------------------------------------------------------

pub(crate) const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";

pub(crate) async fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Returns the path of the directory that contains the files of a page. The path is relative to the
/// address of the page.
pub(crate) fn path_beside(page: &Uri) -> String {
    // If the address does not end with a slash, relative links begin one level too high. They must
    // then begin with the last part of the address.
    match page.path().rsplit_once('/') {
        // Without `./`, a browser would read the text before a colon as the scheme of a URL.
        Some((_, last)) if last.contains(':') => format!("./{last}/"),
        Some((_, last)) if !last.is_empty() => format!("{last}/"),
        _ => String::new(),
    }
}

/// Returns the example of an add that a page without keys shows.
pub(crate) fn hint_for(settings: &Settings, queue: &str) -> String {
    settings.hint.as_deref().unwrap_or("queue.add(key);").replace("{queue}", queue)
}

pub(crate) fn html_page(html: String) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
}

async fn serve_page(State(site): Site, OriginalUri(uri): OriginalUri) -> Response {
    let beside = path_beside(&uri);
    let gauges = site.source.read_gauges();
    let hidden = |is_shown: bool| if is_shown { "" } else { "hidden" };
    let hint = hint_for(&site.settings, site.source.name().unwrap_or_default());
    let html = include_str!("../assets/index.html")
        .replace("{no-backing-off}", hidden(gauges.counts.backing_off.is_some()))
        .replace("{no-parked}", hidden(gauges.counts.parked.is_some()))
        .replace("{sections}", &site.settings.sections.len().to_string())
        .replace("{groups}", &u8::from(site.source.has_groups()).to_string())
        .replace("{activity}", &u8::from(site.source.has_activity()).to_string())
        .replace("{schedules}", &u8::from(site.source.has_schedules()).to_string())
        .replace("{admin}", if site.access.permits_actions() { "locked" } else { "none" })
        .replace("{no-all}", hidden(site.is_below))
        .replace("{hint}", &html_escaped(&hint))
        .replace("{beside}", &html_escaped(&beside))
        // The title is inserted last. If it contains a text such as `{hint}`, the other
        // replacements must not change it.
        .replace("{title}", &html_escaped(&site.title));
    html_page(html)
}

pub(crate) fn html_escaped(text: &str) -> String {
    let mut html = String::new();
    for char in text.chars() {
        match char {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            _ => html.push(char),
        }
    }
    html
}

// --- Metrics and API -----------------------------------------------------------------------------

async fn metrics(State(site): Site, headers: HeaderMap) -> Result<Response, Problem> {
    write_metrics(&site.settings, &headers)
}

pub(crate) fn write_metrics(settings: &Settings, headers: &HeaderMap) -> Result<Response, Problem> {
    let no_registry = || Problem::new(StatusCode::NOT_FOUND, "this site has no metrics registry");
    let registry = settings.registry.as_ref().ok_or_else(no_registry)?;
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::negotiate(accept);
    let mut body = String::new();
    text::encode(&mut body, registry)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")];
    Ok((headers, format.convert_from(body)).into_response())
}

async fn healthz(State(site): Site) -> Probe {
    health_of(&site.settings)
}

pub(crate) fn health_of(settings: &Settings) -> Probe {
    if (settings.healthy)() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not healthy\n")
    }
}

async fn readyz(State(site): Site) -> Probe {
    readiness_of(&site.settings, site.status())
}

pub(crate) fn readiness_of(settings: &Settings, status: Status) -> Probe {
    match status {
        Status::ShutDown | Status::Ended => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
        Status::Unreachable => (StatusCode::SERVICE_UNAVAILABLE, "the store cannot be reached\n"),
        // The check `ready` is a function of the user. It is called last, so that it is not called
        // if the status of the queue already decides the response.
        _ if !(settings.ready)() => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        Status::Open | Status::Paused | Status::Closed => (StatusCode::OK, "ok\n"),
    }
}

async fn summary(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    Params::parse(query.as_deref(), &[])?;
    Ok(([(header::CONTENT_TYPE, "application/json")], site.summary_json()).into_response())
}

async fn no_queues() -> Problem {
    let error = "this is the site of one queue; `requeue serve` without --queue lists all queues of a store";
    Problem::new(StatusCode::NOT_FOUND, error)
}

async fn list_sections(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    Params::parse(query.as_deref(), &[])?;
    let sections = read_sections(&site.settings.sections);
    Ok(json(&serde_json::json!({ "sections": sections })))
}

async fn list_failures(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let _turn = site.take_turn().await?;
    let limit = Params::parse(query.as_deref(), &["limit"])?.limit_of(MOST_ROWS)?;
    let mut failures = Failures::default();
    site.source.read_failures(&mut failures).await?;
    Ok(json(&failures.into_list(limit)))
}

async fn show_activity(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let _turn = site.take_turn().await?;
    let params = Params::parse(query.as_deref(), &["since", "parts"])?;
    let since = match params.text_of("since")?.map(str::parse) {
        None => HOUR,
        Some(Ok(seconds)) if (0..=WEEK).contains(&seconds) => Duration::from_secs(seconds),
        Some(_) => {
            let error = "expected a number of seconds, at most 604800, which are 7 days";
            return Err(Problem::parameter("since", error));
        }
    };
    let parts = match params.text_of("parts")?.map(str::parse) {
        None => MOST_MINUTES,
        Some(Ok(parts)) if (1..=MOST_MINUTES).contains(&parts) => parts,
        Some(_) => {
            let error = format!("expected a number from 1 to {MOST_MINUTES}");
            return Err(Problem::parameter("parts", &error));
        }
    };
    Ok(json(&site.source.read_activity(since, parts).await?))
}

/// The default value of `since`.
const HOUR: Duration = Duration::from_secs(3_600);
/// The largest value of `since`, in seconds. A store deletes older numbers.
const WEEK: u64 = 7 * 24 * 3_600;
/// The maximum number of parts: the number of minutes in a week.
const MOST_MINUTES: usize = 7 * 24 * 60;

async fn stream_events(State(site): Site) -> Result<Response, Problem> {
    let events =
        events::event_stream(site).ok_or_else(|| Problem::busy("too many event streams"))?;
    Ok(events.into_response())
}

async fn list_keys(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    // The turn is taken before the parameters are parsed, so that the refusal of too many searches
    // costs little.
    let _turn = site.take_turn().await?;
    let known = ["state", "q", "failed", "error", "cursor", "limit", "sort", "order"];
    let params = Params::parse(query.as_deref(), &known)?;
    let sort = params.sort_of::<Column>()?.map(|(by, descends)| Sort { by, descends });
    let limit = params.limit_of(if sort.is_some() { MOST_SORTED } else { MOST_ROWS })?;
    let begin = match (params.text_of("cursor")?, sort) {
        (None, None) => Begin::Start,
        (Some(cursor), None) => Begin::Cursor(cursor.to_owned()),
        (None, Some(sort)) => Begin::Sorted(sort),
        (Some(_), Some(_)) => {
            let error = "a sorted list has no pages; raise `limit` instead";
            return Err(Problem::parameter("cursor", error));
        }
    };
    let walk = Walk { selection: Selection::from_params(&params)?, limit, begin };
    let walked = site.source.read_page(&walk).await?;
    Ok(json(&KeyList {
        now: unix_time(),
        keys: walked.rows,
        next: walked.next,
        looked_at: walked.looked_at,
        more: walked.more,
    }))
}

/// The largest `limit` of a list without `sort`, and with `sort`.
const MOST_ROWS: usize = 256;
const MOST_SORTED: usize = 1_000;

async fn show_key(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &["key", "key_base64"])?;
    let (name, bytes) = params.key_of()?;
    match site.source.find_key(&bytes).await? {
        Found::Page(page) => Ok(json(&page)),
        Found::Nothing => Err(Problem::new(StatusCode::NOT_FOUND, NOT_IN_QUEUE)),
        Found::NoKey => Err(no_key(name)),
    }
}

async fn show_timeline(State(site): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &["key", "key_base64", "since"])?;
    let (name, bytes) = params.key_of()?;
    let since = match params.text_of("since")?.map(str::parse) {
        None => None,
        Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
        Some(Err(_)) => {
            let error = "expected a whole number of seconds, as in 3600 for the last hour";
            return Err(Problem::parameter("since", error));
        }
    };
    // If the queue records events, the request must read all of them. It therefore waits for its
    // turn.
    let _turn = match site.source.may_record() {
        true => Some(site.take_turn().await?),
        false => None,
    };
    match site.source.read_timeline(&bytes).await? {
        Some(timeline) => Ok(json(&timeline.since(since))),
        None => Err(no_key(name)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn links_of_a_page_without_a_slash_go_one_level_down() {
        for (page, beside) in [("/", ""), ("/a/", ""), ("/a", "a/"), ("/b/a:b", "./a:b/")] {
            assert_eq!(path_beside(&Uri::from_static(page)), beside, "{page}");
        }
    }

    /// The routes of this file must be described. The routes of the dashboard's files are
    /// exceptions.
    #[test]
    fn the_description_has_all_routes() {
        let doc: Value = serde_json::from_str(include_str!("../assets/openapi.json")).unwrap();
        let described: BTreeSet<&str> =
            doc["paths"].as_object().unwrap().keys().map(|path| &**path).collect();
        let source = concat!(include_str!("routes.rs"), include_str!("queues.rs"));
        let routes = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let actions = Action::names().chain(GroupAction::names()).chain(ScheduleAction::names());
        let actions = actions.chain(WorkAction::names());
        let actions: Vec<_> = actions.map(|name| format!("/api/v1/{name}")).collect();
        let is_file = |path: &str| path == "/" || (path.contains('.') && !path.contains("api"));
        let routes: BTreeSet<&str> = routes
            .filter(|path| path.starts_with('/') && !is_file(path) && *path != "/api.js")
            .chain(actions.iter().map(|path| &**path))
            .collect();
        assert_eq!(routes, described);
    }
}

//! The site of all queues of a store. It has a page with a table of the queues, and the site of
//! each queue below `queues/NAME/`.

use std::cmp::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::{OriginalUri, RawQuery, Request, State};
use axum::http::header::HeaderMap;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use requeue_store::{Key, Queue, QueueInfo, Store};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::api::{Named, QueueList, QueueRow, SEVERAL_QUEUES, Status, is_action};
use crate::history::History;
use crate::open_queues::{EVERY, List, Numbers, OpenQueues, OpenWith};
use crate::params::{Problem, json};
use crate::routes::{
    self, Probe, SCRIPT, asset, check_access, check_origin, health_of, hint_for, html_escaped,
    html_page, path_beside, readiness_of, run_guarded, shared_files, write_metrics,
};
use crate::source::{DetailOf, Selected, TableQuery};
use crate::state::{Frame, Limits, SiteState};
use crate::store::Stored;
use crate::time::{seconds, unix_time};

/// The largest `limit` of the list of queues.
const MOST_QUEUES: usize = 10_000;
/// The maximum time for which the response with the table waits for new numbers. The reads
/// continue, so that a later response contains the numbers.
const SOON: Duration = Duration::from_millis(500);
/// The maximum time for which the response with the metrics waits for numbers.
const PATIENCE_FOR_METRICS: Duration = Duration::from_secs(5);
/// The characters of a queue's name that are percent-encoded in its path.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The state of the site of all queues of a store.
pub(crate) struct Queues {
    pub(crate) frame: Frame,
    pub(crate) ended: watch::Sender<bool>,
    limits: Limits,
    detail: Arc<DetailOf<Key>>,
    history: Option<History>,
    open: Arc<OpenQueues>,
}

impl Queues {
    pub(crate) fn start(
        store: Store,
        open_with: OpenWith,
        detail: Arc<DetailOf<Key>>,
        history: Option<History>,
        frame: Frame,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            limits: Limits::new(frame.settings.max_connections),
            frame,
            ended: watch::Sender::new(false),
            detail,
            history,
            open: Arc::new(OpenQueues::new(store, open_with)),
        });
        tokio::spawn(keep_closing(Arc::downgrade(&this)));
        this
    }

    pub(crate) fn title(&self) -> &str {
        self.frame.title.as_deref().unwrap_or("All queues")
    }

    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
        self.open.close_all();
    }

    /// Starts the site of one queue.
    fn make_site(&self, queue: Queue) -> (Arc<SiteState>, Router) {
        let stored = Stored::new(queue, Arc::clone(&self.detail), self.history.clone());
        // The title of the table does not apply to the queue, whose site uses the name of the
        // queue instead.
        let frame = Frame { title: None, ..self.frame.clone() };
        let site = SiteState::start(Box::new(stored), frame, Some(self.limits.clone()));
        (Arc::clone(&site), routes::router(site))
    }

    async fn status(&self) -> Status {
        match () {
            () if *self.ended.borrow() => Status::Ended,
            () if self.open.list().await.is_ok_and(|list| list.error.is_none()) => Status::Open,
            () => Status::Unreachable,
        }
    }
}

/// Closes unused queues every [`EVERY`], until the site is shut down or dropped.
async fn keep_closing(queues: Weak<Queues>) {
    let mut interval = tokio::time::interval(EVERY);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let queues = queues.upgrade().filter(|queues| !*queues.ended.borrow());
        let Some(open) = queues.map(|queues| Arc::clone(&queues.open)) else { return };
        open.close_unused().await;
    }
}

// --- Routes ------------------------------------------------------------------------------------

type Site = State<Arc<Queues>>;

pub(crate) fn router(queues: Arc<Queues>) -> Router {
    Router::new()
        .merge(shared_files())
        .route("/", get(serve_page))
        .route("/queues.js", get(|| asset(SCRIPT, include_str!("../assets/queues.js"))))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/queues", get(list_queues))
        .fallback(serve_queue)
        .layer(from_fn_with_state(Arc::clone(&queues), guard_request))
        .with_state(queues)
}

/// Returns the routes that are served on the connections reserved for probes.
pub(crate) fn probe_router(queues: Arc<Queues>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(async || Problem::busy("too many connections"))
        .layer(from_fn_with_state(Arc::clone(&queues), guard_request))
        .with_state(queues)
}

async fn guard_request(State(queues): Site, request: Request, next: Next) -> Response {
    let access = &queues.frame.access;
    let checked = check_origin(&queues.frame.settings.hosts, &request);
    let checked = checked.and_then(|()| match split_path(request.uri().path()) {
        // The token of an action is also checked before the queue is opened, so that a client
        // without a token cannot open queues.
        Some((_, path)) => {
            let is_action = access.permits_actions() && is_action(path);
            check_access(access, is_action, path, &request)?;
            if is_action { access.check_action(&request).map(drop) } else { Ok(()) }
        }
        None => check_access(access, false, request.uri().path(), &request),
    });
    run_guarded(checked, request, next).await
}

/// Splits a path below `/queues/`. Returns the percent-encoded name of the queue, and the path
/// relative to the queue's site.
fn split_path(path: &str) -> Option<(&str, &str)> {
    let below = path.strip_prefix("/queues/")?;
    Some(below.find('/').map_or((below, "/"), |slash| below.split_at(slash)))
}

async fn serve_page(State(queues): Site, OriginalUri(uri): OriginalUri) -> Response {
    let hint = hint_for(&queues.frame.settings, "NAME");
    html_page(
        include_str!("../assets/queues.html")
            .replace("{hint}", &html_escaped(&hint))
            .replace("{beside}", &html_escaped(&path_beside(&uri)))
            // The title is inserted last. If it contains a text such as `{hint}`, the other
            // replacements must not change it.
            .replace("{title}", &html_escaped(queues.title())),
    )
}

async fn metrics(State(queues): Site, headers: HeaderMap) -> Result<Response, Problem> {
    if queues.frame.settings.registry.is_some() {
        // The result is ignored. If the reads are not complete in time, the response contains the
        // last numbers.
        let _ = queues.open.look(PATIENCE_FOR_METRICS, true).await;
    }
    write_metrics(&queues.frame.settings, &headers)
}

async fn healthz(State(queues): Site) -> Probe {
    health_of(&queues.frame.settings)
}

async fn readyz(State(queues): Site) -> Probe {
    readiness_of(&queues.frame.settings, queues.status().await)
}

/// Passes a request below `queues/NAME/` to the site of that queue.
async fn serve_queue(State(queues): Site, mut request: Request) -> Result<Response, Problem> {
    let no_path = || Problem::new(StatusCode::NOT_FOUND, SEVERAL_QUEUES);
    if *queues.ended.borrow() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"));
    }
    let uri = request.uri();
    let (name, path) = split_path(uri.path()).ok_or_else(no_path)?;
    let name = percent_decode_str(name).decode_utf8().map_err(|_| no_path())?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let inner = format!("{path}{query}").parse::<Uri>().map_err(|_| no_path())?;
    let open = queues.open.find(&name).await?;
    let mut router = open.site(|queue| queues.make_site(queue));
    *request.uri_mut() = inner;
    let answered = tower_service::Service::call(&mut router, request).await;
    Ok(answered.into_response())
}

// --- The table ---------------------------------------------------------------------------------

/// A column by which the table of queues can be sorted, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueueColumn {
    Name,
    Ready,
    Waiting,
    Running,
    Parked,
    Oldest,
    Runs,
    Failures,
    Failed,
}

impl Named for QueueColumn {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("name", Self::Name),
        ("ready", Self::Ready),
        ("waiting", Self::Waiting),
        ("running", Self::Running),
        ("parked", Self::Parked),
        ("oldest", Self::Oldest),
        ("runs", Self::Runs),
        ("failures", Self::Failures),
        ("failed", Self::Failed),
    ];
}

impl QueueColumn {
    fn compare(self, a: &QueueRow, b: &QueueRow) -> Ordering {
        // A queue whose number is unknown is before all others.
        let by_number = |number: fn(&QueueRow) -> Option<u64>| number(a).cmp(&number(b));
        let by_fraction = |fraction: fn(&QueueRow) -> Option<f64>| {
            let of = |row| fraction(row).unwrap_or(-1.0);
            of(a).total_cmp(&of(b))
        };
        match self {
            Self::Name => a.name.cmp(&b.name),
            Self::Ready => by_number(|row| row.ready),
            Self::Waiting => by_number(|row| row.waiting),
            Self::Running => by_number(|row| row.running),
            Self::Parked => by_number(|row| row.parked),
            Self::Failed => by_number(|row| row.failed),
            Self::Oldest => by_fraction(|row| row.oldest),
            Self::Runs => by_fraction(|row| row.runs),
            Self::Failures => by_fraction(|row| row.failures),
        }
    }
}

async fn list_queues(State(queues): Site, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let query = TableQuery::<QueueColumn>::parse(query.as_deref(), MOST_QUEUES)?;
    let List { queues: infos, error, .. } = &queues.open.look(SOON, false).await?;
    let rows = infos.iter().map(|info| QueueRow::new(info, queues.open.numbers_of(&info.name)));
    let compare = |column: &QueueColumn, a: &_, b: &_| column.compare(a, b);
    let Selected { rows, looked_at, more } =
        query.select(rows.collect(), usize::MAX, |row| &row.name, compare);
    let age = seconds(queues.open.list().await?.age());
    let (now, error) = (unix_time(), error.clone());
    Ok(json(&QueueList { now, queues: rows, looked_at, more, age, error }))
}

impl QueueRow {
    fn new(info: &QueueInfo, numbers: Numbers) -> Self {
        let Numbers { counts, work, error, .. } = numbers;
        // If the last read failed, the numbers are omitted, because old numbers must not look
        // current.
        let (counts, work) = if error.is_none() { (counts, work) } else { (None, None) };
        let (counts, at) = counts.unzip();
        let hour = work.as_ref().map(|work| &work.hour);
        Self {
            name: info.name.clone(),
            path: format!("queues/{}/", utf8_percent_encode(&info.name, IN_PATH)),
            paused: info.is_paused,
            ready: counts.map(|counts| counts.ready),
            waiting: counts.map(|counts| counts.waiting),
            running: counts.map(|counts| counts.in_flight),
            parked: counts.map(|counts| counts.parked),
            damaged: counts.map(|counts| counts.damaged),
            oldest: counts
                .filter(|counts| counts.ready > 0)
                .map(|counts| seconds(counts.oldest_ready)),
            counts_age: at.map(|at| seconds(at.elapsed())),
            runs: work.as_ref().map(|work| work.runs),
            failures: work.as_ref().map(|work| work.failures),
            failed: hour.map(|hour| hour.failures),
            given_up: hour.map(|hour| hour.given_up),
            workers: work.as_ref().map(|work| work.workers),
            error,
        }
    }
}

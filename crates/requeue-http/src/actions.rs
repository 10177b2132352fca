//! The actions: requests that change the queue.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{HttpBody as _, to_bytes};
use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::access::{Remote, Role};
use crate::api::{
    Action, AddResult, AddResults, AddedKey, Adds, Change, Changed, GroupAction, Matched, Matching,
    Named, NamedKey, NewRate, NewStatus, PastActions, ScheduleAction, StartRate, State as RowState,
    WorkAction,
};
use crate::keys::{escape_key, from_base64};
use crate::operators::{KEPT, Operator, group_target, keys_target};
use crate::params::{Params, Problem, json};
use crate::source::{NewKey, Part, Selection, Source, count_of};
use crate::state::SiteState;
use crate::trace_context::TraceContext;

/// The maximum size of the body of a request, in bytes.
const BODY: usize = 1 << 20;
/// The time within which a client must send the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// The maximum number of keys that a request can name one by one.
const MOST_NAMED: usize = 1_000;
/// The maximum number of keys that a request can change by conditions instead of names.
pub(crate) const MOST_MATCHING: usize = 1_000_000;
/// The number of keys that one call of [`Source::change_keys`] changes.
const PART: usize = 1_000;

// --- Requests --------------------------------------------------------------------------------

impl NamedKey {
    /// Returns the bytes of the key. If the key is invalid, the error names `parameter`, the field
    /// of the request that contains the key.
    pub(crate) fn into_bytes(self, parameter: &str) -> Result<Vec<u8>, Problem> {
        let wrong = |error| Problem::parameter(parameter, error);
        match (self.key, self.key_base64) {
            (Some(key), None) => Ok(key.into_bytes()),
            (None, Some(base64)) => {
                from_base64(base64.as_bytes()).ok_or_else(|| wrong("key_base64 is not base64"))
            }
            _ => Err(wrong("a key has either key or key_base64")),
        }
    }
}

impl Matching {
    fn into_selection(self) -> Result<Selection, Problem> {
        let state = match self.state.as_deref() {
            None | Some("") => None,
            Some(name) => {
                let unknown = || Problem::parameter("matching", "no such state");
                Some(RowState::named(name).ok_or_else(unknown)?)
            }
        };
        let part = self.q.filter(|q| !q.is_empty()).map(|q| Part::new(&q));
        let error = self.error.filter(|error| !error.is_empty());
        Ok(Selection { state, part, failed: self.failed, error })
    }
}

/// Reads the body of a request as JSON. Returns the body, and the operator whom the body names.
pub(crate) async fn read_body<T: DeserializeOwned>(
    request: Request,
    remote: Remote,
) -> Result<(T, Operator), Problem> {
    let body = read_json(request).await?;
    split_body(body, remote)
}

/// Reads the operator from the body of an action without other fields. The body may be empty.
async fn read_operator(request: Request, remote: Remote) -> Result<Operator, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let is_empty = request.body().size_hint().exact() == Some(0);
    let body = if is_empty { Map::new() } else { read_json(request).await? };
    split_body::<Nothing>(body, remote).map(|(_, operator)| operator)
}

fn wrong_body(error: serde_json::Error) -> Problem {
    let error = format!("the body is not as expected: {error}; /api/v1/openapi.json describes it");
    Problem::new(StatusCode::BAD_REQUEST, error)
}

fn split_body<T: DeserializeOwned>(
    mut body: Map<String, Value>,
    remote: Remote,
) -> Result<(T, Operator), Problem> {
    let operator = Operator::take_from(&mut body, remote)?;
    let body = serde_json::from_value(Value::Object(body)).map_err(wrong_body)?;
    Ok((body, operator))
}

async fn read_json(request: Request) -> Result<Map<String, Value>, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    // A page of another site cannot send this content type without the permission of this server,
    // for which the browser would ask first.
    if !kind.eq_ignore_ascii_case("application/json") {
        let error = "send JSON, with the header `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    // The time is limited, because a client that never completes its body would occupy the
    // connection.
    let read = tokio::time::timeout(BODY_TIME, to_bytes(request.into_body(), BODY)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let error = format!("the body is over {BODY} bytes, or incomplete");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error));
        }
        Err(_) => {
            let error = "the body did not come in time";
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, error));
        }
    };
    serde_json::from_slice(&bytes).map_err(wrong_body)
}

/// Returns an error if `keys` is empty or too long. `name` is the field of the request that
/// contains the keys or claims.
pub(crate) fn check_count<T>(name: &str, keys: Vec<T>) -> Result<Vec<T>, Problem> {
    match keys.len() {
        1..=MOST_NAMED => Ok(keys),
        _ => Err(Problem::parameter(name, &format!("expected 1 to {MOST_NAMED} {name}"))),
    }
}

type Site = State<Arc<SiteState>>;

/// Checks the token of an action. Returns the address of the client.
pub(crate) fn check_token(site: &SiteState, request: &Request) -> Result<Remote, Problem> {
    site.access.check_action(request).map(|client| client.remote)
}

pub(crate) async fn authenticate(State(site): Site, request: Request) -> Result<Response, Problem> {
    let roles = site.access.check_action(&request)?.roles;
    let mut actions = Vec::new();
    let is_admin = roles.permit(Role::Admin);
    if is_admin {
        actions.extend(Action::names());
    }
    if roles.permit(Role::Add) {
        actions.push("add");
    }
    if is_admin {
        actions.extend(["pause", "resume"]);
        actions.extend(site.source.has_rate().then_some("rate"));
        if site.source.has_groups() {
            actions.extend(GroupAction::names());
        }
        if site.source.has_schedules() {
            actions.extend(ScheduleAction::names());
        }
    }
    if roles.permit(Role::Work) {
        actions.extend(WorkAction::names());
    }
    Ok(json(&serde_json::json!({ "actions": actions })))
}

pub(crate) async fn set_paused(
    State(site): Site,
    request: Request,
    paused: bool,
) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let operator = read_operator(request, remote).await?;
    let action = if paused { "pause" } else { "resume" };
    Log::new(remote, action).run_one(site.source.set_paused(paused)).await?;
    tracing::info!(%remote, "{action}");
    record(&site, operator, action, None).await;
    Ok(json(&NewStatus { status: site.status() }))
}

/// Sets or removes the limit on the rate of starts.
pub(crate) async fn set_rate(State(site): Site, request: Request) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let (NewRate { rate }, operator) = read_body(request, remote).await?;
    Log::new(remote, "rate").run_one(site.source.set_rate(rate)).await?;
    tracing::info!(%remote, ?rate, "rate");
    record(&site, operator, "rate", Some(rate_target(rate))).await;
    Ok(json(&NewRate { rate }))
}

/// Adds a completed action to the list of past actions, even if the client disconnects. If this
/// fails, the failure is logged, and the action is not undone.
pub(crate) async fn record(
    site: &Arc<SiteState>,
    operator: Operator,
    action: &'static str,
    target: Option<String>,
) {
    let (remote, done) = operator.into_action(action, target);
    let site = Arc::clone(site);
    let record = async move {
        if let Err(error) = site.source.record_action(done).await {
            tracing::warn!(%remote, ?error, "{action} was not recorded");
        }
    };
    // The result is ignored, because the panic hook has already reported a panic of the source.
    let _ = tokio::spawn(record).await;
}

/// Returns the new rate as text, which is the target of a change of a rate.
pub(crate) fn rate_target(rate: Option<StartRate>) -> String {
    rate.map_or_else(
        || "none".to_owned(),
        |StartRate { starts, per, .. }| format!("{starts} per {per} s"),
    )
}

/// Logs an action on keys, and records it in the list of past actions. If the request is dropped or
/// fails, the drop of this value logs and records the number of keys that are known to be changed.
/// A refused request changes nothing, so it is neither logged nor recorded.
pub(crate) struct Log {
    remote: Remote,
    action: &'static str,
    /// The group, if the action applies to all keys of a group.
    group: Option<String>,
    /// The number of keys that the action applies to, if it is known.
    keys: Option<usize>,
    changed: usize,
    /// The key as it is shown, if the action names only one key.
    only: Option<String>,
    /// True if the action has started and not ended.
    is_open: bool,
    /// The site and the operator, until the action is recorded.
    unrecorded: Option<(Arc<SiteState>, Operator)>,
}

impl Log {
    pub(crate) const fn new(remote: Remote, action: &'static str) -> Self {
        let (group, keys, only, unrecorded) = (None, None, None, None);
        Self { remote, action, group, keys, changed: 0, only, is_open: false, unrecorded }
    }

    /// Makes this value record the action when it ends, if the action changes a key.
    pub(crate) fn recorded_as(mut self, site: &Arc<SiteState>, operator: Operator) -> Self {
        self.unrecorded = Some((Arc::clone(site), operator));
        self
    }

    /// Returns a future that records the number of keys that were changed so far. Returns `None` if
    /// there is nothing to record.
    fn take_record(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (site, operator) = self.unrecorded.take().filter(|_| self.changed > 0)?;
        let (action, keys) = (self.action, keys_target(self.changed, self.only.as_deref()));
        let target = match &self.group {
            Some(group) => format!("{}: {keys}", group_target(Some(group))),
            None => keys,
        };
        Some(async move { record(&site, operator, action, Some(target)).await })
    }

    /// If the action names only one key, stores this key as the target.
    fn note_only<'a>(&mut self, mut keys: impl Iterator<Item = &'a [u8]>) {
        if let (Some(key), None) = (keys.next(), keys.next()) {
            self.only = Some(escape_key(key).chars().filter(|char| !char.is_control()).collect());
        }
    }

    /// Logs the start of the action, and the number of its keys.
    fn begin(&mut self, keys: usize) {
        (self.keys, self.is_open) = (Some(keys), true);
        tracing::info!(remote = %self.remote, keys, "{} starts", self.action);
    }

    /// Runs an action that applies to `keys` keys. Its start is not logged.
    async fn run_all<T>(
        &mut self,
        keys: usize,
        ran: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        (self.keys, self.is_open) = (Some(keys), true);
        ran.await.inspect_err(|problem| {
            self.changed = problem.changed;
            // A refused action has changed no key, so the drop of this value must not log an
            // interruption.
            self.is_open = !problem.is_refusal();
        })
    }

    /// Runs an action that changes one object. If the action is interrupted, this value logs that.
    /// Otherwise, the caller logs the result.
    pub(crate) async fn run_one<T>(
        mut self,
        ran: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        self.is_open = true;
        let done = ran.await.inspect_err(|problem| self.is_open = !problem.is_refusal())?;
        self.is_open = false;
        Ok(done)
    }

    /// Cancels the pending runs of a group's keys in the given state. Returns the number of
    /// cancelled keys.
    pub(crate) async fn cancel_group(
        mut self,
        source: &dyn Source,
        group: String,
        state: Option<RowState>,
    ) -> Result<u64, Problem> {
        (self.group, self.is_open) = (Some(group.clone()), true);
        let done = source.cancel_group(group, state, &mut self.changed).await;
        let cancelled = self.changed as u64;
        if let Err(problem) = &done {
            self.is_open = !problem.is_refusal();
        }
        self.end(done.is_ok()).await;
        done.map(|()| cancelled)
    }

    /// Logs the end of the action if `is_done` is true, and otherwise its interruption. Records the
    /// action in both cases.
    async fn end(mut self, is_done: bool) {
        let record = self.take_record();
        if is_done {
            self.complete();
        } else {
            drop(self);
        }
        if let Some(record) = record {
            record.await;
        }
    }

    /// Logs the end of the action, and the number of changed keys.
    fn complete(mut self) {
        self.is_open = false;
        let Self { remote, action, group, changed, .. } = &self;
        tracing::info!(%remote, group, keys = changed, "{action}");
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if self.is_open {
            let Self { remote, action, group, keys, changed, .. } = self;
            tracing::warn!(%remote, group, keys, changed, "{action} was interrupted");
        }
        // The record is written by a task, because the future of the request has been dropped.
        if let (Some(record), Ok(runtime)) = (self.take_record(), Handle::try_current()) {
            drop(runtime.spawn(record));
        }
    }
}

pub(crate) async fn add_keys(State(site): Site, request: Request) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let trace = TraceContext::read(request.headers());
    let (Adds { keys }, operator) = read_body(request, remote).await?;
    let keys = check_count("keys", keys)?.into_iter().map(|key| {
        let AddedKey { key, key_base64, after, priority, revive, group } = key;
        let delay = after.map(Duration::try_from_secs_f64).transpose();
        let delay = delay.map_err(|_| Problem::parameter("keys", "after is not a duration"))?;
        let key = NamedKey { key, key_base64 }.into_bytes("keys")?;
        Ok(NewKey { key, delay, priority, revive, group })
    });
    let keys = keys.collect::<Result<Vec<_>, Problem>>()?;
    let added = run_to_end(async move {
        let mut log = Log::new(remote, "add");
        log.note_only(keys.iter().map(|new| &*new.key));
        let results = log.run_all(keys.len(), trace.cover(site.source.add_keys(keys))).await;
        let added = match &results {
            Ok(results) => {
                log.changed = results.len();
                let is_added =
                    |result: &&AddResult| !matches!(result, AddResult::Parked | AddResult::Refused);
                results.iter().filter(is_added).count()
            }
            Err(problem) => problem.changed,
        };
        let target = keys_target(added, log.only.as_deref());
        log.end(results.is_ok()).await;
        // Adds without the name of an operator come from programs. They are not recorded, because
        // they would displace the actions of operators from the list.
        if operator.is_named() && added > 0 {
            record(&site, operator, "add", Some(target)).await;
        }
        results
    });
    Ok(json(&AddResults { results: added.await? }))
}

/// Runs an action on named keys to its end, even if the client disconnects. The source changes the
/// keys in one step. If the action were interrupted, it could not record which of the keys it has
/// changed. Only the shutdown of the runtime interrupts the action.
pub(crate) async fn run_to_end<T: Send + 'static>(
    action: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    // The panic hook has already reported a panic of the source.
    let failed = |_| Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the action failed"));
    tokio::spawn(action).await.unwrap_or_else(failed)
}

pub(crate) async fn change_keys(
    State(site): Site,
    request: Request,
    action: Action,
) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let (change, operator) = read_body::<Change>(request, remote).await?;
    let mut log = Log::new(remote, action.name()).recorded_as(&site, operator);
    let changed = match (change.keys, change.matching, change.expected) {
        (Some(keys), None, None) => {
            let changed = run_to_end(async move {
                let changed = act_on_keys(&site, action, keys, &mut log).await;
                // The log is also ended after an error, because a failed action may have changed
                // some keys.
                log.end(changed.is_ok()).await;
                changed
            });
            changed.await?
        }
        (None, Some(matching), Some(expected)) => {
            let _turn = site.take_turn().await?;
            let changed = act_on_matching(&site, action, matching, expected, &mut log).await;
            log.end(changed.is_ok()).await;
            changed?
        }
        _ => {
            let error = "pass either keys, or matching and expected";
            return Err(Problem::new(StatusCode::BAD_REQUEST, error));
        }
    };
    Ok(json(&changed))
}

async fn act_on_keys(
    site: &SiteState,
    action: Action,
    keys: Vec<NamedKey>,
    log: &mut Log,
) -> Result<Changed, Problem> {
    let keys: Vec<_> = check_count("keys", keys)?
        .into_iter()
        .map(|key| key.into_bytes("keys"))
        .collect::<Result<_, _>>()?;
    log.note_only(keys.iter().map(|key| &**key));
    let results = log.run_all(keys.len(), site.source.change_keys(action, keys)).await?;
    log.changed = count_of(&results);
    Ok(Changed { changed: log.changed, matched: None, results: Some(results) })
}

async fn act_on_matching(
    site: &SiteState,
    action: Action,
    matching: Matching,
    expected: usize,
    log: &mut Log,
) -> Result<Changed, Problem> {
    let keys = matching_keys(site, action, &matching.into_selection()?).await?;
    let matched = keys.len();
    // The user has confirmed a number of keys. The current number may differ from it by at most a
    // tenth.
    if !is_near(matched, expected) {
        return Err(Problem::other_count(matched, expected));
    }
    log.begin(matched);
    let mut keys = keys.into_iter();
    loop {
        // A key that no longer has the selected state is not changed.
        let part: Vec<_> = keys.by_ref().take(PART).collect();
        if part.is_empty() {
            return Ok(Changed { changed: log.changed, matched: Some(matched), results: None });
        }
        let results = site.source.change_keys(action, part).await;
        // The changes are counted before an error is returned, so that the drop of the log reports
        // them.
        log.changed += match &results {
            Ok(results) => count_of(results),
            Err(problem) => problem.changed,
        };
        results?;
        // The task yields, so that other requests can run between two parts.
        tokio::task::yield_now().await;
    }
}

/// Returns true if the number of matching keys differs from the confirmed number by at most a tenth
/// of the latter.
pub(crate) const fn is_near(matched: usize, expected: usize) -> bool {
    matched.abs_diff(expected) <= expected / 10
}

async fn matching_keys(
    site: &SiteState,
    action: Action,
    selection: &Selection,
) -> Result<Vec<Vec<u8>>, Problem> {
    let keys = site.source.matching_keys(action, selection, MOST_MATCHING + 1).await?;
    if keys.len() > MOST_MATCHING {
        let error = format!("more than {MOST_MATCHING} keys match; narrow the search");
        return Err(Problem::new(StatusCode::CONFLICT, error));
    }
    Ok(keys)
}

/// Returns the last actions of operators.
pub(crate) async fn list_actions(
    State(site): Site,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let limit = Params::parse(query.as_deref(), &["limit"])?.limit_of(KEPT)?;
    let mut actions = site.source.last_actions().await?;
    actions.truncate(limit);
    Ok(json(&PastActions { actions }))
}

/// Returns the number of keys that an action would change. The request needs no token for actions,
/// because a client that reads can list these keys anyway.
pub(crate) async fn count_keys(
    State(site): Site,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let _turn = site.take_turn().await?;
    let params = Params::parse(query.as_deref(), &["action", "state", "q", "failed", "error"])?;
    let action = params.named_value::<Action>("action")?;
    let action = action.ok_or_else(|| Problem::parameter("action", "missing"))?;
    let keys = matching_keys(&site, action, &Selection::from_params(&params)?).await?;
    Ok(json(&Matched { matched: keys.len() }))
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::Mutex;

    use futures_util::FutureExt;
    use requeue::{Added, Queue};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::{Control, History, Run, Site};

    #[test]
    fn a_record_names_the_key_of_an_action_on_one_key_only() {
        let only = |keys: &[&'static [u8]]| {
            let mut log = Log::new(Remote::default(), "add");
            log.note_only(keys.iter().copied());
            log.only.clone()
        };
        assert_eq!(only(&[b"a"]).as_deref(), Some("a"));
        // If an action names two keys, the number of changed keys does not tell which of them was
        // changed.
        assert_eq!(only(&[b"a", b"b"]), None);
        assert_eq!(only(&[]), None);
    }

    /// A subscriber that stores each event as a line of text.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<String>>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Fields<'a>(&'a mut String);

            impl Visit for Fields<'_> {
                fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                    write!(self.0, "{field}={value:?} ").unwrap();
                }
            }

            let mut lines = self.0.lock().unwrap();
            event.record(&mut Fields(&mut lines));
            lines.push('\n');
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_action_is_logged_at_its_start_and_at_its_end_or_interruption() {
        let lines = Lines::default();
        let _here = tracing::subscriber::set_default(lines.clone());
        let logged = |act: fn(&mut Log) -> bool| {
            let mut log = Log::new(Remote::default(), "cancel");
            if act(&mut log) {
                log.complete();
            } else {
                drop(log);
            }
            std::mem::take(&mut *lines.0.lock().unwrap())
        };
        let begun = "message=cancel starts remote=a client without an address keys=9 \n";
        let ended = logged(|log| {
            log.begin(9);
            log.changed = 7;
            true
        });
        assert_eq!(
            ended,
            format!("{begun}message=cancel remote=a client without an address keys=7 \n")
        );
        let dropped = logged(|log| {
            log.begin(9);
            log.changed = 7;
            false
        });
        let last =
            "message=cancel was interrupted remote=a client without an address keys=9 changed=7 \n";
        assert_eq!(dropped, format!("{begun}{last}"));
        assert_eq!(logged(|_| false), "", "a refused request changes nothing");
    }

    /// A control that refuses adds when the queue has two keys.
    struct Two(Queue<String>);

    impl Control<String> for Two {
        fn add(&self, key: String, _: Option<Duration>, _: i32) -> Result<Added, String> {
            if self.0.len() < 2 { Ok(self.0.add(key)) } else { Err("two are enough".to_owned()) }
        }

        fn cancel(&self, _: &String) -> bool {
            false
        }

        fn run_now(&self, _: &String, _: i32) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_failed_action_is_logged_with_the_keys_it_changed_and_a_refused_one_is_not() {
        let lines = Lines::default();
        let _here = tracing::subscriber::set_default(lines.clone());
        let (queue, history) = (Queue::new(), History::new());
        let keys = ["a", "b", "c", "d"];
        keys.iter().for_each(|key| history.gave_up(key, Run::new(1)));
        let site = Site::builder(queue.clone()).control(Two(queue)).history(&history).build();
        let revive = async |keys: Vec<NamedKey>| {
            let mut log = Log::new(Remote::default(), "revive");
            let revived = act_on_keys(site.state(), Action::Revive, keys, &mut log).await;
            assert!(revived.is_err());
            drop(log);
            std::mem::take(&mut *lines.0.lock().unwrap())
        };
        let named = |key: &str| NamedKey { key: Some(key.to_owned()), key_base64: None };
        // The byte 0xff is not UTF-8, so this queue of strings cannot have the key.
        let invalid = NamedKey { key: None, key_base64: Some("/w==".to_owned()) };
        assert_eq!(revive(vec![named("a"), invalid]).await, "");
        let failed = "message=revive was interrupted remote=a client without an address ";
        let some = revive(keys.map(named).into()).await;
        assert_eq!(some, format!("{failed}keys=4 changed=2 \n"));
        assert_eq!(revive(vec![named("c")]).await, "");

        // The start of this action is logged, so its end must also be logged, even if it changes no
        // key.
        let mut log = Log::new(Remote::default(), "revive");
        let matching =
            Matching { state: Some("parked".to_owned()), q: None, failed: false, error: None };
        let revived = act_on_matching(site.state(), Action::Revive, matching, 2, &mut log).await;
        assert!(revived.is_err());
        drop(log);
        let lines = lines.0.lock().unwrap();
        assert!(lines.ends_with(&format!("{failed}keys=2 changed=0 \n")), "{lines}");
    }

    #[tokio::test]
    async fn what_was_changed_for_a_client_that_is_gone_is_recorded() {
        const TOKEN: &str = "0123456789abcdef";
        let queue = Queue::new();
        queue.add_all((0..1500).map(|n| n.to_string()));
        let token = crate::AccessToken::new(TOKEN).unwrap();
        let site = Site::builder(queue.clone()).admin(token).build();
        let body = r#"{"matching":{"state":"ready"},"expected":1500,"by":"ann","note":"why"}"#;
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .body(body.into())
            .unwrap();
        let mut cancel =
            Box::pin(change_keys(State(Arc::clone(site.state())), request, Action::Cancel));
        while queue.len() == 1500 {
            assert!((&mut cancel).now_or_never().is_none(), "it needs two parts");
        }
        let left = queue.len();
        assert!(left > 0, "the client is gone after the first part");
        drop(cancel);
        let actions = loop {
            let actions = site.state().source.last_actions().await.unwrap();
            if !actions.is_empty() {
                break actions;
            }
            tokio::task::yield_now().await;
        };
        let [done] = &actions[..] else { panic!("{actions:?}") };
        let shown = (&*done.action, &*done.by, done.target.as_deref(), done.note.as_deref());
        let target = format!("{} keys", 1500 - left);
        assert_eq!(shown, ("cancel", "ann", Some(&*target), Some("why")));
    }

    #[cfg(feature = "store")]
    const TOKEN: &str = "0123456789abcdef";

    /// Returns the site of a queue with groups in a SQLite file, the queue, and the directory of
    /// the file.
    #[cfg(feature = "store")]
    async fn stored() -> (Site, requeue_store::Queue, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("queues.db").display());
        let store = requeue_store::Store::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let queue = store.queue("orders").group_by("^[^/]*").open().await.unwrap();
        let token = crate::AccessToken::new(TOKEN).unwrap();
        (Site::of_store(queue.clone()).admin(token).build(), queue, dir)
    }

    #[cfg(feature = "store")]
    fn request_with(body: String) -> Request {
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        request.body(body.into()).unwrap()
    }

    #[cfg(feature = "store")]
    #[tokio::test]
    async fn an_action_on_named_keys_is_recorded_if_the_client_disconnects() {
        let (site, _queue, _dir) = stored().await;
        let state = || State(Arc::clone(site.state()));
        let body = |keys: &str| format!(r#"{{"keys":[{keys}],"by":"ann","note":"why"}}"#);
        let keys = r#"{"key":"acme/a"},{"key":"acme/b"}"#;
        for (actions, action) in ["add", "cancel"].into_iter().enumerate() {
            let request = request_with(body(keys));
            let mut answer: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = match action {
                "add" => Box::pin(add_keys(state(), request)),
                _ => Box::pin(change_keys(state(), request, Action::Cancel)),
            };
            assert!((&mut answer).now_or_never().is_none(), "the store has not answered");
            drop(answer);
            let done = loop {
                let done = site.state().source.last_actions().await.unwrap();
                if done.len() > actions {
                    break done;
                }
                tokio::task::yield_now().await;
            };
            let shown = (&*done[0].action, &*done[0].by, done[0].target.as_deref());
            assert_eq!(shown, (action, "ann", Some("2 keys")));
        }
    }

    #[cfg(feature = "store")]
    #[tokio::test]
    async fn a_cancel_of_a_group_waits_for_its_turn_and_is_logged() {
        let lines = Lines::default();
        let (site, queue, _dir) = stored().await;
        // There are more keys than one step of a cancel removes.
        queue.add_all((0..1500).map(|n| format!("acme/{n}"))).await.unwrap();
        let _here = tracing::subscriber::set_default(lines.clone());
        let cancel = |group: &str| {
            let request = request_with(format!(r#"{{"group":"{group}"}}"#));
            let site = State(Arc::clone(site.state()));
            Box::pin(crate::groups::change_group(site, request, GroupAction::Cancel))
        };
        let logged = || {
            let lines = std::mem::take(&mut *lines.0.lock().unwrap());
            lines.lines().filter(|line| line.contains("group-cancel")).collect::<String>()
        };

        let search = site.state().take_turn().await.ok();
        let mut waiting = cancel("acme");
        assert!((&mut waiting).now_or_never().is_none(), "it waits for the search");
        drop(waiting);
        assert_eq!(logged(), "");
        drop(search);

        assert!(cancel("acme").now_or_never().is_none(), "it needs several steps");
        let interrupted = logged();
        let expected = "message=group-cancel was interrupted remote=a client without an address group=\"acme\" changed=";
        assert!(interrupted.starts_with(expected), "{interrupted}");
        assert!(cancel(&"x".repeat(101)).await.is_err());
        assert_eq!(logged(), "", "a refused request changes nothing");
        cancel("other").await.unwrap();
        let expected =
            "message=group-cancel remote=a client without an address group=\"other\" keys=0 ";
        assert_eq!(logged(), expected);
    }

    #[test]
    fn a_number_that_differs_by_more_than_a_tenth_is_refused() {
        for (matched, expected) in [(0, 0), (9, 9), (9, 10), (11, 10), (900, 1000), (1100, 1000)] {
            assert!(is_near(matched, expected), "{matched} {expected}");
        }
        for (matched, expected) in [(1, 0), (8, 9), (10, 9), (8, 10), (12, 10), (1101, 1000)] {
            assert!(!is_near(matched, expected), "{matched} {expected}");
        }
    }
}

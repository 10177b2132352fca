//! The requests about the schedules of a queue in a store: the list, and the actions.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;

use crate::actions::{Log, check_token, read_body, record};
use crate::api::{
    Named, NamedKey, Schedule, ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleList,
};
use crate::keys::escape_key;
use crate::params::{Problem, json};
use crate::source::{Selected, TableQuery};
use crate::state::SiteState;

/// The maximum number of schedules that one request reads, and the largest value of
/// `limit`.
const MOST_SCHEDULES: usize = 10_000;

type Site = State<Arc<SiteState>>;

/// A column by which the list of schedules can be sorted, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ScheduleColumn {
    Key,
    DueIn,
}

impl Named for ScheduleColumn {
    const NAMES: &'static [(&'static str, Self)] = &[("key", Self::Key), ("due_in", Self::DueIn)];
}

impl ScheduleColumn {
    fn compare(self, a: &Schedule, b: &Schedule) -> Ordering {
        let due_in = |schedule: &Schedule| schedule.due_in.unwrap_or(f64::INFINITY);
        match self {
            Self::Key => a.key.cmp(&b.key),
            Self::DueIn => due_in(a).total_cmp(&due_in(b)),
        }
    }
}

/// Returns the schedules, sorted by key or by another column.
pub(crate) async fn list_schedules(
    State(site): Site,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    // The request waits for its turn, because some stores read all schedules.
    let _turn = site.take_turn().await?;
    let query = TableQuery::<ScheduleColumn>::parse(query.as_deref(), MOST_SCHEDULES)?;
    let read = site.source.read_schedules(MOST_SCHEDULES).await?;
    let compare = |column: &ScheduleColumn, a: &_, b: &_| column.compare(a, b);
    let Selected { rows: schedules, looked_at, more } =
        query.select(read, MOST_SCHEDULES, |schedule| &schedule.key, compare);
    Ok(json(&ScheduleList { schedules, looked_at, more }))
}

/// Stores, removes, pauses or resumes the schedule of a key.
pub(crate) async fn change_schedule(
    State(site): Site,
    request: Request,
    action: ScheduleAction,
) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let (mut change, operator) = read_body::<ScheduleChange>(request, remote).await?;
    check_change(action, &change)?;
    let named = NamedKey { key: change.key.take(), key_base64: change.key_base64.take() };
    let key = named.into_bytes("key")?;
    let shown = escape_key(&key).into_owned();
    let change = site.source.change_schedule(action, key, change);
    let changed = Log::new(remote, action.name()).run_one(change).await?;
    tracing::info!(%remote, key = %shown, changed, "{}", action.name());
    if changed {
        record(&site, operator, action.name(), Some(shown)).await;
    }
    Ok(json(&ScheduleChanged { changed }))
}

/// Returns an error if the request contains a field that the action does not use, or lacks
/// a field that the action requires.
fn check_change(action: ScheduleAction, change: &ScheduleChange) -> Result<(), Problem> {
    let ScheduleChange { key: _, key_base64: _, spec, zone, priority, group } = change;
    if action == ScheduleAction::Add {
        let missing = "missing; pass a cron expression such as 0 9 * * MON-FRI, or every 5m";
        return match spec {
            Some(_) => Ok(()),
            None => Err(Problem::parameter("spec", missing)),
        };
    }
    for (name, is_there) in [
        ("spec", spec.is_some()),
        ("zone", zone.is_some()),
        ("priority", priority.is_some()),
        ("group", group.is_some()),
    ] {
        if is_there {
            return Err(Problem::parameter(name, "only for schedule-add"));
        }
    }
    Ok(())
}

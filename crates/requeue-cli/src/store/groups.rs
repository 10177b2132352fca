//! `requeue groups`: lists and changes the groups of a queue in a store.

use std::time::Duration;

use requeue_http::api::{
    Group, GroupAction, GroupChange, GroupChanged, GroupList, Named, StartRate, State as ApiState,
};
use requeue_store::{ErrorKind, GroupInfo, Queue, Rate, ReadError, State};
use serde::Serialize;

use super::look::{Recorded, change_all};
use super::operator::Operator;
use super::text::rate_text;
use super::{block_on, store_refusal, update_refusal};
use crate::args::groups_command::{GroupQueue, GroupsCommand, NamedGroup};
use crate::client::Server;
use crate::duration;
use crate::exit::{Ended, Exit, Refusal, complain, error_chain, print_output};
use crate::key::{escaped, shown};

/// The number of groups that one request reads. It is large, because some stores read all keys of the queue for each
/// request.
const PAGE: usize = 10_000;

/// A change of one group, or of the common limit of all groups without their own limit.
struct Change {
    action: GroupAction,
    /// The name of the group. `None` for all groups without a separate limit.
    group: Option<String>,
    limit: Option<u32>,
    weight: Option<u32>,
    rate: Option<Rate>,
    state: Option<State>,
}

impl Change {
    const fn new(action: GroupAction, group: Option<String>) -> Self {
        Self { action, group, limit: None, weight: None, rate: None, state: None }
    }
}

/// `requeue groups`: lists or changes the groups of a queue.
pub(crate) fn run(command: GroupsCommand) -> Result<Ended, Refusal> {
    let named =
        |action, NamedGroup { name, queue, note }| (Change::new(action, Some(name)), queue, note);
    let (change, queue, note) = match command {
        GroupsCommand::List { queue, json } => return list(&queue, json),
        GroupsCommand::Pause(group) => named(GroupAction::Pause, group),
        GroupsCommand::Resume(group) => named(GroupAction::Resume, group),
        GroupsCommand::Limit { group, limit } => {
            let (change, queue, note) = named(GroupAction::Limit, group);
            (Change { limit: limit.0, ..change }, queue, note)
        }
        GroupsCommand::DefaultLimit { limit, queue, note } => {
            let change = Change::new(GroupAction::Limit, None);
            (Change { limit: limit.0, ..change }, queue, note)
        }
        GroupsCommand::Rate { group, rate } => {
            let (change, queue, note) = named(GroupAction::Rate, group);
            (Change { rate: rate.rate()?, ..change }, queue, note)
        }
        GroupsCommand::Weight { group, weight } => {
            let (change, queue, note) = named(GroupAction::Weight, group);
            (Change { weight: Some(weight), ..change }, queue, note)
        }
        GroupsCommand::Cancel { group, state } => {
            let (change, queue, note) = named(GroupAction::Cancel, group);
            (Change { state, ..change }, queue, note)
        }
    };
    let operator = note.to_operator();
    block_on(async {
        match queue.server.open_server(queue.place.queue.as_deref())? {
            Some(server) => change_by_server(&operator.identify_to(server), change).await,
            None => change_in_store(&queue.place.to_look_at().await?, &change, operator).await,
        }
    })
}

/// Reports the new value to the user.
fn report_change(change: &Change) -> Ended {
    let of = match &change.group {
        Some(name) => format!("group {}", escaped(name.as_bytes())),
        None => ALL_GROUPS.to_owned(),
    };
    complain(&format!("{of}: {}", new_value(change)));
    Ended::Exit(Exit::Done)
}

const ALL_GROUPS: &str = "groups without another limit";

fn new_value(change: &Change) -> String {
    let limit = || match (change.limit, &change.group) {
        (Some(limit), _) => format!("limit {limit}"),
        (None, Some(_)) => "limit of the queue".to_owned(),
        (None, None) => "no limit".to_owned(),
    };
    match change.action {
        GroupAction::Pause => "paused".to_owned(),
        GroupAction::Resume => "resumed".to_owned(),
        GroupAction::Limit => limit(),
        GroupAction::Rate => rate_text(change.rate),
        GroupAction::Weight => format!("weight {}", change.weight.unwrap_or_default()),
        GroupAction::Cancel => "cancelled".to_owned(),
    }
}

async fn change_in_store(
    queue: &Queue,
    change: &Change,
    operator: Operator,
) -> Result<Ended, Refusal> {
    let name = match change.group.as_deref() {
        None => ALL_GROUPS.to_owned(),
        Some("") => "(no group)".to_owned(),
        Some(name) => shown(name.as_bytes()),
    };
    let action = change.action.name();
    let group = queue.group(change.group.clone().unwrap_or_default());
    let changed = match change.action {
        GroupAction::Pause => group.pause().await,
        GroupAction::Resume => group.resume().await,
        GroupAction::Limit if change.group.is_none() => queue.set_group_limit(change.limit).await,
        GroupAction::Limit => group.set_limit(change.limit).await,
        GroupAction::Rate => group.set_rate(change.rate).await,
        GroupAction::Weight => group.set_weight(change.weight.unwrap_or(1)).await,
        GroupAction::Cancel => {
            // The read of the group checks its name. An invalid name then gives the exit code for a wrong command
            // line.
            group.info().await.map_err(read_refusal)?;
            let record = Recorded { operator, action, queue: queue.clone(), of: &name };
            return change_all(group.cancel_all(change.state), "cancelled", record).await;
        }
    };
    changed.map_err(update_refusal)?;
    let target = match change.action {
        GroupAction::Pause | GroupAction::Resume => name,
        _ => format!("{name}: {}", new_value(change)),
    };
    operator.record(queue, action, target).await;
    Ok(report_change(change))
}

async fn change_by_server(server: &Server, change: Change) -> Result<Ended, Refusal> {
    let body = GroupChange {
        group: change.group.clone(),
        limit: (change.action == GroupAction::Limit).then_some(change.limit),
        weight: change.weight,
        rate: (change.action == GroupAction::Rate).then_some(change.rate.map(StartRate::from)),
        state: change.state.map(ApiState::stored),
    };
    let GroupChanged { cancelled } = server.post(change.action.name(), &body).await?;
    if change.action == GroupAction::Cancel {
        complain(&format!("{cancelled} cancelled"));
        return Ok(Ended::Exit(Exit::Done));
    }
    Ok(report_change(&change))
}

fn read_refusal(error: ReadError) -> Refusal {
    match error.kind() {
        ErrorKind::Invalid => Refusal::usage(error_chain(&error)),
        _ => store_refusal(error),
    }
}

/// `requeue groups list`: lists the groups of a queue.
fn list(queue: &GroupQueue, is_json: bool) -> Result<Ended, Refusal> {
    block_on(async {
        // The header is printed with the first answer. If the first request fails, only the error is printed.
        let mut header = if is_json { "" } else { HEADER };
        if let Some(server) = queue.server.open_server(queue.place.queue.as_deref())? {
            let query = [("limit", &b"10000"[..])];
            let GroupList { groups, more, .. } = server.get("groups", &query).await?;
            print_groups(header, groups.iter().map(Line::from_server), is_json)?;
            if more {
                complain("the queue has more groups; read the store itself with --store");
            }
            return Ok(Ended::Exit(Exit::Done));
        }
        let queue = queue.place.to_look_at().await?;
        let mut after: Option<String> = None;
        loop {
            let page = queue.groups(after.as_deref(), PAGE).await.map_err(read_refusal)?;
            let goes_on = print_groups(header, page.iter().map(Line::from_store), is_json)?;
            header = "";
            match page.last().filter(|_| goes_on && page.len() >= PAGE) {
                Some(last) => after = Some(last.name.clone()),
                None => return Ok(Ended::Exit(Exit::Done)),
            }
        }
    })
}

const HEADER: &str =
    "   READY  WAITING  IN FLIGHT    LIMIT   WEIGHT     RATE  BURST     OLDEST  STATE   GROUP\n";

/// The data of one group. The JSON object has the same fields.
#[derive(Serialize)]
struct Line<'a> {
    group: &'a str,
    ready: u64,
    waiting: u64,
    in_flight: u64,
    dirty: u64,
    parked: u64,
    /// The time for which the oldest ready key has been ready, in seconds.
    oldest_ready: Option<f64>,
    limit: Option<u32>,
    weight: u32,
    rate: Option<StartRate>,
    is_paused: bool,
}

impl<'a> Line<'a> {
    fn from_store(info: &'a GroupInfo) -> Self {
        let counts = &info.counts;
        Self {
            group: &info.name,
            ready: counts.ready,
            waiting: counts.waiting,
            in_flight: counts.in_flight,
            dirty: counts.dirty,
            parked: counts.parked,
            oldest_ready: (counts.ready > 0).then_some(counts.oldest_ready.as_secs_f64()),
            limit: info.limit,
            weight: info.weight,
            rate: info.rate.map(StartRate::from),
            is_paused: info.is_paused,
        }
    }

    fn from_server(group: &'a Group) -> Self {
        Self {
            group: &group.name,
            ready: group.ready,
            waiting: group.waiting,
            in_flight: group.running,
            dirty: group.dirty,
            parked: group.parked,
            oldest_ready: group.oldest,
            limit: group.limit,
            weight: group.weight,
            rate: group.rate,
            is_paused: group.paused,
        }
    }

    fn to_text(&self) -> String {
        let Self { ready, waiting, in_flight, weight, .. } = self;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let limit = or_dash(self.limit.map(|limit| limit.to_string()));
        let rate = self.rate.and_then(|rate| Rate::try_from(rate).ok());
        let burst = or_dash(rate.map(|rate| rate.burst_size().to_string()));
        let rate = or_dash(rate.map(|rate| format!("{rate:#}")));
        let oldest = self.oldest_ready.and_then(|age| Duration::try_from_secs_f64(age).ok());
        // Spaces separate the columns, so they are removed from the duration.
        let oldest = or_dash(oldest.map(|age| duration::shown(age).replace(' ', "")));
        let state = if self.is_paused { "paused" } else { "-" };
        // Another process has written the name, so it is escaped.
        let name = match self.group {
            "" => "\"\"".to_owned(),
            name => shown(name.as_bytes()),
        };
        format!(
            "{ready:>8} {waiting:>8} {in_flight:>10} {limit:>8} {weight:>8} {rate:>8} {burst:>6} {oldest:>10}  \
             {state:6}  {name}"
        )
    }
}

/// Prints `header`, and a line for each group. Returns false if the reader of standard output has closed it.
fn print_groups<'a>(
    header: &str,
    lines: impl Iterator<Item = Line<'a>>,
    is_json: bool,
) -> Result<bool, Refusal> {
    let mut text = header.to_owned();
    for line in lines {
        // Texts and numbers can always be serialized.
        text += &if is_json {
            serde_json::to_string(&line).unwrap_or_default()
        } else {
            line.to_text()
        };
        text.push('\n');
    }
    print_output(text.as_bytes())
}

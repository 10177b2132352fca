//! `requeue schedule`: adds keys again at set times.

use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp, Unit};
use requeue_http::api::{
    self, Named, NamedKey, ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleList,
};
use requeue_store::{ErrorKind, Key, Schedule, ScheduleInfo, UpdateError};
use serde::Serialize;

use super::text::{group_column, report_each};
use super::{block_on, store_refusal};
use crate::args::groups::GroupSettings;
use crate::args::schedule::{AddFlags, KeysFlags, ListFlags, ScheduleCommand};
use crate::client::{Server, named_key};
use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::input::json::Written;
use crate::key::{escaped, shown};

/// The number of schedules that one request reads.
const PAGE: usize = 256;

pub(crate) fn schedule(command: ScheduleCommand) -> Result<Ended, Refusal> {
    match command {
        ScheduleCommand::Add(flags) => add(flags),
        ScheduleCommand::List(flags) => list(&flags),
        ScheduleCommand::Remove(flags) => change(&flags, ScheduleAction::Remove, "removed"),
        ScheduleCommand::Pause(flags) => change(&flags, ScheduleAction::Pause, "paused"),
        ScheduleCommand::Resume(flags) => change(&flags, ScheduleAction::Resume, "resumed"),
    }
}

fn add(flags: AddFlags) -> Result<Ended, Refusal> {
    let AddFlags { key, place, server, cron, zone, every, priority, group, note } = flags;
    let operator = note.to_operator();
    let invalid = |error: UpdateError| Refusal::usage(error.to_string());
    // clap requires `--cron` or `--every`.
    let every = every.unwrap_or_default();
    let schedule = match &cron {
        Some(expression) => Schedule::cron(expression, &zone).map_err(invalid)?,
        None => Schedule::every(every),
    };
    block_on(async {
        if let Some(server) = server.open_server(place.queue.as_deref())? {
            let period = SignedDuration::try_from(every).unwrap_or(SignedDuration::MAX);
            let zone = cron.is_some().then_some(zone);
            let spec = Some(cron.unwrap_or_else(|| format!("every {period:#}")));
            let priority = Some(priority.into());
            let change = ScheduleChange { spec, zone, priority, group, ..named(key.as_bytes()) };
            let server = operator.identify_to(server);
            change_by_server(&server, ScheduleAction::Add, &change).await?;
        } else {
            let schedule = schedule.priority(priority);
            // If the schedule has a group and this command creates the queue, the queue must take groups from its
            // adds.
            let groups = GroupSettings::of_adds(group.is_some());
            let schedule = if let Some(group) = group { schedule.group(group) } else { schedule };
            let queue = place.to_change(|opening| groups.apply_to(opening)).await?;
            let stored = queue.schedule(key.as_bytes(), schedule).await;
            stored.map_err(|error| match error.kind() {
                ErrorKind::Invalid => invalid(error),
                _ => store_refusal(error),
            })?;
            let action = ScheduleAction::Add.name();
            operator.record(&queue, action, shown(key.as_bytes())).await;
        }
        complain(&format!("{} scheduled", escaped(key.as_bytes())));
        Ok(Ended::Exit(Exit::Done))
    })
}

fn list(flags: &ListFlags) -> Result<Ended, Refusal> {
    block_on(async {
        if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
            let query = [("limit", &b"10000"[..])];
            let ScheduleList { schedules, more, .. } = server.get("schedules", &query).await?;
            print_schedules(schedules.into_iter().map(Line::from_server), flags.json)?;
            if more {
                complain("the queue has more schedules; read the store itself with --store");
            }
            return Ok(Ended::Exit(Exit::Done));
        }
        let queue = flags.place.to_look_at().await?;
        let mut after: Option<Key> = None;
        loop {
            let page = queue.schedules(after.as_ref(), PAGE).await.map_err(store_refusal)?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            if !print_schedules(page.into_iter().map(Line::from_store), flags.json)? {
                break;
            }
        }
        Ok(Ended::Exit(Exit::Done))
    })
}

/// Prints a line for each schedule. Returns false if the reader of standard output has closed it.
fn print_schedules(lines: impl Iterator<Item = Line>, is_json: bool) -> Result<bool, Refusal> {
    let mut text = Vec::new();
    for line in lines {
        text.extend(line.to_bytes(is_json));
        text.push(b'\n');
    }
    print_output(&text)
}

/// The data of a schedule that one line shows.
struct Line {
    key: Vec<u8>,
    spec: String,
    zone: Option<String>,
    at: Option<Timestamp>,
    is_paused: bool,
    error: Option<String>,
    priority: i32,
    group: Option<String>,
}

impl Line {
    fn from_store(info: ScheduleInfo) -> Self {
        let ScheduleInfo { key, spec, zone, next_at, is_paused, error, priority, group, .. } = info;
        let (key, priority) = (key.to_vec(), priority.into());
        let at = next_at.and_then(|at| Timestamp::try_from(at).ok());
        Self { key, spec, zone, at, is_paused, error, priority, group }
    }

    fn from_server(schedule: api::Schedule) -> Self {
        let api::Schedule {
            key,
            key_base64,
            spec,
            zone,
            next_at,
            paused,
            error,
            priority,
            group,
            ..
        } = schedule;
        let key = STANDARD.decode(key_base64.unwrap_or_default()).unwrap_or_else(|_| key.into());
        let at = next_at.and_then(|at| SignedDuration::try_from_secs_f64(at).ok());
        let at = at.and_then(|at| Timestamp::from_duration(at).ok());
        Self { key, spec, zone, at, is_paused: paused, error, priority, group }
    }

    fn to_bytes(&self, is_json: bool) -> Vec<u8> {
        #[derive(Serialize)]
        struct Listed<'a> {
            #[serde(flatten)]
            key: Written<'a>,
            spec: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            zone: Option<&'a str>,
            is_paused: bool,
        }
        let Self { key, spec, zone, at, is_paused, error, priority, group } = self;
        let (zone, group, error) = (zone.as_deref(), group.as_deref(), error.as_deref());
        let at = at.and_then(|at| at.round(Unit::Second).ok()).map(|at| at.to_string());
        if is_json {
            let mut written = Written::of_key(key);
            (written.at, written.priority) = (at, *priority);
            (written.group, written.why) = (group, error);
            let listed = Listed { key: written, spec, zone, is_paused: *is_paused };
            // Texts can always be serialized.
            return serde_json::to_vec(&listed).unwrap_or_default();
        }
        // A user can write any text to these columns with SQL, so the texts are escaped.
        let [spec, zone, state] = [
            spec,
            zone.unwrap_or_default(),
            error.unwrap_or(if *is_paused { "paused" } else { "" }),
        ]
        .map(|text| shown(text.as_bytes()));
        let (key, at, group) = (shown(key), at.unwrap_or_default(), group_column(group));
        format!("{key}\t{spec}\t{zone}\t{at}\t{state}{group}").into_bytes()
    }
}

/// Changes the schedules of the keys, and reports each key that has no schedule.
fn change(flags: &KeysFlags, action: ScheduleAction, done: &str) -> Result<Ended, Refusal> {
    let operator = flags.note.to_operator();
    block_on(async {
        let changed =
            if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
                let (server, mut changed) = (operator.identify_to(server), Vec::new());
                for key in &flags.keys {
                    changed.push(change_by_server(&server, action, &named(key.as_bytes())).await?);
                }
                changed
            } else {
                let queue = flags.place.to_look_at().await?;
                let change = async |key: Key| {
                    let changed = match action {
                        ScheduleAction::Pause => queue.pause_schedule(key).await,
                        ScheduleAction::Resume => queue.resume_schedule(key).await,
                        ScheduleAction::Remove | ScheduleAction::Add => queue.unschedule(key).await,
                    };
                    changed.map_err(store_refusal)
                };
                operator.change_each(&queue, action.name(), &flags.keys, change).await?
            };
        Ok(report_each(&flags.keys, &changed, done, "has no schedule"))
    })
}

/// Returns an empty change that names the key.
fn named(key: &[u8]) -> ScheduleChange {
    let NamedKey { key, key_base64 } = named_key(key);
    ScheduleChange { key, key_base64, ..ScheduleChange::default() }
}

async fn change_by_server(
    server: &Server,
    action: ScheduleAction,
    change: &ScheduleChange,
) -> Result<bool, Refusal> {
    let ScheduleChanged { changed } = server.post(action.name(), change).await?;
    Ok(changed)
}

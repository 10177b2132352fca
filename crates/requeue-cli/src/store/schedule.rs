//! `requeue schedule`: keys that are added again at certain times.

use std::os::unix::ffi::OsStrExt;

use jiff::{Timestamp, Unit};
use requeue_store::{Key, Queue, Schedule, ScheduleInfo, UpdateError};
use serde::Serialize;

use super::text::{group_column, report_each};
use super::{block_on, store_refusal};
use crate::args::groups::GroupSettings;
use crate::args::schedule::{AddFlags, KeysFlags, ListFlags, ScheduleCommand};
use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::input::json::Written;
use crate::key::{escaped, shown};

/// The number of schedules that are read in one request.
const PAGE: usize = 256;

pub(crate) fn schedule(command: ScheduleCommand) -> Result<Ended, Refusal> {
    match command {
        ScheduleCommand::Add(flags) => add(flags),
        ScheduleCommand::List(flags) => list(&flags),
        ScheduleCommand::Remove(flags) => {
            change(&flags, "removed", async |queue, key| queue.unschedule(key).await)
        }
        ScheduleCommand::Pause(flags) => {
            change(&flags, "paused", async |queue, key| queue.pause_schedule(key).await)
        }
        ScheduleCommand::Resume(flags) => {
            change(&flags, "resumed", async |queue, key| queue.resume_schedule(key).await)
        }
    }
}

fn add(flags: AddFlags) -> Result<Ended, Refusal> {
    let AddFlags { key, place, cron, zone, every, priority, group } = flags;
    let invalid = |error: UpdateError| Refusal::usage(error.to_string());
    let schedule = match cron {
        Some(expression) => Schedule::cron(&expression, &zone).map_err(invalid)?,
        // The flags need one of the two.
        None => Schedule::every(every.unwrap_or_default()),
    };
    let schedule = schedule.priority(priority);
    // A queue that this command creates must have the groups that the schedule needs.
    let groups = GroupSettings::of_adds(group.is_some());
    let schedule = if let Some(group) = group { schedule.group(group) } else { schedule };
    block_on(async {
        let queue = place.to_change(|opening| groups.apply_to(opening)).await?;
        let stored = queue.schedule(key.as_bytes(), schedule).await;
        stored.map_err(|error| match error.kind() {
            requeue_store::ErrorKind::Invalid => invalid(error),
            _ => store_refusal(error),
        })?;
        complain(&format!("{} scheduled", escaped(key.as_bytes())));
        Ok(Ended::Exit(Exit::Done))
    })
}

fn list(flags: &ListFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        let mut after: Option<Key> = None;
        loop {
            let page = queue.schedules(after.as_ref(), PAGE).await.map_err(store_refusal)?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            let mut lines = Vec::new();
            for info in &page {
                lines.extend(line(info, flags.json));
                lines.push(b'\n');
            }
            if !print_output(&lines)? {
                break;
            }
        }
        Ok(Ended::Exit(Exit::Done))
    })
}

/// Returns the line of a schedule, without the newline.
fn line(info: &ScheduleInfo, is_json: bool) -> Vec<u8> {
    #[derive(Serialize)]
    struct Listed<'a> {
        #[serde(flatten)]
        key: Written<'a>,
        spec: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        zone: Option<&'a str>,
        is_paused: bool,
    }
    let ScheduleInfo { key, spec, zone, next, is_paused, error, priority, group, .. } = info;
    let at = next.and_then(|next| Timestamp::now().checked_add(next).ok());
    // The clocks of the store and of this process differ a little.
    let at = at.and_then(|at| at.round(Unit::Second).ok()).map(|at| at.to_string());
    if is_json {
        let mut written = Written::of_key(key);
        (written.at, written.priority) = (at, (*priority).into());
        (written.group, written.why) = (group.as_deref(), error.as_deref());
        let listed = Listed { key: written, spec, zone: zone.as_deref(), is_paused: *is_paused };
        // Texts can always be serialized.
        return serde_json::to_vec(&listed).unwrap_or_default();
    }
    let (key, at) = (shown(key), at.unwrap_or_default());
    // SQL may have written any text.
    let spec = shown(spec.as_bytes());
    let zone = shown(zone.as_deref().unwrap_or_default().as_bytes());
    let state = error.as_deref().unwrap_or(if *is_paused { "paused" } else { "" });
    let (state, group) = (shown(state.as_bytes()), group_column(group.as_deref()));
    format!("{key}\t{spec}\t{zone}\t{at}\t{state}{group}").into_bytes()
}

/// Changes the schedules of keys, and reports those that have none.
fn change(
    flags: &KeysFlags,
    done: &str,
    change: impl AsyncFn(&Queue, &[u8]) -> Result<bool, UpdateError>,
) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        let mut changed = Vec::with_capacity(flags.keys.len());
        for key in &flags.keys {
            changed.push(change(&queue, key.as_bytes()).await.map_err(store_refusal)?);
        }
        Ok(report_each(&flags.keys, &changed, done, "has no schedule"))
    })
}

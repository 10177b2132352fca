//! The subcommands that show keys of a queue in a store: `keys`, `parked`, `explain`.

use std::os::unix::ffi::OsStrExt;

use jiff::{Timestamp, Unit};
use requeue_http::api::PastRun;
use requeue_store::{Entry, Key, Queue, State};

use super::text::{Times, key_line, runs_text};
use super::{block_on, by_server, store_refusal};
use crate::args::store::{ExplainFlags, KeysFlags, ListFlags, state_name};
use crate::exit::{Ended, Exit, Refusal, print_output};
use crate::input::json::Written;
use crate::key::{printable, shown};

/// The number of keys that are read in one request.
const PAGE: usize = 256;

/// `requeue keys`.
pub(crate) fn keys(flags: &KeysFlags) -> Result<Ended, Refusal> {
    block_on(async {
        if let Some(server) = flags.server.open_server(&flags.place.queue)? {
            return by_server::keys(&server, flags).await;
        }
        let queue = flags.place.to_look_at().await?;
        list_keys(&queue, flags.state, |entry| {
            let at = entry.due.and_then(|due| Timestamp::now().checked_add(due).ok());
            let mut record = to_record(entry);
            record.state = Some(state_name(entry.state));
            record.at = at.map(|at| at.to_string());
            record.why = entry.error.as_deref();
            key_line(&shown(&entry.key), &record, flags.json)
        })
        .await
    })
}

/// `requeue parked`.
pub(crate) fn parked(flags: &ListFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        list_keys(&queue, Some(State::Parked), |entry| {
            let at = entry.since.and_then(|since| Timestamp::now().checked_sub(since).ok());
            let at = at.map(|at| at.to_string());
            let why = entry.error.as_deref().unwrap_or_default();
            if flags.json {
                let mut record = to_record(entry);
                (record.why, record.given_up_at) = (Some(why), at);
                return record.to_bytes();
            }
            let (key, at, why) = (shown(&entry.key), at.unwrap_or_default(), shown(why.as_bytes()));
            format!("{key}\t{}\t{at}\t{why}", entry.failures).into_bytes()
        })
        .await
    })
}

/// `requeue explain`.
pub(crate) fn explain(flags: &ExplainFlags) -> Result<Ended, Refusal> {
    block_on(async {
        if let Some(server) = flags.server.open_server(&flags.place.queue)? {
            return by_server::explain(&server, flags).await;
        }
        let queue = flags.place.to_look_at().await?;
        let key = Key::from(flags.key.as_bytes());
        let found = queue.look_up(key.clone()).await.map_err(store_refusal)?;
        let schedule = queue.look_up_schedule(key.clone()).await.map_err(store_refusal)?;
        let now = Timestamp::now();
        let mut runs = Vec::new();
        let (mut text, exit) = match found {
            Some(entry) => {
                if entry.failures > 0 {
                    let attempts = queue.attempts(&key).await.map_err(store_refusal)?;
                    runs = PastRun::of_attempts(&entry, attempts);
                }
                let times = Times { age: entry.since, due: entry.due, lease: entry.lease };
                let why = queue.explain_entry(&entry).await.map_err(store_refusal)?;
                (times.append_to(&why, now), Exit::Done)
            }
            None => (
                format!(
                    "{key}: not in the queue: it was never added, was cancelled, or its last run succeeded"
                ),
                Exit::GivenUp,
            ),
        };
        if let Some(schedule) = schedule {
            let at = schedule.next_at.and_then(|at| Timestamp::try_from(at).ok());
            let at = at.and_then(|at| at.round(Unit::Second).ok());
            let at = at.map(|at| format!("; next at {at}")).unwrap_or_default();
            text = format!("{text}; {}{at}", schedule.explain());
        }
        // The error of a command may contain control characters.
        print_output((printable(&text) + "\n" + &runs_text(&runs)).as_bytes())?;
        Ok(Ended::Exit(exit))
    })
}

/// Prints a line for each key, in pages.
async fn list_keys(
    queue: &Queue,
    state: Option<State>,
    line: impl Fn(&Entry) -> Vec<u8>,
) -> Result<Ended, Refusal> {
    let mut after = None;
    while let Some(page) = next_page(queue, state, &mut after).await? {
        let mut lines = Vec::new();
        for entry in &page {
            lines.extend(line(entry));
            lines.push(b'\n');
        }
        if !print_output(&lines)? {
            break;
        }
    }
    Ok(Ended::Exit(Exit::Done))
}

/// Returns the next page of keys; `None` at the end.
pub(super) async fn next_page(
    queue: &Queue,
    state: Option<State>,
    after: &mut Option<Key>,
) -> Result<Option<Vec<Entry>>, Refusal> {
    let page = queue.snapshot(state, after.as_ref(), PAGE).await.map_err(store_refusal)?;
    *after = page.last().map(|entry| entry.key.clone());
    Ok(Some(page).filter(|page| !page.is_empty()))
}

fn to_record(entry: &Entry) -> Written<'_> {
    let mut written = Written::of_key(&entry.key);
    written.priority = entry.priority.into();
    written.attempts = Some(entry.failures);
    written.group = entry.group.as_deref();
    written
}

//! The subcommands that list the keys of a queue in a store: `keys` and `parked`.

use jiff::Timestamp;
use requeue_store::{Entry, Key, Queue, State};

use super::text::key_line;
use super::{block_on, by_server, store_refusal};
use crate::args::store::{KeysFlags, ListFlags, state_name};
use crate::exit::{Ended, Exit, Refusal, print_output};
use crate::input::json::Written;
use crate::key::shown;

/// The number of keys that one request reads.
const PAGE: usize = 256;

/// `requeue keys`: lists the keys of a queue.
pub(crate) fn keys(flags: &KeysFlags) -> Result<Ended, Refusal> {
    block_on(async {
        if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
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

/// `requeue parked`: lists the parked keys of a queue, with their errors.
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

/// Prints a line for each key. Reads and prints the keys in pages.
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

/// Returns the next page of keys. Returns `None` after the last page.
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

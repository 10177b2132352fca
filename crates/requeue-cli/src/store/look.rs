//! What is in a queue in a store, and what few words change of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use jiff::Timestamp;
use requeue_store::{ChangeError, Counts, Entry, Key, Queue};
use serde::Serialize;

use super::flags::{CancelFlags, ParkedFlags, ReviveFlags, StatusFlags};
use super::{block_on, refusal};
use crate::command;
use crate::exit::{Ended, Exit, Refusal, complain, print};
use crate::json::Written;
use crate::summary;

/// How many keys are looked at together.
const PAGE: usize = 256;

/// `requeue status`.
pub(crate) fn status(flags: &StatusFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        let counts = queue.counts().await.map_err(refusal)?;
        let text = if flags.json { status_json(&counts) } else { status_text(&counts) };
        print(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

fn status_text(counts: &Counts) -> String {
    let Counts { ready, waiting, processing, dirty, parked, oldest_ready, .. } = *counts;
    let mut text = format!("ready       {ready}");
    if ready > 0 {
        text += &format!(", for {} at most", summary::shown(oldest_ready));
    }
    text += &format!("\nwaiting     {waiting}\nprocessing  {processing}");
    if dirty > 0 {
        text += &format!(", {dirty} to run once more");
    }
    text + &format!("\nparked      {parked}\n")
}

fn status_json(counts: &Counts) -> String {
    #[derive(Serialize)]
    struct Status {
        ready: u64,
        waiting: u64,
        processing: u64,
        dirty: u64,
        parked: u64,
        /// Seconds.
        oldest_ready: Option<f64>,
    }
    let Counts { ready, waiting, processing, dirty, parked, oldest_ready, .. } = *counts;
    let oldest_ready = (ready > 0).then_some(oldest_ready.as_secs_f64());
    let status = Status { ready, waiting, processing, dirty, parked, oldest_ready };
    // Numbers under names can't fail.
    serde_json::to_string(&status).unwrap_or_default() + "\n"
}

/// `requeue parked`.
pub(crate) fn parked(flags: &ParkedFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        let mut after = None;
        while let Some(page) = page(&queue, &mut after).await? {
            let lines = page.iter().map(|entry| line(entry, flags.json));
            if !print(&lines.collect::<Vec<_>>().concat())? {
                break;
            }
        }
        Ok(Ended::Exit(Exit::Done))
    })
}

fn line(entry: &Entry, as_json: bool) -> Vec<u8> {
    let at = entry.since.and_then(|since| Timestamp::now().checked_sub(since).ok());
    let at = at.map(|at| at.to_string());
    let why = entry.error.as_deref().unwrap_or_default();
    let mut line = if as_json {
        let mut written = Written::of(&entry.key);
        written.priority = entry.priority.number().into();
        written.attempts = Some(entry.failures);
        written.why = Some(why);
        written.given_up_at = at;
        written.to_bytes()
    } else {
        let (key, why) = (command::shown(&entry.key), command::shown(why.as_bytes()));
        let (failures, at) = (entry.failures, at.unwrap_or_default());
        format!("{key}\t{failures}\t{at}\t{why}").into_bytes()
    };
    line.push(b'\n');
    line
}

/// The next parked keys, as long as there are some.
async fn page(queue: &Queue, after: &mut Option<Key>) -> Result<Option<Vec<Entry>>, Refusal> {
    let page = queue.parked(after.as_ref(), PAGE).await.map_err(refusal)?;
    *after = page.last().map(|entry| entry.key.clone());
    Ok(Some(page).filter(|page| !page.is_empty()))
}

/// `requeue revive`.
pub(crate) fn revive(flags: &ReviveFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        if !flags.all {
            return each(&flags.keys, "revived", "was not parked", |key| queue.revive(key)).await;
        }
        let (mut revived, mut after) = (0, None);
        while let Some(page) = page(&queue, &mut after).await? {
            for entry in page {
                revived += usize::from(queue.revive(entry.key).await.map_err(refusal)?);
            }
        }
        complain(&format!("{revived} revived"));
        Ok(Ended::Exit(Exit::Done))
    })
}

/// `requeue cancel`.
pub(crate) fn cancel(flags: &CancelFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = &flags.place.to_look_at().await?;
        let cancel = async |key| Ok(queue.cancel(key).await?.any());
        each(&flags.keys, "cancelled", "was not ready, waiting or parked", cancel).await
    })
}

/// Changes each key, and says how many it was true of; of those that it wasn't, which.
async fn each(
    keys: &[OsString],
    done: &str,
    not: &str,
    change: impl AsyncFn(Key) -> Result<bool, ChangeError>,
) -> Result<Ended, Refusal> {
    let mut changed = 0;
    for key in keys.iter().map(|key| key.as_bytes()) {
        match change(Key::from(key)).await.map_err(refusal)? {
            true => changed += 1,
            false => complain(&format!("{}: {not}", command::escaped(key))),
        }
    }
    complain(&format!("{changed} {done}"));
    Ok(Ended::Exit(if changed == keys.len() { Exit::Done } else { Exit::GivenUp }))
}

//! What is in a queue in a store, and what few words change of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use requeue_store::{Bulk, Counts, EarlyAdd, Entry, Key, ParkedAdd, Queue, State};
use serde::Serialize;
use tokio::time::timeout;

use super::flags::{self, CancelFlags, ParkedFlags, QueuesFlags, ReviveFlags, StatusFlags};
use super::reaching::patiently;
use super::{block_on, connect_to_look, refusal};
use crate::command;
use crate::exit::{Ended, Exit, Refusal, complain, print};
use crate::json::Written;
use crate::signals;
use crate::summary;

/// How many keys are looked at together.
const PAGE: usize = 256;
/// The time between two progress messages of a change of all keys.
const PROGRESS: Duration = Duration::from_secs(2);
/// The time that the current step has to end after a signal.
const LAST_STEP: Duration = Duration::from_secs(5);

/// `requeue queues`.
pub(crate) fn queues(flags: &QueuesFlags) -> Result<Ended, Refusal> {
    #[derive(Serialize)]
    struct Listed<'a> {
        queue: &'a str,
        is_empty: bool,
        early_add: &'static str,
        parked_add: &'static str,
    }
    block_on(async {
        let open = async || connect_to_look(&flags.store, String::new).await;
        let store = patiently(flags.wait.wait, open).await?;
        let mut text = String::new();
        for found in store.queues().await.map_err(refusal)? {
            let (queue, is_empty) = (&*found.name, found.is_empty);
            text += &if flags.json {
                let early_add = if found.early_add == EarlyAdd::Hold { "hold" } else { "replace" };
                let parked_add =
                    if found.parked_add == ParkedAdd::Keep { "keep" } else { "revive" };
                let listed = Listed { queue, is_empty, early_add, parked_add };
                // Texts under names can't fail.
                serde_json::to_string(&listed).unwrap_or_default()
            } else {
                let what = if is_empty { "empty" } else { "keys" };
                format!("{}\t{what}", command::shown(queue.as_bytes()))
            };
            text.push('\n');
        }
        print(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

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
        if flags.all {
            return all(queue.revive_all(), "revived").await;
        }
        let revived = queue.revive_keys(keys(&flags.keys)).await.map_err(refusal)?;
        Ok(each(&flags.keys, &revived, "revived", "was not parked"))
    })
}

/// `requeue cancel`.
pub(crate) fn cancel(flags: &CancelFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        if flags.all {
            let state = flags.state.map(|state| match state {
                flags::State::Ready => State::Ready,
                flags::State::Waiting => State::Waiting,
                flags::State::Processing => State::Processing,
                flags::State::Parked => State::Parked,
            });
            return all(queue.cancel_all(state), "cancelled").await;
        }
        let cancelled = queue.cancel_keys(keys(&flags.keys)).await.map_err(refusal)?;
        Ok(each(&flags.keys, &cancelled, "cancelled", "was not ready, waiting or parked"))
    })
}

fn keys(keys: &[OsString]) -> impl Iterator<Item = Key> {
    keys.iter().map(|key| Key::from(key.as_bytes()))
}

/// Says how many keys were changed; of those that weren't, which.
fn each(keys: &[OsString], changed: &[bool], done: &str, not: &str) -> Ended {
    for (key, _) in keys.iter().zip(changed).filter(|(_, changed)| !**changed) {
        complain(&format!("{}: {not}", command::escaped(key.as_bytes())));
    }
    let count = changed.iter().filter(|changed| **changed).count();
    complain(&format!("{count} {done}"));
    Ended::Exit(if count == keys.len() { Exit::Done } else { Exit::GivenUp })
}

/// Changes all keys, says how far it is, and ends after a step when a signal comes.
async fn all(mut bulk: Bulk, done: &str) -> Result<Ended, Refusal> {
    let mut signalled = pin!(signals::interrupted());
    let mut reported = Instant::now();
    loop {
        let mut signal = None;
        let stepped = {
            let mut step = pin!(bulk.step());
            tokio::select! {
                biased;
                number = &mut signalled => {
                    signal = Some(number);
                    // So that what it changes is counted.
                    timeout(LAST_STEP, step).await.unwrap_or(Ok(true))
                }
                stepped = &mut step => stepped,
            }
        };
        let changed = bulk.changed();
        match (stepped.map_err(refusal)?, signal) {
            (false, _) => {
                complain(&format!("{changed} {done}"));
                return Ok(Ended::Exit(Exit::Done));
            }
            (true, Some(signal)) => {
                complain(&format!("{changed} {done}, and the others are as they were"));
                return Ok(Ended::Signal(signal));
            }
            (true, None) if reported.elapsed() >= PROGRESS => {
                complain(&format!("{changed} {done} so far"));
                reported = Instant::now();
            }
            (true, None) => {}
        }
    }
}

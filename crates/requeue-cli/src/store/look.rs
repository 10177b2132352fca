//! The subcommands that show or change queues in a store: `queues`, `drop`, `status`, `revive`, `cancel`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::time::{Duration, Instant};

use requeue_store::{Bulk, CancelledRun, Counts, Entry, Key, ParkedAdd, Queue, ReAdd, State};
use serde::Serialize;
use tokio::time::timeout;

use super::keys::page;
use super::reaching::patiently;
use super::{block_on, connect_to_look, refusal};
use crate::args::store::{CancelFlags, DropFlags, QueuesFlags, ReviveFlags, StatusFlags};
use crate::duration;
use crate::exit::{Ended, Exit, Refusal, complain, print};
use crate::input::json::Written;
use crate::key::{escaped, shown};
use crate::output::summary::counted;
use crate::process::signals;

/// The maximum number of damaged keys that `requeue status` lists.
const MOST_DAMAGED: usize = 100;
/// The time between two progress messages of `--all`.
const PROGRESS: Duration = Duration::from_secs(2);
/// The time in which the current step may complete after a signal.
const LAST_STEP: Duration = Duration::from_secs(5);

/// `requeue queues`.
pub(crate) fn queues(flags: &QueuesFlags) -> Result<Ended, Refusal> {
    #[derive(Serialize)]
    struct Listed<'a> {
        queue: &'a str,
        is_empty: bool,
        re_add: &'static str,
        parked_add: &'static str,
    }
    let url = flags.store.url()?;
    block_on(async {
        let open = async || connect_to_look(url, String::new).await;
        let store = patiently(flags.wait.wait, open).await?;
        let mut text = String::new();
        for found in store.queues().await.map_err(refusal)? {
            let (queue, is_empty) = (&*found.name, found.is_empty);
            text += &if flags.json {
                let re_add = if found.re_add == ReAdd::Hold { "hold" } else { "replace" };
                let parked_add =
                    if found.parked_add == ParkedAdd::Keep { "keep" } else { "revive" };
                let listed = Listed { queue, is_empty, re_add, parked_add };
                // Serializing texts does not fail.
                serde_json::to_string(&listed).unwrap_or_default()
            } else {
                let what = if is_empty { "empty" } else { "keys" };
                format!("{}\t{what}", shown(queue.as_bytes()))
            };
            text.push('\n');
        }
        print(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

/// `requeue drop`.
pub(crate) fn drop_queue(flags: &DropFlags) -> Result<Ended, Refusal> {
    let DropFlags { queue, store, force, wait } = flags;
    let url = store.url()?;
    block_on(async {
        let open = async || connect_to_look(url, String::new).await;
        let store = patiently(wait.wait, open).await?;
        let dropped = match force {
            true => store.force_drop_queue(queue).await,
            false => store.drop_queue(queue).await.map(|()| Counts::default()),
        };
        match dropped {
            Ok(Counts { ready, waiting, processing, parked, damaged, .. }) => {
                let keys = ready + waiting + processing + parked + damaged;
                let with = match keys {
                    0 => String::new(),
                    _ => format!(", with {}", counted(keys, "key")),
                };
                complain(&format!("{} dropped{with}", escaped(queue.as_bytes())));
                Ok(Ended::Exit(Exit::Done))
            }
            Err(error) if error.counts().is_some() => {
                complain(&format!("{error}; --force drops the queue with its keys"));
                Ok(Ended::Exit(Exit::GivenUp))
            }
            Err(error) => Err(refusal(error)),
        }
    })
}

/// `requeue status`.
pub(crate) fn status(flags: &StatusFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let queue = flags.place.to_look_at().await?;
        let counts = queue.counts().await.map_err(refusal)?;
        let in_flight = match flags.in_flight {
            true => Some(in_flight(&queue).await?),
            false => None,
        };
        let damaged = match counts.damaged {
            0 => Vec::new(),
            _ => {
                let page = queue.snapshot(Some(State::Damaged), None, MOST_DAMAGED).await;
                page.map_err(refusal)?
            }
        };
        let text = match flags.json {
            true => status_json(&counts, in_flight.as_deref(), &damaged),
            false => {
                status_text(&counts)
                    + &damaged_text(&counts, &damaged)
                    + &in_flight_text(in_flight.as_deref())
            }
        };
        print(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

/// Returns all keys in flight.
async fn in_flight(queue: &Queue) -> Result<Vec<Entry>, Refusal> {
    let (mut all, mut after) = (Vec::new(), None);
    while let Some(page) = page(queue, Some(State::Processing), &mut after).await? {
        all.extend(page);
    }
    Ok(all)
}

fn in_flight_text(entries: Option<&[Entry]>) -> String {
    let line = |entry: &Entry| {
        let key = shown(&entry.key);
        let worker = shown(entry.worker.as_deref().unwrap_or_default().as_bytes());
        let age = duration::shown(entry.since.unwrap_or_default());
        let lease = duration::shown(entry.lease.unwrap_or_default());
        format!("{key}\t{worker}\t{age}\t{lease}\n")
    };
    entries.into_iter().flatten().map(line).collect()
}

fn status_text(counts: &Counts) -> String {
    let Counts { ready, waiting, processing, dirty, parked, oldest_ready, .. } = *counts;
    let mut text = format!("ready       {ready}");
    if ready > 0 {
        text += &format!(", the oldest for {}", duration::shown(oldest_ready));
    }
    text += &format!("\nwaiting     {waiting}\nprocessing  {processing}");
    if dirty > 0 {
        text += &format!(", {dirty} to run once more");
    }
    text + &format!("\nparked      {parked}\n")
}

/// Lists the damaged keys, one per line. They are rare, and each must be added again or cancelled.
fn damaged_text(counts: &Counts, listed: &[Entry]) -> String {
    if counts.damaged == 0 {
        return String::new();
    }
    let mut text = format!("damaged     {}; add the keys again, or cancel them:\n", counts.damaged);
    for entry in listed {
        let why = entry.error.as_deref().unwrap_or_default();
        text += &format!("  {}\t{}\n", shown(&entry.key), shown(why.as_bytes()));
    }
    text
}

fn status_json(counts: &Counts, in_flight: Option<&[Entry]>, damaged_keys: &[Entry]) -> String {
    #[derive(Serialize)]
    struct Damaged<'a> {
        key: String,
        why: &'a str,
    }
    #[derive(Serialize)]
    struct Status<'a> {
        ready: u64,
        waiting: u64,
        processing: u64,
        dirty: u64,
        parked: u64,
        damaged: u64,
        /// The first damaged keys.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        damaged_keys: Vec<Damaged<'a>>,
        /// In seconds.
        oldest_ready: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        in_flight: Option<Vec<InFlight<'a>>>,
    }
    #[derive(Serialize)]
    struct InFlight<'a> {
        #[serde(flatten)]
        key: Written<'a>,
        worker: Option<&'a str>,
        /// A text, because some JSON parsers lose digits of large numbers.
        epoch: Option<String>,
        /// The time since its delivery, in seconds.
        age: Option<f64>,
        /// The time until the lease expires unless it is renewed, in seconds.
        lease: Option<f64>,
    }
    fn written(entry: &Entry) -> InFlight<'_> {
        InFlight {
            key: Written::of(&entry.key),
            worker: entry.worker.as_deref(),
            epoch: entry.epoch.map(|epoch| epoch.to_string()),
            age: entry.since.map(|age| age.as_secs_f64()),
            lease: entry.lease.map(|lease| lease.as_secs_f64()),
        }
    }
    let in_flight = in_flight.map(|entries| entries.iter().map(written).collect());
    let damaged_keys = damaged_keys.iter().map(|entry| Damaged {
        key: shown(&entry.key),
        why: entry.error.as_deref().unwrap_or_default(),
    });
    let damaged_keys = damaged_keys.collect();
    let Counts { ready, waiting, processing, dirty, parked, damaged, oldest_ready, .. } = *counts;
    let oldest_ready = (ready > 0).then_some(oldest_ready.as_secs_f64());
    let status = Status {
        ready,
        waiting,
        processing,
        dirty,
        parked,
        damaged,
        damaged_keys,
        oldest_ready,
        in_flight,
    };
    // Serializing numbers and texts does not fail.
    serde_json::to_string(&status).unwrap_or_default() + "\n"
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
            return all(queue.cancel_all(flags.state.map(State::from)), "cancelled").await;
        }
        if flags.running {
            let mut cancelled = Vec::with_capacity(flags.keys.len());
            for key in keys(&flags.keys) {
                let run = queue.cancel_running(key).await.map_err(refusal)?;
                cancelled.push(run != CancelledRun::NotInFlight);
            }
            return Ok(each(&flags.keys, &cancelled, "cancelled", "was not in flight"));
        }
        let cancelled = queue.cancel_keys(keys(&flags.keys)).await.map_err(refusal)?;
        Ok(each(&flags.keys, &cancelled, "cancelled", "was not ready, waiting or parked"))
    })
}

fn keys(keys: &[OsString]) -> impl Iterator<Item = Key> {
    keys.iter().map(|key| Key::from(key.as_bytes()))
}

/// Reports the number of keys that were changed, and each key that was not.
fn each(keys: &[OsString], changed: &[bool], done: &str, not: &str) -> Ended {
    for (key, _) in keys.iter().zip(changed).filter(|(_, changed)| !**changed) {
        complain(&format!("{}: {not}", escaped(key.as_bytes())));
    }
    let count = changed.iter().filter(|changed| **changed).count();
    complain(&format!("{count} {done}"));
    Ended::Exit(if count == keys.len() { Exit::Done } else { Exit::GivenUp })
}

/// Changes all keys, and reports the progress. Stops after the current step when a signal comes.
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
                    // The step completes, so that its changes are counted.
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
                complain(&format!("{changed} {done}; interrupted, the other keys are unchanged"));
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

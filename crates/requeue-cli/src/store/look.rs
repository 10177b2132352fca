//! The subcommands that show or change queues in a store: `queues`, `drop`, `pause`, `resume`, `status`, `revive` and
//! `cancel`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::time::{Duration, Instant};

use requeue_http::api::{PastAction, StartRate};
use requeue_store::{
    Bulk, CancelledRun, Entry, ErrorKind, GroupBy, Key, ParkedAdd, Queue, QueueInfo, Rate,
    ReaddPolicy, State, StateCounts, Store,
};
use serde::Serialize;
use tokio::time::timeout;

use super::keys::next_page;
use super::operator::Operator;
use super::text::{
    Pause, PauseJson, actions_text, activity_text, group_column, rate_text, report_each,
    status_json, status_text,
};
use super::{block_on, by_server, store_refusal, update_refusal};
use crate::args::store::{
    CancelFlags, DropFlags, PauseFlags, Place, QueuesCommand, QueuesFlags, ReviveFlags,
    ServerFlags, StatusFlags, StoreUrl, state_name,
};
use crate::duration;
use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::key::{escaped, shown};
use crate::output::summary::counted;
use crate::process::signals;

/// The maximum number of damaged keys that `requeue status` lists.
const MOST_DAMAGED: usize = 100;
/// The time between two progress messages of a change of all keys.
const PROGRESS: Duration = Duration::from_secs(2);
/// The time limit after a signal for the step that is in progress.
const LAST_STEP: Duration = Duration::from_secs(5);

/// `requeue queues`: lists the queues of a store, or changes the rate of a queue.
pub(crate) fn queues(flags: QueuesFlags) -> Result<Ended, Refusal> {
    match flags.command {
        Some(QueuesCommand::Rate { queue, rate, store, server, note }) => set_rate(
            Place { store, queue: Some(queue) },
            rate.rate()?,
            &server,
            &note.to_operator(),
        ),
        None => list_queues(&flags.store, flags.json),
    }
}

/// `requeue queues rate`: sets or removes the rate of a queue.
fn set_rate(
    place: Place,
    rate: Option<Rate>,
    server: &ServerFlags,
    operator: &Operator,
) -> Result<Ended, Refusal> {
    block_on(async {
        match server.open_server(place.queue.as_deref())? {
            Some(server) => {
                let server = operator.identify_to(server);
                by_server::set_rate(&server, rate).await?;
            }
            None => {
                let queue = place.to_look_at().await?;
                queue.set_rate(rate).await.map_err(update_refusal)?;
                operator.record(&queue, "rate", rate_text(rate)).await;
            }
        }
        complain(&format!("{}: {}", escaped(place.queue().as_bytes()), rate_text(rate)));
        Ok(Ended::Exit(Exit::Done))
    })
}

fn list_queues(store: &StoreUrl, is_json: bool) -> Result<Ended, Refusal> {
    block_on(async {
        let store = store.to_look_at().await?;
        let mut text = String::new();
        for info in store.queues().await.map_err(store_refusal)? {
            let pause = match info.is_paused {
                true => find_pause(&store, &info.name).await,
                false => Pause::None,
            };
            text += &if is_json { queue_json(&info, &pause) } else { queue_text(&info, &pause) };
            text.push('\n');
        }
        print_output(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

/// Returns the pause of a paused queue. If the actions cannot be read, returns the pause without its action, so that
/// the list is still printed. The queue may have been dropped meanwhile, or an older PostgreSQL role may have no right
/// to read the actions.
async fn find_pause(store: &Store, queue: &str) -> Pause {
    let actions = match store.queue(queue).must_exist().open().await {
        Ok(queue) => last_actions(&queue).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    Pause::of_actions(true, &actions)
}

fn queue_json(info: &QueueInfo, pause: &Pause) -> String {
    #[derive(Serialize)]
    struct Listed<'a> {
        queue: &'a str,
        is_empty: bool,
        #[serde(flatten)]
        pause: PauseJson<'a>,
        re_add: &'static str,
        parked_add: &'static str,
        rate: Option<StartRate>,
        group_by: Option<&'a str>,
        group_limit: Option<u32>,
    }
    let listed = Listed {
        queue: &info.name,
        is_empty: info.is_empty,
        pause: pause.to_json(),
        re_add: if info.readd_policy == ReaddPolicy::Hold { "hold" } else { "replace" },
        parked_add: if info.parked_add == ParkedAdd::Keep { "keep" } else { "revive" },
        rate: info.rate.map(StartRate::from),
        group_by: info.group_by.as_ref().map(|by| match by {
            GroupBy::Pattern(pattern) => &**pattern,
            _ => "",
        }),
        group_limit: info.group_limit,
    };
    // Texts and numbers can always be serialized.
    serde_json::to_string(&listed).unwrap_or_default()
}

fn queue_text(info: &QueueInfo, pause: &Pause) -> String {
    let what = if info.is_empty { "empty" } else { "keys" };
    let paused = match pause {
        Pause::None => String::new(),
        Pause::By(_) => format!("\t{}", pause.to_text()),
    };
    let rate = info.rate.map(|rate| format!("\trate {rate}")).unwrap_or_default();
    let groups = groups_text(info.group_by.as_ref(), info.group_limit);
    format!("{}\t{what}{paused}{rate}{groups}", shown(info.name.as_bytes()))
}

/// Returns the last column of a line about a queue: its groups. Returns an empty text if the queue has no groups.
fn groups_text(by: Option<&GroupBy>, limit: Option<u32>) -> String {
    let by = match by {
        None => return String::new(),
        // Another process has written the pattern, so it is escaped.
        Some(GroupBy::Pattern(pattern)) => format!("by {}", shown(pattern.as_bytes())),
        Some(_) => "named by adds".to_owned(),
    };
    let limit = limit.map(|limit| format!(", limit {limit}")).unwrap_or_default();
    format!("\tgroups {by}{limit}")
}

/// `requeue drop`: deletes a queue with all its keys.
pub(crate) fn drop_queue(flags: &DropFlags) -> Result<Ended, Refusal> {
    let DropFlags { queue, store, force } = flags;
    block_on(async {
        let store = store.to_look_at().await?;
        let dropped = match force {
            true => store.force_drop_queue(queue).await,
            false => store.drop_queue(queue).await.map(|()| StateCounts::default()),
        };
        match dropped {
            Ok(StateCounts { ready, waiting, in_flight, parked, damaged, .. }) => {
                let keys = ready + waiting + in_flight + parked + damaged;
                let with = match keys {
                    0 => String::new(),
                    _ => format!(", with {}", counted(keys, "key")),
                };
                complain(&format!("{} dropped{with}", escaped(queue.as_bytes())));
                Ok(Ended::Exit(Exit::Done))
            }
            Err(error) if error.kind() == ErrorKind::HasKeys => {
                complain(&format!("{error}; --force drops the queue with its keys and schedules"));
                Ok(Ended::Exit(Exit::GivenUp))
            }
            Err(error) => Err(store_refusal(error)),
        }
    })
}

/// `requeue pause` and `requeue resume`: stop or restart the deliveries of a queue.
pub(crate) fn set_paused(flags: PauseFlags, paused: bool) -> Result<Ended, Refusal> {
    let PauseFlags { queue, store, server, note } = flags;
    let operator = note.to_operator();
    block_on(async {
        let done = if paused { "paused" } else { "resumed" };
        let name = match server.open_server(queue.as_deref())? {
            Some(server) => {
                let server = operator.identify_to(server);
                by_server::set_paused(&server, paused).await?
            }
            None => {
                // clap requires a queue if `--server` is missing.
                let place = Place { store, queue };
                let queue = place.to_look_at().await?;
                let set = if paused { queue.pause().await } else { queue.resume().await };
                set.map_err(store_refusal)?;
                operator.record(&queue, if paused { "pause" } else { "resume" }, "").await;
                place.queue().to_owned()
            }
        };
        complain(&format!("{} {done}", escaped(name.as_bytes())));
        Ok(Ended::Exit(Exit::Done))
    })
}

/// `requeue status`: shows the number of keys in each state.
pub(crate) fn status(flags: &StatusFlags) -> Result<Ended, Refusal> {
    block_on(async {
        if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
            return by_server::status(&server, flags).await;
        }
        let queue = flags.place.to_look_at().await?;
        let counts = queue.counts().await.map_err(store_refusal)?;
        let in_flight = match flags.in_flight {
            true => Some(in_flight(&queue).await?),
            false => None,
        };
        // A search for damaged keys takes long in a large queue, so it is done only if the counts contain some.
        let damaged = match counts.damaged {
            0 => Vec::new(),
            _ => {
                let page = queue.snapshot(State::Damaged, None, MOST_DAMAGED).await;
                page.map_err(store_refusal)?
            }
        };
        let activity = match flags.since {
            Some(since) => Some(queue.activity(since).await.map_err(store_refusal)?.into()),
            None => None,
        };
        let is_paused = queue.is_paused().await.map_err(store_refusal)?;
        let actions = match is_paused || flags.actions {
            true => last_actions(&queue).await?,
            false => Vec::new(),
        };
        let pause = Pause::of_actions(is_paused, &actions);
        let actions = Some(&*actions).filter(|_| flags.actions);
        let (in_flight, activity) = (in_flight.as_deref(), activity.as_ref());
        let text = match flags.json {
            true => status_json(&counts, &pause, in_flight, &damaged, activity, actions),
            false => {
                status_text(&counts, &pause)
                    + &damaged_text(&counts, &damaged)
                    + &activity.map(activity_text).unwrap_or_default()
                    + &actions.map(actions_text).unwrap_or_default()
                    + &in_flight_text(in_flight)
            }
        };
        print_output(text.as_bytes())?;
        Ok(Ended::Exit(Exit::Done))
    })
}

async fn last_actions(queue: &Queue) -> Result<Vec<PastAction>, Refusal> {
    let actions = queue.last_actions(usize::MAX).await.map_err(store_refusal)?;
    Ok(actions.into_iter().map(PastAction::from).collect())
}

/// Returns all keys in flight.
async fn in_flight(queue: &Queue) -> Result<Vec<Entry>, Refusal> {
    let (mut all, mut after) = (Vec::new(), None);
    while let Some(page) = next_page(queue, Some(State::InFlight), &mut after).await? {
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
        let group = group_column(entry.group.as_deref());
        format!("{key}\t{worker}\t{age}\t{lease}{group}\n")
    };
    entries.into_iter().flatten().map(line).collect()
}

/// Returns the damaged keys, one per line. They are listed because they are rare, and the user must add or cancel each
/// of them.
fn damaged_text(counts: &StateCounts, listed: &[Entry]) -> String {
    if counts.damaged == 0 {
        return String::new();
    }
    let mut text = format!(
        "{:11} {}; add the keys again, or cancel them:\n",
        state_name(State::Damaged),
        counts.damaged
    );
    for entry in listed {
        let why = entry.error.as_deref().unwrap_or_default();
        text += &format!("  {}\t{}\n", shown(&entry.key), shown(why.as_bytes()));
    }
    text
}

/// `requeue revive`: makes parked keys ready again.
pub(crate) fn revive(flags: &ReviveFlags) -> Result<Ended, Refusal> {
    let operator = flags.note.to_operator();
    block_on(async {
        if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
            return by_server::revive(&operator.identify_to(server), flags).await;
        }
        let queue = flags.place.to_look_at().await?;
        if flags.all {
            let record = Recorded { operator, action: "revive", queue: queue.clone(), of: "" };
            return change_all(queue.revive_all(), "revived", record).await;
        }
        let revived = queue.revive_keys(store_keys(&flags.keys)).await.map_err(store_refusal)?;
        operator.record_keys(&queue, "revive", &flags.keys, &revived).await;
        Ok(report_each(&flags.keys, &revived, "revived", "was not parked"))
    })
}

/// `requeue cancel`: removes the pending runs of keys.
pub(crate) fn cancel(flags: &CancelFlags) -> Result<Ended, Refusal> {
    let operator = flags.note.to_operator();
    block_on(async {
        if let Some(server) = flags.server.open_server(flags.place.queue.as_deref())? {
            return by_server::cancel(&operator.identify_to(server), flags).await;
        }
        let queue = flags.place.to_look_at().await?;
        if flags.all {
            let record = Recorded { operator, action: "cancel", queue: queue.clone(), of: "" };
            return change_all(queue.cancel_all(flags.state), "cancelled", record).await;
        }
        if flags.running {
            let cancel = async |key: Key| {
                let run = queue.cancel_running(key).await.map_err(store_refusal)?;
                Ok(run != CancelledRun::NotInFlight)
            };
            let cancelled = operator.change_each(&queue, "cancel-run", &flags.keys, cancel).await?;
            return Ok(report_each(&flags.keys, &cancelled, "cancelled", "was not in flight"));
        }
        let cancelled = queue.cancel_keys(store_keys(&flags.keys)).await.map_err(store_refusal)?;
        operator.record_keys(&queue, "cancel", &flags.keys, &cancelled).await;
        Ok(report_each(&flags.keys, &cancelled, "cancelled", "was not ready, waiting or parked"))
    })
}

fn store_keys(keys: &[OsString]) -> impl Iterator<Item = Key> {
    keys.iter().map(|key| Key::from(key.as_bytes()))
}

/// The data for the record of an action on many keys, without the number of changed keys.
pub(super) struct Recorded<'a> {
    pub(super) operator: Operator,
    pub(super) action: &'static str,
    pub(super) queue: Queue,
    /// The name of the group. An empty text for all keys of the queue.
    pub(super) of: &'a str,
}

/// Changes all keys, and records the action with the number of changed keys. The action is also recorded if the change
/// fails or a signal interrupts it.
pub(super) async fn change_all(
    mut bulk: Bulk,
    done: &str,
    record: Recorded<'_>,
) -> Result<Ended, Refusal> {
    let ended = run_steps(&mut bulk, done).await;
    let Recorded { operator, action, queue, of } = record;
    if bulk.changed() > 0 {
        let keys = counted(bulk.changed(), "key");
        let target = if of.is_empty() { keys } else { format!("{of}: {keys}") };
        operator.record(&queue, action, target).await;
    }
    ended
}

/// Changes all keys in steps, and reports the progress. When a signal arrives, stops after the current step.
async fn run_steps(bulk: &mut Bulk, done: &str) -> Result<Ended, Refusal> {
    let mut signalled = pin!(signals::wait_for_interrupt());
    let mut reported = Instant::now();
    loop {
        let mut signal = None;
        let stepped = {
            let mut step = pin!(bulk.step());
            tokio::select! {
                biased;
                number = &mut signalled => {
                    signal = Some(number);
                    // The current step is completed, so that its changes are counted.
                    timeout(LAST_STEP, step).await.unwrap_or(Ok(true))
                }
                stepped = &mut step => stepped,
            }
        };
        let changed = bulk.changed();
        match (stepped.map_err(store_refusal)?, signal) {
            (false, _) => {
                complain(&format!("{changed} {done}"));
                return Ok(Ended::Exit(Exit::Done));
            }
            // The keys after the current step are unchanged. The user can run the same command again for them.
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

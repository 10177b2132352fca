//! The subcommands with `--server`. Their output has the same format as with a store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use requeue_http::api::{
    self, Action, Activity, Change, Changed, KeyList, Matched, Matching, Named, NewRate, NewStatus,
    PastActions, Row, StartRate, Summary,
};
use requeue_store::{Rate, State, StateCounts};

use super::text::{
    Pause, actions_text, activity_text, api_duration, key_line, report_each, status_json,
    status_text,
};
use crate::args::store::{CancelFlags, KeysFlags, ReviveFlags, StatusFlags, state_name};
use crate::client::{Part, Server, named_key};
use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::input::json::Written;
use crate::key::printable;

/// The minimum age in seconds at which `status` warns that the numbers of keys are old. A store normally counts its
/// keys each second.
const OLD: f64 = 3.0;

/// Returns the name that the output of this program uses for a state of the API.
pub(super) fn own_name(state: api::State) -> &'static str {
    match state {
        api::State::Ready => state_name(State::Ready),
        api::State::Running => state_name(State::InFlight),
        api::State::Waiting | api::State::BackingOff => state_name(State::Waiting),
        api::State::Parked => state_name(State::Parked),
        api::State::Damaged => state_name(State::Damaged),
        api::State::Idle => "unknown",
    }
}

pub(super) async fn status(server: &Server, flags: &StatusFlags) -> Result<Ended, Refusal> {
    if flags.in_flight {
        let error =
            "--in-flight needs a store; `requeue keys --state in_flight --server URL` lists keys";
        return Err(Refusal::usage(error));
    }
    let summary: Summary = server.get("summary", &[]).await?;
    let pause = Pause::of_summary(&summary);
    let Summary { now, oldest_ready, .. } = summary;
    let mut counts = StateCounts::default();
    counts.ready = now.ready as u64;
    counts.waiting = (now.waiting + now.backing_off.unwrap_or(0)) as u64;
    counts.in_flight = now.running as u64;
    counts.dirty = now.dirty as u64;
    counts.parked = now.parked.unwrap_or(0) as u64;
    counts.damaged = now.damaged.unwrap_or(0) as u64;
    counts.oldest_ready = oldest_ready.and_then(api_duration).unwrap_or_default();
    if let Some(warning) = age_warning(now.counts_age) {
        complain(&warning);
    }
    let activity: Option<Activity> = match flags.since {
        Some(since) => {
            let since = since.as_secs().to_string();
            Some(server.get("activity", &[("since", since.as_bytes())]).await?)
        }
        None => None,
    };
    let actions = match flags.actions {
        true => Some(server.get::<PastActions>("actions", &[]).await?.actions),
        false => None,
    };
    let actions = actions.as_deref();
    let text = match flags.json {
        true => status_json(&counts, &pause, None, &[], activity.as_ref(), actions),
        false => {
            status_text(&counts, &pause)
                + &activity.as_ref().map(activity_text).unwrap_or_default()
                + &actions.map(actions_text).unwrap_or_default()
        }
    };
    print_output(text.as_bytes())?;
    Ok(Ended::Exit(Exit::Done))
}

/// Returns a warning if the numbers of keys are old, or if their age is unknown.
fn age_warning(age: Option<f64>) -> Option<String> {
    match age {
        Some(age) => (age >= OLD).then(|| format!("the store counted these keys {age:.0} s ago")),
        None => {
            let unknown = "the store has not counted its keys yet; the numbers of keys are unknown";
            Some(unknown.to_owned())
        }
    }
}

pub(super) async fn keys(server: &Server, flags: &KeysFlags) -> Result<Ended, Refusal> {
    let is_store = server.get::<Summary>("summary", &[]).await?.now.backing_off.is_none();
    let states = match flags.state {
        None => vec![""],
        // A queue in memory has separate states for keys that back off and for other waiting keys. A store counts both
        // as waiting.
        Some(State::Waiting) if !is_store => vec!["waiting", "backing_off"],
        Some(state) => vec![api::State::stored(state).name()],
    };
    for state in states {
        let (mut cursor, mut pages) = (String::new(), 0);
        loop {
            let query =
                [("state", state.as_bytes()), ("limit", b"256"), ("cursor", cursor.as_bytes())];
            let KeyList { keys, next, .. } = server.get("keys", &query).await?;
            if flags.json && keys.iter().any(|row| row.key_base64.is_none()) {
                let why = "a key is too long to be read from a server; use --store";
                return Err(Refusal::failure(format!("--server: {why}")));
            }
            let lines: Vec<u8> = keys.iter().flat_map(|row| row_line(row, flags.json)).collect();
            if !print_output(&lines)? {
                return Ok(Ended::Exit(Exit::Done));
            }
            let Some(next) = next else { break };
            pages += 1;
            check_next(&cursor, &next, pages).map_err(|why| server.refusal(why))?;
            cursor = next;
        }
    }
    Ok(Ended::Exit(Exit::Done))
}

/// The maximum number of pages that are read. This many full pages contain 256 million keys.
const MOST_PAGES: u32 = 1_000_000;

/// Returns an error if the list of a server repeats a page or exceeds [`MOST_PAGES`].
fn check_next(cursor: &str, next: &str, pages: u32) -> Result<(), &'static str> {
    if next == cursor {
        Err("the server sends the same page again and again; check the URL")
    } else if pages >= MOST_PAGES {
        Err("the list has over a million pages; read the store itself with --store")
    } else {
        Ok(())
    }
}

fn row_line(row: &Row, is_json: bool) -> Vec<u8> {
    let due = row.due_in.and_then(|due| SignedDuration::try_from_secs_f64(due).ok());
    let at = due.and_then(|due| Timestamp::now().checked_add(due).ok());
    let base64 = row.key_base64.as_deref().unwrap_or_default();
    let bytes = STANDARD.decode(base64).unwrap_or_else(|_| row.key.clone().into());
    let mut record = Written::of_key(&bytes);
    record.priority = row.priority;
    record.attempts = Some(row.failures);
    record.state = Some(own_name(row.state));
    record.at = at.map(|at| at.to_string());
    record.why = row.error.as_deref();
    // The server makes the key printable, but the server may be malicious. The key is therefore made printable again.
    let mut line = key_line(&printable(&row.key), &record, is_json);
    line.push(b'\n');
    line
}

/// Pauses or resumes the queue of the server. Returns the name of the queue.
pub(super) async fn set_paused(server: &Server, paused: bool) -> Result<String, Refusal> {
    let path = if paused { "pause" } else { "resume" };
    let NewStatus { .. } = server.post(path, &serde_json::json!({})).await?;
    Ok(server.find_queue().await?.name.clone())
}

pub(super) async fn set_rate(server: &Server, rate: Option<Rate>) -> Result<(), Refusal> {
    let rate = rate.map(StartRate::from);
    let NewRate { .. } = server.post("rate", &NewRate { rate }).await?;
    Ok(())
}

pub(super) async fn revive(server: &Server, flags: &ReviveFlags) -> Result<Ended, Refusal> {
    if flags.all {
        return change_all(server, Action::Revive, "revived", None).await;
    }
    change_some(server, Action::Revive, &flags.keys, ("revived", "was not parked")).await
}

pub(super) async fn cancel(server: &Server, flags: &CancelFlags) -> Result<Ended, Refusal> {
    if flags.all {
        return change_all(server, Action::Cancel, "cancelled", flags.state).await;
    }
    if flags.running {
        let not = "was not in flight, or was cancelled before";
        return change_some(server, Action::CancelRun, &flags.keys, ("cancelled", not)).await;
    }
    let not = "was not ready, waiting or parked";
    change_some(server, Action::Cancel, &flags.keys, ("cancelled", not)).await
}

async fn change_some(
    server: &Server,
    action: Action,
    keys: &[OsString],
    (done, not): (&str, &str),
) -> Result<Ended, Refusal> {
    let (mut changed, mut last) = (Vec::new(), Part::new());
    let mut parts: Vec<_> =
        keys.iter().filter_map(|key| last.push_key(named_key(key.as_bytes()), 1_000)).collect();
    parts.push(last.take_keys());
    for names in parts {
        let change = Change { keys: Some(names), ..Change::default() };
        let Changed { results, .. } = server.post(action.name(), &change).await?;
        changed.extend(results.unwrap_or_default());
    }
    Ok(report_each(keys, &changed, done, not))
}

async fn change_all(
    server: &Server,
    action: Action,
    done: &str,
    state: Option<State>,
) -> Result<Ended, Refusal> {
    let state = state.map_or("", |state| api::State::stored(state).name());
    let query = [("action", action.name().as_bytes()), ("state", state.as_bytes())];
    let Matched { matched } = server.get("count", &query).await?;
    let matching = Matching { state: Some(state.to_owned()), q: None, failed: false, error: None };
    let change = Change { keys: None, matching: Some(matching), expected: Some(matched) };
    let Changed { changed, .. } = server.post(action.name(), &change).await?;
    complain(&format!("{changed} {done}"));
    Ok(Ended::Exit(Exit::Done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_keys_are_called_unknown_only_if_the_server_says_so() {
        for (age, warning) in
            [(Some(0.5), None), (Some(60.0), Some("60 s ago")), (None, Some("are unknown"))]
        {
            let found = age_warning(age);
            let is_it = |found: &String| warning.is_some_and(|end| found.ends_with(end));
            assert_eq!(found.is_some(), warning.is_some(), "{age:?}");
            assert!(found.iter().all(is_it), "{age:?}: {found:?}");
        }
    }

    #[test]
    fn a_list_without_an_end_is_refused() {
        assert_eq!(check_next("", "a", 1), Ok(()));
        assert_eq!(check_next("a", "b", MOST_PAGES - 1), Ok(()));
        assert!(check_next("a", "a", 2).is_err());
        assert!(check_next("a", "b", MOST_PAGES).is_err());
    }
}

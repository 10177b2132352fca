//! The subcommands with `--server`: the same output as with a store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use requeue_store::{State, StateCounts};
use serde_json::{Value, json};

use super::server::{Part, Server};
use super::text::{Times, each, status_json, status_text};
use crate::args::store::{
    CancelFlags, ExplainFlags, KeysFlags, ReviveFlags, StatusFlags, state_name,
};
use crate::exit::{Ended, Exit, Refusal, complain, print};
use crate::input::json::Written;
use crate::key::{printable, shown};

/// The age in seconds from which `status` says how old the numbers are. A store counts its keys each second.
const OLD: f64 = 3.0;

/// Returns the name of a state in the API.
fn api_name(state: State) -> &'static str {
    match state {
        State::Processing => "running",
        state => state_name(state),
    }
}

/// Returns the name of a state in the output of the program.
fn own_name(api: &str) -> &'static str {
    let same = [State::Ready, State::Waiting, State::Parked, State::Damaged].map(state_name);
    match api {
        "running" => state_name(State::Processing),
        "backing_off" => state_name(State::Waiting),
        name => same.into_iter().find(|same| *same == name).unwrap_or("unknown"),
    }
}

/// Returns the object that names a key in a request.
pub(super) fn named(key: &[u8]) -> Value {
    match std::str::from_utf8(key) {
        Ok(key) => json!({ "key": key }),
        Err(_) => json!({ "key_base64": STANDARD.encode(key) }),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

pub(super) async fn status(server: &Server, flags: &StatusFlags) -> Result<Ended, Refusal> {
    if flags.in_flight {
        let error =
            "--in-flight needs a store; `requeue keys --state processing --server URL` lists keys";
        return Err(Refusal::usage(error));
    }
    let summary = server.get("summary", &[]).await?.unwrap_or_default();
    let now = &summary["now"];
    let mut counts = StateCounts::default();
    counts.ready = number(&now["ready"]);
    counts.waiting = number(&now["waiting"]) + number(&now["backing_off"]);
    counts.processing = number(&now["running"]);
    counts.dirty = number(&now["dirty"]);
    counts.parked = number(&now["parked"]);
    counts.damaged = number(&now["damaged"]);
    let oldest = summary["oldest_ready"].as_f64().unwrap_or(0.0);
    counts.oldest_ready = Duration::try_from_secs_f64(oldest).unwrap_or_default();
    if let Some(warning) = age_warning(now) {
        complain(&warning);
    }
    let text = match flags.json {
        true => status_json(&counts, None, &[]),
        false => status_text(&counts),
    };
    print(text.as_bytes())?;
    Ok(Ended::Exit(Exit::Done))
}

/// Returns a warning if the numbers of keys are old or unknown. An older server does not send their age.
fn age_warning(now: &Value) -> Option<String> {
    let age = now.get("counts_age")?;
    match age.as_f64() {
        Some(age) => (age >= OLD).then(|| format!("the store counted these keys {age:.0} s ago")),
        None => {
            let unknown = "the store has not counted its keys yet; the numbers of keys are unknown";
            Some(unknown.to_owned())
        }
    }
}

pub(super) async fn keys(server: &Server, flags: &KeysFlags) -> Result<Ended, Refusal> {
    // A queue in memory counts keys that back off apart from others that wait.
    let states: &[&str] = match flags.state {
        None => &[""],
        Some(State::Waiting) => &["waiting", "backing_off"],
        Some(state) => &[api_name(state)],
    };
    let is_store =
        server.get("summary", &[]).await?.is_some_and(|it| it["now"]["backing_off"].is_null());
    for state in states.iter().filter(|state| !is_store || **state != "backing_off") {
        let (mut cursor, mut pages) = (String::new(), 0);
        loop {
            let query =
                [("state", state.as_bytes()), ("limit", b"256"), ("cursor", cursor.as_bytes())];
            let page = server.get("keys", &query).await?.unwrap_or_default();
            let rows = page["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
            if flags.json && rows.iter().any(|row| row["key_base64"].is_null()) {
                let why = "a key is too long to be read from a server; use --store";
                return Err(Refusal::failure(format!("--server: {why}")));
            }
            let lines: Vec<u8> = rows.iter().flat_map(|row| line(row, flags.json)).collect();
            if !print(&lines)? {
                return Ok(Ended::Exit(Exit::Done));
            }
            match page["next"].as_str() {
                Some(next) => {
                    pages += 1;
                    check_next(&cursor, next, pages).map_err(|why| server.refusal(why))?;
                    next.clone_into(&mut cursor);
                }
                None => break,
            }
        }
    }
    Ok(Ended::Exit(Exit::Done))
}

/// The number of pages that are read. A server with this number of full pages has 256 million keys.
const MOST_PAGES: u32 = 1_000_000;

/// Returns an error if the list of a server seems to have no end.
fn check_next(cursor: &str, next: &str, pages: u32) -> Result<(), &'static str> {
    match () {
        () if next == cursor => {
            Err("the server sends the same page again and again; check the URL")
        }
        () if pages >= MOST_PAGES => {
            Err("the list has over a million pages; read the store itself with --store")
        }
        () => Ok(()),
    }
}

fn line(row: &Value, is_json: bool) -> Vec<u8> {
    let text = |name: &str| row[name].as_str().unwrap_or_default();
    let at = row["due_in"].as_f64().and_then(|due| {
        let due = SignedDuration::try_from_secs_f64(due).ok()?;
        Timestamp::now().checked_add(due).ok()
    });
    let at = at.map(|at| at.to_string());
    let (state, failures) = (own_name(text("state")), number(&row["failures"]));
    let mut line = if is_json {
        let bytes = STANDARD.decode(text("key_base64")).unwrap_or_else(|_| text("key").into());
        let mut written = Written::of(&bytes);
        written.priority = row["priority"].as_i64().and_then(|it| it.try_into().ok()).unwrap_or(0);
        written.attempts = failures.try_into().ok();
        (written.state, written.at, written.why) = (Some(state), at, row["error"].as_str());
        written.to_bytes()
    } else {
        let (at, why) = (at.unwrap_or_default(), shown(text("error").as_bytes()));
        // The key is escaped already, if the server is an honest one.
        format!("{}\t{state}\t{at}\t{failures}\t{why}", printable(text("key"))).into_bytes()
    };
    line.push(b'\n');
    line
}

pub(super) async fn explain(server: &Server, flags: &ExplainFlags) -> Result<Ended, Refusal> {
    let key = flags.key.as_bytes();
    let found = server.get("key", &[("key", key)]).await?;
    let (why, exit) = match &found {
        Some(row) => {
            let error = row["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
            let is_known = row["state"] != json!("idle");
            let why = format!("{}{error}", row["why"].as_str().unwrap_or_default());
            let time = |name: &str| Duration::try_from_secs_f64(row[name].as_f64()?).ok();
            let times = Times { age: time("age"), due: time("due_in"), lease: time("lease_in") };
            (
                times.append_to(&why, Timestamp::now()),
                if is_known { Exit::Done } else { Exit::GivenUp },
            )
        }
        None => ("not in the queue".to_owned(), Exit::GivenUp),
    };
    print(format!("{}: {}\n", shown(key), shown(why.as_bytes())).as_bytes())?;
    Ok(Ended::Exit(exit))
}

/// Pauses or resumes the queue of the server, which must have the given name, if any. Returns the name.
pub(super) async fn set_paused(
    server: &Server,
    queue: Option<&str>,
    paused: bool,
) -> Result<String, Refusal> {
    server.check_token()?;
    let summary = server.get("summary", &[]).await?.unwrap_or_default();
    let name = summary["queue"].as_str().or(summary["title"].as_str()).unwrap_or_default();
    if queue.is_some_and(|queue| queue != name) {
        let error =
            format!("--server: the queue of that process is {name:?}; omit QUEUE, or name it");
        return Err(Refusal::usage(error));
    }
    server.post(if paused { "pause" } else { "resume" }, &json!({})).await?;
    Ok(name.to_owned())
}

pub(super) async fn revive(server: &Server, flags: &ReviveFlags) -> Result<Ended, Refusal> {
    if flags.all {
        return all(server, "revive", "revived", None).await;
    }
    some(server, "revive", &flags.keys, ("revived", "was not parked")).await
}

pub(super) async fn cancel(server: &Server, flags: &CancelFlags) -> Result<Ended, Refusal> {
    if flags.all {
        return all(server, "cancel", "cancelled", flags.state).await;
    }
    if flags.running {
        let not = "was not in flight, or was cancelled before";
        return some(server, "cancel-run", &flags.keys, ("cancelled", not)).await;
    }
    let not = "was not ready, waiting or parked";
    some(server, "cancel", &flags.keys, ("cancelled", not)).await
}

async fn some(
    server: &Server,
    action: &str,
    keys: &[OsString],
    (done, not): (&str, &str),
) -> Result<Ended, Refusal> {
    let (mut changed, mut last) = (Vec::new(), Part::default());
    let mut parts: Vec<_> =
        keys.iter().filter_map(|key| last.push(named(key.as_bytes()), 1_000)).collect();
    parts.push(last.take());
    for names in parts {
        let answer = server.post(action, &json!({ "keys": names })).await?;
        let results = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        changed.extend(results.iter().map(|result| result.as_bool().unwrap_or(false)));
    }
    Ok(each(keys, &changed, done, not))
}

async fn all(
    server: &Server,
    action: &str,
    done: &str,
    state: Option<State>,
) -> Result<Ended, Refusal> {
    let state = state.map_or("", api_name);
    let query = [("action", action.as_bytes()), ("state", state.as_bytes())];
    let counted = server.get("count", &query).await?.unwrap_or_default();
    let body = json!({ "matching": { "state": state }, "expected": counted["matched"] });
    let answer = server.post(action, &body).await?;
    complain(&format!("{} {done}", number(&answer["changed"])));
    Ok(Ended::Exit(Exit::Done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_keys_are_called_unknown_only_if_the_server_says_so() {
        for (now, warning) in [
            (json!({}), None),
            (Value::Null, None),
            (json!({ "counts_age": 0.5 }), None),
            (json!({ "counts_age": 60.0 }), Some("60 s ago")),
            (json!({ "counts_age": null }), Some("are unknown")),
        ] {
            let found = age_warning(&now);
            let is_it = |found: &String| warning.is_some_and(|end| found.ends_with(end));
            assert_eq!(found.is_some(), warning.is_some(), "{now}");
            assert!(found.iter().all(is_it), "{now}: {found:?}");
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

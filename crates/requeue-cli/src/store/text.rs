//! The output of subcommands. The same functions format the data of a store and of a server.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use requeue_http::api::{Activity, PastAction, PastRun, Status, Summary, Worker};
use requeue_store::{Entry, Rate, State, StateCounts};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::store::state_name;
use crate::duration;
use crate::exit::{Ended, Exit, complain};
use crate::input::json::Written;
use crate::key::{escaped, printable, shown, without_controls};

/// Returns the operator, the age and the note of an action.
fn by_text(PastAction { ago, by, note, .. }: &PastAction) -> String {
    let ago = duration::shown(Duration::try_from_secs_f64(*ago).unwrap_or_default());
    // Another process has written the name and the note, so they are escaped.
    let note = note.as_ref().map(|note| format!(", note: {}", shown(note.as_bytes())));
    format!("by {}, {ago} ago{}", shown(by.as_bytes()), note.unwrap_or_default())
}

/// Returns the lines that `--actions` adds to the output of `requeue status`.
pub(super) fn actions_text(actions: &[PastAction]) -> String {
    let mut text = "\nlast actions\n".to_owned();
    for done in actions {
        let target = done.target.as_ref().map(|target| format!(" {}", shown(target.as_bytes())));
        let action = shown(done.action.as_bytes());
        text += &format!("  {action}{} {}\n", target.unwrap_or_default(), by_text(done));
    }
    text
}

/// A queue's pause: whether the queue is paused, and who paused it.
pub(super) enum Pause {
    None,
    /// The queue is paused. Contains the recorded action, if there is one.
    By(Option<PastAction>),
}

impl Pause {
    pub(super) fn of_actions(is_paused: bool, actions: &[PastAction]) -> Self {
        match is_paused {
            true => Self::By(PastAction::last_pause(actions).cloned()),
            false => Self::None,
        }
    }

    pub(super) fn of_summary(summary: &Summary) -> Self {
        if summary.status != Status::Paused {
            return Self::None;
        }
        let pause = summary.paused_by.as_ref().map(|by| PastAction {
            ago: summary.paused_for.unwrap_or_default(),
            action: "pause".to_owned(),
            by: by.clone(),
            target: None,
            note: summary.paused_note.clone(),
        });
        Self::By(pause)
    }

    const fn action(&self) -> Option<&PastAction> {
        match self {
            Self::By(action) => action.as_ref(),
            Self::None => None,
        }
    }

    /// Returns the text for a paused queue, with its operator. Returns an empty text if the queue is not paused.
    pub(super) fn to_text(&self) -> String {
        let Self::By(action) = self else { return String::new() };
        let by = action.as_ref().map(|pause| format!(" {}", by_text(pause)));
        format!("paused{}", by.unwrap_or_default())
    }

    /// Returns the fields about the pause for a JSON object.
    pub(super) fn to_json(&self) -> PauseJson<'_> {
        let action = self.action();
        PauseJson {
            is_paused: matches!(self, Self::By(_)),
            paused_by: action.map(|pause| &*pause.by),
            paused_note: action.and_then(|pause| pause.note.as_deref()),
            paused_for: action.map(|pause| pause.ago),
        }
    }
}

/// The fields about a queue's pause in a JSON object.
#[derive(Serialize)]
pub(super) struct PauseJson<'a> {
    is_paused: bool,
    paused_by: Option<&'a str>,
    paused_note: Option<&'a str>,
    /// The time since the queue was paused, in seconds.
    paused_for: Option<f64>,
}

/// Returns the output of `requeue status`.
pub(super) fn status_text(counts: &StateCounts, pause: &Pause) -> String {
    let StateCounts { ready, waiting, in_flight, dirty, parked, oldest_ready, .. } = *counts;
    let name = |state| format!("{:11} ", state_name(state).replace('_', " "));
    let mut text = pause.to_text();
    if !text.is_empty() {
        text.push('\n');
    }
    text += &format!("{}{ready}", name(State::Ready));
    // A server answers zero if groups hold back all ready keys.
    if ready > 0 && !oldest_ready.is_zero() {
        text += &format!(", the oldest for {}", duration::shown(oldest_ready));
    }
    text += &format!("\n{}{waiting}", name(State::Waiting));
    text += &format!("\n{}{in_flight}", name(State::InFlight));
    if dirty > 0 {
        text += &format!(", {dirty} to run once more");
    }
    text + &format!("\n{}{parked}\n", name(State::Parked))
}

/// Returns the lines that `--since` adds to the output of `requeue status`: the work of all processes in the period,
/// and the workers that are alive.
pub(super) fn activity_text(activity: &Activity) -> String {
    let Activity { period, total, workers, .. } = activity;
    let time = |seconds: Option<f64>| {
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.map_or_else(|| "-".to_owned(), duration::format_quantile)
    };
    let age =
        |seconds: f64| duration::shown(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let mut text = format!("\nin the last {}\n", age(*period));
    for (name, count) in [
        ("adds", total.adds),
        ("coalesced", total.coalesced),
        ("starts", total.runs),
        ("successes", total.successes),
        ("failures", total.failures),
        ("given up", total.given_up),
    ] {
        // The period is zero if its first minute has just begun.
        let rate = if *period > 0.0 { count as f64 / period } else { 0.0 };
        // A key that was given up is parked, unless it was added during its last run.
        let see = if name == "given up" && count > 0 { "; see `requeue parked`" } else { "" };
        text += &format!("{name:11} {count}, {rate:.2}/s{see}\n");
    }
    let durations = &total.durations;
    for (name, p50, p99) in [
        ("ready for", durations.queued_p50, durations.queued_p99),
        ("ran for", durations.worked_p50, durations.worked_p99),
    ] {
        text += &format!("{name:11} p50 {}, p99 {}\n", time(p50), time(p99));
    }
    text += &format!("workers     {}\n", workers.len());
    for Worker { name, seen, running } in workers {
        let keys: Vec<_> = running.iter().map(|row| printable(&row.key)).collect();
        let name = shown(name.as_bytes());
        text += &format!("  {name}\tseen {} ago\t{}\n", age(*seen), keys.join(" "));
    }
    text
}

/// Returns the output of `requeue status --json`.
pub(super) fn status_json(
    counts: &StateCounts,
    pause: &Pause,
    in_flight_keys: Option<&[Entry]>,
    damaged_keys: &[Entry],
    activity: Option<&Activity>,
    actions: Option<&[PastAction]>,
) -> String {
    #[derive(Serialize)]
    struct Status<'a> {
        #[serde(flatten)]
        pause: PauseJson<'a>,
        ready: u64,
        waiting: u64,
        in_flight: u64,
        dirty: u64,
        parked: u64,
        damaged: u64,
        /// The first damaged keys, up to a fixed number.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        damaged_keys: Vec<Value>,
        /// The time for which the oldest ready key has been ready, in seconds.
        oldest_ready: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        in_flight_keys: Option<Vec<InFlight<'a>>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        activity: Option<&'a Activity>,
        #[serde(skip_serializing_if = "Option::is_none")]
        actions: Option<&'a [PastAction]>,
    }
    #[derive(Serialize)]
    struct InFlight<'a> {
        #[serde(flatten)]
        key: Written<'a>,
        worker: Option<&'a str>,
        /// The fencing token as a string, because some JSON parsers lose digits of large numbers.
        fencing_token: Option<String>,
        /// The time since the delivery of the key, in seconds.
        age: Option<f64>,
        /// The time until the lease expires if the worker does not renew it, in seconds.
        lease: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<&'a str>,
    }
    fn written(entry: &Entry) -> InFlight<'_> {
        InFlight {
            key: Written::of_key(&entry.key),
            worker: entry.worker.as_deref(),
            fencing_token: entry.fencing_token.map(|token| token.to_string()),
            age: entry.since.map(|age| age.as_secs_f64()),
            lease: entry.lease.map(|lease| lease.as_secs_f64()),
            group: entry.group.as_deref(),
        }
    }
    let in_flight_keys = in_flight_keys.map(|entries| entries.iter().map(written).collect());
    let damaged_keys = damaged_keys.iter().map(|entry| {
        let why = entry.error.as_deref().unwrap_or_default();
        json!({ "key": shown(&entry.key), "why": why })
    });
    let damaged_keys = damaged_keys.collect();
    let StateCounts { ready, waiting, in_flight, dirty, parked, damaged, oldest_ready, .. } =
        *counts;
    let oldest_ready = (ready > 0).then_some(oldest_ready.as_secs_f64());
    let status = Status {
        pause: pause.to_json(),
        ready,
        waiting,
        in_flight,
        dirty,
        parked,
        damaged,
        damaged_keys,
        oldest_ready,
        in_flight_keys,
        activity,
        actions,
    };
    // Numbers and texts can always be serialized.
    serde_json::to_string(&status).unwrap_or_default() + "\n"
}

/// Returns the output of `requeue keys` for one key, without the newline. `key` is the printable form of the key.
pub(super) fn key_line(key: &str, record: &Written<'_>, is_json: bool) -> Vec<u8> {
    if is_json {
        return record.to_bytes();
    }
    let (state, at) = (record.state.unwrap_or_default(), record.at.as_deref().unwrap_or_default());
    let failures = record.attempts.unwrap_or_default();
    let why = shown(record.why.unwrap_or_default().as_bytes());
    let group = group_column(record.group);
    format!("{key}\t{state}\t{at}\t{failures}\t{why}{group}").into_bytes()
}

/// Returns the text that describes a new rate in a message.
pub(super) fn rate_text(rate: Option<Rate>) -> String {
    rate.map_or_else(|| "no rate".to_owned(), |rate| format!("rate {rate}"))
}

/// Returns the last column of a line about a key: the name of its group. Returns an empty text if the queue has no
/// groups.
pub(super) fn group_column(group: Option<&str>) -> String {
    // Another process has written the name, so it is escaped.
    group.map(|group| format!("\t{}", shown(group.as_bytes()))).unwrap_or_default()
}

/// The times of a key, relative to now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) age: Option<Duration>,
    pub(super) due: Option<Duration>,
    pub(super) lease: Option<Duration>,
}

impl Times {
    /// Appends the times to `why`, in the format of RFC 3339. The age of a waiting key is left out, because the user
    /// needs only its due time.
    pub(super) fn append_to(self, why: &str, now: Timestamp) -> String {
        let at = |time: Option<Timestamp>, what: &str| {
            let time = time.and_then(|time| time.round(Unit::Second).ok());
            time.map(|time| format!("; {what} {time}")).unwrap_or_default()
        };
        let later = |time: Option<Duration>| time.and_then(|time| now.checked_add(time).ok());
        let age = self.age.filter(|_| self.due.is_none() || self.lease.is_some());
        let since = at(age.and_then(|age| now.checked_sub(age).ok()), "since");
        let lease = at(later(self.lease), "lease until");
        let next = at(later(self.due), "next at");
        format!("{why}{since}{lease}{next}")
    }
}

/// Returns the lines about the last runs of a key. Each run has one line, and indented lines for its output.
pub(super) fn runs_text(runs: &[PastRun]) -> String {
    let mut text = String::new();
    for run in runs {
        let PastRun { at, outcome, attempt, took, worker, exit_status, error, output } = run;
        let outcome = outcome.words();
        let at = api_duration(*at).and_then(|at| Timestamp::UNIX_EPOCH.checked_add(at).ok());
        let at = at.and_then(|at| at.round(Unit::Second).ok());
        let parts = [
            Some(format!("attempt {attempt} {outcome}")),
            at.map(|at| format!("ended at {at}")),
            took.and_then(api_duration)
                .map(|took| format!("took {}", duration::format_length(took))),
            worker.as_ref().map(|worker| format!("worker {worker}")),
            // Most errors of commands already contain the exit status. In this case, the exit status is left out.
            exit_status
                .filter(|_| !is_status(error.as_deref()))
                .map(|status| format!("exit status: {status}")),
            error.clone().filter(|error| !error.is_empty()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        text += &printable(&parts.join("; "));
        text.push('\n');
        // The output of a run may contain control characters from another program, so they are removed.
        for line in output.iter().flat_map(|output| output.lines()) {
            text +=
                &format!("    {}\n", String::from_utf8_lossy(&without_controls(line.as_bytes())));
        }
    }
    text
}

fn is_status(error: Option<&str>) -> bool {
    error.is_some_and(|error| error.starts_with("exit status: "))
}

/// Converts a number of seconds in an API answer. Returns `None` if the number is not a valid duration.
pub(super) fn api_duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// Reports how many keys were changed, and names each key that was not changed.
pub(super) fn report_each(keys: &[OsString], changed: &[bool], done: &str, not: &str) -> Ended {
    for (key, _) in keys.iter().zip(changed).filter(|(_, changed)| !**changed) {
        complain(&format!("{}: {not}", escaped(key.as_bytes())));
    }
    let count = changed.iter().filter(|changed| **changed).count();
    complain(&format!("{count} {done}"));
    Ended::Exit(if count == keys.len() { Exit::Done } else { Exit::GivenUp })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_key_follow_its_explanation() {
        let now: Timestamp = "2030-01-31T12:00:00.6Z".parse().unwrap();
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        let none = Times::default();
        for (times, text) in [
            (none, ""),
            (
                Times { due: seconds(2.1), age: seconds(9.0), ..none },
                "; next at 2030-01-31T12:00:03Z",
            ),
            (Times { age: seconds(61.0), ..none }, "; since 2030-01-31T11:59:00Z"),
            (Times { due: Some(Duration::MAX), ..none }, ""),
            (
                Times { age: seconds(0.6), due: seconds(86_400.0), lease: seconds(30.0) },
                "; since 2030-01-31T12:00:00Z; lease until 2030-01-31T12:00:31Z; \
                 next at 2030-02-01T12:00:01Z",
            ),
        ] {
            assert_eq!(times.append_to("a: why", now), format!("a: why{text}"), "{times:?}");
        }
    }

    #[test]
    fn the_age_of_held_keys_is_not_shown_as_zero() {
        let mut counts = StateCounts::default();
        counts.ready = 40;
        for (age, line) in [(0, "ready       40"), (3, "ready       40, the oldest for 3.0s")] {
            counts.oldest_ready = Duration::from_secs(age);
            assert_eq!(status_text(&counts, &Pause::None).lines().next(), Some(line));
        }
    }
}

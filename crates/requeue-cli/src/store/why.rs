//! `requeue why`: explains the state of a key, and shows its past.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use requeue_http::api::{self, EventKind, KeyPage, Named, Outcome, PastEvent, PastRun, Timeline};
use requeue_store::{Key, Queue, State};
use serde::Serialize;

use super::by_server::own_name;
use super::export::export;
use super::text::{Times, api_duration, runs_text};
use super::{block_on, store_refusal};
use crate::args::store::{WhyFlags, state_name};
use crate::client::Server;
use crate::duration;
use crate::exit::{Ended, Exit, Refusal, print_output};
use crate::input::json::Written;
use crate::key::{printable, shown};
use crate::output::summary::counted;
use crate::process::spawn::quote_word;

/// The text for a key that is not in the queue.
const MISSING: &str = "not in the queue: it was never added, was cancelled, or its last run succeeded; \
                       `requeue keys` lists the keys";

/// The maximum number of lines of the past if `--since` is missing.
const MOST_LINES: usize = 20;

/// The data that `requeue why` prints.
struct Answer {
    /// The name of the key's state. `None` if the key is not in the queue.
    state: Option<&'static str>,
    /// One sentence that states the state and its cause.
    why: String,
    timeline: Timeline,
    /// The last runs of the key, the newest first.
    runs: Vec<PastRun>,
}

/// `requeue why`: explains the state of a key, or exports the recorded events.
pub(crate) fn why(flags: &WhyFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let server = flags.server.open_server(flags.place.queue.as_deref())?;
        let key = flags.key.as_deref().map(OsStr::as_bytes);
        if let Some(file) = &flags.export {
            return export(server, file, key, flags.hash_keys).await;
        }
        // clap requires the key if `--export` is missing.
        let key = key.unwrap_or_default();
        let mut answer = match server {
            Some(server) => ask_server(&server, key, flags.since).await?,
            None => read_store(&flags.place.to_look_at().await?, key, flags.since).await?,
        };
        if answer.state == Some(state_name(State::Parked)) {
            answer.why += &format!("; to run it again: {}", revival(flags, key));
        }
        // With `--since`, all lines of the period are printed.
        let most = flags.since.map_or(MOST_LINES, |_| usize::MAX);
        let text = if flags.json { answer.to_json(key) } else { answer.to_text(key, most) };
        print_output(text.as_bytes())?;
        Ok(Ended::Exit(if answer.state.is_some() { Exit::Done } else { Exit::GivenUp }))
    })
}

/// Returns the command line that revives a parked key.
fn revival(flags: &WhyFlags, key: &[u8]) -> String {
    let from = if flags.server.server.is_some() { "--server" } else { "--store" };
    let queue = flags.place.queue.as_deref();
    let queue = queue.map(|queue| format!(" --queue {}", quote_word(queue.as_ref())));
    // A key that begins with `-` would be an option: the key `--all` would revive all keys.
    let end = if key.starts_with(b"-") { "-- " } else { "" };
    let key = quote_word(OsStr::from_bytes(key));
    format!("requeue revive {from} URL{} {end}{key}", queue.unwrap_or_default())
}

async fn ask_server(
    server: &Server,
    key: &[u8],
    since: Option<Duration>,
) -> Result<Answer, Refusal> {
    let page = server.find_key(key).await?;
    // The API accepts only whole seconds.
    let since = since.map_or_else(String::new, |since| since.as_secs_f64().ceil().to_string());
    let query = [("key", key), ("since", since.as_bytes())];
    let mut timeline: Timeline = server.get("timeline", &query).await?;
    let Some(KeyPage { row, runs, missing, .. }) = page else {
        let why = match &timeline.last {
            Some(last) => format!("not in the queue; last: {last}"),
            None => MISSING.to_owned(),
        };
        return Ok(Answer { state: None, why, timeline, runs: Vec::new() });
    };
    note_missing(&mut timeline.note, missing);
    let error = row.error.map(|error| format!("; last error: {error}")).unwrap_or_default();
    let times = Times {
        age: row.age.and_then(api_duration),
        due: row.due_in.and_then(api_duration),
        lease: row.lease_in.and_then(api_duration),
    };
    // In a row of the dashboard, the worker is a detail beside the reason.
    let worker = row.detail.iter().find(|(name, _)| name == "worker");
    let worker = worker.map(|(_, worker)| format!("; worker {worker}")).unwrap_or_default();
    let why = times.append_to(&format!("{}{worker}{error}", row.why), Timestamp::now());
    let state = (row.state != api::State::Idle).then(|| own_name(row.state));
    Ok(Answer { state, why, timeline, runs })
}

/// The page of a key can contain a sentence about data that the server does not have. Puts this sentence before the
/// note of the timeline, unless the note already contains it.
fn note_missing(note: &mut String, missing: Option<String>) {
    if let Some(missing) = missing.filter(|missing| !note.contains(missing)) {
        *note = format!("{missing}; {note}");
    }
}

async fn read_store(queue: &Queue, key: &[u8], since: Option<Duration>) -> Result<Answer, Refusal> {
    let key = Key::from(key);
    let found = queue.look_up(key.clone()).await.map_err(store_refusal)?;
    let schedule = queue.look_up_schedule(key.clone()).await.map_err(store_refusal)?;
    let (mut runs, mut why, mut explained) = (Vec::new(), MISSING.to_owned(), None);
    if let Some(found) = &found {
        if found.failures > 0 {
            let attempts = queue.attempts(&key).await.map_err(store_refusal)?;
            runs = PastRun::of_attempts(found, attempts);
        }
        let text = queue.explain_entry(found).await.map_err(store_refusal)?;
        let text = text.strip_prefix(&format!("{key}: ")).unwrap_or(&text);
        let times = Times { age: found.since, due: found.due, lease: found.lease };
        why = times.append_to(text, Timestamp::now());
        explained = Some(text.to_owned());
    }
    if let Some(schedule) = schedule {
        let at = schedule.next_at.and_then(|at| Timestamp::try_from(at).ok());
        let at = at.and_then(|at| at.round(Unit::Second).ok());
        let at = at.map(|at| format!("; next at {at}")).unwrap_or_default();
        why = format!("{why}; {}{at}", schedule.explain());
    }
    let timeline = Timeline::of_stored(queue, &key, found.as_ref(), explained, &runs).await;
    let timeline = timeline.since(since);
    Ok(Answer { state: found.map(|entry| state_name(entry.state)), why, timeline, runs })
}

impl Answer {
    /// Returns the answer as text, with the newest `most` lines of the past.
    fn to_text(&self, key: &[u8], most: usize) -> String {
        let Self { why, timeline, runs, .. } = self;
        // The error of a command may contain control characters, so they are escaped.
        let mut text = format!("{}: {}\n\n", shown(key), printable(why));
        let lines = lines_of(&timeline.events, timeline.now);
        let omitted = lines.len().saturating_sub(most);
        if omitted > 0 {
            let lines = counted(omitted as u64, "earlier line");
            text += &format!("… {lines}; `--since 1h` shows all lines of the last hour\n");
        }
        for line in &lines[omitted..] {
            text += &printable(line);
            text.push('\n');
        }
        let begin = timeline.begin.and_then(|at| api_duration(timeline.now - at));
        let begin = begin.map(|ago| format!("the lines begin {} ago; ", duration::shown(ago)));
        text += &format!("({}{})\n", begin.unwrap_or_default(), printable(&timeline.note));
        if !runs.is_empty() {
            text.push('\n');
        }
        text + &runs_text(runs)
    }

    fn to_json(&self, key: &[u8]) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            key: Written<'a>,
            #[serde(flatten)]
            timeline: &'a Timeline,
            runs: &'a [PastRun],
        }
        let mut written = Written::of_key(key);
        written.state = Some(self.state.unwrap_or("unknown"));
        written.why = Some(&self.why);
        let answer = Whole { key: written, timeline: &self.timeline, runs: &self.runs };
        // Numbers and texts can always be serialized.
        serde_json::to_string(&answer).unwrap_or_default() + "\n"
    }
}

// --- Lines of the past ---------------------------------------------------------------------------

/// The maximum number of events in a sequence for which repetitions are detected.
const LONGEST_PART: usize = 6;
/// The minimum number of repetitions of a sequence that are combined into one line. The last repetition is always
/// printed in full.
const REPEATS: usize = 3;

/// Returns the lines of the past, the newest last. If a sequence of events repeats, one line replaces all its
/// repetitions except the last.
fn lines_of(events: &[PastEvent], now: f64) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = events;
    while let Some(first) = rest.first() {
        let (length, times) = longest_repeat(rest);
        if times < REPEATS {
            lines.push(line_of(first, now));
            rest = &rest[1..];
            continue;
        }
        let (same, after) = rest.split_at(length * (times - 1));
        let words: Vec<_> = same[..length].iter().map(words_of).collect();
        let took =
            api_duration(after[0].at - first.at).map(duration::format_length).unwrap_or_default();
        let times = counted(times as u64 - 1, "time");
        let words = words.join(", then ");
        lines.push(format!(
            "{}  repeated {times} in the next {took}: {words}",
            times_of(first, now)
        ));
        let (last, after) = after.split_at(length);
        lines.extend(last.iter().map(|event| line_of(event, now)));
        rest = after;
    }
    lines
}

/// Returns the length and the number of repetitions of the sequence at the start of `events` that covers the most
/// events.
fn longest_repeat(events: &[PastEvent]) -> (usize, usize) {
    let repeats = |length: usize| {
        let part = events.get(..length)?;
        let is_same =
            |other: &&[PastEvent]| other.iter().map(words_of).eq(part.iter().map(words_of));
        Some((length, events.chunks_exact(length).take_while(is_same).count()))
    };
    let all = (1..=LONGEST_PART).filter_map(repeats).filter(|(_, times)| *times >= REPEATS);
    // If two sequences cover equally many events, the shorter one is used.
    all.rev().max_by_key(|(length, times)| length * times).unwrap_or((1, 1))
}

/// Returns the text of an event without its times. Two events with equal results are treated as repetitions.
fn words_of(event: &PastEvent) -> String {
    match (event.kind, event.outcome) {
        (EventKind::Wait, _) => {
            let cause = event.cause.map(Named::name).unwrap_or_default();
            format!("waited ({})", cause.replace('_', " "))
        }
        (EventKind::Run, Some(Outcome::Succeeded)) => "run succeeded".to_owned(),
        (EventKind::Run, Some(Outcome::Failed | Outcome::GivenUp)) => "run failed".to_owned(),
        (EventKind::Run, Some(Outcome::Stopped)) => "run stopped".to_owned(),
        (EventKind::Run, None) => "running".to_owned(),
        // The waiting times differ between repetitions, so they are removed.
        _ => match event.text.rsplit_once(", ") {
            Some((words, time)) if time.contains(|char: char| char.is_ascii_digit()) => {
                words.to_owned()
            }
            _ => event.text.clone(),
        },
    }
}

fn line_of(event: &PastEvent, now: f64) -> String {
    let PastEvent { at, until, kind, text, .. } = event;
    let length =
        |until: f64| api_duration(until - at).map(duration::format_length).unwrap_or_default();
    let words = match (kind, until) {
        (EventKind::Wait, Some(until)) if *until > now => {
            let left = api_duration(until - now).map(duration::shown).unwrap_or_default();
            format!("waits {left} more, until {}: {text}", time_text(*until))
        }
        (EventKind::Wait, Some(until)) => format!("waited {}: {text}", length(*until)),
        (EventKind::Wait, None) => format!("waits, for {} so far: {text}", length(now)),
        (EventKind::Run, Some(until)) => format!("{text}; took {}", length(*until)),
        (EventKind::Run, None) => format!("{text}, for {} so far", length(now)),
        _ => text.clone(),
    };
    format!("{}  {words}", times_of(event, now))
}

/// Returns the time of an event, and how long ago it was.
fn times_of(event: &PastEvent, now: f64) -> String {
    let ago = api_duration((now - event.at).max(0.0)).map(duration::shown).unwrap_or_default();
    format!("{}  {ago:>10} ago", time_text(event.at))
}

fn time_text(at: f64) -> String {
    let since = SignedDuration::try_from_secs_f64(at).ok();
    let time = since.and_then(|since| Timestamp::UNIX_EPOCH.checked_add(since).ok());
    // Milliseconds are printed, because several events can occur within a second.
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use requeue_http::api::WaitCause;

    use super::*;

    const START: f64 = 1_900_000_000.0;

    fn wait(at: f64, until: Option<f64>, cause: WaitCause, text: &str) -> PastEvent {
        let until = until.map(|until| START + until);
        let (at, text) = (START + at, text.to_owned());
        PastEvent { at, until, kind: EventKind::Wait, cause: Some(cause), outcome: None, text }
    }

    fn run(at: f64, until: Option<f64>, outcome: Option<Outcome>, text: &str) -> PastEvent {
        let until = until.map(|until| START + until);
        let (at, text) = (START + at, text.to_owned());
        PastEvent { at, until, kind: EventKind::Run, cause: None, outcome, text }
    }

    #[test]
    fn a_missing_part_is_noted_once() {
        let mut note = "old runs are unknown".to_owned();
        for missing in [None, Some("no failures"), Some("no failures")] {
            note_missing(&mut note, missing.map(str::to_owned));
        }
        assert_eq!(note, "no failures; old runs are unknown");
    }

    #[test]
    fn only_the_newest_lines_are_shown_without_a_period() {
        let event = |n: u8| {
            let at = START + f64::from(n);
            PastEvent { kind: EventKind::Other, ..run(at, None, None, &format!("event {n}")) }
        };
        let events = (0..=u8::try_from(MOST_LINES).expect("few")).map(event).collect();
        let timeline = Timeline { events, now: START + 99.0, ..Timeline::default() };
        let answer = Answer { state: None, why: "idle".into(), timeline, runs: Vec::new() };
        let text = answer.to_text(b"a", MOST_LINES);
        let omitted = "… 1 earlier line; `--since 1h` shows all lines of the last hour";
        assert_eq!(text.lines().nth(2), Some(omitted), "{text}");
        assert!(!text.contains("event 0\n") && text.contains("event 1\n"), "{text}");
        assert!(answer.to_text(b"a", usize::MAX).contains("event 0\n"));
    }

    #[test]
    fn each_line_has_both_times_and_the_length() {
        let events = [
            wait(0.0, Some(10.0), WaitCause::Delay, "due"),
            run(10.0, Some(10.25), Some(Outcome::Failed), "run 1 failed: exit status: 3"),
            wait(10.25, Some(75.5), WaitCause::Backoff, "backing off after 1 failure"),
        ];
        let lines = lines_of(&events, START + 15.5);
        let expected = [
            "2030-03-17T17:46:40.000Z       15.5s ago  waited 10.0s: due",
            "2030-03-17T17:46:50.000Z        5.5s ago  run 1 failed: exit status: 3; took 250ms",
            "2030-03-17T17:46:50.250Z        5.2s ago  waits 1m 0s more, until \
             2030-03-17T17:47:55.500Z: backing off after 1 failure",
        ];
        assert_eq!(lines, expected);
        let open = [wait(0.0, None, WaitCause::Ready, "ready"), run(0.0, None, None, "running")];
        let lines = lines_of(&open, START + 2.0);
        assert!(lines[0].ends_with("waits, for 2.0s so far: ready"), "{lines:?}");
        assert!(lines[1].ends_with("running, for 2.0s so far"), "{lines:?}");
    }

    #[test]
    fn all_but_the_last_of_a_part_that_repeats_are_one_line() {
        let mut events = vec![wait(0.0, Some(1.0), WaitCause::Delay, "due")];
        for n in 1..=12_u8 {
            let (at, text) = (f64::from(n) * 10.0, format!("run {n} failed"));
            events.push(run(at, Some(at + 1.0), Some(Outcome::Failed), &text));
            events.push(wait(at + 1.0, Some(at + 10.0), WaitCause::Backoff, &text));
        }
        events.push(run(130.0, None, None, "running"));
        let lines = lines_of(&events, START + 130.0);
        let texts: Vec<_> = lines.iter().filter_map(|line| line.split_once(" ago  ")).collect();
        let texts: Vec<_> = texts.iter().map(|(_, text)| *text).collect();
        let expected = [
            "waited 1.0s: due",
            "repeated 11 times in the next 1m 50s: run failed, then waited (backoff)",
            "run 12 failed; took 1.0s",
            "waited 9.0s: run 12 failed",
            "running, for 0ms so far",
        ];
        assert_eq!(texts, expected);
        assert_eq!(lines_of(&events[1..5], START).len(), 4, "two are not collapsed");
    }
}

//! `/api/v1/timeline`.

use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::history::Recording;
use requeue::{Add, Completion, GroupId, Pace, Queue, intern_reason};
use requeue_http::{History, Run, Site};
use serde_json::{Value, json};

use crate::client::get;
use crate::{Keys, Served};

const SECOND: Duration = Duration::from_secs(1);

/// A queue that records its events in this number of bytes.
fn recorded(bytes: usize) -> (requeue::Builder<Vec<u8>>, FakeClock) {
    let clock = FakeClock::new();
    (Queue::builder().clock(clock.clone()).track_times().record_events(bytes), clock)
}

fn timeline(served: &Served, query: &str) -> Value {
    get(served.address, &format!("/api/v1/timeline?{query}")).json()
}

/// Returns each event as its beginning and its end in seconds before `now`, its kind, its cause or outcome, and its text.
fn told(timeline: &Value) -> Vec<String> {
    let now = timeline["now"].as_f64().expect("a number");
    let ago = |time: &Value| time.as_f64().map_or("?".to_owned(), |at| format!("{:.0}", now - at));
    let line = |event: &Value| {
        let name = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let span = match name("kind").as_str() {
            "add" | "other" => ago(&event["at"]),
            _ => format!("{}..{}", ago(&event["at"]), ago(&event["until"])),
        };
        let of = name("cause") + &name("outcome");
        [span, name("kind"), of, name("text")].join(" ").replace("  ", " ")
    };
    timeline["events"].as_array().expect("a list").iter().map(line).collect()
}

#[test]
fn the_past_of_a_key_is_its_adds_its_waits_by_cause_and_its_runs() {
    let (builder, clock) = recorded(64 << 10);
    let pace = Pace::new(2, 100 * SECOND);
    let queue: Keys = builder.pace(pace).build().expect("the settings are valid");
    let history = History::new();
    let add = || queue.add(b"a".to_vec());
    queue.add_after(b"a".to_vec(), 10 * SECOND);
    clock.advance(10 * SECOND);
    // A read makes the key ready.
    assert_eq!(queue.len(), 1);
    clock.advance(5 * SECOND);
    let item = queue.try_get().expect("the key is due");
    clock.advance(2 * SECOND);
    item.complete(Completion::RetryAfter(20 * SECOND));
    history.failed("a", Run::new(1).error("exit status: 3"));
    add();
    clock.advance(20 * SECOND);
    let item = queue.try_get().expect("the backoff is over");
    add();
    queue.pause();
    clock.advance(SECOND);
    item.succeed();
    clock.advance(3 * SECOND);
    queue.resume();

    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let whole = timeline(&served, "key=a");
    let expected = [
        "41 add added, to run in 10.0s",
        "41..31 wait delay waiting for its due time",
        "31..26 wait ready ready, waiting for a worker",
        "26..24 run failed attempt 1 failed and is retried: exit status: 3",
        "24..4 wait backoff backing off after 1 failure",
        "24 add added, held for its backoff",
        "4..3 run succeeded run succeeded, for 2 adds",
        "4 add added in flight, runs once more",
        // Two runs in 100 s are permitted, and the first began 26 s ago.
        "3..-74 wait pace waiting for its pace",
    ];
    assert_eq!(told(&whole), expected);
    assert_eq!((&whole["recorded"], &whole["begin"]), (&json!(true), &Value::Null));
    let last = timeline(&served, "key_base64=YQ==&since=4");
    assert_eq!(told(&last), [expected[4], expected[6], expected[7], expected[8]]);

    let none = timeline(&served, "key=other");
    assert_eq!((told(&none).len(), &none["recorded"]), (0, &json!(true)));

    let doc = get(served.address, "/api/v1/openapi.json").json();
    for (schema, value) in [("Timeline", &whole), ("PastEvent", &whole["events"][0])] {
        let described = doc["components"]["schemas"][schema]["properties"].as_object();
        let described: Vec<_> = described.expect(schema).keys().collect();
        assert_eq!(value.as_object().expect(schema).keys().collect::<Vec<_>>(), described);
    }
}

#[test]
fn a_ready_key_waits_for_what_holds_it_back_at_that_time() {
    let (builder, clock) = recorded(64 << 10);
    let builder = builder.fair().group_by(|_: &Vec<u8>| GroupId::new(7)).group_limit(1);
    let queue: Keys = builder.build().expect("the settings are valid");
    queue.add(b"first".to_vec());
    queue.add(b"a".to_vec());
    clock.advance(SECOND);
    let first = queue.try_get().expect("a key is ready");
    clock.advance(2 * SECOND);
    queue.pause();
    clock.advance(3 * SECOND);
    queue.resume();
    let group = queue.group(GroupId::new(7)).expect("the queue has groups");
    group.pause();
    first.succeed();
    clock.advance(4 * SECOND);
    group.resume();
    clock.advance(5 * SECOND);
    let item = queue.try_get().expect("a key is ready");
    let _ = queue.cancel_running(&b"a"[..]);
    clock.advance(6 * SECOND);
    let served = Served::new(Site::builder(queue.clone()));
    let expected = [
        "21 add added",
        "21..20 wait ready ready, waiting for a worker",
        "20..18 wait group_limit ready, but its group has reached its limit",
        "18..15 wait queue_paused ready, but the queue is paused",
        "15..11 wait group_paused ready, but its group is paused",
        "11..6 wait ready ready, waiting for a worker",
        "6..? run running",
        "6 other run is cancelled",
    ];
    assert_eq!(told(&timeline(&served, "key=a")), expected);
    drop(item);
}

#[test]
fn a_timeline_says_from_when_on_it_is_complete() {
    let (builder, clock) = recorded(20 * 64);
    let queue: Keys = builder.build().expect("the settings are valid");
    queue.add(b"a".to_vec());
    let item = queue.try_get().expect("a key is ready");
    clock.advance(10 * SECOND);
    queue.add_all((0..100_u8).map(|n| vec![0, n]));
    queue.add(b"a".to_vec());
    clock.advance(SECOND);
    item.succeed();
    let served = Served::new(Site::builder(queue.clone()));
    let answer = timeline(&served, "key=a");
    // The beginning of the run was dropped.
    let expected = [
        "1..0 run succeeded run succeeded",
        "1 add added in flight, runs once more",
        "0..? wait ready ready, waiting for a worker",
    ];
    assert_eq!(told(&answer), expected);
    assert_eq!(answer["begin"], answer["events"][0]["at"]);
    assert_eq!(answer["note"], json!("older events were dropped"));

    // One key has many events.
    let (builder, _clock) = recorded(1 << 20);
    let queue: Keys = builder.build().expect("the settings are valid");
    for _ in 0..2_000 {
        queue.add_with(b"a".to_vec(), Add::now());
    }
    let served = Served::new(Site::builder(queue));
    let answer = timeline(&served, "key=a");
    assert_eq!(told(&answer).len(), 1_000);
    let note = answer["note"].as_str().expect("text");
    assert!(note.ends_with("; the last 1,000 events are listed"), "{note}");
}

#[test]
fn a_run_with_very_many_adds_stays() {
    let (builder, clock) = recorded(1 << 20);
    let queue: Keys = builder.build().expect("the settings are valid");
    queue.add(b"a".to_vec());
    let item = queue.try_get().expect("a key is ready");
    clock.advance(SECOND);
    for _ in 0..5_000 {
        queue.add_with(b"a".to_vec(), Add::now());
    }
    let served = Served::new(Site::builder(queue.clone()));
    for query in ["key=a", "key=a&since=60"] {
        let answer = timeline(&served, query);
        let lines = told(&answer);
        assert_eq!((lines.len(), &*lines[0]), (1_000, "1..? run running"), "{query}");
        assert_eq!(answer["begin"], answer["events"][1]["at"], "{query}");
        let note = answer["note"].as_str().expect("text");
        assert!(note.ends_with("; the last 1,000 events are listed"), "{note}");
    }
    drop(item);
}

#[test]
fn the_reasons_of_adds_are_told() {
    let (builder, _clock) = recorded(64 << 10);
    let queue: Keys = builder.build().expect("the settings are valid");
    let add = Add::now().reason(intern_reason("Pod created; or changed"));
    queue.add_caused_by(b"a".to_vec(), add, "default/p");
    queue.add_caused_by(b"a".to_vec(), add, "default/q");
    let served = Served::new(Site::builder(queue));
    let adds = [
        "0 add added (Pod created; or changed)",
        "0 add added to the pending run (Pod created; or changed)",
    ];
    let mut events = told(&timeline(&served, "key=a"));
    events.retain(|event| event.contains(" add "));
    assert_eq!(events, adds);
    let page = get(served.address, "/api/v1/key?key=a").json();
    let why = page["why"].as_str().expect("text");
    let reasons = "; added for 2 x Pod created; or changed (first default/p, last default/q)";
    assert!(why.ends_with(reasons), "{why}");
}

#[test]
fn without_a_recording_the_present_wait_has_its_cause() {
    let clock = FakeClock::new();
    let builder = Queue::builder().clock(clock.clone()).track_times().fair();
    let builder = builder.pace(Pace::new(1, 100 * SECOND));
    let builder = builder.group_by(|_: &Vec<u8>| GroupId::new(7)).group_limit(1);
    let queue: Keys = builder.build().expect("the settings are valid");
    let served = Served::new(Site::builder(queue.clone()));
    let present = || told(&timeline(&served, "key=a")).join(", ");
    queue.add(b"a".to_vec());
    queue.try_get().expect("a key is ready").succeed();
    queue.add(b"a".to_vec());
    assert_eq!(present(), "0..-100 wait pace waiting for its pace");
    queue.add(b"first".to_vec());
    let _first = queue.try_get().expect("a key is ready");
    clock.advance(100 * SECOND);
    assert_eq!(present(), "0..? wait group_limit ready, but its group has reached its limit");
    queue.group(GroupId::new(7)).expect("the queue has groups").pause();
    assert_eq!(present(), "0..? wait group_paused ready, but its group is paused");
    queue.pause();
    assert_eq!(present(), "0..? wait queue_paused ready, but the queue is paused");
}

#[test]
fn without_a_recording_the_last_runs_are_told() {
    let clock = FakeClock::new();
    let queue: Keys = Queue::builder().clock(clock.clone()).track_times().build().expect("valid");
    let history = History::new();
    queue.add(b"a".to_vec());
    for attempt in 1..=2 {
        let item = queue.try_get().expect("the key is due");
        item.complete(Completion::RetryAfter(20 * SECOND));
        history.failed("a", Run::new(attempt).took(Duration::ZERO).error("exit status: 3"));
        clock.advance(20 * SECOND);
    }
    queue.try_get().expect("the key is due").complete(Completion::RetryAfter(20 * SECOND));
    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let answer = timeline(&served, "key=a");
    // The clock of the history is the real clock.
    let lines = told(&answer);
    let runs: Vec<_> = lines.iter().filter_map(|line| line.split_once(" run ")).collect();
    let texts: Vec<_> = runs.iter().map(|(_, text)| *text).collect();
    let failed = |n| format!("failed attempt {n} failed: exit status: 3");
    assert_eq!(texts, [failed(1), failed(2)]);
    assert!(lines.last().expect("a wait").ends_with("wait backoff backing off after 3 failures"));
    assert_eq!(answer["recorded"], json!(false));
    let note = answer["note"].as_str().expect("text");
    assert!(note.contains("records no events (Builder::record_events, --record-events)"), "{note}");
}

#[test]
fn a_wrong_parameter_is_named() {
    let served = Served::new(Site::builder(Keys::new()));
    for (query, error) in [
        (
            "key=a&since=1h",
            "since: expected a whole number of seconds, as in 3600 for the last hour",
        ),
        ("key=a&since=-1", "since: expected a whole number of seconds"),
        ("since=5", "key: missing"),
        ("key=a&key_base64=YQ==", "key_base64: pass either key or key_base64"),
        ("key=a&state=ready", "state: no such parameter"),
    ] {
        let answer = get(served.address, &format!("/api/v1/timeline?{query}"));
        let text = answer.json()["error"].as_str().expect("text").to_owned();
        assert!(answer.status == 400 && text.starts_with(error), "{query}: {text}");
    }
}

#[test]
fn a_recording_names_the_keys_of_the_queue_and_of_the_history() {
    let (builder, clock) = recorded(64 << 10);
    let builder = builder.group_by(|key| GroupId::new(u64::from(key[0])));
    let queue: Keys = builder.build().expect("the settings are valid");
    let history = History::new();
    for (key, completion) in [
        ("gone", Completion::Succeed),
        ("failed", Completion::GiveUp),
        ("\u{1b}", Completion::Retry),
    ] {
        queue.add(key.into());
        queue.try_get().expect("it is ready").complete(completion);
        clock.advance(SECOND);
    }
    history.gave_up("failed", Run::new(1).error("exit status: 3"));
    history.gave_up("unrecorded", Run::new(1).error("exit status: 3"));
    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let recording = |query: &str| {
        let answer = get(served.address, &format!("/api/v1/recording{query}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let recording: Recording = answer.text().parse().expect("a recording");
        assert_eq!(recording.replay().find_map(Result::err), None);
        let mut names: Vec<_> = answer
            .text()
            .lines()
            .filter_map(|line| line.strip_prefix("name "))
            .map(|line| line[9..].to_owned())
            .collect();
        names.sort_unstable();
        (names, answer.text().to_owned())
    };
    assert_eq!(recording("").0, ["\\u{1b}", "failed"]);
    assert_eq!(recording("?key=gone").0, ["\\u{1b}", "failed", "gone"]);
    assert_eq!(recording("?key=unrecorded").0.len(), 2);
    let (names, text) = recording("?key_base64=Z29uZQ&hash_keys=true");
    assert_eq!(names, ["KEY"]);
    // The groups are the first bytes of the keys.
    assert!(text.contains("00000001 added new due=") && text.contains("group=1 "), "{text}");
    assert!(!text.contains(&format!("group={} ", b'g')), "{text}");
    for (query, parameter) in
        [("?hash_keys=yes", "hash_keys"), ("?key=a&key_base64=YQ", "key_base64")]
    {
        let refused = get(served.address, &format!("/api/v1/recording{query}"));
        assert_eq!((refused.status, &refused.json()["parameter"]), (400, &json!(parameter)));
    }
}

#[test]
fn a_queue_without_a_recording_has_none_to_return() {
    let queue: Keys = Queue::new();
    let served = Served::new(Site::builder(queue));
    let refused = get(served.address, "/api/v1/recording");
    let error = refused.json()["error"].to_string();
    assert!(refused.status == 404 && error.contains("--record-events"), "{error}");
}

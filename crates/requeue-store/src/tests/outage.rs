//! Tests the log messages about outages.

use std::cell::RefCell;
use std::fmt;
use std::iter::repeat_n;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::engine::outage::Part;
use crate::types::error::{EngineError, Kind};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the messages about outages. Each thread has a separate list, because each test runs on a separate thread.
///
/// All tests share this subscriber. If each thread had a separate subscriber, other threads could disable the events.
struct Keeping;

impl Subscriber for Keeping {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "requeue_store::outage"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            LINES.with_borrow_mut(|lines| lines.push(format!("{value:?}")));
        }
    }
}

fn keep_lines() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Keeping).expect("no other subscriber")
    });
}

/// Returns the messages after the last call.
fn lines() -> Vec<String> {
    LINES.take()
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_when_it_begins_each_minute_and_when_it_ends() {
    keep_lines();
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let begin = Instant::now();
    engine.fail(repeat_n(Mishap::Absent, 300));
    get(&queue).await.succeed().await.expect("the lease is held");
    let minutes = begin.elapsed().as_secs() / 60;
    assert!(minutes > 1, "the attempts took {:?}", begin.elapsed());
    let lines = lines();
    assert_eq!(lines[0], "store unreachable: nobody is there; retrying");
    let (last, between) = lines[1..].split_last().expect("the outage is over");
    let prefix = format!("store reachable again after {minutes} min ");
    assert!(last.starts_with(&prefix), "{lines:?}");
    // Each message is logged at the first attempt after a minute.
    assert!((minutes * 9 / 10..=minutes).contains(&(between.len() as u64)), "{lines:?}");
    for line in between {
        assert!(line.starts_with("store still unreachable after "), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_fails_in_one_outage_is_one_report() {
    keep_lines();
    let (engine, queue) = queue();
    queue.add("held").await.expect("added");
    let item = get(&queue).await;
    // Adds, a completion, a claim and renewals fail, in any order.
    engine.fail(repeat_n(Mishap::Lost, 12));
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    let (added, ended) = tokio::join!(queue.add("a"), item.succeed());
    added.expect("added");
    ended.expect("the lease is held");
    assert!(getting.await.expect("the task completes").is_some());
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "store unreachable: the line is cut; retrying");
    assert!(lines[1].starts_with("store reachable again after "), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_every_other_time_is_not_reported_each_time() {
    keep_lines();
    let (engine, queue) = queue();
    for n in 0..100 {
        engine.fail([Mishap::Absent]);
        queue.add(format!("k{n}")).await.expect("added");
        tokio::time::advance(SECOND).await;
    }
    let lines = lines();
    let starts = lines.iter().filter(|line| line.starts_with("store unreachable: ")).count();
    // One line is logged immediately, and one line is logged a minute later.
    assert_eq!((starts, lines.len()), (2, 4), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_store_refuses_is_reported_as_that() {
    keep_lines();
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    engine.fail([Mishap::Refused]);
    get(&queue).await.succeed().await.expect("the lease is held");
    assert_eq!(
        lines(),
        [
            "store rejects the request: it is not allowed; retrying",
            "store works again after less than a second"
        ]
    );
}

/// A store that answers is reachable, even if it cannot process requests.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_is_not_called_unreachable() {
    keep_lines();
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let part = || Part::Shard(0);
    let full = || EngineError::unable("the memory is full");
    place.note_failure(part(), &full());
    tokio::time::advance(23 * SECOND).await;
    place.note_failure(part(), &full());
    place.note_answer(part);
    let unable = "store cannot complete the request: the memory is full; retrying";
    assert_eq!(lines(), [unable, "store works again after 23 s"]);

    tokio::time::advance(60 * SECOND).await;
    let source = "no replica has confirmed it".into();
    place.note_failure(part(), &EngineError { kind: Kind::Unconfirmed, source });
    // The server then stops. Each kind of trouble is logged at most once per minute.
    for _ in 0..9 {
        place.note_failure(part(), &EngineError::absent("gone"));
        place.note_failure(part(), &full());
        tokio::time::advance(10 * SECOND).await;
    }
    place.note_answer(part);
    assert_eq!(
        lines(),
        [
            "store cannot complete the request: no replica has confirmed it; retrying",
            "store unreachable: gone; retrying",
            "store still unreachable after 1 min 0 s: gone; retrying",
            "store still cannot complete the request after 1 min 0 s: the memory is full; retrying",
            "store reachable again after 1 min 30 s"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_one_shard_ends_with_that_shard_or_when_nobody_tries_it_any_more() {
    keep_lines();
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let gone = || EngineError::absent("gone");
    for shard in [0, 1] {
        place.note_failure(Part::Shard(shard), &gone());
    }
    place.note_answer(|| Part::Shard(0));
    place.note_answer(|| Part::Shard(2));
    assert_eq!(lines(), ["store unreachable: gone; retrying"]);
    tokio::time::advance(23 * SECOND).await;
    place.note_answer(|| Part::Shard(1));
    assert_eq!(lines(), ["store reachable again after 23 s"]);

    tokio::time::advance(20 * SECOND).await;
    place.note_failure(Part::Shard(0), &gone());
    tokio::time::advance(70 * SECOND).await;
    place.note_answer(|| Part::All);
    assert_eq!(
        lines(),
        ["store unreachable: gone; retrying", "store reachable again after 1 min 10 s"]
    );
}

//! Workers with a `tracing` subscriber.
//!
//! These tests are in a separate binary. In one process, tests without a subscriber could disable
//! the spans that these tests create.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::on_tokio;
use requeue::workers::{Action, Context, Error, Workers};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A subscriber that records the values of spans. A test can make it panic at the first span.
#[derive(Default)]
struct Writing {
    lines: Arc<Mutex<String>>,
    panics: Arc<AtomicUsize>,
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0, "{field}={value:?}").unwrap();
    }
}

impl Subscriber for Writing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let left = self.panics.load(Ordering::Relaxed);
        self.panics.store(left.saturating_sub(1), Ordering::Relaxed);
        assert_eq!(left, 0, "the subscriber panics");
        span.record(&mut Line(&mut self.lines.lock().unwrap()));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Line(&mut self.lines.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_key_or_an_error_that_cannot_be_shown_is_worked_on_all_the_same() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Shy(u32);
    impl fmt::Debug for Shy {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("not to be shown")
        }
    }
    #[derive(Debug)]
    struct Unspeakable;
    impl fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("not to be told")
        }
    }
    impl std::error::Error for Unspeakable {}

    let subscriber = Writing::default();
    let lines = Arc::clone(&subscriber.lines);
    let _here = tracing::subscriber::set_default(subscriber);
    let queue = on_tokio();
    queue.add_all([Shy(1), Shy(2)]);
    queue.close();
    let handler = |_, context: Context| async move {
        if context.attempt() == 1 { Err(Unspeakable.into()) } else { Ok(Action::succeed()) }
    };
    let drained = Workers::new(queue.clone(), handler).run().await;
    assert!(drained.finished);
    assert_eq!(
        (queue.totals().deliveries, queue.totals().failures, queue.sample().panics),
        (4, 2, 0)
    );
    let lines = lines.lock().unwrap();
    assert_eq!(lines.matches("key=(its Debug panicked)").count(), 4, "{lines}");
    assert_eq!(lines.matches("error=(its Display panicked)").count(), 2, "{lines}");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_fails_the_attempt_and_the_key_comes_back() {
    let subscriber = Writing::default();
    subscriber.panics.store(2, Ordering::Relaxed);
    let _here = tracing::subscriber::set_default(subscriber);
    let (queue, attempts) = (on_tokio(), Arc::new(Mutex::new(Vec::new())));
    queue.add_all([1, 2]);
    queue.close();
    let handler = {
        let attempts = Arc::clone(&attempts);
        move |key, context: Context| {
            attempts.lock().unwrap().push((key, context.attempt()));
            async { Ok::<_, Error>(Action::succeed()) }
        }
    };
    let drained = Workers::new(queue.clone(), handler).run().await;
    assert!(drained.finished);
    let mut attempts = attempts.lock().unwrap().clone();
    attempts.sort_unstable();
    assert_eq!(queue.sample().panics, 2);
    assert_eq!(attempts.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(attempts.iter().map(|(_, attempt)| attempt - 1).sum::<u32>(), 2, "{attempts:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_runs_in_the_span_that_is_asked_for() {
    let subscriber = Writing::default();
    let lines = Arc::clone(&subscriber.lines);
    let _here = tracing::subscriber::set_default(subscriber);
    let queue = on_tokio();
    queue.add(7);
    queue.close();
    let handler = |_, _: Context| async { Ok::<_, Error>(Action::succeed()) };
    let workers = Workers::new(queue, handler);
    let span = |key: &i32, context: &Context| {
        tracing::info_span!("working", thing = key, nth = context.attempt())
    };
    workers.span(span).run().await;
    assert_eq!(*lines.lock().unwrap(), "thing=7\nnth=1\n");
}

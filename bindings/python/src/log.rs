//! Sends the events of `tracing` to `logging`.
//!
//! An event may occur under a lock for which a Python thread waits. A thread that logged the event itself would wait
//! for the interpreter, so both would wait forever. Therefore an event loop logs the events.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bridge;

/// The lowest level of Python that is logged: `logging.WARNING` by default.
static LEVEL: AtomicU8 = AtomicU8::new(30);
/// The events that no event loop has logged yet.
static LINES: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());
/// The maximum number of pending events. A later event replaces the first one.
const MAX_LINES: usize = 1000;

struct Line {
    target: &'static str,
    level: u8,
    text: String,
}

/// Sets the lowest level that reaches `logging`, as a number of `logging`.
#[pyfunction]
pub(crate) fn set_log_level(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
}

/// Installs the subscriber. If the process has one already, that one receives the events.
pub(crate) fn install() {
    let _ = tracing::subscriber::set_global_default(Logging);
}

/// Passes on events, and ignores spans.
struct Logging;

impl Subscriber for Logging {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        let metadata = event.metadata();
        let line = Line {
            target: metadata.target(),
            level: number(*metadata.level()),
            text: message + &fields,
        };
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
        drop(lines);
        bridge::wake_all();
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Returns the number of a level in `logging`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// The message of an event, and its other fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Logs the pending events.
pub(crate) fn write_pending(py: Python<'_>) {
    loop {
        let line = LINES.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(Line { target, level, text }) = line else { return };
        // `requeue_store::parked` is `requeue.store.parked`, below the logger `requeue`.
        let name = target.replacen("requeue_", "requeue::", 1).replace("::", ".");
        let logged = py.import("logging").and_then(|logging| {
            let logger = logging.call_method1("getLogger", (name,))?;
            logger.call_method1("log", (level, "%s", text))
        });
        if let Err(error) = logged {
            error.write_unraisable(py, None);
        }
    }
}

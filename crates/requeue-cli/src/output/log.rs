//! Prints log events of libraries, one line for each. Examples are the warnings of a store and the actions of clients
//! of the dashboard.

use std::io::{self, Write};
use std::sync::Arc;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::complain;
use crate::output::Output;

type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Calls `say` for each event, with one line of text.
pub(crate) fn show_events(say: impl Fn(&str) + Send + Sync + 'static) {
    // The process runs only one subcommand, so no other subscriber is installed, and `try_init` does not fail.
    let _ = line_subscriber(Arc::new(say)).try_init();
}

/// Writes each event to standard error through `output`.
pub(crate) fn show_on(output: &Output) {
    let output = output.clone();
    show_events(move |line| output.hint(line));
}

/// Writes each event of this thread to standard error, until the returned guard is dropped.
pub(crate) fn show_here() -> impl Sized {
    line_subscriber(Arc::new(complain)).set_default()
}

fn line_subscriber(say: Say) -> impl SubscriberInitExt {
    // The name of the queue is left out, because a subcommand uses only one queue.
    let fields = debug_fn(|line, field, value| match field.name() {
        "message" => write!(line, "{value:?}"),
        "queue" => Ok(()),
        "remote" => write!(line, " by {value:?}"),
        name => write!(line, " {name}={value:?}"),
    });
    let lines = tracing_subscriber::fmt::layer()
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .fmt_fields(fields)
        .with_writer(move || Line { say: Arc::clone(&say), text: Vec::new() });
    // The warnings of database drivers are left out, because requeue_store reports their causes.
    let ours = Targets::new()
        .with_target("requeue_http", LevelFilter::INFO)
        // The program's own events report outages of the server of `requeue work --server`.
        .with_target(env!("CARGO_CRATE_NAME"), LevelFilter::INFO)
        .with_target("requeue_store", LevelFilter::WARN)
        // The program itself reports parked keys, so these events are left out.
        .with_target("requeue_store::parked", LevelFilter::OFF)
        .with_target("requeue_store::outage", LevelFilter::INFO);
    tracing_subscriber::registry().with(lines.with_filter(ours))
}

/// The line of one event, while it is written.
struct Line {
    say: Say,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        (self.say)(String::from_utf8_lossy(&self.text).trim_end());
    }
}

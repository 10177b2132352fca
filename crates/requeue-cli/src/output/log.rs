//! Prints events of libraries as lines, such as the warnings of a store and the actions of clients of the dashboard.

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

/// Passes each event to `say` as one line.
pub(crate) fn show_events(say: impl Fn(&str) + Send + Sync + 'static) {
    // The process has no other subscriber, because it runs only one subcommand.
    let _ = line_subscriber(Arc::new(say)).try_init();
}

/// Passes events to the output of a run.
pub(crate) fn show_on(output: &Output) {
    let output = output.clone();
    show_events(move |line| output.hint(line));
}

/// Prints events of this thread to standard error until the guard is dropped.
pub(crate) fn show_here() -> impl Sized {
    line_subscriber(Arc::new(complain)).set_default()
}

fn line_subscriber(say: Say) -> impl SubscriberInitExt {
    // The name of the queue is omitted, because a subcommand uses one queue.
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
    // The warnings of drivers are not shown, because requeue_store reports their causes.
    let ours = Targets::new()
        .with_target("requeue_http", LevelFilter::INFO)
        // The program's own events are outages of the server of `requeue work --server`.
        .with_target(env!("CARGO_CRATE_NAME"), LevelFilter::INFO)
        .with_target("requeue_store", LevelFilter::WARN)
        // These events are not shown, because the program reports parked keys itself.
        .with_target("requeue_store::parked", LevelFilter::OFF)
        .with_target("requeue_store::outage", LevelFilter::INFO);
    tracing_subscriber::registry().with(lines.with_filter(ours))
}

/// A warning.
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

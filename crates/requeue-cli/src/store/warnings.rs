//! Warnings of a store: how its server is set up, what it has lost, and what fails and is tried again.

use std::io::{self, Write};
use std::sync::Arc;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::complain;
use crate::run::Runner;

/// Shows warnings on standard error, unless that would mean to wait.
pub(super) fn show(runner: &Arc<Runner>) {
    // There is no other: this process does one thing.
    let _ = lines(Some(runner)).try_init();
}

/// Shows those of this thread until the guard is dropped, where no run writes to standard error yet.
pub(super) fn show_here() -> impl Sized {
    lines(None).set_default()
}

fn lines(runner: Option<&Arc<Runner>>) -> impl SubscriberInitExt + use<> {
    let runner = runner.map(Arc::clone);
    let lines = tracing_subscriber::fmt::layer()
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || Line { runner: runner.clone(), text: Vec::new() });
    // What drivers warn of comes out of that.
    let ours = Targets::new().with_target("requeue_store", LevelFilter::WARN);
    tracing_subscriber::registry().with(lines.with_filter(ours))
}

/// One of them.
struct Line {
    runner: Option<Arc<Runner>>,
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
        let text = String::from_utf8_lossy(&self.text);
        match &self.runner {
            Some(runner) => runner.output.hint(text.trim_end()),
            None => complain(text.trim_end()),
        }
    }
}

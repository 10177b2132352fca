//! What goes wrong between a queue and its store while it is tried again.

use std::io::{self, Write};
use std::sync::Arc;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::run::Runner;

/// Shows warnings on standard error, unless that would mean to wait.
pub(super) fn show(runner: &Arc<Runner>) {
    let runner = Arc::clone(runner);
    let lines = tracing_subscriber::fmt::layer()
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || Line { runner: Arc::clone(&runner), text: Vec::new() });
    // What drivers warn of comes out of that.
    let ours = Targets::new().with_target("requeue_store", LevelFilter::WARN);
    // There is no other: this process does one thing.
    let _ = tracing_subscriber::registry().with(lines.with_filter(ours)).try_init();
}

/// One of them.
struct Line {
    runner: Arc<Runner>,
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
        self.runner.output.hint(String::from_utf8_lossy(&self.text).trim_end());
    }
}

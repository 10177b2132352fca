//! The thread that reads records from the input and applies them to the queue.

use std::sync::Arc;

use requeue::{Added, Merge};
use tokio::sync::oneshot;

use crate::exit::Refusal;
use crate::input::source::{FROM_TERMINAL, Input};
use crate::input::{Bad, Change, ChangeSink, Why, read_changes};
use crate::output::summary::counted;
use crate::runner::Runner;

/// Applies the changes that the reader thread reads to the queue in memory.
pub(crate) struct LocalSink {
    runner: Arc<Runner>,
    /// An upper bound of the number of held keys. Keys that clients of the dashboard have added since the last call of
    /// `make_room` are left out.
    held: usize,
}

impl LocalSink {
    pub(crate) fn new(runner: &Arc<Runner>) -> Self {
        Self { runner: Arc::clone(runner), held: 0 }
    }
}

impl ChangeSink for LocalSink {
    fn take_change(&mut self, change: Change<'_>) -> Result<bool, Why> {
        // `set` has an effect only at the first record.
        let _ = self.runner.has_record.set(true);
        Ok(self.runner.take_change(change, &mut self.held))
    }

    fn refuse_record(&mut self, bad: &Bad) {
        self.runner.complain_of(bad);
    }

    fn apply_pending(&mut self) -> bool {
        true
    }
}

/// Starts the reader thread. The returned receiver is notified when the thread stops.
pub(crate) fn spawn_reader(
    runner: &Arc<Runner>,
    input: Input,
    mut sink: impl ChangeSink + 'static,
) -> Result<oneshot::Receiver<()>, Refusal> {
    let (stopped, has_stopped) = oneshot::channel();
    let runner = Arc::clone(runner);
    std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || {
            read_input(&runner, input, &mut sink);
            // If the receiver was dropped, no task waits for the thread, so the result is ignored.
            let _ = stopped.send(());
        })
        .map_err(|error| Refusal::failure(error.to_string()))?;
    Ok(has_stopped)
}

/// Reads the input until it ends or the program stops, and then closes the queue.
fn read_input(runner: &Runner, input: Input, sink: &mut dyn ChangeSink) {
    let _close = Close(runner);
    if input.is_terminal {
        runner.output.say_blocking(FROM_TERMINAL);
    }
    match read_changes(input, runner.config.input.format, sink) {
        Ok(true) => runner.keys.end_of_input(),
        Ok(false) => {}
        Err(error) => {
            runner.tally.mark_failed();
            runner.output.say_blocking(&format!("the input cannot be read: {error}"));
        }
    }
    // All records that were read are applied before the queue is closed, even after a read error.
    sink.apply_pending();
    sink.end_input();
}

impl Runner {
    /// Applies one change of the input to the queue. Returns false if the program is stopping.
    pub(crate) fn take_change(&self, change: Change<'_>, held: &mut usize) -> bool {
        match change {
            Change::Add(key, options) => {
                if *held >= self.keys.max_keys {
                    let is_stopping = || self.is_stopping();
                    *held = self.keys.make_room(&key, is_stopping, |limit| {
                        let held = counted(limit as u64, "key");
                        let why =
                            format!("{held} held (--max-keys); reading pauses until some complete");
                        self.output.say_blocking(&why);
                    });
                }
                // `make_room` also returns when the program stops.
                if self.is_stopping() {
                    return false;
                }
                // An add with `Merge::Exactly` sets the due time, even of a key that backs off, so the earlier
                // failures are forgotten.
                if options.merge == Merge::Exactly {
                    self.keys.failing.forget_key(&key);
                }
                match self.keys.add_key(&key, options) {
                    added if !added.is_accepted() => return false,
                    Added::New => *held += 1,
                    _ => {}
                }
            }
            Change::Cancel(key) => {
                if self.is_stopping() {
                    return false;
                }
                if self.keys.cancel_key(&key) {
                    self.tally.cancelled.one_more();
                }
            }
        }
        true
    }

    /// Forgets the failures of a key, so that its next backoff is the shortest one.
    #[cfg(feature = "kube")]
    pub(crate) fn end_backoff(&self, key: &[u8]) {
        self.keys.queue.forget(&key.into());
        self.keys.failing.forget_key(key);
    }

    pub(crate) fn complain_of(&self, bad: &Bad) {
        self.tally.bad_input.one_more();
        self.output.say_blocking(&bad.to_string());
    }
}

/// Closes the queue when the reader thread stops, even after a panic. Without this, the program would wait for more
/// keys forever.
struct Close<'a>(&'a Runner);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.keys.close_queue();
        // `set` has no effect if a record was read before.
        let _ = self.0.has_record.set(false);
    }
}

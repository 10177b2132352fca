//! The thread that reads keys and adds them.

use std::io::BufReader;
use std::sync::Arc;

use requeue::{Added, Merge};
use tokio::sync::oneshot;

use crate::exit::Refusal;
use crate::input::source::Input;
use crate::input::{Bad, Change, Records, Why};
use crate::output::summary::counted;
use crate::runner::Runner;

/// The destination of the keys that are read.
pub(crate) trait KeySink: Send {
    /// Applies the change that a record asks for. Returns false if the run stops.
    fn take(&mut self, change: Change<'_>) -> Result<bool, Why>;

    /// Waits until all changes are applied. Called when the next record is not available yet.
    fn settle(&mut self);
}

/// The queue in memory.
pub(crate) struct LocalSink {
    runner: Arc<Runner>,
    /// An upper bound of the held keys. Only the reader thread adds keys.
    held: usize,
    has_taken: bool,
}

impl LocalSink {
    pub(crate) fn new(runner: &Arc<Runner>) -> Self {
        Self { runner: Arc::clone(runner), held: 0, has_taken: false }
    }
}

impl KeySink for LocalSink {
    fn take(&mut self, change: Change<'_>) -> Result<bool, Why> {
        if !self.has_taken {
            self.has_taken = true;
            self.runner.has_record.send_replace(Some(true));
        }
        Ok(self.runner.take(change, &mut self.held))
    }

    fn settle(&mut self) {}
}

/// Starts the thread. The receiver learns when the thread stops.
pub(crate) fn spawn(
    runner: &Arc<Runner>,
    input: Input,
    mut sink: impl KeySink + 'static,
) -> Result<oneshot::Receiver<()>, Refusal> {
    let (stopped, has_stopped) = oneshot::channel();
    let runner = Arc::clone(runner);
    std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || {
            read(&runner, input, &mut sink);
            // Without a receiver, nothing waits.
            let _ = stopped.send(());
        })
        .map_err(|error| Refusal::failure(error.to_string()))?;
    Ok(has_stopped)
}

/// Reads until the end of the input or the stop of the run, and closes the queue.
fn read(runner: &Runner, input: Input, sink: &mut dyn KeySink) {
    let _close = Close(runner);
    let format = runner.config.input.format;
    if input.is_terminal() {
        runner
            .output
            .say_blocking("reading keys from the terminal, one per line; Ctrl-D ends the input");
    }
    let records = Records::new(BufReader::with_capacity(64 << 10, input), format);
    read_records(runner, records, sink);
    // All records so far are applied before the queue is closed.
    sink.settle();
}

fn read_records(runner: &Runner, mut records: Records<BufReader<Input>>, sink: &mut dyn KeySink) {
    let format = runner.config.input.format;
    loop {
        if !records.has_next() {
            sink.settle();
        }
        let is_record = match records.next() {
            Ok(Some(Ok(_))) => true,
            Ok(Some(Err(bad))) => {
                runner.complain_of(&bad);
                false
            }
            Ok(None) => {
                // The records that were skipped at the end have not called `settle`.
                sink.settle();
                if !records.from.get_ref().is_cut() {
                    runner.end_of_input();
                }
                return;
            }
            Err(error) => {
                runner.tally.fail();
                runner.output.say_blocking(&format!("the input cannot be read: {error}"));
                return;
            }
        };
        if records.from.get_ref().is_cut() {
            // The record may be incomplete, and there is no more input.
            return;
        }
        if is_record {
            let taken = match format.parse(records.last()).and_then(|change| sink.take(change)) {
                Ok(taken) => taken,
                Err(why) => {
                    runner.complain_of(&Bad { number: records.number(), why });
                    true
                }
            };
            if !taken {
                return;
            }
        }
    }
}

impl Runner {
    /// Applies the change that a record asks for. Returns false if the run stops.
    pub(crate) fn take(&self, change: Change<'_>, held: &mut usize) -> bool {
        match change {
            Change::Add(key, options) => {
                if *held >= self.keys.max_keys() {
                    let is_stopping = || self.is_stopping();
                    *held = self.keys.make_room(&key, is_stopping, |limit| {
                        let held = counted(limit as u64, "key");
                        let why =
                            format!("{held} held (--max-keys); reading pauses until some complete");
                        self.output.say_blocking(&why);
                    });
                }
                if self.is_stopping() {
                    return false;
                }
                if options.merge == Merge::Exactly {
                    self.keys.forget_failures(&key);
                }
                match self.keys.add(&key, options) {
                    Added::Refused => return false,
                    Added::New => *held += 1,
                    _ => {}
                }
            }
            Change::Cancel(key) => {
                if self.is_stopping() {
                    return false;
                }
                if self.keys.cancel(&key) {
                    self.tally.cancelled.one_more();
                }
            }
        }
        true
    }

    /// Forgets the failures and the backoff of a key.
    #[cfg(feature = "kube")]
    pub(crate) fn end_backoff(&self, key: &[u8]) {
        self.keys.end_backoff(key);
    }

    fn end_of_input(&self) {
        self.stop.read_all();
        self.keys.end_of_input();
    }

    fn complain_of(&self, bad: &Bad) {
        self.tally.bad_input.one_more();
        self.output.say_blocking(&bad.to_string());
    }
}

/// Closes the queue when the thread stops, even by a panic. Otherwise the run would never end.
struct Close<'a>(&'a Runner);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.keys.close();
        self.0.has_record.send_if_modified(|has_record| {
            let is_new = has_record.is_none();
            has_record.get_or_insert(false);
            is_new
        });
    }
}

//! The thread that reads keys and adds them.

use std::io::BufReader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use requeue::{Added, Merge};
use tokio::sync::oneshot;

use crate::args::AtEof;
use crate::exit::Refusal;
use crate::input::{Bad, Change, Records, Why};
use crate::letters::Rest;
use crate::rate::Rate;
use crate::run::{Runner, Unread};
use crate::signals::Level;
use crate::source::Input;

/// Where what is read goes.
pub(crate) trait Sink: Send {
    /// Does what a record asks for; `false` if it is too late for that.
    fn take(&mut self, change: Change<'_>) -> Result<bool, Why>;

    /// All that was taken has to be there: more may be long in coming.
    fn settle(&mut self);
}

/// The queue here.
pub(crate) struct Here {
    runner: Arc<Runner>,
    /// No fewer keys than are held: only the thread that reads adds some.
    held: usize,
}

impl Here {
    pub(crate) fn new(runner: &Arc<Runner>) -> Self {
        Self { runner: Arc::clone(runner), held: 0 }
    }
}

impl Sink for Here {
    fn take(&mut self, change: Change<'_>) -> Result<bool, Why> {
        Ok(self.runner.take(change, &mut self.held))
    }

    /// It is.
    fn settle(&mut self) {}
}

/// Starts the thread. What is left of the input comes when it ends.
pub(crate) fn spawn(
    runner: &Arc<Runner>,
    input: Input,
    mut sink: impl Sink + 'static,
) -> Result<Unread, Refusal> {
    let (rest, unread) = oneshot::channel();
    let runner = Arc::clone(runner);
    std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || {
            // Nobody waits for it where it would be lost.
            let _ = rest.send(read(&runner, input, &mut sink));
        })
        .map_err(|error| Refusal::failure(error.to_string()))?;
    Ok(unread)
}

/// Reads to the end, and closes the queue; or until the run is stopped. Then says what is left.
fn read(runner: &Runner, input: Input, sink: &mut dyn Sink) -> Option<Rest> {
    let _close = Close(runner);
    let format = runner.config.format;
    if input.is_terminal() {
        runner.output.say_blocking("reading keys from the terminal, one a line; Ctrl-D ends them");
    }
    let records = Records::new(BufReader::with_capacity(64 << 10, input), format);
    let rest = read_records(runner, records, sink);
    // However it has ended: what came before is taken in before the queue is closed.
    sink.settle();
    rest
}

fn read_records(
    runner: &Runner,
    mut records: Records<BufReader<Input>>,
    sink: &mut dyn Sink,
) -> Option<Rest> {
    let format = runner.config.format;
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
                // Blank records may have come since.
                sink.settle();
                if !records.from.get_ref().is_cut() {
                    runner.end_of_input();
                }
                return None;
            }
            Err(error) => {
                runner.tally.failed.store(true, Ordering::Relaxed);
                runner.output.say_blocking(&format!("the input can't be read: {error}"));
                return None;
            }
        };
        if records.from.get_ref().is_cut() {
            // It may be the start of a record; in any case there is no more.
            return None;
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
                let keeps = runner.letters.has_unfinished();
                return keeps.then(|| Rest { record: Some(records.last().to_vec()), records });
            }
        }
    }
}

impl Runner {
    /// Does what a record asks for; `false` if it is too late for that.
    pub(crate) fn take(&self, change: Change<'_>, held: &mut usize) -> bool {
        match change {
            Change::Add(key, ask) => {
                if *held >= self.config.max_keys {
                    *held = make_room(self, &key);
                }
                if self.is_stopping() {
                    return false;
                }
                if ask.merge == Merge::Exactly {
                    self.failing.forget(&key);
                }
                match self.pace.add(&key, ask) {
                    Added::Refused => return false,
                    Added::New => *held += 1,
                    Added::Dirty => {}
                    _ => _ = self.tally.coalesced.one_more(),
                }
                self.tally.adds.one_more();
            }
            Change::Cancel(key) => {
                if self.is_stopping() {
                    return false;
                }
                if self.pace.cancel(&key) {
                    self.tally.cancelled.one_more();
                }
                self.failing.forget(&key);
            }
        }
        true
    }

    /// What a key waits for after its failures no longer matters.
    #[cfg(feature = "kube")]
    pub(crate) fn release(&self, key: &[u8]) {
        self.queue.forget(&key.into());
        self.failing.forget(key);
    }

    fn end_of_input(&self) {
        match self.config.at_eof {
            AtEof::Finish => self.pace.end_windows(),
            AtEof::Abandon => {
                self.stop(Level::Stopping);
                self.output.say_blocking("the input has ended: nothing more is started");
            }
        }
    }

    fn complain_of(&self, bad: &Bad) {
        self.tally.bad_input.one_more();
        self.output.say_blocking(&bad.to_string());
    }
}

/// Closes the queue, whatever the thread ends of: nobody would add any more.
struct Close<'a>(&'a Runner);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        match &self.0.loans {
            None => self.0.queue.close(),
            Some(loans) => loans.lender.close(),
        }
        self.0.rate.iter().for_each(Rate::changed);
    }
}

/// Waits until there is room for `key`, or it is one of those that are held, or the run is
/// stopped. Says how many are held.
fn make_room(runner: &Runner, key: &[u8]) -> usize {
    let held = || runner.queue.len() + runner.queue.waiting() + runner.queue.processing();
    let is_full = || {
        held() >= runner.config.max_keys
            && !runner.is_stopping()
            && runner.queue.look_up(key).is_none()
    };
    if is_full() && !runner.room.was_full.swap(true, Ordering::Relaxed) {
        let limit = runner.config.max_keys;
        runner.output.say_blocking(&format!("{limit} keys are held; further ones have to wait"));
    }
    runner.room.wait_while(is_full);
    held()
}

/// Where the reader waits for a key to be done.
#[derive(Debug, Default)]
pub(crate) struct Room {
    is_waiting: AtomicBool,
    was_full: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Room {
    fn wait_while(&self, mut is_full: impl FnMut() -> bool) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the look: whoever changes what it sees finds this set, as the queue's lock is
        // between the two.
        self.is_waiting.store(true, Ordering::SeqCst);
        let _guard =
            self.changed.wait_while(guard, |()| is_full()).unwrap_or_else(PoisonError::into_inner);
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// A key is done, or the run is stopped.
    pub(crate) fn changed(&self) {
        if self.is_waiting.load(Ordering::SeqCst) {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
    }
}

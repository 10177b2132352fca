//! The thread that reads keys and adds them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use requeue::{Added, Queue};

use crate::command::escaped;
use crate::config::Source;
use crate::exit::Refusal;
use crate::input::{Bad, Change, Key, Records};
use crate::patient::Patient;
use crate::run::Runner;

/// Opens the input.
pub(crate) fn open(source: &Source) -> Result<BufReader<Patient>, Refusal> {
    let (file, what) = match source {
        Source::Stdin { .. } => (Patient::own(io::stdin()), "standard input".to_owned()),
        Source::File(path) => {
            let name = escaped(path.as_os_str().as_bytes());
            (File::open(path).map(Patient::new), name)
        }
    };
    match file {
        Ok(file) => Ok(BufReader::with_capacity(64 << 10, file)),
        Err(error) => Err(Refusal::failure(format!("{what}: {error}"))),
    }
}

/// Reads to the end, or until the run is stopped, and closes the queue.
pub(crate) fn read(runner: &Runner, input: impl BufRead) {
    let _close = Close(&runner.queue);
    let format = runner.config.format;
    if let Source::Stdin { terminal: true } = runner.config.input {
        runner.output.say_blocking("reading keys from the terminal, one a line; Ctrl-D ends them");
    }
    let mut records = Records::new(input, format);
    // No fewer keys than are held: only this thread adds some.
    let mut held = 0;
    loop {
        let record = match records.next() {
            Ok(Some(record)) => record,
            Ok(None) => {
                runner.pace.end_windows();
                return;
            }
            Err(error) => {
                runner.tally.failed.store(true, Ordering::Relaxed);
                runner.output.say_blocking(&format!("the input can't be read: {error}"));
                return;
            }
        };
        match record.map(|record| format.parse(record)) {
            Ok(Ok(Change::Add(key, ask))) => {
                if held >= runner.config.max_keys {
                    held = make_room(runner, &key);
                }
                if runner.is_stopping() {
                    return;
                }
                match runner.pace.add(&key, ask) {
                    Added::Refused => return,
                    Added::New => held += 1,
                    Added::Dirty => {}
                    _ => _ = runner.tally.coalesced.one_more(),
                }
                runner.tally.adds.one_more();
            }
            Ok(Ok(Change::Cancel(key))) => {
                if runner.pace.cancel(&key) {
                    runner.tally.cancelled.one_more();
                }
                runner.failing.forget(&key);
            }
            Ok(Err(why)) => runner.complain_of(&Bad { number: records.number(), why }),
            Err(bad) => runner.complain_of(&bad),
        }
    }
}

impl Runner {
    fn complain_of(&self, bad: &Bad) {
        self.tally.bad_input.one_more();
        self.output.say_blocking(&bad.to_string());
    }
}

/// Closes the queue, whatever the thread ends of: nobody would add any more.
struct Close<'a>(&'a Queue<Key>);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.close();
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

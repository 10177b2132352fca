//! How runs end, and how the whole of it does.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use requeue::{Cursor, Filter, Item};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use crate::args;
use crate::attempt::Outcome;
use crate::command::escaped;
use crate::input::Key;
use crate::lent::Job;
use crate::letters::{Death, Pending, Rest};
use crate::retries::Verdict;
use crate::run::Runner;
use crate::signals::Level;

impl Runner {
    /// Tells the queue how a run came out.
    pub(crate) async fn end(&self, job: Job, outcome: Outcome) {
        let Job { item, loan } = job;
        if let Some(loan) = loan {
            return self.give_back(item, loan, outcome).await;
        }
        match outcome {
            Outcome::Unfinished => item.put_back(),
            Outcome::Done => {
                self.tally.done.one_more();
                self.failing.forget(&item);
                self.pace.succeed(item);
                self.look_whether_to_halt().await;
            }
            Outcome::Failed { exit, why } => {
                self.tally.failures.one_more();
                if self.config.fatal.contain(exit) {
                    let attempts = self.failing.past(&item).attempt;
                    return self.give_up(item, attempts, Some(exit), &why).await;
                }
                if self.things.as_ref().is_some_and(|things| things.is_new(&item)) {
                    // Somebody else's wish, which is in the queue: it need not wait for this one.
                    self.failing.forget(&item);
                    return self.pace.give_up(item);
                }
                let retry = |item, at| self.pace.retry(item, at);
                match self.failing.fail(item, exit, self.queue.now(), retry) {
                    Verdict::Retried => {}
                    Verdict::GivenUp { item, attempts } => {
                        self.give_up(item, attempts, Some(exit), &why).await;
                    }
                }
            }
            Outcome::Hopeless { why } => {
                self.tally.failures.one_more();
                let attempts = self.failing.past(&item).attempt;
                self.give_up(item, attempts, None, &why).await;
            }
        }
    }

    /// There was nothing to run for.
    pub(crate) fn pass_over(&self, item: Item<'static, Key>) {
        self.failing.forget(&item);
        self.pace.succeed(item);
    }

    async fn give_up(&self, item: Item<'static, Key>, attempts: u32, exit: Option<i32>, why: &str) {
        self.failing.forget(&item);
        self.tally.given_up.one_more();
        if let Some(things) = &self.things {
            things.give_up(&item);
        }
        let death = Death { attempts, exit, why, priority: item.priority() };
        let buried = self.letters.bury(&item, death);
        let key = item.key().clone();
        // Its failures are forgotten: if it was added meanwhile, it runs afresh.
        self.pace.give_up(item);
        self.mourn(&key, ("given up", ""), death, buried).await;
    }

    /// Says that a key was given up, what became of it, and what can be done about it.
    pub(crate) async fn mourn(
        &self,
        key: &Key,
        (fate, remedy): (&str, &str),
        death: Death<'_>,
        buried: io::Result<()>,
    ) {
        let Death { attempts, why, .. } = death;
        let key = escaped(key);
        let s = if attempts == 1 { "" } else { "s" };
        self.output.say(&format!("{key}: {fate} after {attempts} attempt{s}: {why}{remedy}")).await;
        if let Err(error) = buried {
            self.tally.failed.store(true, Ordering::Relaxed);
            self.output.say(&format!("--dead-letter: {key}: {error}")).await;
        }
        self.look_whether_to_halt().await;
    }

    // --- The whole -------------------------------------------------------------------------------

    pub(crate) fn is_stopping(&self) -> bool {
        *self.level.borrow() != Level::Running
    }

    pub(crate) async fn look_whether_to_halt(&self) {
        let Some(halt) = self.config.halt else { return };
        let (done, given_up) = (self.tally.done.get(), self.tally.given_up.get());
        if halt.is_reached(done, given_up) && !self.tally.halted.swap(true, Ordering::Relaxed) {
            self.stop(halt.level);
            self.output.say(&format!("halted: {done} keys done, {given_up} given up")).await;
        }
    }

    /// No more is read or started from here on. What the queue holds stays there.
    pub(crate) fn stop(&self, level: Level) {
        self.queue.pause();
        self.queue.close();
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        drop(self.stopper.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.room.changed();
    }

    /// Once nothing runs any more: counts and writes down the keys that had not run. Takes a second
    /// where there are a million.
    pub(crate) async fn leave_the_rest(&self, unread: oneshot::Receiver<Option<Rest>>) {
        // The reader has ended, or is about to. It may have read what a store has yet to be given.
        let waits = self.letters.has_unfinished() || self.loans.is_some();
        let rest = if waits { unread.await.ok().flatten() } else { None };
        if let Some(loans) = &self.loans {
            loans.give_back().await;
        }
        let left = tokio::task::block_in_place(|| {
            let pending = if self.letters.tells() { self.pending() } else { HashMap::new() };
            let mut keys = self.queue.shut_down();
            if self.loans.is_some() {
                // Their lender has them, as it has those that were not lent.
                keys.clear();
            }
            self.tally.unfinished.add(keys.len());
            self.letters.leave(&keys, &pending, rest)
        });
        if let Err(error) = left {
            self.tally.failed.store(true, Ordering::Relaxed);
            self.output.say(&format!("--unfinished: {error}")).await;
        }
    }

    /// What there is to say of keys besides that they had not run.
    fn pending(&self) -> HashMap<Key, Pending> {
        let (mut all, mut next) = (HashMap::new(), Some(Cursor::default()));
        while let Some(cursor) = next {
            let page = self.queue.snapshot(Filter::All, cursor, 256);
            let now = self.queue.now();
            for entry in page.entries {
                // One that is ready besides need not wait.
                let due = entry.due.filter(|_| !entry.phase.is_dirty());
                let pending =
                    Pending { after: due.map(|due| due.since(now)), priority: entry.priority };
                if pending != Pending::default() {
                    all.insert(entry.key, pending);
                }
            }
            next = page.next;
        }
        all
    }

    /// Whether a command that died of SIGPIPE did so because nobody reads what we write.
    pub(crate) fn finds_stdout_closed(&self) -> bool {
        let inherits = self.config.output == args::Output::Inherit;
        let closed = self.output.is_closed().is_some() || (inherits && is_broken(&io::stdout()));
        if closed {
            self.stop(Level::Stopping);
        }
        closed
    }
}

/// Whether this is a pipe that nobody reads.
fn is_broken(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

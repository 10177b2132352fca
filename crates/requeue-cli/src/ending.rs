//! How runs end, and how the whole of it does.

use std::io;
use std::os::fd::AsFd;
use std::sync::PoisonError;

use requeue::Item;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args;
use crate::attempt::Outcome;
use crate::command::escaped;
use crate::input::Key;
use crate::retries::Verdict;
use crate::run::Runner;
use crate::signals::Level;

impl Runner {
    /// Tells the queue how a run came out.
    pub(crate) async fn end(&self, item: Item<'static, Key>, outcome: Outcome) {
        if matches!(outcome, Outcome::Failed { .. } | Outcome::Hopeless { .. }) {
            self.tally.failures.one_more();
        }
        let (item, attempts, why) = match outcome {
            Outcome::Done => {
                self.failing.forget(&item);
                self.pace.succeed(item);
                return;
            }
            Outcome::Unfinished => {
                item.put_back();
                return;
            }
            Outcome::Hopeless { why } => {
                let attempts = self.failing.past(&item).attempt;
                self.failing.forget(&item);
                (item, attempts, why)
            }
            Outcome::Failed { exit, why } => {
                let retry = |item, at| self.pace.retry(item, at);
                match self.failing.fail(item, exit, self.queue.now(), retry) {
                    Verdict::Retried => return,
                    Verdict::GivenUp { item, attempts } => (item, attempts, why),
                }
            }
        };
        self.tally.given_up.one_more();
        let key = escaped(&item);
        // Its failures are forgotten: if it was added meanwhile, it runs afresh.
        self.pace.give_up(item);
        let s = if attempts == 1 { "" } else { "s" };
        self.output.say(&format!("{key}: given up after {attempts} attempt{s}: {why}")).await;
    }

    // --- The whole -------------------------------------------------------------------------------

    pub(crate) fn is_stopping(&self) -> bool {
        *self.level.borrow() != Level::Running
    }

    /// No more is read or started from here on.
    pub(crate) fn stop(&self, level: Level) {
        // A paused queue that is shut down hands out nothing.
        self.queue.pause();
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        self.room.changed();
    }

    /// Ends the queue, and counts the keys it still had: once this returns, all of them. Takes a
    /// second where there are a million.
    pub(crate) fn drop_the_rest(&self) {
        let _one_at_a_time = self.dropping.lock().unwrap_or_else(PoisonError::into_inner);
        self.tally.unfinished.add(self.queue.shut_down().len());
        self.tally.unfinished.add(self.queue.take_dropped().len());
    }

    /// Whether a command that died of SIGPIPE did so because nobody reads what we write.
    pub(crate) fn finds_stdout_closed(&self) -> bool {
        let inherits = self.config.output == args::Output::Inherit;
        let closed = self.output.is_closed().is_some() || (inherits && is_broken(&io::stdout()));
        if closed {
            self.stop(Level::Stopping);
            self.drop_the_rest();
        }
        closed
    }
}

/// Whether this is a pipe that nobody reads.
fn is_broken(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

//! One run of a key's command, from its slot's side.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::Duration;

use requeue::Item;
use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::watch;

use crate::input::Key;
use crate::run::Runner;
use crate::signals::Level;
use crate::spawn::{self, Run};

/// How a run came out.
pub(crate) enum Outcome {
    Done,
    Failed {
        exit: i32,
        why: String,
    },
    /// It failed and always will.
    Hopeless {
        why: String,
    },
    /// Cut off by what ends the program: neither done nor failed.
    Unfinished,
}

impl Runner {
    pub(crate) async fn attempt(&self, item: Item<'static, Key>, slot: usize) {
        let run = Run {
            key: &item,
            past: self.failing.past(&item),
            adds: item.adds(),
            slot,
            seq: self.seq.one_more(),
        };
        let mut level = self.level.subscribe();
        let outcome = match self.spawn(run, &mut level).await {
            None => Outcome::Unfinished,
            Some(Ok(child)) => {
                let ended = spawn::finish(child, run.seq, &self.output, &mut level).await;
                self.outcome(ended)
            }
            Some(Err(error)) if spawn::is_hopeless(&error) => {
                Outcome::Hopeless { why: error.to_string() }
            }
            Some(Err(error)) => {
                // The numbers a shell has for these.
                let exit = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                Outcome::Failed { exit, why: error.to_string() }
            }
        };
        self.end(item, outcome).await;
    }

    /// Starts the command; waits while there is no room for another process or file. `None` if no
    /// more are to be started.
    async fn spawn(
        &self,
        run: Run<'_>,
        level: &mut watch::Receiver<Level>,
    ) -> Option<io::Result<Child>> {
        let mut command = spawn::command(&self.config.template, run, self.config.output);
        let mut pause = Duration::from_millis(10);
        loop {
            if *level.borrow_and_update() != Level::Running {
                return None;
            }
            match command.spawn() {
                Err(error) if spawn::is_shortage(&error) => {
                    if !self.was_short.swap(true, Ordering::Relaxed) {
                        let why = "no further command can be started for now";
                        self.output.say(&format!("{why}: {error}")).await;
                    }
                    let _ = tokio::time::timeout(pause, level.changed()).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                child => {
                    self.tally.runs.one_more();
                    return Some(child);
                }
            }
        }
    }

    fn outcome(&self, ended: io::Result<ExitStatus>) -> Outcome {
        let status = match ended {
            Ok(status) if status.success() => return Outcome::Done,
            Ok(status) => status,
            Err(error) => return Outcome::Failed { exit: 125, why: error.to_string() },
        };
        let signal = status.signal();
        let exit = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(125);
        if exit == 128 + Signal::PIPE.as_raw() && self.finds_stdout_closed() {
            return Outcome::Unfinished;
        }
        let level = *self.level.borrow();
        let of_our_signal = self.signal.get().is_some_and(|&signal| exit == 128 + signal);
        if level >= Level::Terminating || (level == Level::Stopping && of_our_signal) {
            return Outcome::Unfinished;
        }
        Outcome::Failed { exit, why: status.to_string() }
    }
}

//! The work loop of the program. It takes keys from a queue, runs a command for each key, and reports each outcome to
//! the queue.
//!
//! [`launch`] starts the loop. `signal_loop`, `page`, `progress`, `reader`, `attempt` and `ending` each add the
//! methods of one task to [`Runner`]. [`Runner`] is the shared state: [`keys`], [`stop`], the commands in flight, and
//! the output. A module imports only modules before it in this list.

mod attempt;
mod ending;
pub(crate) mod hooks;
mod keys;
pub(crate) mod launch;
mod order;
pub(crate) mod outcome;
mod page;
mod progress;
mod rate;
pub(crate) mod reader;
pub(crate) mod remote;
mod retries;
mod retry_reports;
mod room;
mod signal_loop;
mod stop;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::SetOnce;

use crate::args::config::Config;
use crate::output::Output;
use crate::output::dead_letters::DeadLetters;
use crate::output::joblog::Joblog;
use crate::output::summary::{Count, Tally};
use crate::process::groups::Groups;
use crate::process::guardian::Guardian;
use crate::process::pausable_clock::PausableClock;
use crate::process::signals::Level;
use crate::runner::hooks::Hooks;
use crate::runner::keys::Keys;
use crate::runner::retry_reports::RetryReports;
use crate::runner::stop::Stop;
use crate::serve::History;

/// The state that the slots, the reader thread and the signal loop share.
#[derive(Debug)]
pub(crate) struct Runner {
    started: Instant,
    config: Config,
    keys: Keys,
    commands: Commands,
    hooks: Option<Arc<dyn Hooks>>,
    stop: Stop,
    pub(crate) output: Output,
    reports: RetryReports,
    pub(crate) tally: Tally,
    files: Files,
    /// The runs that the dashboard lists. `None` if the program serves no dashboard.
    history: Option<History>,
    /// True from the first record of the input. False if the input has ended without a record. Unset before that.
    has_record: SetOnce<bool>,
}

/// The commands in flight.
#[derive(Debug, Default)]
struct Commands {
    groups: Groups,
    /// The clock of the commands' time limits. It stands still while the commands are suspended.
    clock: PausableClock,
    /// The sequence number of the latest run. Each run takes the next number before its command starts.
    seq: Count,
    /// True if the start of a command was ever delayed because the system had no free process or file descriptor.
    was_short: AtomicBool,
}

/// The files that the program writes while it runs commands.
#[derive(Debug)]
pub(crate) struct Files {
    dead_letters: DeadLetters,
    joblog: Option<Joblog>,
}

impl Runner {
    #[cfg(feature = "kube")]
    pub(crate) fn now(&self) -> requeue::Time {
        self.keys.queue.now()
    }

    /// Returns true if no key is ready or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let states = self.keys.queue.states();
        states.ready + states.in_flight == 0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.level() != Level::Running
    }

    /// Stops the program from reading keys and starting commands. At `Terminating` and higher levels, also stops the
    /// commands in flight. Keys that have not started stay in the queue.
    pub(crate) fn stop(&self, level: Level) {
        // The queue is stopped before the level is raised. A slot that sees the new level can then take no key.
        self.keys.stop();
        self.stop.raise_level(level);
        // The reader thread may be waiting for space. The notification wakes it, and it then sees the new level.
        self.keys.notify_changed();
    }

    /// Reports a failure of requeue itself. The program will then exit with code 125.
    async fn report_failed(&self, why: &str) {
        self.tally.mark_failed();
        self.output.say(why).await;
    }

    /// Starts or restarts the guardian with `start`. If that fails, warns the user that a killed program leaves its
    /// commands running.
    async fn ensure_guardian(&self, start: fn(&Guardian) -> io::Result<()>) {
        if let Some(Err(error)) = self.commands.groups.guardian.as_ref().map(start) {
            let why = "if this process is killed, its commands keep running: the process that would \
                       kill them cannot be started";
            self.output.say(&format!("{why}: {error}")).await;
        }
    }

    /// Waits until the commands have been killed, and then for one more second. The caller stops waiting for its own
    /// work after that second, so that the program exits even if a reader of the output or a store does not respond.
    async fn wait_after_kill(&self) {
        self.stop.wait_for_level(Level::Killing).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

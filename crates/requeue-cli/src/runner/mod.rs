//! A run: takes keys, runs their commands, and reports the outcomes to the queue.
//!
//! [`launch`] starts a run. `signal_loop`, `page`, `progress`, `reader`, `attempt` and `ending` each add one task to
//! [`Runner`], the shared state: [`keys`], [`stop`], the commands in flight, and the output. Imports follow this
//! order.

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

/// The state that the slots, the reader and the signal loop share.
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
    /// The runs that the dashboard shows, or `None` without a dashboard.
    history: Option<History>,
    /// Set to true at the first record of the input, or to false at the end of an input without records.
    has_record: SetOnce<bool>,
}

/// The commands in flight.
#[derive(Debug, Default)]
struct Commands {
    groups: Groups,
    /// The clock of the commands' time limits.
    clock: PausableClock,
    /// The number of the last run that was about to start.
    seq: Count,
    /// True if a command has waited for a process or a file descriptor.
    was_short: AtomicBool,
}

/// The files that are written during a run.
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

    /// Stops reading keys and starting commands. At `Terminating` and higher levels, also stops the commands in flight.
    /// The queue keeps its keys.
    pub(crate) fn stop(&self, level: Level) {
        // The queue is stopped first, so that a slot that notices the new level takes no key.
        self.keys.stop();
        self.stop.raise_level(level);
        // The reader may be waiting for space, and must notice the new level.
        self.keys.notify_changed();
    }

    /// Reports a failure of the program, which will exit with 125.
    async fn report_failed(&self, why: &str) {
        self.tally.mark_failed();
        self.output.say(why).await;
    }

    /// Starts or restarts the guardian.
    async fn ensure_guardian(&self, start: fn(&Guardian) -> io::Result<()>) {
        if let Some(Err(error)) = self.commands.groups.guardian.as_ref().map(start) {
            let why = "if this process is killed, its commands keep running: the process that would \
                       kill them cannot be started";
            self.output.say(&format!("{why}: {error}")).await;
        }
    }

    /// Waits until the commands have been killed, and then for one more second. After that second, the program exits,
    /// even if a reader of the output or a store does not respond.
    async fn wait_after_kill(&self) {
        self.stop.wait_for_level(Level::Killing).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

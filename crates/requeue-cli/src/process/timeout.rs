//! Terminates a command at its time limit, when its lease is lost, when its run is cancelled, or when the program
//! stops.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;

use crate::process::groups::{self, Groups};
use crate::process::pausable_clock::PausableClock;
use crate::process::signals::Level;

/// The time limits of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The time limit of the command. `None` means no limit.
    pub(crate) timeout: Option<Duration>,
    /// The signal that is sent to the process group at the time limit.
    pub(crate) signal: Signal,
    /// The time from that signal to SIGKILL.
    pub(crate) kill_after: Duration,
}

pub(crate) type Timer<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Sends signals to the command of one slot.
pub(crate) struct Watchdog<'a> {
    limits: Limits,
    clock: &'a PausableClock,
    groups: &'a Groups,
    slot: usize,
    level: watch::Receiver<Level>,
    /// Completes when the lease is lost or the run is cancelled. The command must then stop.
    cancelled: Timer<'a>,
    phase: Phase,
    /// Completes when the next signal is due.
    timer: Timer<'a>,
    /// True if the command has exceeded its time limit.
    pub(crate) timed_out: bool,
    /// True if the command was terminated because its lease was lost or its run was cancelled.
    pub(crate) was_cancelled: bool,
    /// The ID of the process group, set after its leader has exited.
    left: Option<Pid>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Running,
    Ending,
    Killed,
}

impl<'a> Watchdog<'a> {
    pub(crate) fn new(
        limits: Limits,
        clock: &'a PausableClock,
        groups: &'a Groups,
        slot: usize,
        level: watch::Receiver<Level>,
        cancelled: Timer<'a>,
    ) -> Self {
        let timer: Timer<'a> = match limits.timeout {
            Some(timeout) => Box::pin(clock.sleep(timeout)),
            None => Box::pin(pending()),
        };
        Self {
            limits,
            clock,
            groups,
            slot,
            level,
            cancelled,
            phase: Phase::Running,
            timer,
            timed_out: false,
            was_cancelled: false,
            left: None,
        }
    }

    /// Sends each signal when it is due, up to SIGKILL. Cancel safe.
    async fn send_due_signals(&mut self) {
        while self.phase != Phase::Killed {
            tokio::select! {
                () = &mut self.timer => match self.phase {
                    // The command exited within its time limit, but this program was too busy to notice.
                    Phase::Running if self.groups.has_ended(self.slot) => {
                        self.timer = Box::pin(pending());
                    }
                    Phase::Running => {
                        self.timed_out = true;
                        self.end_command(self.limits.signal);
                    }
                    Phase::Ending | Phase::Killed => self.kill_command(),
                },
                () = &mut self.cancelled => {
                    // A completed future must not be polled again.
                    self.cancelled = Box::pin(pending());
                    if self.phase == Phase::Running && !self.groups.has_ended(self.slot) {
                        self.was_cancelled = true;
                    }
                    self.end_command(Signal::TERM);
                }
                Ok(()) = self.level.changed() => {
                    let level = *self.level.borrow_and_update();
                    match level {
                        Level::Running | Level::Stopping => {}
                        Level::Terminating => self.end_command(Signal::TERM),
                        Level::Killing => self.kill_command(),
                    }
                }
            }
        }
    }

    pub(crate) async fn watch_forever(&mut self) -> Infallible {
        self.send_due_signals().await;
        pending().await
    }

    fn end_command(&mut self, signal: Signal) {
        self.send_signal(signal);
        // The time until SIGKILL begins at the first signal. A later signal must not extend it.
        if self.phase == Phase::Running {
            self.phase = Phase::Ending;
            self.timer = Box::pin(self.clock.sleep(self.limits.kill_after));
        }
    }

    fn kill_command(&mut self) {
        self.phase = Phase::Killed;
        self.send_signal(Signal::KILL);
    }

    fn send_signal(&self, signal: Signal) {
        match self.left {
            Some(group) => groups::end_group(group, signal),
            None => self.groups.end_command(self.slot, signal),
        }
    }

    /// Terminates the remaining processes of a group whose leader has exited. If the leader was sent a signal, these
    /// processes are killed when the time until SIGKILL has passed. Otherwise, does nothing.
    pub(crate) async fn end_rest(&mut self, group: Pid) {
        if self.phase == Phase::Running {
            return;
        }
        self.left = Some(group);
        let killed = async {
            self.send_due_signals().await;
            // The system needs some time to remove the killed processes.
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            () = groups::wait_until_empty(group) => {}
            () = killed => {}
        }
    }
}

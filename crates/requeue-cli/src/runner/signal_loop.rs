//! The task that responds to signals and to the closing of standard output while the program runs commands.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use signal_hook::low_level::signal_name;
use tokio::time::{Instant, sleep_until};

use crate::output::summary::counted;
use crate::process::guardian::Guardian;
use crate::process::signals::{self, Level, Request, Signals};
use crate::runner::Runner;
use crate::runner::progress::Meter;

/// The time from a SIGCHLD to the search for commands that the terminal has stopped. One search then serves many
/// commands that exit at about the same time.
const LOOK: Duration = Duration::from_millis(50);

impl Runner {
    /// Responds to signals and to the closing of standard output, until the program ends.
    pub(super) async fn signal_loop(self: Arc<Self>, mut signals: Signals) {
        let mut level = Level::Running;
        let mut is_open = true;
        let mut meter = Meter::default();
        let mut look_at = None;
        loop {
            tokio::select! {
                request = signals.next_request() => match request {
                    Request::End(signal) => {
                        self.stop.signal.get_or_init(|| signal);
                        let before = level;
                        level = match level {
                            Level::Running if signal == Signal::INT.as_raw() => {
                                self.config.commands.first_interrupt
                            }
                            _ => level.next(),
                        };
                        // The number is read before the stop, so that the message says how many commands receive the
                        // signal.
                        let running = self.keys.queue.states().in_flight;
                        self.stop(level);
                        if level > before && running > 0 {
                            self.report_signal(signal, level, running);
                        }
                    }
                    Request::Suspend if signals::can_be_continued() => self.suspend_all().await,
                    Request::Suspend => {}
                    Request::Continue => self.commands.groups.signal_all(Signal::CONT),
                    Request::Report => self.output.hint(&self.progress_line(&mut meter)),
                    Request::Children => {
                        // The first exit sets the time of the search. Later exits do not move it, so a series of exits
                        // cannot postpone it.
                        look_at.get_or_insert_with(|| Instant::now() + LOOK);
                    }
                },
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                    look_at = None;
                    self.commands.groups.kill_starved();
                    self.ensure_guardian(Guardian::restart_if_dead).await;
                }
                () = self.output.wait_until_closed(), if is_open => {
                    is_open = false;
                    self.stop_without_stdout();
                }
            }
        }
    }

    /// Tells the user how a signal affects the commands in flight.
    fn report_signal(&self, signal: i32, level: Level, running: usize) {
        let name = signal_name(signal).unwrap_or("SIGTERM");
        let commands = counted(running as u64, "command");
        self.output.hint(&match level {
            Level::Running => return,
            Level::Stopping => format!(
                "{name}: no new commands are started; a second signal terminates the {running} in flight"
            ),
            Level::Terminating => {
                format!("{name}: sent SIGTERM to {commands} in flight; another signal kills them")
            }
            Level::Killing => format!("{name}: sent SIGKILL to {commands} in flight"),
        });
    }

    /// Suspends all commands and then the program itself. When the program is continued, continues the commands.
    async fn suspend_all(&self) {
        // The progress line is removed, because the shell will write to the terminal.
        let cleared = async {
            self.output.clear_progress().await;
            self.output.flush().await;
        };
        // A reader of standard error that has stopped reading must not prevent the suspension.
        let _ = tokio::time::timeout(Duration::from_millis(100), cleared).await;
        // The kernel ignores a stop signal that the first process of a container sends to itself. In this case, the
        // commands continue immediately.
        self.commands.groups.stop_while(|| self.commands.clock.pause_during(signals::stop_process));
    }
}

//! What the program heeds while it runs.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use crate::progress::Meter;
use crate::run::Runner;
use crate::signals::{self, Heed, Level, Signals};

/// How long after a command has ended or stopped it is looked which have stopped: all that run are
/// looked at, and many may end at once.
const LOOK: Duration = Duration::from_millis(50);

impl Runner {
    /// Acts on signals and on the end of standard output, as long as the program runs.
    pub(crate) async fn heed(self: Arc<Self>, mut signals: Signals) {
        let mut level = Level::Running;
        let mut is_open = true;
        let mut meter = Meter::default();
        let mut look_at = None;
        loop {
            tokio::select! {
                heed = signals.next() => match heed {
                    Heed::End(signal) => {
                        self.signal.get_or_init(|| signal);
                        level = level.next();
                        self.stop(level);
                        let running = self.queue.processing();
                        if level == Level::Stopping && running > 0 {
                            let name = signals::name(signal);
                            self.output.hint(&format!(
                                "{name}: nothing more is started; once more ends what runs \
                                 ({running})"
                            ));
                        }
                    }
                    Heed::Stop if signals::can_be_continued() => self.stop_for_a_while().await,
                    Heed::Stop => {}
                    Heed::GoOn => self.groups.signal_all(Signal::CONT),
                    Heed::Report => self.output.hint(&self.progress(&mut meter)),
                    Heed::Children => {
                        look_at.get_or_insert_with(|| Instant::now() + LOOK);
                    }
                },
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                    look_at = None;
                    self.groups.kill_starved();
                    self.guard().await;
                }
                () = self.output.closed(), if is_open => {
                    is_open = false;
                    self.stop(Level::Stopping);
                }
            }
        }
    }

    /// Stops all commands and then the program, until that is continued, and them with it.
    async fn stop_for_a_while(&self) {
        // What comes next on the terminal is a shell's.
        let cleared = async {
            self.output.clear_progress().await;
            self.output.flush().await;
        };
        let _ = tokio::time::timeout(Duration::from_millis(100), cleared).await;
        // The first process of a container does not stop for a signal from inside: its commands
        // are continued at once.
        self.groups.stop_while(|| self.clock.during(signals::stop));
    }
}

//! The progress line.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, tcgetpgrp};

use crate::args::run as args;
use crate::duration::shown;
use crate::key::escaped;
use crate::runner::Runner;

/// The form of the progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Not,
    /// A line that stays below all other lines of the terminal.
    Bar,
    /// A line every 10 seconds, for files and pipes.
    Lines,
}

impl Progress {
    /// Chooses the form. `is_terminal` is true if standard error is a terminal.
    pub(crate) fn choose(when: args::Progress, output: args::Output, is_terminal: bool) -> Self {
        match when {
            // Output that commands write themselves would break the line.
            args::Progress::Auto if is_terminal && output != args::Output::Inherit => Self::Bar,
            args::Progress::Auto | args::Progress::Never => Self::Not,
            args::Progress::Always if is_terminal => Self::Bar,
            args::Progress::Always => Self::Lines,
        }
    }
}

/// Measures the runs per second over the last few seconds.
#[derive(Debug, Default)]
pub(crate) struct Meter(VecDeque<(Instant, u64)>);

/// The time that the rate covers, and the time between two lines of progress.
const WINDOW: Duration = Duration::from_secs(10);

impl Meter {
    /// Records that `runs` runs had completed at `now`, and returns the rate. The newest record that is older than the
    /// window still counts, so that the rate covers at least the window.
    fn rate(&mut self, start: Instant, now: Instant, runs: u64) -> f64 {
        while self.0.get(1).is_some_and(|&(at, _)| now.saturating_duration_since(at) >= WINDOW) {
            self.0.pop_front();
        }
        let &(from, before) = self.0.front().unwrap_or(&(start, 0));
        self.0.push_back((now, runs));
        let seconds = now.saturating_duration_since(from).as_secs_f64();
        if seconds > 0.0 { runs.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

impl Runner {
    pub(crate) fn progress(&self, meter: &mut Meter) -> String {
        let (queue, tally) = (self.keys.queue(), &self.tally);
        let (done, failed) = (tally.done.get(), tally.failures.get());
        let rate = meter.rate(tally.started, Instant::now(), done + failed);
        let (ready, waiting) = (queue.len(), queue.waiting());
        let running = queue.processing();
        let mut line = match self.keys.leases() {
            None => format!("{ready} ready, {waiting} waiting, "),
            // The counts are in the store.
            Some(_) => String::new(),
        };
        line += &format!("{running} running, {done} done, {failed} failed, {rate:.1}/s");
        if let Some((key, since)) = self.commands.groups.longest() {
            line += &format!(", {} for {}", escaped(&key), shown(since));
        }
        line
    }

    /// Shows the progress until it is aborted.
    pub(crate) async fn show_progress(self: Arc<Self>) {
        let mut meter = Meter::default();
        let (progress, output) = (self.config.progress, self.config.commands.output);
        match Progress::choose(progress, output, io::stderr().is_terminal()) {
            Progress::Not => {}
            Progress::Bar => {
                loop {
                    // A run that completes at once shows no progress.
                    tokio::time::sleep(Duration::from_millis(250)).await;
                    if in_foreground() {
                        self.output.show_progress(self.progress(&mut meter));
                    }
                }
            }
            Progress::Lines => loop {
                self.output.hint(&self.progress(&mut meter));
                tokio::time::sleep(WINDOW).await;
            },
        }
    }
}

/// Returns true if this process is in the foreground. Otherwise a shell uses the terminal.
fn in_foreground() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_being_told_progress_is_shown_on_a_terminal_that_is_ours_alone() {
        use args::Output::{Group, Inherit, Lines, None};
        use args::Progress::{Always, Auto, Never};

        let choose = Progress::choose;
        for output in [Lines, Group, Inherit, None] {
            assert_eq!(choose(Never, output, true), Progress::Not);
            assert_eq!(choose(Auto, output, false), Progress::Not);
            assert_eq!(choose(Always, output, true), Progress::Bar);
            assert_eq!(choose(Always, output, false), Progress::Lines);
        }
        assert_eq!(choose(Auto, Lines, true), Progress::Bar);
        assert_eq!(choose(Auto, None, true), Progress::Bar);
        assert_eq!(choose(Auto, Inherit, true), Progress::Not);
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (start, mut meter) = (Instant::now(), Meter::default());
        let mut rate =
            |seconds, runs| meter.rate(start, start + Duration::from_secs(seconds), runs);
        assert_eq!(rate(0, 0), 0.0);
        assert_eq!(rate(5, 50), 10.0);
        assert_eq!(rate(10, 50), 5.0);
        assert_eq!(rate(15, 50), 0.0);
        assert_eq!(rate(100, 900), 10.0);
    }
}

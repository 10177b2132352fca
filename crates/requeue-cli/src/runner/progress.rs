//! The progress line on standard error.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, tcgetpgrp};
use rustix::termios::tcgetwinsize;

use crate::args::run as args;
use crate::duration::{format_exact, shown};
use crate::key::escaped;
use crate::runner::Runner;

/// How the progress is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Not,
    /// One line, which stays below all other lines of the terminal and is updated in place.
    Bar,
    /// A new line every 10 seconds, for files and pipes.
    Lines,
}

impl Progress {
    /// Chooses how the progress is shown. `is_terminal` is true if standard error is a terminal.
    pub(crate) fn choose_form(
        when: args::Progress,
        output: args::Output,
        is_terminal: bool,
    ) -> Self {
        match when {
            // With `--output inherit`, commands write directly to the terminal, and would break the progress line.
            args::Progress::Auto if is_terminal && output != args::Output::Inherit => Self::Bar,
            args::Progress::Auto | args::Progress::Never => Self::Not,
            args::Progress::Always if is_terminal => Self::Bar,
            args::Progress::Always => Self::Lines,
        }
    }
}

/// Measures the number of completed runs per second, over the last [`WINDOW`].
#[derive(Debug, Default)]
pub(crate) struct Meter(VecDeque<(Instant, u64)>);

/// The period over which the rate is measured. Also the time between two lines of [`Progress::Lines`].
const WINDOW: Duration = Duration::from_secs(10);

impl Meter {
    /// Records that `runs` runs had completed at `now`, and returns the rate in runs per second. The newest record
    /// from before the window is kept as the first point, so that the rate covers at least a whole window.
    fn runs_per_second(&mut self, start: Instant, now: Instant, runs: u64) -> f64 {
        while self.0.get(1).is_some_and(|&(at, _)| now.saturating_duration_since(at) >= WINDOW) {
            self.0.pop_front();
        }
        let &(from, before) = self.0.front().unwrap_or(&(start, 0));
        self.0.push_back((now, runs));
        let seconds = now.saturating_duration_since(from).as_secs_f64();
        // The first call may happen at the same instant as `start`.
        if seconds > 0.0 { runs.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

impl Runner {
    /// Returns the whole progress on one line.
    pub(crate) fn progress_line(&self, meter: &mut Meter) -> String {
        self.progress_parts(meter).join(", ")
    }

    /// Returns the parts of the progress, the most important part first. A narrow terminal shows only the first parts.
    fn progress_parts(&self, meter: &mut Meter) -> Vec<String> {
        let (queue, tally) = (&self.keys.queue, &self.tally);
        let done = tally.runs.succeeded.get();
        let failed = tally.runs.failed.get();
        let given_up = tally.given_up.get();
        let rate = meter.runs_per_second(self.started, Instant::now(), done + failed);
        let states = queue.states();
        let mut parts = Vec::new();
        if self.keys.leases.is_some() || self.hooks.is_some() {
            // The total is unknown. Other keys may be in the store, or later changes may add keys.
            parts.push(format!("{done} done"));
        } else {
            let (finished, left) = (done + given_up, states.total() as u64);
            let is_total = self.keys.has_input_ended();
            let more = if is_total { "" } else { "+" };
            parts.push(format!("{finished}/{}{more} done", finished + left));
            // Until the input ends, the number of keys is unknown, and an estimate from the keys so far would be too
            // low.
            let left = if is_total { left } else { 0 };
            parts.extend(
                time_left(self.started.elapsed(), finished, left)
                    .map(|left| format!("about {} left", format_exact(left))),
            );
        }
        let running = format!("{} running", states.in_flight);
        parts.push(match states.dirty {
            0 => running,
            dirty => format!("{running} ({dirty} to run again)"),
        });
        parts.push(format!("{failed} failed"));
        if given_up > 0 {
            parts.push(format!("{given_up} given up"));
        }
        if self.keys.leases.is_none() {
            // Dirty keys are in flight, and also run once more afterwards. The number of waiting keys leaves them out.
            let waiting = queue.waiting();
            let retries = Some(states.backing_off).filter(|&retries| retries > 0);
            let retries = retries.map(|retries| format!("{retries} for a retry"));
            let next = queue.next_due().filter(|_| waiting > 0);
            let next = next.map(|due| format!("next in {}", shown(due.since(queue.now()))));
            let details: Vec<_> = retries.into_iter().chain(next).collect();
            parts.push(match details.is_empty() {
                true => format!("{waiting} waiting"),
                false => format!("{waiting} waiting ({})", details.join(", ")),
            });
            parts.push(format!("{} ready", states.ready));
        }
        parts.push(format!("{rate:.1}/s"));
        if let Some((key, since)) = self.commands.groups.longest_run() {
            parts.push(format!("{} for {}", escaped(&key), shown(since)));
        }
        parts
    }

    /// Shows the progress. The task runs until it is aborted.
    pub(crate) async fn show_progress(self: Arc<Self>) {
        let mut meter = Meter::default();
        let (progress, output) = (self.config.progress, self.config.commands.output);
        match Progress::choose_form(progress, output, io::stderr().is_terminal()) {
            Progress::Not => {}
            Progress::Bar => {
                loop {
                    // The first progress line comes after a delay, so that a program with little work shows none.
                    tokio::time::sleep(Duration::from_millis(250)).await;
                    if in_foreground() {
                        let parts = self.progress_parts(&mut meter);
                        self.output.show_progress(join_fitting(&parts, terminal_columns()));
                    }
                }
            }
            Progress::Lines => loop {
                self.output.hint(&self.progress_line(&mut meter));
                tokio::time::sleep(WINDOW).await;
            },
        }
    }
}

/// Estimates the time until no key is left, in whole seconds. It assumes that the remaining keys take as long as the
/// completed ones. Returns `None` if no key has completed or none is left.
fn time_left(elapsed: Duration, finished: u64, left: u64) -> Option<Duration> {
    if finished == 0 || left == 0 {
        return None;
    }
    let seconds = elapsed.as_secs_f64() * left as f64 / finished as f64;
    Some(Duration::from_secs(seconds.ceil() as u64))
}

/// Joins as many of the first parts as fit in `columns` columns. Each character counts as one column, so text with
/// characters of double width may be cut.
fn join_fitting(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    let mut width = 0;
    for part in parts {
        let separator = if line.is_empty() { "" } else { ", " };
        width += separator.len() + part.chars().count();
        if width > columns && !line.is_empty() {
            break;
        }
        line += separator;
        line += part;
    }
    line
}

/// Returns the current width of the terminal, in columns.
fn terminal_columns() -> usize {
    let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0);
    size.map_or(usize::MAX, |size| size.ws_col.into())
}

/// Returns true if this process is in the foreground of its terminal. In the background, the shell uses the terminal.
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

        let choose = Progress::choose_form;
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
    fn the_time_that_is_left_follows_from_the_keys_so_far() {
        let left = |seconds, finished, left| {
            let time = time_left(Duration::from_secs(seconds), finished, left);
            time.map(|time| time.as_secs())
        };
        assert_eq!(left(10, 5, 20), Some(40));
        assert_eq!(left(1, 3, 1), Some(1));
        assert_eq!((left(10, 0, 20), left(10, 5, 0)), (None, None));
        assert!(left(u64::MAX, 1, u64::MAX).is_some());
    }

    #[test]
    fn a_narrow_terminal_shows_whole_parts() {
        let parts = ["5/11 done", "1 running", "\"größe\" for 1.0s"].map(str::to_owned);
        for (columns, line) in [
            (usize::MAX, "5/11 done, 1 running, \"größe\" for 1.0s"),
            (38, "5/11 done, 1 running, \"größe\" for 1.0s"),
            (37, "5/11 done, 1 running"),
            (20, "5/11 done, 1 running"),
            (19, "5/11 done"),
            // The parts after the first one do not fit.
            (3, "5/11 done"),
        ] {
            assert_eq!(join_fitting(&parts, columns), line, "{columns}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (start, mut meter) = (Instant::now(), Meter::default());
        let mut rate = |seconds, runs| {
            meter.runs_per_second(start, start + Duration::from_secs(seconds), runs)
        };
        assert_eq!(rate(0, 0), 0.0);
        assert_eq!(rate(5, 50), 10.0);
        assert_eq!(rate(10, 50), 5.0);
        assert_eq!(rate(15, 50), 0.0);
        assert_eq!(rate(100, 900), 10.0);
    }
}

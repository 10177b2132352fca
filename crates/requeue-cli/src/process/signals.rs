//! The signals that a run acts on.
//!
//! After the first SIGINT, SIGTERM or SIGHUP, no keys are read and no commands are started. The second terminates the
//! commands, and the third kills them. SIGTSTP and SIGCONT also stop and continue the commands. SIGUSR1 asks for the
//! progress.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, getsid};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1};
use signal_hook::low_level::signal_name;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// The stage that the stop of a run has reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    #[default]
    Running,
    /// No keys are read and no commands are started. Commands in flight complete.
    Stopping,
    /// The process groups of commands receive SIGTERM.
    Terminating,
    /// The process groups of commands receive SIGKILL.
    Killing,
}

impl Level {
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Running => Self::Stopping,
            Self::Stopping => Self::Terminating,
            Self::Terminating | Self::Killing => Self::Killing,
        }
    }
}

/// The signals that a run acts on.
pub(crate) struct Signals {
    ends: [Option<Signal>; 3],
    stop: Option<Signal>,
    go_on: Option<Signal>,
    report: Option<Signal>,
    children: Option<Signal>,
    last: Option<(i32, Instant)>,
}

/// The request that a signal makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Stop, because of this signal.
    End(i32),
    /// Suspend the program until it is continued.
    Suspend,
    /// Continue.
    Continue,
    /// Report the progress.
    Report,
    /// Check the commands, because one of them has exited or stopped.
    Children,
}

/// The time in which a repeated signal does not count as another signal. `timeout` sends its signal to the process and
/// then to its group.
const TWIN: Duration = Duration::from_millis(100);

impl Signals {
    /// Catches the signals, except signals that were ignored at the start, such as SIGHUP under `nohup`. The caller
    /// must be in a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored_mask();
        let taken = |number| catch_unless_ignored(number, ignored);
        Ok(Self {
            ends: [taken(SIGINT)?, taken(SIGTERM)?, taken(SIGHUP)?],
            stop: taken(SIGTSTP)?,
            go_on: Some(signal(SignalKind::from_raw(SIGCONT))?),
            report: taken(SIGUSR1)?,
            // SIGCHLD is caught even if it was ignored, because otherwise the program could not wait for commands.
            children: Some(signal(SignalKind::child())?),
            last: None,
        })
    }

    pub(crate) async fn next_request(&mut self) -> Request {
        loop {
            let [int, term, hup] = &mut self.ends;
            let signal = tokio::select! {
                () = wait_for_signal(int) => SIGINT,
                () = wait_for_signal(term) => SIGTERM,
                () = wait_for_signal(hup) => SIGHUP,
                () = wait_for_signal(&mut self.stop) => return Request::Suspend,
                () = wait_for_signal(&mut self.go_on) => return Request::Continue,
                () = wait_for_signal(&mut self.report) => return Request::Report,
                () = wait_for_signal(&mut self.children) => return Request::Children,
            };
            let is_twin = self.last.is_some_and(|(last, at)| last == signal && at.elapsed() < TWIN);
            if !is_twin {
                self.last = Some((signal, Instant::now()));
                return Request::End(signal);
            }
        }
    }
}

/// Waits for SIGINT or SIGTERM, and returns its number. A signal that was ignored at the start stays ignored. The
/// caller must be in a runtime.
pub(crate) async fn wait_for_interrupt() -> i32 {
    let ignored = ignored_mask();
    let [mut int, mut term] =
        [SIGINT, SIGTERM].map(|number| catch_unless_ignored(number, ignored).ok().flatten());
    tokio::select! {
        () = wait_for_signal(&mut int) => SIGINT,
        () = wait_for_signal(&mut term) => SIGTERM,
    }
}

/// Catches a signal, unless it is in the mask of signals that were ignored at the start.
fn catch_unless_ignored(number: i32, ignored: u64) -> io::Result<Option<Signal>> {
    let is_ignored = ignored & (1 << (number - 1)) != 0;
    (!is_ignored).then(|| signal(SignalKind::from_raw(number))).transpose()
}

async fn wait_for_signal(signal: &mut Option<Signal>) {
    let Some(signal) = signal else { return std::future::pending().await };
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Returns the mask of ignored signals. The mask is 0 on systems other than Linux, which reveal the mask only to unsafe
/// code.
fn ignored_mask() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Parses the number of a signal, or its name with or without `SIG`.
pub(crate) fn parse_signal(text: &str) -> Result<rustix::process::Signal, &'static str> {
    let name = text.to_ascii_uppercase();
    let is_it = |number: i32| {
        signal_name(number)
            .and_then(|full| full.strip_prefix("SIG"))
            .is_some_and(|short| name.strip_prefix("SIG").unwrap_or(&name) == short)
    };
    let number = text.parse().ok().or_else(|| (1..32).find(|&number| is_it(number)));
    number
        .and_then(rustix::process::Signal::from_named_raw)
        .ok_or("expected the name or number of a signal, like TERM, SIGINT or 9")
}

/// Returns true if a shell may continue the program after a stop.
///
/// A shell gives each job a process group. The group of the session's leader is not a job, and SIGTSTP has no effect
/// there by default. Both numbers are 0 if they belong to another PID namespace. An example is an additional process
/// that a container runtime starts in a container. The function uses nix, because rustix does not accept 0.
pub(crate) fn can_be_continued() -> bool {
    getsid(None) != Ok(getpgrp())
}

/// Stops the process as SIGTSTP does, until it is continued.
pub(crate) fn stop_process() {
    // This call sends SIGSTOP, which does not fail.
    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
}

/// Kills the process with the signal.
pub(crate) fn die_of(signal: i32) -> ExitCode {
    // The kernel discards a signal that the first process of a PID namespace sends itself. The process then exits with
    // the code with which shells report the signal.
    if rustix::process::getpid().is_init() {
        return u8::try_from(128 + signal).map_or_else(|_| Exit::Failure.into(), ExitCode::from);
    }
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // This line is not reached, because the default action of these signals kills the process.
    Exit::Failure.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(rustix::process::Signal::TERM), "{text}");
        }
        assert_eq!(parse_signal("USR1"), Ok(rustix::process::Signal::USR1));
        for text in ["", "SIG", "0", "-1", "99", "TERMS", "SIGSIGTERM"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}

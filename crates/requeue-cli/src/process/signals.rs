//! The signals to which the program responds while it runs commands.
//!
//! After the first SIGINT, SIGTERM or SIGHUP, the program reads no more keys and starts no more commands. After the
//! second one, it terminates the commands, and after the third one, it kills them. SIGTSTP and SIGCONT also suspend
//! and continue the commands. After SIGUSR1, the program prints its progress.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, getsid};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1};
use signal_hook::low_level::signal_name;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// The stage of the program's shutdown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    #[default]
    Running,
    /// The program reads no more keys and starts no more commands. It waits for the commands in flight.
    Stopping,
    /// The program sends SIGTERM to the process groups of the commands.
    Terminating,
    /// The program sends SIGKILL to the process groups of the commands.
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

/// The signals to which the program responds while it runs commands.
pub(crate) struct Signals {
    ends: [Option<Signal>; 3],
    stop: Option<Signal>,
    go_on: Option<Signal>,
    report: Option<Signal>,
    children: Option<Signal>,
    last: Option<(i32, Instant)>,
}

/// The action that a signal requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Go to the next stage of the shutdown. Contains the number of the signal.
    End(i32),
    /// Suspend the program and its commands until the program is continued.
    Suspend,
    /// Continue the commands.
    Continue,
    /// Print the progress.
    Report,
    /// Check the commands, because at least one of them has exited or was stopped.
    Children,
}

/// A signal that is repeated within this time is treated as one signal. The `timeout` program, for example, sends its
/// signal to the process and then to the process group.
const TWIN: Duration = Duration::from_millis(100);

impl Signals {
    /// Catches the signals. Signals that were ignored when the program started stay ignored, such as SIGHUP under
    /// `nohup`. The caller must be inside a Tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored_mask();
        let taken = |number| catch_unless_ignored(number, ignored);
        Ok(Self {
            ends: [taken(SIGINT)?, taken(SIGTERM)?, taken(SIGHUP)?],
            stop: taken(SIGTSTP)?,
            go_on: Some(signal(SignalKind::from_raw(SIGCONT))?),
            report: taken(SIGUSR1)?,
            // SIGCHLD is caught even if it was ignored. Otherwise, the program could not wait for its commands.
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

/// Waits for SIGINT or SIGTERM, and returns its number. A signal that was ignored when the program started stays
/// ignored. The caller must be inside a Tokio runtime.
pub(crate) async fn wait_for_interrupt() -> i32 {
    let ignored = ignored_mask();
    let [mut int, mut term] =
        [SIGINT, SIGTERM].map(|number| catch_unless_ignored(number, ignored).ok().flatten());
    tokio::select! {
        () = wait_for_signal(&mut int) => SIGINT,
        () = wait_for_signal(&mut term) => SIGTERM,
    }
}

/// Catches a signal, unless the mask of ignored signals contains it.
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

/// Returns the mask of the signals that this process ignores. Returns 0 on systems other than Linux, where only unsafe
/// code can read the mask.
fn ignored_mask() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Parses the number of a signal, or its name with or without the prefix `SIG`.
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

/// Returns true if a shell may be able to continue the program after it is suspended.
///
/// A shell puts each job into its own process group. The process group of the session leader is not a job, and SIGTSTP
/// does not stop it by default. Both IDs are 0 if they belong to another PID namespace, for example in a process that
/// a container runtime adds to a container. The function uses nix, because rustix does not accept 0.
pub(crate) fn can_be_continued() -> bool {
    getsid(None) != Ok(getpgrp())
}

/// Suspends this process, as SIGTSTP does, until it is continued.
pub(crate) fn stop_process() {
    // This call sends SIGSTOP to this process, which does not fail.
    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
}

/// Kills this process with the signal.
pub(crate) fn die_of(signal: i32) -> ExitCode {
    // The kernel discards a signal that the first process of a PID namespace sends to itself. In this case, the
    // process exits with the code that a shell would report for the signal.
    if rustix::process::getpid().is_init() {
        return u8::try_from(128 + signal).map_or_else(|_| Exit::Failure.into(), ExitCode::from);
    }
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // The default action of these signals kills the process, so this line is not reached.
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

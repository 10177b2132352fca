//! SIGINT, SIGTERM and SIGHUP: the first ends reading and starting, the second ends the commands,
//! the third kills them.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// How far the run is from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    #[default]
    Running,
    /// No more is read or started; commands that run finish.
    Stopping,
    /// Their process groups get SIGTERM.
    Terminating,
    /// Their process groups get SIGKILL.
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

/// The signals that end a run.
pub(crate) struct Signals {
    signals: [Option<Signal>; 3],
    last: Option<(i32, Instant)>,
}

/// `timeout` sends its signal to the process and then to its group: that is one, not two.
const TWIN: Duration = Duration::from_millis(100);

impl Signals {
    /// Takes them over, but for those that were ignored at start, as under `nohup`. Needs a
    /// runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let take = |number: i32| {
            let is_ignored = ignored & (1 << (number - 1)) != 0;
            (!is_ignored).then(|| signal(SignalKind::from_raw(number))).transpose()
        };
        if ignored & (1 << (SIGCHLD - 1)) != 0 {
            // Else commands could not be waited for. Its handler stays when this is dropped.
            drop(signal(SignalKind::child())?);
        }
        Ok(Self { signals: [take(SIGINT)?, take(SIGTERM)?, take(SIGHUP)?], last: None })
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> i32 {
        loop {
            let [int, term, hup] = &mut self.signals;
            let signal = tokio::select! {
                () = received(int) => SIGINT,
                () = received(term) => SIGTERM,
                () = received(hup) => SIGHUP,
            };
            let is_twin = self.last.is_some_and(|(last, at)| last == signal && at.elapsed() < TWIN);
            if !is_twin {
                self.last = Some((signal, Instant::now()));
                return signal;
            }
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    let Some(signal) = signal else { return std::future::pending().await };
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// The mask of ignored signals. Other systems than Linux don't say it without unsafe code; there
/// all three are taken over.
fn ignored() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// What a signal is called.
pub(crate) const fn name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGHUP => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Ends the process as the signal would have.
pub(crate) fn die_of(signal: i32) -> ExitCode {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // It has a default that ends the process; this is not reached.
    Exit::Failure.into()
}

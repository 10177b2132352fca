//! A clock that pauses while the program and its commands are stopped.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The clock of time limits. It does not count the time in which the program was stopped.
#[derive(Debug, Default)]
pub(crate) struct PausableClock(Mutex<Stopped>);

#[derive(Debug, Default)]
struct Stopped {
    before: Duration,
    since: Option<Instant>,
}

impl PausableClock {
    /// Pauses the clock while `stop` runs.
    pub(crate) fn during(&self, stop: impl FnOnce()) {
        self.lock().since = Some(Instant::now());
        stop();
        let mut stopped = self.lock();
        if let Some(since) = stopped.since.take() {
            stopped.before += since.elapsed();
        }
    }

    /// Sleeps for `duration`, without the time in which the program is stopped.
    pub(crate) async fn sleep(&self, duration: Duration) {
        let (start, before) = (Instant::now(), self.stopped());
        loop {
            let passed = start.elapsed().saturating_sub(self.stopped().saturating_sub(before));
            match duration.saturating_sub(passed) {
                Duration::ZERO => return,
                rest => tokio::time::sleep(rest).await,
            }
        }
    }

    fn stopped(&self) -> Duration {
        let stopped = self.lock();
        stopped.before + stopped.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Stopped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A clock that stands still while the program and its commands are suspended.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The clock of the commands' time limits. It does not advance while the program is suspended.
#[derive(Debug, Default)]
pub(crate) struct PausableClock(Mutex<Stopped>);

#[derive(Debug, Default)]
struct Stopped {
    before: Duration,
    since: Option<Instant>,
}

impl PausableClock {
    /// Makes the clock stand still while `stop` runs.
    pub(crate) fn pause_during(&self, stop: impl FnOnce()) {
        self.0.lock().since = Some(Instant::now());
        stop();
        let mut stopped = self.0.lock();
        if let Some(since) = stopped.since.take() {
            stopped.before += since.elapsed();
        }
    }

    /// Sleeps until the clock has advanced by `duration`.
    pub(crate) async fn sleep(&self, duration: Duration) {
        // `Instant` advances during a suspension, so the time of the suspension is subtracted.
        let (start, before) = (Instant::now(), self.stopped_time());
        loop {
            let passed = start.elapsed().saturating_sub(self.stopped_time().saturating_sub(before));
            match duration.saturating_sub(passed) {
                Duration::ZERO => return,
                // If the program is suspended during this sleep, the loop sleeps for the missing rest.
                rest => tokio::time::sleep(rest).await,
            }
        }
    }

    fn stopped_time(&self) -> Duration {
        let stopped = self.0.lock();
        stopped.before + stopped.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

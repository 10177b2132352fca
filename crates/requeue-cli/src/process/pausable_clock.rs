//! A clock that pauses while the program and its commands are stopped.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The clock of time limits, which does not count the time in which the program was stopped.
#[derive(Debug, Default)]
pub(crate) struct PausableClock(Mutex<Stopped>);

#[derive(Debug, Default)]
struct Stopped {
    before: Duration,
    since: Option<Instant>,
}

impl PausableClock {
    /// Pauses the clock while `stop` runs.
    pub(crate) fn pause_during(&self, stop: impl FnOnce()) {
        self.0.lock().since = Some(Instant::now());
        stop();
        let mut stopped = self.0.lock();
        if let Some(since) = stopped.since.take() {
            stopped.before += since.elapsed();
        }
    }

    /// Sleeps for `duration`, without the time in which the program is stopped.
    pub(crate) async fn sleep(&self, duration: Duration) {
        // The stopped time is subtracted, because `Instant` also counts it.
        let (start, before) = (Instant::now(), self.stopped_time());
        loop {
            let passed = start.elapsed().saturating_sub(self.stopped_time().saturating_sub(before));
            match duration.saturating_sub(passed) {
                Duration::ZERO => return,
                // A stop during this sleep makes the loop sleep again.
                rest => tokio::time::sleep(rest).await,
            }
        }
    }

    fn stopped_time(&self) -> Duration {
        let stopped = self.0.lock();
        stopped.before + stopped.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

//! The messages about failed attempts whose keys run again. At most [`MOST`] of them are written per second.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::args::run::Progress;
use crate::duration::shown;
use crate::key::{Key, escaped};
use crate::output::summary::counted;
use crate::runner::Runner;

/// The maximum number of messages in one window. Further failures in the window are counted, and reported as one
/// number.
const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// The state that limits the messages of the current window.
#[derive(Debug, Default)]
pub(super) struct RetryReports {
    window: Mutex<Window>,
    /// Notified each time a message is omitted.
    omitted: Notify,
}

#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    said: u32,
    omitted: u64,
}

impl Window {
    /// Returns true if a message may be written at `now`. Otherwise, adds one to the number of omitted messages.
    fn admits(&mut self, now: Instant) -> bool {
        if self.start.is_none_or(|start| now.saturating_duration_since(start) >= WINDOW) {
            (self.start, self.said) = (Some(now), 0);
        }
        // `say_omitted` later reports the number of omitted messages.
        let admits = self.said < MOST;
        if admits {
            self.said += 1;
        } else {
            self.omitted += 1;
        }
        admits
    }
}

/// The time at which a key runs next after a failed attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    After(Duration),
    /// After a backoff that the store has computed. This process does not know its length.
    Backoff,
    /// Immediately, because the key was added during the attempt.
    Added,
}

impl Runner {
    /// Reports a failed attempt of a key that will run again.
    pub(super) async fn report_retry(&self, key: &Key, attempt: u32, why: &str, again: Again) {
        if self.config.progress == Progress::Never {
            return;
        }
        if !self.reports.window.lock().admits(Instant::now()) {
            return self.reports.omitted.notify_one();
        }
        let attempts = match self.config.failures.retries {
            Some(retries) => format!("{attempt} of {}", u64::from(retries) + 1),
            None => attempt.to_string(),
        };
        let again = match again {
            Again::After(delay) => format!("retrying in {}", shown(delay)),
            Again::Backoff => "retrying after its backoff".to_owned(),
            Again::Added => "running again, because the key was added meanwhile".to_owned(),
        };
        let key = escaped(key);
        self.output.say(&format!("{key}: attempt {attempts} failed ({why}), {again}")).await;
    }

    /// Reports the number of omitted messages at the end of each window. The task runs until it is aborted.
    pub(super) async fn report_omitted(self: std::sync::Arc<Self>) {
        loop {
            self.reports.omitted.notified().await;
            tokio::time::sleep(WINDOW).await;
            self.say_omitted().await;
        }
    }

    /// Reports the number of messages that were omitted since the last call.
    pub(super) async fn say_omitted(&self) {
        let omitted = std::mem::take(&mut self.reports.window.lock().omitted);
        if omitted > 0 {
            let attempts = counted(omitted, "more failed attempt");
            self.output.say(&format!("… and {attempts}")).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_admits_some_messages_and_counts_the_others() {
        let (start, mut window) = (Instant::now(), Window::default());
        let mut admitted = |millis, messages| {
            let now = start + Duration::from_millis(millis);
            (0..messages).filter(|_| window.admits(now)).count()
        };
        assert_eq!(admitted(0, 3), 3);
        assert_eq!(admitted(999, 127), 7);
        assert_eq!(admitted(1000, 11), 10);
        assert_eq!(window.omitted, 121);
    }
}

//! The stop of a run: its level, the signal that caused it, and the end of the reading.

use std::io::PipeWriter;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::sync::watch;

use crate::process::signals::Level;

/// The state of the stop. The level only rises.
#[derive(Debug)]
pub(super) struct Stop {
    level: watch::Sender<Level>,
    /// The first signal. The program dies of it at the end.
    signal: OnceLock<i32>,
    /// Stops the reading of the input when it is dropped.
    input: Mutex<Option<PipeWriter>>,
}

impl Stop {
    pub(super) fn new(input: Option<PipeWriter>) -> Self {
        Self { level: watch::Sender::default(), signal: OnceLock::new(), input: Mutex::new(input) }
    }

    pub(super) fn level(&self) -> Level {
        *self.level.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Level> {
        self.level.subscribe()
    }

    /// Raises the level, and stops the reading.
    pub(super) fn raise(&self, level: Level) {
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        drop(self.input.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Waits until the level is at least `level`.
    pub(super) async fn reached(&self, level: Level) {
        let _ = self.subscribe().wait_for(|&now| now >= level).await;
    }

    /// Records the signal, unless there was one before.
    pub(super) fn caused_by(&self, signal: i32) {
        self.signal.get_or_init(|| signal);
    }

    pub(super) fn signal(&self) -> Option<i32> {
        self.signal.get().copied()
    }
}

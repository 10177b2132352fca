//! Shutdown of a run: its level, the signal that caused it, and the end of the reading.

use std::io::PipeWriter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::exit::Exit;
use crate::process::signals::Level;

/// The state of the stop. The level only rises.
#[derive(Debug, Default)]
pub(super) struct Stop {
    level: watch::Sender<Level>,
    /// The first signal. At the end, the program kills itself with this signal.
    pub(super) signal: OnceLock<i32>,
    /// The reason why the command cannot be run, as the exit code of the program.
    pub(super) no_program: OnceLock<Exit>,
    /// Stops the reading of the input when it is dropped.
    input: Mutex<Option<PipeWriter>>,
    /// True if the last command has completed.
    is_over: AtomicBool,
    /// True if standard output was closed before the run was over.
    is_cut_off: AtomicBool,
}

impl Stop {
    pub(super) fn new(input: Option<PipeWriter>) -> Self {
        Self { input: Mutex::new(input), ..Self::default() }
    }

    pub(super) fn level(&self) -> Level {
        *self.level.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Level> {
        self.level.subscribe()
    }

    /// Raises the level, and stops the reading.
    pub(super) fn raise_level(&self, level: Level) {
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        // The level is raised first, so that a woken reader finds that the run stops.
        drop(self.input.lock().take());
    }

    /// Waits until the level is at least `level`.
    pub(super) async fn wait_for_level(&self, level: Level) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.subscribe().wait_for(|&now| now >= level).await;
    }

    /// The caller must call this after the last command has completed.
    pub(super) fn mark_over(&self) {
        // The flags guard no other data.
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The caller must call this when it finds standard output closed.
    pub(super) fn cut_off(&self) {
        // If the output is closed after the last command, no output is lost.
        self.is_cut_off.fetch_or(!self.is_over.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns true if standard output was closed before the run was over.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

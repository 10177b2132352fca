//! The shutdown of the program: its level, the signal that caused it, and the handle that stops the reading of the
//! input.

use std::io::PipeWriter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::exit::Exit;
use crate::process::signals::Level;

/// The state of the shutdown. Its level only rises.
#[derive(Debug, Default)]
pub(super) struct Stop {
    level: watch::Sender<Level>,
    /// The first signal that requeue received. At its end, the program kills itself with this signal, so that its
    /// parent sees the cause.
    pub(super) signal: OnceLock<i32>,
    /// The exit code of the program. Set if the command's program does not exist or cannot be executed.
    pub(super) no_program: OnceLock<Exit>,
    /// The write end of a pipe. When it is dropped, the reader thread stops reading the input.
    input: Mutex<Option<PipeWriter>>,
    /// True if the last command has completed.
    is_over: AtomicBool,
    /// True if standard output was closed before the last command completed.
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

    /// Raises the level to at least `level`, and stops the reading of the input.
    pub(super) fn raise_level(&self, level: Level) {
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        // The level is raised before the reader thread is woken, so that the thread sees the new level.
        drop(self.input.lock().take());
    }

    /// Waits until the level is at least `level`.
    pub(super) async fn wait_for_level(&self, level: Level) {
        // The sender is a field of `self`, so it is not dropped during the wait and the wait cannot fail.
        let _ = self.subscribe().wait_for(|&now| now >= level).await;
    }

    /// Records that the last command has completed. The caller must call this after that.
    pub(super) fn mark_over(&self) {
        // No other data depends on the flags, so relaxed ordering is enough.
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Records that standard output is closed. The caller must call this when it finds that.
    pub(super) fn cut_off(&self) {
        // If the output is closed after the last command, no output is lost, so the flag stays unset.
        self.is_cut_off.fetch_or(!self.is_over.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns true if standard output was closed before the last command completed.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

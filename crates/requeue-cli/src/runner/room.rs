//! Lets the reader thread wait for space while the program already holds `--max-keys` keys.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

/// A condition variable that is cheap to notify while no thread waits.
#[derive(Debug, Default)]
pub(super) struct Room {
    is_waiting: AtomicBool,
    was_full: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Room {
    pub(super) fn wait_while(&self, mut is_full: impl FnMut() -> bool) {
        let mut guard = self.lock.lock();
        // The flag is set before `is_full` is evaluated. Both that evaluation and each change lock the queue. A thread
        // that makes space after the evaluation therefore sees the flag.
        self.is_waiting.store(true, Ordering::SeqCst);
        self.changed.wait_while(&mut guard, |()| is_full());
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Records that there was no space. Returns true at the first call.
    pub(super) fn is_first_wait(&self) -> bool {
        !self.was_full.swap(true, Ordering::Relaxed)
    }

    /// Wakes the waiting thread. The caller must call this after a key has completed, and when the program stops.
    pub(super) fn notify_changed(&self) {
        // All these accesses have one total order. Either this load sees the flag, or the waiting thread sees the
        // change.
        if self.is_waiting.load(Ordering::SeqCst) {
            // The waiting thread holds the lock from its check until it sleeps, so it does not miss the notification.
            let _guard = self.lock.lock();
            self.changed.notify_all();
        }
    }
}

//! Space for another key: the reader waits here while the program holds `--max-keys` keys.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

/// A condition variable that costs little while no thread waits.
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
        // The flag is set before `is_full` is evaluated. A thread that changes the result afterwards finds the flag
        // set, because the queue is locked and unlocked in between.
        self.is_waiting.store(true, Ordering::SeqCst);
        self.changed.wait_while(&mut guard, |()| is_full());
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Records that there is no space. Returns true the first time.
    pub(super) fn is_first_wait(&self) -> bool {
        !self.was_full.swap(true, Ordering::Relaxed)
    }

    /// The caller must call this after a key has completed, and when the run stops.
    pub(super) fn notify_changed(&self) {
        // The accesses have a single order, so either this load finds the flag set, or the waiter finds the change.
        if self.is_waiting.load(Ordering::SeqCst) {
            // The waiter holds the lock from its check to its sleep, so the notification is not lost.
            let _guard = self.lock.lock();
            self.changed.notify_all();
        }
    }
}

//! A key that detects a drop in the wrong place, and whose clone panics when a test requests it.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The number of clones that succeed before a clone panics.
    static FUSE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A key that must not be dropped inside the state machine. The state machine returns keys that it
/// no longer needs, so that the caller drops them outside its lock.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key(pub u32);

/// The panic of a clone. The type of this panic distinguishes it from a failed assertion.
struct CloneFailed;

impl Key {
    /// Runs `f`. Panics if a key is dropped while `f` runs.
    pub fn none_dropped<T>(f: impl FnOnce() -> T) -> T {
        INSIDE.set(true);
        let value = f();
        INSIDE.set(false);
        value
    }

    /// Runs `f` like [`none_dropped`](Self::none_dropped), but makes a clone panic after `fuse`
    /// successful clones. Returns `None` if a clone panicked.
    pub fn with_fuse<T>(fuse: u32, f: impl FnOnce() -> T) -> Option<T> {
        FUSE.set(Some(fuse));
        let outcome = catch_unwind(AssertUnwindSafe(|| Self::none_dropped(f)));
        FUSE.set(None);
        INSIDE.set(false);
        match outcome {
            Ok(value) => Some(value),
            Err(panic) if panic.is::<CloneFailed>() => None,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        match FUSE.get().filter(|_| INSIDE.get()) {
            Some(0) => resume_unwind(Box::new(CloneFailed)),
            Some(left) => FUSE.set(Some(left - 1)),
            None => {}
        }
        Self(self.0)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(!INSIDE.get(), "{self:?} was dropped inside the state machine");
        }
    }
}

//! A key that notices when it is dropped at the wrong time.

use std::cell::Cell;
use std::hash::{Hash, Hasher};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A key which must not be dropped inside the state machine: what that no longer needs it gives
/// back, for the caller to drop outside its lock.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug, Clone)]
pub struct Key(pub u32);

impl Key {
    /// Runs `f`, inside of which no key may be dropped.
    pub fn none_dropped<T>(f: impl FnOnce() -> T) -> T {
        INSIDE.set(true);
        let value = f();
        INSIDE.set(false);
        value
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

//! The handling of panics of user functions. The loops pass each caught panic to [`handle_crash`].

use std::any::Any;
use std::fmt;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sync::{drop_payload, panic_message, quietly};

/// A caught panic, as a handler of [`on_crash`] gets it.
pub struct Crash<'a>(&'a (dyn Any + Send));

impl<'a> Crash<'a> {
    /// Returns the message of the panic, if it has one.
    ///
    /// A panic of `panic!` always has a message. A panic of `panic_any` has a message only if its
    /// payload is text.
    #[must_use]
    pub fn message(&self) -> Option<&'a str> {
        panic_message(self.0)
    }
}

impl fmt::Debug for Crash<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Crash").field(&self.message().unwrap_or("no message")).finish()
    }
}

type Handler = Arc<dyn Fn(&Crash<'_>) + Send + Sync>;

static HANDLERS: Mutex<Vec<Handler>> = Mutex::new(Vec::new());
static REALLY_CRASH: AtomicBool = AtomicBool::new(false);

/// Registers a handler for the whole process. [`handle_crash`] calls it for every panic, until the
/// returned guard is dropped.
///
/// This is apimachinery's `PanicHandlers`. The handlers are called in the order in which they were
/// registered, on the thread that panicked. A panic of a handler is ignored.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use requeue::wait;
///
/// let broken = Arc::new(AtomicUsize::new(0));
/// let handler = wait::on_crash({
///     let broken = Arc::clone(&broken);
///     move |crash| {
///         if crash.message() == Some("a broken piece") {
///             broken.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// });
/// wait::parallelize_until(2, 5, 1, || false, |piece| {
///     if piece == 3 {
///         panic!("a broken piece");
///     }
/// });
/// assert_eq!(broken.load(Ordering::Relaxed), 1);
/// drop(handler);
/// ```
pub fn on_crash(handler: impl Fn(&Crash<'_>) + Send + Sync + 'static) -> CrashHandler {
    let handler: Handler = Arc::new(handler);
    lock_handlers().push(Arc::clone(&handler));
    CrashHandler(handler)
}

/// Removes a handler of panics when it is dropped. [`on_crash`] creates it.
#[must_use = "the handler is removed when this is dropped"]
pub struct CrashHandler(Handler);

impl Drop for CrashHandler {
    fn drop(&mut self) {
        // `self` still owns the handler. The handler is therefore dropped after the lock is
        // released.
        lock_handlers().retain(|handler| !Arc::ptr_eq(handler, &self.0));
    }
}

impl fmt::Debug for CrashHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashHandler").finish_non_exhaustive()
    }
}

/// Sets the effect of a handled panic, for the whole process. With `true`, the panic continues
/// after the handlers were called. With `false`, the default, the loop continues.
///
/// This is apimachinery's `ReallyCrash`. Its default in Go is `true`: a panic that is not recovered
/// terminates the process.
pub fn set_really_crash(really_crash: bool) {
    REALLY_CRASH.store(really_crash, Ordering::Relaxed);
}

/// Handles a panic of a function that a loop of this module has called.
///
/// `payload` is the value that [`catch_unwind`](panic::catch_unwind) has returned. The panic hook
/// of the process has already reported the message and the location. The default hook writes to
/// standard error.
#[cfg_attr(feature = "tokio", doc = "This emits a `tracing` event of level error,")]
#[cfg_attr(not(feature = "tokio"), doc = "This writes nothing,")]
/// calls the handlers of [`on_crash`], and returns, so that the caller can continue. It is
/// apimachinery's `HandleCrash`.
///
/// # Panics
///
/// Panics with the same payload if [`set_really_crash`] was called with `true`.
///
/// # Examples
///
/// ```
/// use requeue::wait;
///
/// if let Err(payload) = std::panic::catch_unwind(|| panic!("oh no")) {
///     wait::handle_crash(payload);
/// }
/// ```
pub fn handle_crash(payload: Box<dyn Any + Send>) {
    let crash = Crash(&*payload);
    #[cfg(feature = "tokio")]
    tracing::error!(panic = crash.message().unwrap_or("no message"), "observed a panic");
    // The list is copied, because a handler may add or remove handlers.
    let called = lock_handlers().clone();
    for handler in called {
        quietly(|| handler(&crash));
    }
    if REALLY_CRASH.load(Ordering::Relaxed) {
        panic::resume_unwind(payload);
    }
    drop_payload(payload);
}

fn lock_handlers() -> MutexGuard<'static, Vec<Handler>> {
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

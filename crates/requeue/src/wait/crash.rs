//! The handling of panics of user functions. Each caught panic passes through [`handle_crash`].

use std::any::Any;
use std::fmt;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sync::{drop_payload, panic_message, quietly};

/// A caught panic, as passed to the handlers of [`on_crash`].
pub struct Crash<'a>(&'a (dyn Any + Send));

impl<'a> Crash<'a> {
    /// Returns the message of the panic, if any.
    ///
    /// A panic by `panic!` always has a message. A panic by `panic_any` rarely has one.
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

/// Calls `handler` for every panic that is passed to [`handle_crash`], in the whole process, until
/// the returned guard is dropped.
///
/// This is apimachinery's `PanicHandlers`. Handlers are called in the order in which they were
/// added, on the thread that panicked. A panic of a handler is ignored.
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

/// Removes a handler of panics when it is dropped: see [`on_crash`].
#[must_use = "the handler is removed when this is dropped"]
pub struct CrashHandler(Handler);

impl Drop for CrashHandler {
    fn drop(&mut self) {
        // `self` still holds the handler, so the drop of the handler runs after the lock is
        // released.
        lock_handlers().retain(|handler| !Arc::ptr_eq(handler, &self.0));
    }
}

impl fmt::Debug for CrashHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashHandler").finish_non_exhaustive()
    }
}

/// Sets, for the whole process, whether a handled panic continues to unwind (`true`) or the loop
/// continues (`false`, the default).
///
/// This is apimachinery's `ReallyCrash`, but the default is `false`. In Go, the default is `true`,
/// and a panic that is not recovered terminates the process.
pub fn set_really_crash(really_crash: bool) {
    REALLY_CRASH.store(really_crash, Ordering::Relaxed);
}

/// Handles a panic of a function that a loop of this module has called.
///
/// `payload` is the value that [`catch_unwind`](panic::catch_unwind) has returned. The process's panic hook has already
/// reported the message and the location, on standard error unless it was replaced.
#[cfg_attr(feature = "tokio", doc = "This emits a `tracing` event of level error,")]
#[cfg_attr(not(feature = "tokio"), doc = "This writes nothing,")]
/// calls the handlers of [`on_crash`], and returns, so that the caller continues. This is
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

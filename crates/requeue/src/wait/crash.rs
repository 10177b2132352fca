//! The one hook that panics of users' functions go through.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A panic that was caught, as the handlers of [`on_crash`] see it.
pub struct Crash<'a>(&'a (dyn Any + Send));

impl<'a> Crash<'a> {
    /// What the function panicked with.
    #[must_use]
    pub fn payload(&self) -> &'a (dyn Any + Send) {
        self.0
    }

    /// The message of the panic, where it has one: `panic!` gives one always, `panic_any` rarely.
    #[must_use]
    pub fn message(&self) -> Option<&'a str> {
        let literal = self.0.downcast_ref::<&'static str>().copied();
        literal.or_else(|| self.0.downcast_ref::<String>().map(String::as_str))
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

/// Calls `handler` for every panic that [`handle_crash`] is given, in the whole process, until
/// what this returns is dropped. apimachinery's `PanicHandlers`.
///
/// Handlers are called in the order they were added, in the thread that panicked. One that panics
/// itself is ignored.
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
    handlers().push(Arc::clone(&handler));
    CrashHandler(handler)
}

/// A handler that is called for panics until this is dropped. See [`on_crash`].
#[must_use = "the handler is removed when this is dropped"]
pub struct CrashHandler(Handler);

impl Drop for CrashHandler {
    fn drop(&mut self) {
        // `self` still holds it, so the handler's own drop runs after the lock is free.
        handlers().retain(|handler| !Arc::ptr_eq(handler, &self.0));
    }
}

impl fmt::Debug for CrashHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashHandler").finish_non_exhaustive()
    }
}

/// Whether a panic that was handled goes on to unwind its thread. apimachinery's `ReallyCrash`,
/// but false unless set: there a panic nobody catches ends the process.
#[must_use]
pub fn really_crash() -> bool {
    REALLY_CRASH.load(Ordering::Relaxed)
}

/// Chooses, for the whole process, whether a panic that was handled goes on to unwind (`true`) or
/// the loop carries on (`false`, and so it is in the beginning).
pub fn set_really_crash(really_crash: bool) {
    REALLY_CRASH.store(really_crash, Ordering::Relaxed);
}

/// What happens to a panic of a function that a loop of this module has called.
///
/// `payload` is what [`catch_unwind`](panic::catch_unwind) has caught. By then the process's panic
/// hook has reported message and place, on the standard error output unless it was replaced.
#[cfg_attr(feature = "tokio", doc = "This adds an event of `tracing`, of level error,")]
#[cfg_attr(not(feature = "tokio"), doc = "This writes nothing,")]
/// calls the handlers of [`on_crash`], and returns: whoever called carries on. apimachinery's
/// `HandleCrash`.
///
/// # Panics
///
/// With the same payload, when [`set_really_crash`] has asked for it.
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
    let called = handlers().clone();
    for handler in called {
        if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| handler(&crash))) {
            discard(again);
        }
    }
    if really_crash() {
        panic::resume_unwind(payload);
    }
    discard(payload);
}

/// Drops what could panic when it is dropped.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

fn handlers() -> MutexGuard<'static, Vec<Handler>> {
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The synchronization primitives of this crate. They are in one module, so that tests can replace
//! them with those of loom.

pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, OnceLock, PoisonError, Weak};

#[cfg(not(requeue_loom))]
pub(crate) use self::real::*;
#[cfg(requeue_loom)]
pub(crate) use self::under_loom::*;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Wake, Waker};

/// The primitives of the standard library.
#[cfg(not(requeue_loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{current, park, park_timeout};
    pub(crate) use std::thread_local;

    pub(crate) use std::hint::spin_loop;

    /// The number of iterations for which a thread spins before it parks: a few microseconds.
    pub(crate) const SPINS: usize = 128;

    /// Parks for at most `duration`. The caller expects another thread to unpark this one, but
    /// cannot be certain.
    pub(crate) fn park_warily(duration: std::time::Duration) {
        park_timeout(duration);
    }
}

/// The primitives of loom, which tries every interleaving of the threads. Reference counts and
/// cells that are written once are those of the standard library, because no thread waits for them.
#[cfg(requeue_loom)]
mod under_loom {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread_local;

    pub(crate) use loom::thread::yield_now as spin_loop;

    pub(crate) const SPINS: usize = 1;

    use std::sync::{Arc, PoisonError};

    /// A thread that can be unparked. The thread type of loom cannot be used: it forgets an unpark
    /// if the thread waits for a mutex before it parks.
    #[derive(Clone)]
    pub(crate) struct Thread(Arc<(Mutex<bool>, Condvar)>);

    impl Thread {
        pub(crate) fn unpark(&self) {
            let (token, changed) = &*self.0;
            *token.lock().unwrap_or_else(PoisonError::into_inner) = true;
            changed.notify_one();
        }
    }

    thread_local!(static CURRENT: Thread = Thread(Arc::new((Mutex::new(false), Condvar::new()))));

    pub(crate) fn current() -> Thread {
        CURRENT.with(Clone::clone)
    }

    pub(crate) fn park() {
        let Thread(this) = current();
        let (token, changed) = &*this;
        let mut unparked = token.lock().unwrap_or_else(PoisonError::into_inner);
        while !*unparked {
            unparked = changed.wait(unparked).unwrap_or_else(PoisonError::into_inner);
        }
        *unparked = false;
    }

    /// Returns after another thread has run. The duration is ignored, because it may have passed by
    /// then.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        loom::thread::yield_now();
    }

    /// Parks without a time limit: under loom, the unpark must come.
    pub(crate) fn park_warily(_: std::time::Duration) {
        park();
    }
}

/// Runs user code, such as the `drop` of a key or the wake of a task, and discards a panic.
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(drop_payload).ok()
}

/// Drops the payload of a panic, and discards a panic of this drop.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // The new payload is leaked, because dropping it could panic again.
        std::mem::forget(another);
    }
}

/// Drops a value of the user, and discards a panic. The caller must hold no lock.
pub(crate) fn drop_quietly<T>(value: T) {
    if std::mem::needs_drop::<T>() {
        quietly(|| drop(value));
    }
}

/// Returns the message of a panic, if its payload is text.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> Option<&str> {
    let literal = payload.downcast_ref::<&'static str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Returns a waker that calls `f`.
pub(crate) fn waker_fn(f: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(CallOnWake(f)))
}

struct CallOnWake<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for CallOnWake<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.0)();
    }
}

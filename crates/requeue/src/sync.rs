//! The primitives the queue stands on, in one place, and the lock under which users' code may run.

pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, OnceLock, PoisonError, Weak};

#[cfg(not(requeue_loom))]
pub(crate) use self::real::*;
#[cfg(requeue_loom)]
pub(crate) use self::under_loom::*;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::TryLockError;

/// What the queue runs on.
#[cfg(not(requeue_loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park, park_timeout};
    pub(crate) use std::thread_local;

    pub(crate) use std::hint::spin_loop;

    /// How often a thread spins before it parks: a few microseconds.
    pub(crate) const SPINS: usize = 128;

    /// A number that no other living thread has.
    pub(super) fn thread_number() -> usize {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here) as usize)
    }

    /// Parks for a while where somebody else is to unpark this thread, and only might not.
    pub(crate) fn park_warily(duration: std::time::Duration) {
        park_timeout(duration);
    }
}

/// What it runs on where loom tries every interleaving. Reference counts and cells that are written
/// once stay the real ones: nothing waits for them.
#[cfg(requeue_loom)]
mod under_loom {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread_local;

    pub(crate) use loom::thread::yield_now as spin_loop;

    pub(crate) const SPINS: usize = 1;

    use std::sync::{Arc, PoisonError};

    /// A thread that can be unparked. loom's own forgets an unpark when the thread waits for a
    /// mutex before it parks.
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

    pub(super) fn thread_number() -> usize {
        thread_local!(static HERE: Box<u8> = Box::new(0));
        HERE.with(|here| std::ptr::from_ref(&**here) as usize)
    }

    /// The time may be up as soon as another thread has run.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        loom::thread::yield_now();
    }

    /// As long as it takes: here the wake has to come.
    pub(crate) fn park_warily(_: std::time::Duration) {
        park();
    }
}

/// Runs code of the user whose panic is nobody's business here: dropping a key, waking a task.
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(drop_payload).ok()
}

/// Drops what somebody panicked with, which is the user's, too, and may panic in turn.
fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

/// Drops what is the user's, outside every lock.
pub(crate) fn drop_quietly<T>(value: T) {
    if std::mem::needs_drop::<T>() {
        quietly(|| drop(value));
    }
}

/// A mutex under which the user's code may run: taking it again from there says so, where an
/// ordinary one would never return. Poison is ignored: what it guards changes only after the
/// user's code has run.
pub(crate) struct Guarded<T> {
    value: Mutex<T>,
    /// Whether `holder` is kept.
    watched: bool,
    /// The thread that has the lock.
    holder: AtomicUsize,
}

/// The lock is taken by this thread already.
#[derive(Debug)]
pub(crate) struct Reentered;

pub(crate) struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    holder: Option<&'a AtomicUsize>,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T, watched: bool) -> Self {
        Self { value: Mutex::new(value), watched, holder: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Result<Held<'_, T>, Reentered> {
        if !self.watched {
            let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(Held { guard, holder: None });
        }
        let guard = match self.value.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Only this thread can have stored its own number.
            Err(TryLockError::WouldBlock)
                if self.holder.load(Ordering::Relaxed) == thread_number() =>
            {
                return Err(Reentered);
            }
            Err(TryLockError::WouldBlock) => {
                self.value.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        self.holder.store(thread_number(), Ordering::Relaxed);
        Ok(Held { guard, holder: Some(&self.holder) })
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            holder.store(0, Ordering::Relaxed);
        }
    }
}

impl<T> std::ops::Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> std::ops::DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

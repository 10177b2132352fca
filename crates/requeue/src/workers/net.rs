//! A net under the user's code: what panics there must not end a worker.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Error;
use crate::sync::{drop_quietly, quietly};

/// Runs code of the user's; the error says what it panicked with.
pub(super) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(f)).map_err(describe)
}

/// Polls a future of the user's; once it has ended, it is dropped. A panic in either is its end.
pub(super) fn poll<F: Future>(
    mut future: Pin<&mut Option<F>>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Error>> {
    let polled = caught(|| match future.as_mut().as_pin_mut() {
        Some(future) => future.poll(cx),
        None => Poll::Pending,
    });
    let ended = match polled {
        Ok(Poll::Pending) => return Poll::Pending,
        Ok(Poll::Ready(output)) => Ok(output),
        Err(panic) => Err(panic),
    };
    Poll::Ready(match (ended, end(future)) {
        (Ok(output), Err(panic)) => {
            drop_quietly(output);
            Err(panic)
        }
        (ended, _) => ended,
    })
}

/// Drops a future of the user's, ended or not.
pub(super) fn end<F>(mut future: Pin<&mut Option<F>>) -> Result<(), Error> {
    caught(|| future.set(None))
}

fn describe(panic: Box<dyn Any + Send>) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = match message {
        Some(message) => format!("panicked: {message}").into(),
        None => "panicked".into(),
    };
    drop_quietly(panic);
    error
}

/// Shows what is the user's. It is caught here, and not around the event: a subscriber that is
/// unwound through may have poisoned its locks.
pub(super) struct Shown<'a, T: ?Sized>(pub(super) &'a T);

impl<T: fmt::Debug + ?Sized> fmt::Debug for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match quietly(|| self.0.fmt(f)) {
            Some(result) => result,
            None => f.write_str("(its Debug panicked)"),
        }
    }
}

impl<T: fmt::Display + ?Sized> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match quietly(|| self.0.fmt(f)) {
            Some(result) => result,
            None => f.write_str("(its Display panicked)"),
        }
    }
}

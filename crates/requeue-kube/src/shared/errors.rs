//! Copies of a shared watch's errors. kube's errors cannot be cloned, but each subscriber needs
//! one.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use kube::runtime::watcher;

/// Returns an error of the same variant, with the same message.
pub(super) fn copy_error(error: &Arc<watcher::Error>) -> watcher::Error {
    let copied = |cause: &kube::Error| match cause {
        kube::Error::Api(status) => kube::Error::Api(status.clone()),
        // Other variants of kube's error cannot be cloned. The copy contains a reference to the
        // original error.
        _ => kube::Error::Service(Box::new(Copied(Arc::clone(error)))),
    };
    match &**error {
        watcher::Error::InitialListFailed(cause) => {
            watcher::Error::InitialListFailed(copied(cause))
        }
        watcher::Error::WatchStartFailed(cause) => watcher::Error::WatchStartFailed(copied(cause)),
        watcher::Error::WatchFailed(cause) => watcher::Error::WatchFailed(copied(cause)),
        watcher::Error::WatchError(status) => watcher::Error::WatchError(status.clone()),
        watcher::Error::NoResourceVersion => watcher::Error::NoResourceVersion,
    }
}

/// An error that refers to the cause of another error.
#[derive(Debug)]
struct Copied(Arc<watcher::Error>);

impl Copied {
    /// Returns the cause of the original error. The message of the original error itself is already
    /// in the copy.
    fn cause(&self) -> &(dyn Error + 'static) {
        self.0.source().unwrap_or(&*self.0)
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl Error for Copied {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause().source()
    }
}

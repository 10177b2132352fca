//! Copies of the errors of a shared watch, one for each subscriber.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use kube::runtime::watcher;

/// Returns an error with the same kind and message.
pub(super) fn copy_error(error: &Arc<watcher::Error>) -> watcher::Error {
    let copied = |cause: &kube::Error| match cause {
        kube::Error::Api(status) => kube::Error::Api(status.clone()),
        // Other errors of kube cannot be cloned, so the copy refers to the original.
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

/// The cause of an error that cannot be cloned.
#[derive(Debug)]
struct Copied(Arc<watcher::Error>);

impl Copied {
    /// Returns the cause of the error, because the copy already has the message of the error
    /// itself.
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

//! What can go wrong in a controller.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use kube::core::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use requeue::BuildError;

use crate::ObjectKey;
use crate::leader::LeadershipLost;

/// What is in the stream of a [`Controller`](crate::Controller) besides successes.
///
/// None of these ends the controller, but a [`RunnerError`](Self::RunnerError). kube's, and two
/// more.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<ReconcilerErr, QueueErr> {
    /// The object that was to be reconciled is not there: mostly the owner of something that is
    /// being deleted with it.
    ObjectNotFound(Box<ObjectRef<DynamicObject>>),
    /// The reconciler has failed.
    ReconcilerFailed(ReconcilerErr, Box<ObjectRef<DynamicObject>>),
    /// The reconciler, or the error policy, has panicked with this. It is tried again with backoff.
    ReconcilerPanicked(String, Box<ObjectRef<DynamicObject>>),
    /// The reconciler has taken longer than this. It is tried again with backoff.
    ReconcilerTimedOut(Duration, Box<ObjectRef<DynamicObject>>),
    /// A watch has failed. It is begun again with backoff.
    QueueError(QueueErr),
    /// The controller could not go on, and has ended.
    RunnerError(RunnerError),
}

impl<R: fmt::Display, Q: fmt::Display> fmt::Display for Error<R, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ObjectNotFound(object) => {
                write!(f, "tried to reconcile object {object} that was not found in local store")
            }
            Self::ReconcilerFailed(error, object) => {
                write!(f, "reconciler for object {object} failed: {error}")
            }
            Self::ReconcilerPanicked(message, object) => {
                write!(f, "reconciler for object {object} panicked: {message}")
            }
            Self::ReconcilerTimedOut(timeout, object) => {
                write!(f, "reconciler for object {object} timed out after {timeout:?}")
            }
            Self::QueueError(error) => write!(f, "event queue error: {error}"),
            Self::RunnerError(error) => write!(f, "runner error: {error}"),
        }
    }
}

impl<R: StdError + 'static, Q: StdError + 'static> StdError for Error<R, Q> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            // Their messages are in ours already.
            Self::ReconcilerFailed(error, _) => error.source(),
            Self::QueueError(error) => error.source(),
            Self::RunnerError(_)
            | Self::ObjectNotFound(_)
            | Self::ReconcilerPanicked(..)
            | Self::ReconcilerTimedOut(..) => None,
        }
    }
}

/// Why a controller could not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunnerError {
    /// These watches have not listed in
    /// [this time](super::Config::cache_sync_timeout): the API server can't be reached, does not
    /// know the kind, or does not allow it to be listed.
    CacheSync {
        /// What they watch, as in `ConfigMap.v1 (owned)`.
        watches: Vec<String>,
        /// How long they had.
        timeout: Duration,
    },
    /// A controller of this [name](crate::Controller::name) runs in this process.
    DuplicateName(String),
    /// The [configuration](super::Config) makes no sense.
    Config(BuildError),
    /// This watch, named as above, has failed, and
    /// [`trigger_backoff`](crate::Controller::trigger_backoff) says that it is not to be begun again.
    /// What was running has ended.
    WatchEnded(String),
    /// The shutdown has dropped runs at an `await`: it took longer than
    /// [it may](super::Config::shutdown_timeout), or was told twice to be quick. What they had asked
    /// of the API server may still be done.
    CutOff {
        /// The objects that were being reconciled, in order.
        keys: Vec<ObjectKey>,
    },
    /// It leads no more, and [was to run](crate::Controller::leader_election) for as long as it does.
    LeadershipLost {
        /// Why.
        lost: LeadershipLost,
        /// The objects that were being reconciled, in order. Their runs were dropped at an `await`,
        /// as in [`CutOff`](Self::CutOff).
        keys: Vec<ObjectKey>,
    },
}

impl fmt::Display for RunnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheSync { watches, timeout } => {
                write!(f, "no first list within {timeout:?} of {}", watches.join(", "))
            }
            Self::DuplicateName(name) => write!(
                f,
                "a controller named {name:?} already runs in this process; give one of them \
                 another name with `Controller::name`"
            ),
            Self::Config(error) => error.fmt(f),
            Self::WatchEnded(watch) => write!(f, "the watch of {watch} has failed for good"),
            Self::CutOff { keys } => {
                write!(f, "the shutdown has cut off the reconciliation of {}", list(keys))
            }
            Self::LeadershipLost { lost, keys } if keys.is_empty() => lost.fmt(f),
            Self::LeadershipLost { lost, keys } => {
                write!(f, "{lost}, which has cut off the reconciliation of {}", list(keys))
            }
        }
    }
}

fn list(keys: &[ObjectKey]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl StdError for RunnerError {}

impl From<BuildError> for RunnerError {
    fn from(error: BuildError) -> Self {
        Self::Config(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the outside")
        }
    }

    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn no_error_prints_its_source_which_it_returns() {
        let outer = || Outer(std::io::Error::other("the cause"));
        let object = || {
            let kind = kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
            Box::new(ObjectRef::<DynamicObject>::new_with("a", kind))
        };
        for (error, has_source) in [
            (Error::ObjectNotFound(object()), false),
            (Error::ReconcilerFailed(outer(), object()), true),
            (Error::ReconcilerPanicked("ouch".to_owned(), object()), false),
            (Error::ReconcilerTimedOut(Duration::from_secs(1), object()), false),
            (Error::QueueError(outer()), true),
            (Error::RunnerError(RunnerError::WatchEnded("pods".to_owned())), false),
        ] {
            let source = error.source().map(ToString::to_string);
            assert_eq!(source.is_some(), has_source, "{error}");
            assert!(source.is_none_or(|source| !error.to_string().contains(&source)), "{error}");
        }
    }
}

//! The errors that a controller reports.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use kube::core::DynamicObject;
use kube::runtime::reflector::ObjectRef;

use crate::ObjectKey;
use crate::leader::LeadershipLost;
use crate::membership::MembershipError;

/// An item of the stream of a [`Controller`](crate::Controller) that is not a success.
///
/// The type has all variants of kube's error type, and two further ones. The controller continues after every variant
/// except [`RunnerError`](Self::RunnerError).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<ReconcilerErr, QueueErr> {
    /// The object to reconcile is not in the controller's store. In most cases, the object is an owner that is being
    /// deleted together with the objects that it owns.
    ObjectNotFound(Box<ObjectRef<DynamicObject>>),
    /// The reconciler returned an error, which is the first value.
    ReconcilerFailed(ReconcilerErr, Box<ObjectRef<DynamicObject>>),
    /// The reconciler or the error policy panicked. Contains the message of the panic. The controller retries the
    /// object with backoff.
    ReconcilerPanicked(String, Box<ObjectRef<DynamicObject>>),
    /// The run of the reconciler exceeded the time limit, which the error contains. The controller retries the object
    /// with backoff.
    ReconcilerTimedOut(Duration, Box<ObjectRef<DynamicObject>>),
    /// A watch failed. Contains its error. The controller restarts the watch with backoff.
    QueueError(QueueErr),
    /// The controller cannot continue, and has ended. Contains the reason.
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
            // This error's message already contains the message of the inner error. The source is therefore the source
            // of the inner error.
            Self::ReconcilerFailed(error, _) => error.source(),
            Self::QueueError(error) => error.source(),
            Self::ObjectNotFound(_)
            | Self::ReconcilerPanicked(..)
            | Self::ReconcilerTimedOut(..)
            | Self::RunnerError(_) => None,
        }
    }
}

/// The reason why a controller, or a [`Manager`](crate::Manager), cannot continue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The watches with these names did not list their objects, or the objects of a gained shard, within the [time
    /// limit](super::Config::cache_sync_timeout). The API server cannot be reached, does not serve the kind, or does
    /// not permit this process to list the kind. A name is, for example, `ConfigMap.v1 (owned)`.
    #[error(
        "no first list within {timeout:?} of {}; check the connection to the API server, the kind, and the \
         permission to list it",
        .0.join(", "), timeout = .1
    )]
    CacheSync(Vec<String>, Duration),
    /// Another controller with the same [name](crate::Controller::name) runs in this process. Contains the name.
    #[error(
        "a controller named {0:?} already runs in this process; give one of them another name with \
         `Controller::name`"
    )]
    DuplicateName(String),
    /// The [configuration](super::Config) or the use of a [shard group](crate::Controller::shard_group) is invalid. The
    /// text names the setting, and says how to correct it.
    ///
    /// For example, two settings cannot be combined, or the user's function that assigns objects to shards has failed.
    #[error("{0}")]
    Config(String),
    /// The watch with this name failed, and [`trigger_backoff`](crate::Controller::trigger_backoff) returned `None`.
    /// Runs in flight have completed. The name has the same form as in [`CacheSync`](Self::CacheSync).
    #[error("the watch of {0} failed, and its backoff allows no restart")]
    WatchEnded(String),
    /// The shutdown dropped runs at an `await`, because it exceeded its [time limit](super::Config::shutdown_timeout),
    /// or because a second signal arrived. The error contains the sorted keys of the objects in flight. The API server
    /// may still execute requests of these runs.
    #[error("the shutdown interrupted the reconciliation of {}", join_keys(.0))]
    CutOff(Vec<ObjectKey>),
    /// The process cannot join its [shard group](crate::Controller::shard_group), or is no longer a member of the
    /// group.
    ///
    /// The first value is the reason, which the message contains. The second value is the sorted keys of the objects in
    /// flight. Their runs were dropped at an `await`, as with [`CutOff`](Self::CutOff). A manager's error contains no
    /// keys.
    #[error("{interrupted}{0}", interrupted = describe_interrupted(.1))]
    Membership(MembershipError, Vec<ObjectKey>),
    /// This process is no longer the leader, and the controller runs only [while the process
    /// leads](crate::Controller::leader_election).
    ///
    /// The values are the reason and the keys of the objects in flight, as in [`Membership`](Self::Membership).
    #[error("{interrupted}{0}", interrupted = describe_interrupted(.1))]
    LeadershipLost(LeadershipLost, Vec<ObjectKey>),
}

impl RunnerError {
    pub(crate) const fn from_membership(error: MembershipError) -> Self {
        Self::Membership(error, Vec::new())
    }

    /// Creates the error for a setting that cannot be combined with a group. `owner` is the word `controller` or
    /// `manager`.
    pub(crate) fn group_conflict(owner: &str, setting: &str) -> Self {
        Self::Config(format!(
            "a {owner} with a shard group cannot have {setting}: the group replaces it; remove one of \
             the two settings"
        ))
    }

    /// Adds the keys of the runs that were dropped when the process lost its right to run them.
    pub(super) fn with_interrupted(mut self, interrupted: Vec<ObjectKey>) -> Self {
        if let Self::Membership(_, keys) | Self::LeadershipLost(_, keys) = &mut self {
            *keys = interrupted;
        }
        self
    }
}

fn join_keys(keys: &[ObjectKey]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the first part of a message, with the keys of the dropped runs. The keys come first, so that the message
/// ends with the advice of the reason.
fn describe_interrupted(keys: &[ObjectKey]) -> String {
    match keys {
        [] => String::new(),
        _ => format!("the reconciliation of {} was interrupted: ", join_keys(keys)),
    }
}

/// Returns the text with which a task panicked.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("(no message)").to_owned()
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
    fn a_message_about_interrupted_runs_ends_with_the_reason() {
        let keys = vec![ObjectKey::new(Some("ns"), "a"), ObjectKey::new(Some("ns"), "b")];
        let (error, lost) = (MembershipError::Deleted("web".to_owned()), LeadershipLost::Deleted);
        for (interrupted, reason) in [
            (RunnerError::Membership(error.clone(), keys.clone()), error.to_string()),
            (RunnerError::LeadershipLost(lost.clone(), keys), lost.to_string()),
        ] {
            let expected = format!("the reconciliation of ns/a, ns/b was interrupted: {reason}");
            assert_eq!(interrupted.to_string(), expected);
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
            (
                Error::RunnerError(RunnerError::from_membership(MembershipError::Deleted(
                    "a".to_owned(),
                ))),
                false,
            ),
        ] {
            let source = error.source().map(ToString::to_string);
            assert_eq!(source.is_some(), has_source, "{error}");
            assert!(source.is_none_or(|source| !error.to_string().contains(&source)), "{error}");
        }
    }
}

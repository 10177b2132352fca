//! The errors of a controller.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use kube::core::DynamicObject;
use kube::runtime::reflector::ObjectRef;

use crate::ObjectKey;
use crate::leader::LeadershipLost;
use crate::membership::MembershipError;

/// An error in the stream of a [`Controller`](crate::Controller).
///
/// The type has the variants of kube's error, and two others. Only [`RunnerError`](Self::RunnerError) ends the
/// controller.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<ReconcilerErr, QueueErr> {
    /// The object to reconcile is not in the store. In most cases, this object is an owner that is being deleted
    /// together with the objects that it owns.
    ObjectNotFound(Box<ObjectRef<DynamicObject>>),
    /// The reconciler failed.
    ReconcilerFailed(ReconcilerErr, Box<ObjectRef<DynamicObject>>),
    /// The reconciler or the error policy panicked with this message. The object is retried with
    /// backoff.
    ReconcilerPanicked(String, Box<ObjectRef<DynamicObject>>),
    /// The reconciler exceeded this time limit. The object is retried with backoff.
    ReconcilerTimedOut(Duration, Box<ObjectRef<DynamicObject>>),
    /// A watch failed. The watch is restarted with backoff.
    QueueError(QueueErr),
    /// The controller could not continue, and has ended.
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
            // The message of this error already contains the message of the cause.
            Self::ReconcilerFailed(error, _) => error.source(),
            Self::QueueError(error) => error.source(),
            Self::ObjectNotFound(_)
            | Self::ReconcilerPanicked(..)
            | Self::ReconcilerTimedOut(..)
            | Self::RunnerError(_) => None,
        }
    }
}

/// The reason why a controller, or a [`Manager`](crate::Manager), could not continue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// These watches, named as in `ConfigMap.v1 (owned)`, did not list their objects, or the objects of a received
    /// shard, within this [time limit](super::Config::cache_sync_timeout). The API server cannot be reached, does not
    /// know the kind, or does not permit a list of this kind.
    #[error(
        "no first list within {timeout:?} of {}; check the connection to the API server, the kind, and the \
         permission to list it",
        .0.join(", "), timeout = .1
    )]
    CacheSync(Vec<String>, Duration),
    /// Another controller of this [name](crate::Controller::name) runs in this process.
    #[error(
        "a controller named {0:?} already runs in this process; give one of them another name with \
         `Controller::name`"
    )]
    DuplicateName(String),
    /// The [configuration](super::Config) or the use of a [shard
    /// group](crate::Controller::shard_group) is invalid. The text contains the setting and the
    /// next step.
    ///
    /// Examples are settings that cannot be combined, and a failure of the function that assigns objects to shards.
    #[error("{0}")]
    Config(String),
    /// A watch failed, and [`trigger_backoff`](crate::Controller::trigger_backoff) returned `None`. Runs in flight have
    /// completed. Contains the name of the watch, in the same form as in [`CacheSync`](Self::CacheSync).
    #[error("the watch of {0} failed, and its backoff allows no restart")]
    WatchEnded(String),
    /// The shutdown dropped runs at an `await`, because it exceeded its
    /// [limit](super::Config::shutdown_timeout), or because a second signal arrived. The API server
    /// may still execute the requests of these runs. Contains the objects in flight, in order.
    #[error("the shutdown interrupted the reconciliation of {}", join_keys(.0))]
    CutOff(Vec<ObjectKey>),
    /// The process cannot join its [shard group](crate::Controller::shard_group), or is no longer a
    /// member.
    ///
    /// Contains the reason, which is part of the message, and the objects in flight, in order. The runs of these
    /// objects were dropped at an `await`, as in [`CutOff`](Self::CutOff). The error of a manager contains no objects.
    #[error("{interrupted}{0}", interrupted = describe_interrupted(.1))]
    Membership(MembershipError, Vec<ObjectKey>),
    /// The process is no longer the leader, and the controller runs only [while it
    /// leads](crate::Controller::leader_election).
    ///
    /// Contains the reason, and the objects in flight, as [`Membership`](Self::Membership) does.
    #[error("{interrupted}{0}", interrupted = describe_interrupted(.1))]
    LeadershipLost(LeadershipLost, Vec<ObjectKey>),
}

impl RunnerError {
    pub(crate) const fn from_membership(error: MembershipError) -> Self {
        Self::Membership(error, Vec::new())
    }

    /// `owner` is a controller or a manager.
    pub(crate) fn group_conflict(owner: &str, setting: &str) -> Self {
        Self::Config(format!(
            "a {owner} with a shard group cannot have {setting}: the group replaces it; remove one of \
             the two settings"
        ))
    }

    /// Names the objects whose runs were dropped when the process lost its right to run them.
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

/// Returns the beginning of a message. The names come first, because the advice at the end of a reason must stay at the
/// end of the message.
fn describe_interrupted(keys: &[ObjectKey]) -> String {
    match keys {
        [] => String::new(),
        _ => format!("the reconciliation of {} was interrupted: ", join_keys(keys)),
    }
}

/// Returns the message of a panic.
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

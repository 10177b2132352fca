//! The errors of a controller.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use kube::core::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use requeue::BuildError;

use crate::ObjectKey;
use crate::leader::LeadershipLost;
use crate::membership::MembershipError;

/// An error in the stream of a [`Controller`](crate::Controller).
///
/// The variants are kube's, and two more. Only [`RunnerError`](Self::RunnerError) ends the
/// controller.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<ReconcilerErr, QueueErr> {
    /// The object to reconcile is not in the store. In most cases it is the owner of an object that
    /// is being deleted with it.
    ObjectNotFound(Box<ObjectRef<DynamicObject>>),
    /// The reconciler failed.
    ReconcilerFailed(ReconcilerErr, Box<ObjectRef<DynamicObject>>),
    /// The reconciler or the error policy panicked with this message. The object is retried with
    /// backoff.
    ReconcilerPanicked(String, Box<ObjectRef<DynamicObject>>),
    /// The reconciler exceeded this time limit. The object is retried with backoff.
    ReconcilerTimedOut(Duration, Box<ObjectRef<DynamicObject>>),
    /// A watch failed. It is restarted with backoff.
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
            // The message of the error itself is already part of ours.
            Self::ReconcilerFailed(error, _) => error.source(),
            Self::QueueError(error) => error.source(),
            Self::RunnerError(error) => error.source(),
            Self::ObjectNotFound(_)
            | Self::ReconcilerPanicked(..)
            | Self::ReconcilerTimedOut(..) => None,
        }
    }
}

/// The reason why a controller could not continue.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunnerError {
    /// These watches did not list their objects, or those of a gained shard, within the [time
    /// limit](super::Config::cache_sync_timeout). The API server cannot be reached, does not know
    /// the kind, or does not permit listing it.
    CacheSync {
        /// The watches, as in `ConfigMap.v1 (owned)`.
        watches: Vec<String>,
        /// The time limit.
        timeout: Duration,
    },
    /// Another controller of this [name](crate::Controller::name) runs in this process.
    DuplicateName(String),
    /// The [configuration](super::Config) is invalid.
    Config(BuildError),
    /// This watch, named as in [`CacheSync`](Self::CacheSync), failed, and
    /// [`trigger_backoff`](crate::Controller::trigger_backoff) returned `None`. Runs in flight have
    /// completed.
    WatchEnded(String),
    /// The shutdown dropped runs at an `await`: it exceeded its
    /// [limit](super::Config::shutdown_timeout), or a second signal arrived. The API server may
    /// still execute the requests of these runs.
    CutOff {
        /// The objects in flight, in order.
        keys: Vec<ObjectKey>,
    },
    /// The function that assigns objects to shards panicked, or returned a number that is out of range.
    ShardFunction {
        /// The object.
        key: ObjectKey,
        /// The message of the panic, or the number.
        cause: String,
    },
    /// The keys of the controller have one group each: their namespace, for
    /// [fair namespaces](super::Config::fair_namespaces) and a
    /// [limit](super::Config::namespace_limit), or their shard.
    ShardsWithNamespaces,
    /// The controller cannot join its [shard group](crate::Controller::shard_group), or is no longer a member.
    Shards {
        /// The reason. The message of this error contains it.
        error: MembershipError,
        /// The objects in flight, in order. Their runs were dropped at an `await`, as in
        /// [`CutOff`](Self::CutOff).
        keys: Vec<ObjectKey>,
    },
    /// This setting cannot be combined with a [shard group](crate::Controller::shard_group).
    ShardsConflict {
        /// The setting.
        setting: &'static str,
    },
    /// A controller of a stream or of a shared watch has no client for its [shard
    /// group](crate::Controller::shard_group).
    ShardsWithoutClient,
    /// The process is no longer the leader, and the controller runs only [while it
    /// leads](crate::Controller::leader_election).
    LeadershipLost {
        /// The reason.
        lost: LeadershipLost,
        /// The objects in flight, in order. Their runs were dropped at an `await`, as in
        /// [`CutOff`](Self::CutOff).
        keys: Vec<ObjectKey>,
    },
}

impl fmt::Display for RunnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheSync { watches, timeout } => {
                write!(
                    f,
                    "no first list within {timeout:?} of {}; check the connection to the API server, \
                     the kind, and the permission to list it",
                    watches.join(", ")
                )
            }
            Self::DuplicateName(name) => write!(
                f,
                "a controller named {name:?} already runs in this process; give one of them \
                 another name with `Controller::name`"
            ),
            Self::Config(error) => error.fmt(f),
            Self::WatchEnded(watch) => {
                write!(f, "the watch of {watch} failed, and its backoff allows no restart")
            }
            Self::CutOff { keys } => {
                write!(f, "the shutdown interrupted the reconciliation of {}", list(keys))
            }
            Self::ShardFunction { key, cause } => write!(
                f,
                "the function that assigns objects to shards failed for {key}: {cause}; it must \
                 return the number of a shard for every object"
            ),
            Self::ShardsWithNamespaces => f.write_str(
                "a controller whose shards change cannot have fair namespaces or a limit of a \
                 namespace; remove one of the two settings",
            ),
            Self::Shards { error, keys } if keys.is_empty() => error.fmt(f),
            Self::Shards { error, keys } => {
                write!(f, "the reconciliation of {} was interrupted: {error}", list(keys))
            }
            Self::ShardsConflict { setting } => write!(
                f,
                "a controller with a shard group cannot have {setting}: the group replaces it; \
                 remove one of the two settings"
            ),
            Self::ShardsWithoutClient => f.write_str(
                "the shard group has no client, and a controller of a stream or of a shared watch \
                 has none; set one with `ShardGroup::with_client`",
            ),
            Self::LeadershipLost { lost, keys } if keys.is_empty() => lost.fmt(f),
            Self::LeadershipLost { lost, keys } => {
                write!(f, "the reconciliation of {} was interrupted: {lost}", list(keys))
            }
        }
    }
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("(no message)").to_owned()
}

fn list(keys: &[ObjectKey]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl StdError for RunnerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            // The message contains that of the error.
            Self::Shards { error, .. } => error.source(),
            _ => None,
        }
    }
}

impl RunnerError {
    pub(super) const fn shards(error: MembershipError) -> Self {
        Self::Shards { error, keys: Vec::new() }
    }
}

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

    /// Advice at the end of a reason must stay the end of the message.
    #[test]
    fn a_message_about_interrupted_runs_ends_with_the_reason() {
        let keys = vec![ObjectKey::new(Some("ns"), "a"), ObjectKey::new(Some("ns"), "b")];
        let (error, lost) = (MembershipError::Deleted("web".to_owned()), LeadershipLost::Deleted);
        for (interrupted, reason) in [
            (RunnerError::Shards { error: error.clone(), keys: keys.clone() }, error.to_string()),
            (RunnerError::LeadershipLost { lost: lost.clone(), keys }, lost.to_string()),
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
                Error::RunnerError(RunnerError::shards(MembershipError::Deleted("a".to_owned()))),
                false,
            ),
        ] {
            let source = error.source().map(ToString::to_string);
            assert_eq!(source.is_some(), has_source, "{error}");
            assert!(source.is_none_or(|source| !error.to_string().contains(&source)), "{error}");
        }
    }
}

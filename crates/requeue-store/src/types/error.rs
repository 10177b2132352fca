//! The errors of operations, with a type for each kind of operation. No message contains the message of the error's
//! source.

use std::error::Error;
use std::{fmt, iter};

use crate::types::inspect::StateCounts;

/// The message about a store that was never migrated.
pub(crate) const UNPREPARED: &str =
    "the store has no schema yet; run `requeue store init`, or call `Store::migrate`";

/// Returns the error about a schema that a newer program has created or upgraded.
pub(crate) fn newer_schema(found: impl fmt::Display, supported: impl fmt::Display) -> EngineError {
    EngineError::refused(format!(
        "the schema has version {found}, and this program needs {supported}; update requeue: a newer \
         version has created or upgraded the store"
    ))
}

/// Returns the error about an older schema that this program does not upgrade automatically. `next` says how to upgrade
/// it.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn older_schema(
    found: impl fmt::Display,
    supported: impl fmt::Display,
    next: &str,
) -> EngineError {
    EngineError::refused(format!(
        "the schema has version {found}, and this program needs {supported}; to upgrade it, {next}"
    ))
}

type Source = Box<dyn Error + Send + Sync>;

/// The result of a request to an engine.
pub(crate) type Answer<T> = Result<T, EngineError>;

/// The error of an engine.
#[derive(Debug)]
pub(crate) struct EngineError {
    pub(crate) kind: Kind,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The request did not reach the store, and nothing was changed. A retry may succeed.
    Absent,
    /// The store's answer was lost, so the change may have been made. A retry may succeed.
    Unsure,
    /// The store has answered that it cannot make the change now, and nothing was changed. A retry may succeed.
    Unable,
    /// The store has made the change, but has not confirmed that the change is as durable as requested. A retry may
    /// succeed.
    Unconfirmed,
    /// Nothing was changed, because another transaction has locked a key. It is not known how long the transaction will
    /// hold the lock.
    Locked,
    /// The store has refused the request, and nothing was changed. A retry would fail again.
    Refused,
    /// A part of the change was made, and the store has refused the other part. A retry would fail again.
    PartlyRefused,
    /// Nothing was changed, and a retry is useless, because the queue was dropped.
    Dropped,
}

impl Kind {
    /// Returns true if a retry would fail in the same way.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Refused | Self::PartlyRefused | Self::Dropped)
    }

    /// Returns true if the change may have been made.
    pub(crate) const fn may_have_happened(self) -> bool {
        matches!(self, Self::Unsure | Self::Unconfirmed | Self::PartlyRefused)
    }
}

impl EngineError {
    pub(crate) fn absent(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Absent, source: source.into() }
    }

    pub(crate) fn unsure(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Unsure, source: source.into() }
    }

    pub(crate) fn unable(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Unable, source: source.into() }
    }

    pub(crate) fn refused(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Refused, source: source.into() }
    }

    /// Returns the error of a request that was sent but not answered before its deadline.
    pub(crate) fn late() -> Self {
        Self::unsure("the store did not answer in time")
    }

    pub(crate) fn locked() -> Self {
        Self {
            kind: Kind::Locked,
            source: "another transaction has locked the key; try again later".into(),
        }
    }

    pub(crate) fn dropped(queue: &str) -> Self {
        Self { kind: Kind::Dropped, source: format!("queue {queue:?} was dropped").into() }
    }

    /// Returns this error as the error of a change of which a part was already made. If the queue was dropped, that
    /// part no longer exists.
    pub(crate) fn after_a_part(self) -> Self {
        let kind = match self.kind {
            Kind::Absent | Kind::Unable | Kind::Locked => Kind::Unsure,
            Kind::Refused => Kind::PartlyRefused,
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// Returns this error as the error of a change that failed at its first read. Nothing was changed, even if the
    /// answer to the read was lost.
    pub(crate) fn of_a_read(self) -> Self {
        let kind = if self.kind == Kind::Unsure { Kind::Absent } else { self.kind };
        Self { kind, ..self }
    }

    /// Replaces the message about a lock by the message about a locked key. Engines report the name of the lock.
    pub(crate) fn of_a_key(self) -> Self {
        if self.kind == Kind::Locked { Self::locked() } else { self }
    }
}

/// The reason why no connection to a store was made, with its kind. It is the source of an [`EngineError`].
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(crate) struct Reason {
    pub(crate) kind: ErrorKind,
    pub(crate) said: String,
}

impl Reason {
    pub(crate) fn new(kind: ErrorKind, said: impl Into<String>) -> Self {
        Self { kind, said: said.into() }
    }

    /// Combines the reasons of two servers. If their kinds differ, the result has a kind that permits a retry, because
    /// one of the servers may answer later.
    pub(crate) fn and(self, other: Self) -> Self {
        let kind = if self.kind == other.kind { self.kind } else { ErrorKind::Unreachable };
        Self { kind, said: format!("{}; {}", self.said, other.said) }
    }
}

impl From<Reason> for EngineError {
    fn from(reason: Reason) -> Self {
        match reason.kind {
            ErrorKind::Unreachable => Self::absent(reason),
            _ => Self::refused(reason),
        }
    }
}

/// Returns the messages of an error and its sources in one line, with `: ` between them.
///
/// Omits a source if the text before it ends with the same words, because some drivers print the source in the message
/// of their error.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for source in with_sources(error).skip(1) {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text += &format!(": {more}");
        }
    }
    text
}

/// Returns an error and the chain of its sources.
pub(crate) fn with_sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// The reason why an operation on a store failed.
///
/// # Examples
///
/// ```
/// use requeue_store::{ErrorKind, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let error = Store::connect("sqlite:jobs.db?synchronous=often").await.expect_err("no such value");
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert_eq!(error.to_string(), "sqlite: synchronous=often: expected normal or full");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address, a name, a key or an option is invalid, or an option contradicts the queue's settings.
    Invalid,
    /// The store has no queue of that name.
    Missing,
    /// The queue has keys or schedules, and was not dropped.
    HasKeys,
    /// The queue was [dropped](crate::Store::drop_queue) after it was opened. No later call with the same handle
    /// succeeds, even if the queue is created again.
    Dropped,
    /// No server answers at the address, or the server cannot execute the request now. For a file, it cannot be opened
    /// or is locked. The kind also means that another transaction has locked a key.
    Unreachable,
    /// The server rejects the user or the password, or requires a password.
    Authentication,
    /// No encrypted connection was made, because the server's certificate is not trusted, or only one side uses TLS.
    Tls,
    /// The address belongs to another kind of server, or the file belongs to another program.
    WrongServer,
    /// The store refuses the request for another reason. For example, the database does not exist, or has no schema of
    /// this version.
    Refused,
}

impl ErrorKind {
    /// Returns true if the same call may succeed later, without a change by the user.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Unreachable)
    }
}

/// The end of the message about a change whose answer was lost. This text is for changes that a repetition does not
/// make twice.
const HARMLESS: &str = " (the change may have taken effect; repeating it is harmless)";
/// The end of the message about a change whose answer was lost. This text is for a cancel, a revive or a drop: a second
/// one also affects runs, keys or queues that were added after the first one.
const CHECK: &str = " (the change may have taken effect; check before you repeat it)";
const HARMLESS_ADD: &str = " (the add may have taken effect; repeating it is harmless)";

/// The content of each error: a message, its kind, and the error of the engine as the source, if the engine failed.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(crate) struct Failed {
    said: String,
    kind: ErrorKind,
    may_have_happened: bool,
    source: Option<Source>,
}

impl Failed {
    fn new(kind: ErrorKind, said: impl Into<String>) -> Self {
        Self { said: said.into(), kind, may_have_happened: false, source: None }
    }

    pub(crate) fn invalid(said: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, said)
    }

    /// Returns the error about a missing queue. `similar` has the names of existing queues that are similar to `queue`.
    pub(crate) fn missing(queue: &str, similar: &[String]) -> Self {
        let names: Vec<_> = similar.iter().map(|name| format!("{name:?}")).collect();
        let said = match names.is_empty() {
            true => format!("no such queue: {queue:?}"),
            false => format!("no such queue: {queue:?} (did you mean {}?)", names.join(" or ")),
        };
        Self::new(ErrorKind::Missing, said)
    }

    pub(crate) fn has_keys(queue: &str, counts: StateCounts, schedules: u64) -> Self {
        let StateCounts { ready, waiting, in_flight, parked, damaged, .. } = counts;
        let damaged_keys = if damaged > 0 { format!(", {damaged} damaged") } else { String::new() };
        let keys = format!(
            "keys ({ready} ready, {waiting} waiting, {in_flight} in flight, {parked} parked{damaged_keys})"
        );
        let schedules = match schedules {
            0 => None,
            1 => Some("1 schedule".to_owned()),
            _ => Some(format!("{schedules} schedules")),
        };
        let has = match schedules {
            None => keys,
            Some(schedules) if ready + waiting + in_flight + parked + damaged == 0 => schedules,
            Some(schedules) => format!("{keys} and {schedules}"),
        };
        Self::new(ErrorKind::HasKeys, format!("queue {queue:?} was not dropped: it has {has}"))
    }

    /// Creates the error about an operation that failed in the engine. If the change may have been made, the message
    /// ends with `note`.
    fn from_engine(said: impl Into<String>, fault: EngineError, note: &str) -> Self {
        let kind = match fault.source.downcast_ref::<Reason>() {
            _ if fault.kind == Kind::Dropped => ErrorKind::Dropped,
            Some(reason) => reason.kind,
            None if fault.kind.is_final() => ErrorKind::Refused,
            None => ErrorKind::Unreachable,
        };
        let may_have_happened = fault.kind.may_have_happened();
        let said = said.into() + if may_have_happened { note } else { "" };
        let source = Some(fault.source);
        Self { may_have_happened, source, ..Self::new(kind, said) }
    }
}

/// Defines the error type of an operation. `$note` is the end of the message if the change may have been made. Each
/// `$flag` is a flag of [`Failed`] that the type exposes as a method.
macro_rules! error {
    ($(#[$doc:meta])* $name:ident, $note:expr, {$($(#[$flag_doc:meta])* $flag:ident)*}) => {
        $(#[$doc])*
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        pub struct $name(pub(crate) Failed);

        impl $name {
            pub(crate) fn from_engine(said: impl Into<String>, fault: EngineError) -> Self {
                Self(Failed::from_engine(said, fault, $note))
            }

            /// Returns the kind of failure.
            #[must_use]
            pub const fn kind(&self) -> ErrorKind {
                self.0.kind
            }

            $($(#[$flag_doc])*
            #[must_use]
            pub const fn $flag(&self) -> bool {
                self.0.$flag
            })*
        }
    };
}

error! {
    /// The error of [`Store::connect`](crate::Store::connect).
    ///
    /// The [kind](Self::kind) of the error determines how to react. The source of the error is the report of the
    /// engine, the server or the system. An error about an invalid address has no source. Neither the error nor its
    /// source contains a password.
    ConnectError, "", {}
}

impl ConnectError {
    /// Creates the error about an invalid address.
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self(Failed::invalid(said))
    }
}

error! {
    /// The error of [`Store::migrate`](crate::Store::migrate). In most cases, the schema was not created or upgraded.
    /// Repeating the call is harmless.
    MigrateError, HARMLESS, {}
}

error! {
    /// The error of [`OpenOptions::open`](crate::OpenOptions::open).
    ///
    /// The error has no source in two cases. The request was [invalid](ErrorKind::Invalid), or the queue [does not
    /// exist](ErrorKind::Missing) and the options [do not create it](crate::OpenOptions::must_exist). Otherwise, the
    /// source says why the store cannot be reached or has no schema of this version.
    OpenError, "", {}
}

error! {
    /// The error of a read: the store cannot be reached, or the queue was dropped.
    ReadError, "", {}
}

error! {
    /// The error of a cancel, revive, pause or drop: the store cannot be reached, another transaction has locked a key,
    /// or the queue was dropped.
    ///
    /// If the change [may have happened](Self::may_have_happened), look at the key before you repeat a cancel or a
    /// revive, because a second call also affects later adds and failures. A second drop also drops a queue of the same
    /// name that was created after the first drop. Repeating a pause or a resume is harmless.
    ///
    /// If a drop finds [keys](ErrorKind::HasKeys) or [no such queue](ErrorKind::Missing), the error has no source.
    UpdateError, CHECK, {
        /// Returns true if the change, or a part of it, may have been made. Either the answer to a request was lost, or
        /// only a part of the change succeeded.
        may_have_happened
    }
}

error! {
    /// The error of an add. In most cases, the key was not added.
    AddError, HARMLESS_ADD, {
        /// Returns true if the key may have been added, because the request was sent but its answer was lost. Adding
        /// the key again is harmless.
        may_have_happened
    }
}

/// The error of a completion. In most cases, the completion had no effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The lease had expired, so the completion changed nothing. The store counts the run as failed, and the key is
    /// delivered again or parked.
    #[error("the lease has expired: the key no longer belongs to this worker; discard the result")]
    Lost,
    /// Either the completion took effect, or the lease expired before it. The completion was sent in time, but its
    /// answer was lost. At the next attempt, the lease no longer existed.
    #[error("the answer was lost: either the completion took effect, or the lease expired before")]
    Unsure,
    /// The queue was [dropped](crate::Store::force_drop_queue) together with the key. Nothing was changed.
    #[error("the queue was dropped together with the key")]
    Dropped,
    /// The store could not be reached before the lease expired.
    #[error("the store could not be reached before the lease expired")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
}

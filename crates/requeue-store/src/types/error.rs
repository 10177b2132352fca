//! Errors, one type for each kind of operation. None of them prints its source.

use std::error::Error;
use std::fmt;

use crate::types::inspect::StateCounts;

/// The message of an engine about a store that was never migrated.
pub(crate) const UNPREPARED: &str =
    "the store has no schema yet; run `requeue store init`, or call `Store::migrate`";

/// Returns the error of an engine about a schema that a newer program has created or upgraded.
pub(crate) fn newer(found: impl fmt::Display, supported: impl fmt::Display) -> EngineError {
    EngineError::refused(format!(
        "the schema has version {found}, and this program needs {supported}; update requeue: a newer \
         version has created or upgraded the store"
    ))
}

/// Returns the error of an engine about a schema that this program does not upgrade by itself. `next` says
/// how to upgrade it.
#[cfg(feature = "postgres")]
pub(crate) fn older(found: i32, supported: i32, next: &str) -> EngineError {
    EngineError::refused(format!(
        "the schema has version {found}, and this program needs {supported}; to upgrade it, {next}"
    ))
}

type Source = Box<dyn Error + Send + Sync>;

/// The error of an engine.
#[derive(Debug)]
pub(crate) struct EngineError {
    pub(crate) kind: Kind,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The store was not reached, and nothing was changed. A retry may succeed.
    Absent,
    /// The answer was lost: the change may have been made. A retry may succeed.
    Unsure,
    /// The store has answered that it cannot make the change now. Nothing was changed. A retry may succeed.
    Unable,
    /// The store has made the change, but it has not confirmed that the change is as durable as requested. A
    /// retry may succeed.
    Unconfirmed,
    /// Nothing was changed: another transaction has locked a key. It is unknown for how long.
    Locked,
    /// Nothing was changed. A retry gets the same answer.
    Refused,
    /// A part of the change was made. A retry gets the same answer for the rest.
    PartlyRefused,
    /// Nothing was changed, and a retry is useless: the queue was dropped.
    Dropped,
}

impl Kind {
    /// Returns true if a retry would get the same answer.
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

    pub(crate) fn locked() -> Self {
        Self {
            kind: Kind::Locked,
            source: "another transaction has locked the key; try again later".into(),
        }
    }

    pub(crate) fn dropped(queue: &str) -> Self {
        Self { kind: Kind::Dropped, source: format!("queue {queue:?} was dropped").into() }
    }

    /// Returns the error of a change of which an earlier part was made. A dropped queue has lost that part.
    pub(crate) fn after_a_part(self) -> Self {
        let kind = match self.kind {
            Kind::Absent | Kind::Unable | Kind::Locked => Kind::Unsure,
            Kind::Refused => Kind::PartlyRefused,
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// Replaces the message of a lock on a single key. Engines report the name of the lock instead.
    pub(crate) fn of_a_key(self) -> Self {
        if self.kind == Kind::Locked { Self::locked() } else { self }
    }
}

/// The reason why connecting to a store failed, with its kind: the source of an [`EngineError`].
#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) kind: ConnectErrorKind,
    pub(crate) said: String,
}

impl Reason {
    pub(crate) fn new(kind: ConnectErrorKind, said: impl Into<String>) -> Self {
        Self { kind, said: said.into() }
    }

    /// Combines the reasons of two servers. If the reasons differ in kind, one of the servers may answer
    /// later.
    pub(crate) fn and(self, other: Self) -> Self {
        let kind = if self.kind == other.kind { self.kind } else { ConnectErrorKind::Unreachable };
        Self { kind, said: format!("{}; {}", self.said, other.said) }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl Error for Reason {}

impl From<Reason> for EngineError {
    fn from(reason: Reason) -> Self {
        match reason.kind {
            ConnectErrorKind::Unreachable => Self::absent(reason),
            _ => Self::refused(reason),
        }
    }
}

/// Returns an error and its sources in one line, with `: ` between them.
///
/// Leaves out a source if the text before it ends with the same words: the errors of some drivers print
/// their source themselves.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text += &format!(": {more}");
        }
        source = error.source();
    }
    text
}

/// The end of the message about a change whose answer was lost, if a second change has no further effect.
const HARMLESS: &str = " (the change may have taken effect; repeating it is harmless)";
/// The end of the message about a change whose answer was lost. A second cancel, revive or drop also affects
/// runs, keys or queues that were added after the first.
const CHECK: &str = " (the change may have taken effect; check before you repeat it)";

/// Defines an error that consists of a sentence, and of the engine's error as its source. `changes` and the end
/// of its message stand before the error of an operation that changes the store.
macro_rules! error {
    (changes($unsure:expr) $(#[$doc:meta])* $name:ident) => {
        error! { @ $(#[$doc])* $name, $unsure }

        impl $name {
            /// Returns true if the change, or a part of it, may have been made nevertheless: the answer to a
            /// request was lost, or only a part succeeded.
            #[must_use]
            pub fn may_have_happened(&self) -> bool {
                self.kind.may_have_happened()
            }
        }
    };
    ($(#[$doc:meta])* $name:ident) => {
        error! { @ $(#[$doc])* $name, "" }
    };
    (@ $(#[$doc:meta])* $name:ident, $unsure:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            said: String,
            kind: Kind,
            source: Source,
        }

        impl $name {
            pub(crate) fn from_engine(said: impl Into<String>, fault: EngineError) -> Self {
                Self { said: said.into(), kind: fault.kind, source: fault.source }
            }

            /// Returns true if the same call may succeed later: the store cannot be reached or used now, or other
            /// clients have locked a part of it.
            #[must_use]
            pub fn is_temporary(&self) -> bool {
                !self.kind.is_final()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.said)?;
                if self.kind.may_have_happened() { f.write_str($unsure) } else { Ok(()) }
            }
        }

        impl Error for $name {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&*self.source)
            }
        }
    };
}

error! {
    changes(HARMLESS)
    /// The error of [`Store::migrate`](crate::Store::migrate): the schema was not created or updated.
    MigrateError
}
error! {
    /// The error of a query: the store cannot be reached, or the queue was dropped.
    ReadError
}
error! {
    changes(CHECK)
    /// The error of a cancel, revive or pause: the store cannot be reached, another transaction has locked a
    /// key, or the queue was dropped.
    ///
    /// If it [may have happened](Self::may_have_happened), look at the key before you repeat a cancel or a revive:
    /// a second one also affects later adds and failures. Repeating a pause or a resume is harmless.
    UpdateError
}

impl ReadError {
    /// Returns true if the queue was [dropped](crate::Store::drop_queue) after it was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.kind == Kind::Dropped
    }
}

impl UpdateError {
    /// Returns true if the queue was [dropped](crate::Store::drop_queue) after it was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.kind == Kind::Dropped
    }
}

/// The error of [`Store::connect`](crate::Store::connect) and [`Store::check`](crate::Store::check).
///
/// Its [kind](Self::kind) tells you what to do about it. Its source is the report of the engine, the
/// server or the system; the error about an invalid address has none. Neither contains a password.
#[derive(Debug)]
pub struct ConnectError {
    said: String,
    kind: ConnectErrorKind,
    source: Option<Source>,
}

/// The reason why connecting to a store failed.
///
/// # Examples
///
/// ```
/// use requeue_store::{ConnectErrorKind, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let error = Store::connect("sqlite:jobs.db?synchronous=often").await.expect_err("no such value");
/// assert_eq!(error.kind(), ConnectErrorKind::Address);
/// assert_eq!(error.to_string(), "sqlite: synchronous=often: expected normal or full");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The address or one of its options is invalid.
    Address,
    /// No server answers at the address, or the server cannot serve yet; or a file cannot be opened, or
    /// is locked. This is the only kind that may disappear by itself.
    Unreachable,
    /// The server rejects the user or the password, or requires one.
    Authentication,
    /// No encrypted connection was made: the server's certificate is not trusted, or only one side uses
    /// TLS.
    Tls,
    /// The address belongs to another kind of server, or to a file of another program.
    WrongServer,
    /// The server refuses the connection for another reason: there is no such database, for example.
    Refused,
}

impl ConnectError {
    /// Creates the error about an invalid address.
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), kind: ConnectErrorKind::Address, source: None }
    }

    pub(crate) fn from_engine(said: impl Into<String>, fault: EngineError) -> Self {
        let kind = match fault.source.downcast_ref::<Reason>() {
            Some(reason) => reason.kind,
            None if fault.kind == Kind::Refused => ConnectErrorKind::Refused,
            None => ConnectErrorKind::Unreachable,
        };
        Self { said: said.into(), kind, source: Some(fault.source) }
    }

    /// Returns the kind of failure.
    #[must_use]
    pub const fn kind(&self) -> ConnectErrorKind {
        self.kind
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The error of [`OpenOptions::open`](crate::OpenOptions::open).
///
/// The request was [invalid](Self::is_invalid), or there is [no such queue](Self::is_missing) and the options
/// do not create it. Otherwise the error has a source: the store cannot be reached, or has no schema of this
/// version.
#[derive(Debug)]
pub struct OpenError(NotOpened);

#[derive(Debug)]
enum NotOpened {
    Invalid(String),
    /// The name, and the similar names of existing queues.
    Missing(String, Vec<String>),
    Failed(String, EngineError),
}

impl OpenError {
    pub(crate) fn invalid(said: impl Into<String>) -> Self {
        Self(NotOpened::Invalid(said.into()))
    }

    pub(crate) fn missing(queue: &str, similar: Vec<String>) -> Self {
        Self(NotOpened::Missing(queue.to_owned(), similar))
    }

    pub(crate) fn from_engine(said: impl Into<String>, fault: EngineError) -> Self {
        Self(NotOpened::Failed(said.into(), fault))
    }

    /// Returns true if the store has no queue of that name, and the options [do not create
    /// it](crate::OpenOptions::must_exist).
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.0, NotOpened::Missing(..))
    }

    /// Returns true if the name or an option is invalid, or the options contradict the queue's settings.
    #[must_use]
    pub const fn is_invalid(&self) -> bool {
        matches!(self.0, NotOpened::Invalid(_))
    }

    /// Returns true if the same call may succeed later: the store cannot be reached or used now, or other clients
    /// have locked a part of it.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(&self.0, NotOpened::Failed(_, fault) if !fault.kind.is_final())
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NotOpened::Invalid(said) | NotOpened::Failed(said, _) => f.write_str(said),
            NotOpened::Missing(queue, similar) => write_missing(f, queue, similar),
        }
    }
}

fn write_missing(f: &mut fmt::Formatter<'_>, queue: &str, similar: &[String]) -> fmt::Result {
    write!(f, "no such queue: {queue:?}")?;
    if !similar.is_empty() {
        let names: Vec<_> = similar.iter().map(|name| format!("{name:?}")).collect();
        write!(f, " (did you mean {}?)", names.join(" or "))?;
    }
    Ok(())
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            NotOpened::Failed(_, fault) => Some(&*fault.source),
            NotOpened::Invalid(_) | NotOpened::Missing(..) => None,
        }
    }
}

/// The error of [`Store::drop_queue`](crate::Store::drop_queue) and
/// [`Store::force_drop_queue`](crate::Store::force_drop_queue).
///
/// The queue [has keys](Self::counts), or there is [no such queue](Self::is_missing). Otherwise the error
/// has a source: the store failed.
#[derive(Debug)]
pub struct DropError(NotDropped);

#[derive(Debug)]
enum NotDropped {
    HasKeys(String, StateCounts),
    /// The name, and the similar names of existing queues.
    Missing(String, Vec<String>),
    Failed(String, EngineError),
}

impl DropError {
    pub(crate) fn has_keys(queue: &str, counts: StateCounts) -> Self {
        Self(NotDropped::HasKeys(queue.to_owned(), counts))
    }

    pub(crate) fn missing(queue: &str, similar: Vec<String>) -> Self {
        Self(NotDropped::Missing(queue.to_owned(), similar))
    }

    pub(crate) fn from_engine(said: impl Into<String>, fault: EngineError) -> Self {
        Self(NotDropped::Failed(said.into(), fault))
    }

    /// Returns the number of keys in each state, if they are the reason. The queue is unchanged.
    #[must_use]
    pub const fn counts(&self) -> Option<StateCounts> {
        match self.0 {
            NotDropped::HasKeys(_, counts) => Some(counts),
            NotDropped::Missing(..) | NotDropped::Failed(..) => None,
        }
    }

    /// Returns true if the store has no queue of that name.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.0, NotDropped::Missing(..))
    }

    /// Returns true if the queue may have been dropped nevertheless: the request was sent, and its answer was
    /// lost. Check before you repeat the call: a queue of this name may have been created since.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        matches!(&self.0, NotDropped::Failed(_, fault) if fault.kind.may_have_happened())
    }

    /// Returns true if the same call may succeed later without other changes: the store cannot be reached or used
    /// now, or other clients have locked a part of it.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(&self.0, NotDropped::Failed(_, fault) if !fault.kind.is_final())
    }
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NotDropped::HasKeys(queue, counts) => {
                let StateCounts { ready, waiting, processing, parked, damaged, .. } = counts;
                write!(
                    f,
                    "queue {queue:?} was not dropped: it has keys \
                     ({ready} ready, {waiting} waiting, {processing} in flight, {parked} parked"
                )?;
                if *damaged > 0 {
                    write!(f, ", {damaged} damaged")?;
                }
                f.write_str(")")
            }
            NotDropped::Missing(queue, similar) => write_missing(f, queue, similar),
            NotDropped::Failed(said, _) => {
                f.write_str(said)?;
                if self.may_have_happened() { f.write_str(CHECK) } else { Ok(()) }
            }
        }
    }
}

impl Error for DropError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            NotDropped::Failed(_, fault) => Some(&*fault.source),
            NotDropped::HasKeys(..) | NotDropped::Missing(..) => None,
        }
    }
}

/// The error of an add: the key was not added, as far as is known.
#[derive(Debug)]
pub struct AddError {
    said: String,
    unsure: bool,
    is_dropped: bool,
    source: Option<Source>,
}

impl AddError {
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), unsure: false, is_dropped: false, source: None }
    }

    pub(crate) fn from_engine(said: impl Into<String>, unsure: bool, fault: EngineError) -> Self {
        let unsure = unsure || fault.kind.may_have_happened();
        let is_dropped = fault.kind == Kind::Dropped;
        Self { said: said.into(), unsure, is_dropped, source: Some(fault.source) }
    }

    /// Returns true if the queue was [dropped](crate::Store::drop_queue) after it was opened. No later add
    /// by this handle succeeds, even if the queue is created again.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Returns true if the key may have been added nevertheless: the request was sent, and its answer was
    /// lost. Adding the key again is harmless.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        self.unsure
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)?;
        if self.unsure {
            f.write_str(" (the add may have taken effect; repeating it is harmless)")?;
        }
        Ok(())
    }
}

impl Error for AddError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The error of a completion: it had no effect, as far as is known.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompleteError {
    /// The lease had expired. Nothing was changed: the run counts as failed, and its key is delivered
    /// again, or parked.
    Lost,
    /// The lease expired, or the completion took effect. It was sent in time, the answer was lost, and
    /// when it was sent again, the lease was gone.
    Unsure,
    /// The queue was [dropped](crate::Store::force_drop_queue) together with the key. Nothing was changed.
    Dropped,
    /// The store could not be reached before the lease expired.
    Unreachable(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str(
                "the lease has expired: the key no longer belongs to this worker; discard the result",
            ),
            Self::Unsure => f.write_str(
                "the answer was lost: either the completion took effect, or the lease expired before",
            ),
            Self::Dropped => f.write_str("the queue was dropped together with the key"),
            Self::Unreachable(_) => {
                f.write_str("the store could not be reached before the lease expired")
            }
        }
    }
}

impl Error for CompleteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost | Self::Unsure | Self::Dropped => None,
            Self::Unreachable(error) => Some(&**error),
        }
    }
}

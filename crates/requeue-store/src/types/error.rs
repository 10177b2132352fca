//! What can go wrong, an error for each operation.

use std::error::Error;
use std::fmt;

use crate::types::inspect::Counts;

/// What an engine says of a store that nobody has migrated.
pub(crate) const UNPREPARED: &str =
    "there is no queue in it yet; `requeue store init` or `Store::migrate` prepares it";

type Source = Box<dyn Error + Send + Sync>;

/// What an engine says when it can't do something.
#[derive(Debug)]
pub(crate) struct EngineError {
    pub(crate) kind: Kind,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing has happened. It may go well another time.
    Absent,
    /// It may have happened. It may go well another time.
    Unsure,
    /// Nothing has happened: somebody has a key locked, for who knows how long.
    Locked,
    /// Nothing has happened, and nothing will.
    Refused,
    /// Nothing has happened, and nothing will: the queue was dropped.
    Dropped,
}

impl Kind {
    /// Whether another attempt would get the same answer.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Refused | Self::Dropped)
    }
}

impl EngineError {
    pub(crate) fn absent(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Absent, source: source.into() }
    }

    pub(crate) fn unsure(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Unsure, source: source.into() }
    }

    pub(crate) fn refused(source: impl Into<Source>) -> Self {
        Self { kind: Kind::Refused, source: source.into() }
    }

    pub(crate) fn locked() -> Self {
        Self { kind: Kind::Locked, source: "somebody has the key locked".into() }
    }

    pub(crate) fn dropped(queue: &str) -> Self {
        Self { kind: Kind::Dropped, source: format!("queue {queue:?} was dropped").into() }
    }

    /// In plain words, where it was about one key: engines say by what name a lock was not to be had.
    pub(crate) fn of_a_key(self) -> Self {
        if self.kind == Kind::Locked { Self::locked() } else { self }
    }
}

/// The reason why a store can't be connected to, with its kind: the source of a [`EngineError`].
#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) kind: ConnectErrorKind,
    pub(crate) said: String,
}

impl Reason {
    pub(crate) fn new(kind: ConnectErrorKind, said: impl Into<String>) -> Self {
        Self { kind, said: said.into() }
    }

    /// Both, of two servers. If one of them may answer later, so may both.
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

/// An error and its sources in one line, with `: ` between them.
///
/// A source is left out where the text before it ends with the same words: some drivers' errors print
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

/// An error that is a sentence, and as its source the engine's error.
macro_rules! error {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            said: String,
            kind: Kind,
            source: Source,
        }

        impl $name {
            pub(crate) fn of(said: impl Into<String>, fault: EngineError) -> Self {
                Self { said: said.into(), kind: fault.kind, source: fault.source }
            }

            /// Whether the same call may succeed later: the store can't be reached now, or others
            /// have locked a part of it.
            #[must_use]
            pub fn is_temporary(&self) -> bool {
                !self.kind.is_final()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.said)
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
    /// The schema can't be brought up to this version.
    MigrateError
}
error! {
    /// What is in a queue can't be told: the engine can't be reached.
    ReadError
}
error! {
    /// A key can't be cancelled or revived: the engine can't be reached, or somebody has it locked.
    UpdateError
}

impl ReadError {
    /// Whether the queue was [dropped](crate::Store::drop_queue) after it was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.kind == Kind::Dropped
    }
}

impl UpdateError {
    /// Whether the queue was [dropped](crate::Store::drop_queue) after it was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.kind == Kind::Dropped
    }
}

/// A store can't be connected to.
///
/// Its [kind](Self::kind) says what to do about it. Its source, which an address that is not valid
/// doesn't have, is what the engine, the server or the system reported. No password is in either.
#[derive(Debug)]
pub struct ConnectError {
    said: String,
    kind: ConnectErrorKind,
    source: Option<Source>,
}

/// Why a store can't be connected to.
///
/// ```
/// use requeue_store::{ConnectErrorKind, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let error = Store::connect("sqlite:jobs.db?synchronous=often").await.expect_err("no such value");
/// assert_eq!(error.kind(), ConnectErrorKind::Address);
/// assert_eq!(error.to_string(), "sqlite: synchronous=often: it takes normal or full");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The address is not valid, or one of its options is not.
    Address,
    /// Nothing answers at the address, or a server that can't serve yet; a file can't be opened, or is
    /// locked. The only kind that may end by itself.
    Unreachable,
    /// The server rejects the user or the password, or asks for one.
    Authentication,
    /// There is no encrypted connection: the server's certificate is not trusted, or one side speaks
    /// TLS and the other doesn't.
    Tls,
    /// Something else answers: another kind of server, or a file of another program.
    WrongServer,
    /// The server refuses for another reason: there is no such database, for example.
    Refused,
}

impl ConnectError {
    /// The address is not valid.
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), kind: ConnectErrorKind::Address, source: None }
    }

    pub(crate) fn of(said: impl Into<String>, fault: EngineError) -> Self {
        let kind = match fault.source.downcast_ref::<Reason>() {
            Some(reason) => reason.kind,
            None if fault.kind == Kind::Refused => ConnectErrorKind::Refused,
            None => ConnectErrorKind::Unreachable,
        };
        Self { said: said.into(), kind, source: Some(fault.source) }
    }

    /// What kind of failure it is.
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

/// A queue can't be opened.
///
/// Either what was asked for is [not valid](Self::is_invalid), or there is
/// [no such queue](Self::is_missing) and none was to be created; or, with a source, the store has no
/// schema or one of another version, or can't be reached.
#[derive(Debug)]
pub struct OpenError(NotOpened);

#[derive(Debug)]
enum NotOpened {
    Invalid(String),
    /// With the names of queues that are nearly the same.
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

    pub(crate) fn of(said: impl Into<String>, fault: EngineError) -> Self {
        Self(NotOpened::Failed(said.into(), fault))
    }

    /// Whether the store has no queue of that name, and none was to be
    /// [created](crate::OpenOptions::existing).
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.0, NotOpened::Missing(..))
    }

    /// Whether the name is not valid, or the options contradict what the queue is.
    #[must_use]
    pub const fn is_invalid(&self) -> bool {
        matches!(self.0, NotOpened::Invalid(_))
    }

    /// Whether the same call may succeed later: the store can't be reached now, or others have locked
    /// a part of it.
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

/// A queue was not dropped.
///
/// Either it [has keys](Self::counts), or there is [no such queue](Self::is_missing); or, with a source,
/// the store failed.
#[derive(Debug)]
pub struct DropError(NotDropped);

#[derive(Debug)]
enum NotDropped {
    HasKeys(String, Counts),
    /// With the names of queues that are nearly the same.
    Missing(String, Vec<String>),
    Failed(String, EngineError),
}

impl DropError {
    pub(crate) fn has_keys(queue: &str, counts: Counts) -> Self {
        Self(NotDropped::HasKeys(queue.to_owned(), counts))
    }

    pub(crate) fn missing(queue: &str, similar: Vec<String>) -> Self {
        Self(NotDropped::Missing(queue.to_owned(), similar))
    }

    pub(crate) fn of(said: impl Into<String>, fault: EngineError) -> Self {
        Self(NotDropped::Failed(said.into(), fault))
    }

    /// The number of keys in each state, if they are the reason: the queue is as it was.
    #[must_use]
    pub const fn counts(&self) -> Option<Counts> {
        match self.0 {
            NotDropped::HasKeys(_, counts) => Some(counts),
            NotDropped::Missing(..) | NotDropped::Failed(..) => None,
        }
    }

    /// Whether the store has no queue of that name.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.0, NotDropped::Missing(..))
    }

    /// Whether the same call may succeed later without other changes: the store can't be reached now, or
    /// others have locked a part of it.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(&self.0, NotDropped::Failed(_, fault) if !fault.kind.is_final())
    }
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NotDropped::HasKeys(queue, counts) => {
                let Counts { ready, waiting, processing, parked, damaged, .. } = counts;
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
            NotDropped::Failed(said, _) => f.write_str(said),
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

/// A key was not added, as far as is known.
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

    pub(crate) fn of(said: impl Into<String>, unsure: bool, fault: EngineError) -> Self {
        let unsure = unsure || fault.kind == Kind::Unsure;
        let is_dropped = fault.kind == Kind::Dropped;
        Self { said: said.into(), unsure, is_dropped, source: Some(fault.source) }
    }

    /// Whether the queue was [dropped](crate::Store::drop_queue) after it was opened. No later add by this
    /// handle succeeds, also if the queue was created again.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Whether the key may have been added none the less: the engine was asked, and its answer was
    /// lost. To add it again is harmless.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        self.unsure
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)?;
        if self.unsure {
            f.write_str(" (it may have been added all the same)")?;
        }
        Ok(())
    }
}

impl Error for AddError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A hand-out was not ended as asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum FinishError {
    /// Its lease had run out. Nothing was changed: the key has failed, and is or will be with
    /// another worker.
    Lost,
    /// Its lease has run out, or it was ended as asked: the engine was asked in time, its answer was
    /// lost, and when it was asked again, the key was this holder's no more.
    Unsure,
    /// The queue was [dropped](crate::Store::force_drop_queue), and the key with it. Nothing was changed.
    Dropped,
    /// The engine could not be reached while the lease lasted.
    Unreachable(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for FinishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the lease has run out: the key is no longer this holder's"),
            Self::Unsure => {
                f.write_str("the lease has run out, or it ended in time: the answer was lost")
            }
            Self::Dropped => f.write_str("the queue was dropped, and the key with it"),
            Self::Unreachable(_) => {
                f.write_str("the store could not be reached while the lease lasted")
            }
        }
    }
}

impl Error for FinishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost | Self::Unsure | Self::Dropped => None,
            Self::Unreachable(error) => Some(&**error),
        }
    }
}

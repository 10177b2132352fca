//! What can go wrong, an error for each operation.

use std::error::Error;
use std::fmt;

/// What an engine says of a store that nobody has migrated.
pub(crate) const UNPREPARED: &str =
    "there is no queue in it yet; `requeue store init` or `Store::migrate` prepares it";

type Source = Box<dyn Error + Send + Sync>;

/// What an engine says when it can't do something.
#[derive(Debug)]
pub(crate) struct Fault {
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
}

impl Fault {
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

    /// In plain words, where it was about one key: engines say by what name a lock was not to be had.
    pub(crate) fn of_a_key(self) -> Self {
        if self.kind == Kind::Locked { Self::locked() } else { self }
    }
}

/// An error that is a sentence and what the engine said.
macro_rules! error {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            said: String,
            source: Option<Source>,
        }

        impl $name {
            #[allow(dead_code, reason = "not every error has both")]
            pub(crate) fn new(said: impl Into<String>) -> Self {
                Self { said: said.into(), source: None }
            }

            #[allow(dead_code, reason = "not every error has both")]
            pub(crate) fn of(said: impl Into<String>, fault: Fault) -> Self {
                Self { said: said.into(), source: Some(fault.source) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.said)?;
                match &self.source {
                    Some(source) => write!(f, ": {source}"),
                    None => Ok(()),
                }
            }
        }

        impl Error for $name {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                self.source.as_deref().map(|source| source as _)
            }
        }
    };
}

error! {
    /// A store can't be reached, or its address is none: then it has no source.
    ConnectError
}
error! {
    /// The schema can't be brought up to this version.
    MigrateError
}
error! {
    /// A queue can't be opened: there is no schema, or one of another version; there is
    /// [no such queue](Self::is_missing), and none was to be made; or, without a source, its name is
    /// none, or somebody has opened it with other early adds.
    OpenError
}
error! {
    /// What is in a queue can't be told: the engine can't be reached.
    LookError
}
error! {
    /// A key can't be cancelled or revived: the engine can't be reached, or somebody has it locked.
    ChangeError
}

#[derive(Debug)]
struct Missing;

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store has none of that name")
    }
}

impl Error for Missing {}

impl OpenError {
    pub(crate) fn missing(queue: &str) -> Self {
        Self { said: format!("the queue {queue:?}"), source: Some(Box::new(Missing)) }
    }

    /// Whether it is for that alone that there is no such queue, where none was to be made.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.is::<Missing>())
    }
}

/// A key was not added, as far as is known.
#[derive(Debug)]
pub struct AddError {
    said: String,
    unsure: bool,
    source: Option<Source>,
}

impl AddError {
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), unsure: false, source: None }
    }

    pub(crate) fn of(said: impl Into<String>, unsure: bool, fault: Fault) -> Self {
        let unsure = unsure || fault.kind == Kind::Unsure;
        Self { said: said.into(), unsure, source: Some(fault.source) }
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
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
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
            Self::Unreachable(error) => {
                write!(f, "the store could not be reached while the lease lasted: {error}")
            }
        }
    }
}

impl Error for FinishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost | Self::Unsure => None,
            Self::Unreachable(error) => Some(&**error),
        }
    }
}

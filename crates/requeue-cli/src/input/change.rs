//! The change that a record asks for, or the reason why the record is invalid.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use requeue::Merge;

use crate::duration::Debounce;

/// The change that a record asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change<'a> {
    Add(Cow<'a, [u8]>, AddOptions),
    Cancel(Cow<'a, [u8]>),
}

/// The options of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AddOptions {
    /// The least time from reading the key to its run.
    pub(crate) after: Option<Duration>,
    /// Postpones the run with each add, instead of a delay.
    pub(crate) debounce: Option<Debounce>,
    pub(crate) merge: Merge,
    pub(crate) priority: i32,
    /// With `true`, the add revives a parked key in a store, even if the queue keeps parked keys.
    pub(crate) revive: Option<bool>,
}

/// A record that is not a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bad {
    /// The number of the record. The first is 1, and empty records count.
    pub(crate) number: u64,
    pub(crate) why: Why,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Nul,
    Empty,
    KeyTooLong {
        bytes: u64,
        most: usize,
    },
    RecordTooLong {
        bytes: u64,
        most: usize,
    },
    /// The reason why the object is invalid.
    Json(String),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.number, self.why)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nul => f.write_str("not a key: it has a NUL byte, which arguments cannot have"),
            Self::Empty => f.write_str("not a key: it is empty"),
            Self::KeyTooLong { bytes, most } => {
                write!(f, "not a key: it has {bytes} bytes, and the limit is {most}")
            }
            Self::RecordTooLong { bytes, most } => {
                write!(f, "it has {bytes} bytes, and the limit of a record is {most}")
            }
            Self::Json(why) => f.write_str(why),
        }
    }
}

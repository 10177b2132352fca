//! The change that a record describes, or the reason why the record is invalid.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use requeue::{Merge, Reason};

use crate::duration::Debounce;

/// The change that a record describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change<'a> {
    Add(Cow<'a, [u8]>, AddOptions),
    Cancel(Cow<'a, [u8]>),
}

/// The options of an add.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AddOptions {
    /// The minimum time between the moment at which the key is read and its run.
    pub(crate) after: Option<Duration>,
    /// The quiet time and the bound of a debounced add. `None` if adds do not postpone the run.
    pub(crate) debounce: Option<Debounce>,
    pub(crate) merge: Merge,
    pub(crate) priority: i32,
    /// Why the key is added. Stores do not record this reason.
    pub(crate) reason: Option<Reason>,
    /// If true, the add makes a parked key in a store ready again, even if the queue is set to keep such keys parked.
    pub(crate) revive: Option<bool>,
    /// The group of the key. Used in a store whose adds name the groups.
    pub(crate) group: Option<Arc<str>>,
}

/// A record that is not a valid change.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("record {number}: {why}")]
pub(crate) struct Bad {
    /// The number of the record. The first record has number 1. Empty records are also numbered.
    pub(crate) number: u64,
    pub(crate) why: Why,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Why {
    #[error("not a key: it has a NUL byte, which arguments cannot have")]
    Nul,
    #[error("not a key: it is empty")]
    Empty,
    #[error("not a key: it has {bytes} bytes, and the limit is {most}")]
    KeyTooLong { bytes: u64, most: usize },
    #[error("it has {bytes} bytes, and the limit of a record is {most}")]
    RecordTooLong { bytes: u64, most: usize },
    /// The reason why the JSON object is invalid.
    #[error("{0}")]
    Json(String),
    /// The reason why the queue does not accept the key or its group.
    #[error("{0}")]
    Refused(String),
}

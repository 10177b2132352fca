//! The change that a record asks for, or the reason why the record is invalid.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use requeue::{Merge, Reason};

use crate::duration::Debounce;

/// The change that a record asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change<'a> {
    Add(Cow<'a, [u8]>, AddOptions),
    Cancel(Cow<'a, [u8]>),
}

/// The options of an add.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AddOptions {
    /// The minimum time from the reading of the key to its run.
    pub(crate) after: Option<Duration>,
    /// The quiet time and the bound, if each add postpones the run.
    pub(crate) debounce: Option<Debounce>,
    pub(crate) merge: Merge,
    pub(crate) priority: i32,
    /// Why the key is added. Stores keep no reasons.
    pub(crate) reason: Option<Reason>,
    /// With `true`, the add revives a parked key in a store, even if the queue keeps parked keys.
    pub(crate) revive: Option<bool>,
    /// The group of the key in a store whose adds name it.
    pub(crate) group: Option<Arc<str>>,
}

/// A record that is not a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("record {number}: {why}")]
pub(crate) struct Bad {
    /// The number of the record. The first is 1, and empty records count.
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
    /// The reason why the object is invalid.
    #[error("{0}")]
    Json(String),
    /// The reason why the queue refuses the key or its group.
    #[error("{0}")]
    Refused(String),
}

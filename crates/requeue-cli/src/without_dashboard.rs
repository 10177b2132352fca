//! The types of the dashboard in a program that is built without it.
//!
//! Except for [`Run`], they have no values: the flags that would create one are refused. The compiler removes the
//! code that would use one.

use std::hash::BuildHasher;
use std::time::Duration;

use requeue::Builder;

use crate::exit::Refusal;

/// The settings of a dashboard.
#[derive(Debug)]
pub(crate) enum Serve {}

/// The socket of the dashboard.
pub(crate) enum Listener {}

impl Listener {
    /// Returns `None`: the flags of the dashboard were refused.
    pub(crate) async fn of(_: Option<&Serve>) -> Result<Option<Self>, Refusal> {
        Ok(None)
    }

    pub(crate) const fn metrics(&self) -> &Metrics {
        match *self {}
    }
}

/// The dashboard while it is served.
pub(crate) enum Page {}

impl Page {
    pub(crate) async fn end(self) {
        match self {}
    }
}

/// The metrics of the dashboard.
pub(crate) enum Metrics {}

/// Returns the queue as it is.
pub(crate) fn measured<K: requeue::Key, S: BuildHasher>(
    queue: Builder<K, S>,
    _: Option<&Metrics>,
) -> Builder<K, S> {
    queue
}

/// Returns the queue as it is.
#[cfg(feature = "store")]
pub(crate) fn measured_in_store(
    queue: requeue_store::OpenOptions,
    _: Option<&Metrics>,
) -> requeue_store::OpenOptions {
    queue
}

/// Returns `None`.
pub(crate) const fn history(_: Option<&Metrics>) -> Option<History> {
    None
}

/// The runs that the dashboard shows.
#[derive(Debug)]
pub(crate) enum History {}

impl History {
    pub(crate) const fn succeeded(&self, _: &[u8], _: Run) {
        match *self {}
    }

    pub(crate) const fn failed(&self, _: &[u8], _: Run) {
        match *self {}
    }

    pub(crate) const fn gave_up(&self, _: &[u8], _: Run) {
        match *self {}
    }
}

/// A run.
pub(crate) struct Run;

impl Run {
    pub(crate) const fn new(_: u32) -> Self {
        Self
    }

    pub(crate) const fn error(self, _: &str) -> Self {
        self
    }

    pub(crate) fn output(self, _: String) -> Self {
        self
    }

    pub(crate) const fn took(self, _: Duration) -> Self {
        self
    }
}

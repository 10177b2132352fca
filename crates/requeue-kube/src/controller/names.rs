//! The names of the controllers that run in this process.
//!
//! Each name is in use at most once.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::RunnerError;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn names() -> MutexGuard<'static, BTreeSet<String>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves a name until it is dropped.
#[derive(Debug)]
pub(super) struct Name(String);

impl Name {
    pub(super) fn claim(name: &str) -> Result<Self, RunnerError> {
        let name = name.to_owned();
        let is_free = names().insert(name.clone());
        if is_free { Ok(Self(name)) } else { Err(RunnerError::DuplicateName(name)) }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        names().remove(&self.0);
    }
}

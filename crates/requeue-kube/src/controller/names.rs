//! The names of the controllers that run in this process.
//!
//! Each name is in use at most once.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use requeue_leases::simulation::is_simulated;

use super::error::RunnerError;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Reserves a name until this value is dropped.
#[derive(Debug)]
pub(super) struct Name(Option<String>);

impl Name {
    pub(super) fn claim_name(name: &str) -> Result<Self, RunnerError> {
        let name = name.to_owned();
        // The replicas of a simulation are separate processes.
        if is_simulated() {
            return Ok(Self(None));
        }
        // Names are labels of metrics, so they are unique in the process, not only in a manager.
        let is_free = NAMES.lock().insert(name.clone());
        if is_free { Ok(Self(Some(name))) } else { Err(RunnerError::DuplicateName(name)) }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            NAMES.lock().remove(name);
        }
    }
}

//! The names of the controllers in this process.
//!
//! Two controllers cannot have the same name at the same time.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use requeue_leases::simulation::is_simulated;

use super::error::RunnerError;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A reserved name of a controller. Dropping this value releases the name.
#[derive(Debug)]
pub(super) struct Name(Option<String>);

impl Name {
    pub(super) fn claim_name(name: &str) -> Result<Self, RunnerError> {
        let name = name.to_owned();
        // A simulation runs many replicas in one process. Their controllers have the same names.
        if is_simulated() {
            return Ok(Self(None));
        }
        // The name is a label of metrics of the process. It must therefore be unique in the
        // process, not only in its manager.
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

//! The user who acts on a queue, and the record of the action in the store.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use requeue_store::{ActionRecord, Queue};

use crate::args::store::NoteFlags;
use crate::exit::{complain, error_chain};
use crate::key::shown;
use crate::output::summary::counted;

/// The longest name of a user and of a host, so that a store accepts both together.
const MAX_NAME: usize = 90;

/// The user who acts, and the reason.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) by: String,
    pub(super) note: String,
}

impl NoteFlags {
    /// Returns the user of this process with the note.
    pub(super) fn to_operator(&self) -> Operator {
        let named = |name| env::var(name).ok().map(|user| cleaned(&user));
        let user = ["USER", "LOGNAME"].into_iter().filter_map(named).find(|user| !user.is_empty());
        let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
        let host = rustix::system::uname();
        let host = cleaned(&host.nodename().to_string_lossy());
        let note = self.note.clone().unwrap_or_default();
        Operator { by: format!("{user}@{host}"), note }
    }
}

impl Operator {
    /// Records an action that was done. If that fails, the action stays done.
    pub(super) async fn record(&self, queue: &Queue, action: &str, target: impl Into<String>) {
        let record = ActionRecord::new(action, &*self.by).target(target).note(&*self.note);
        if let Err(error) = queue.record_action(record).await {
            complain(&format!("the action was done but not recorded: {}", error_chain(&error)));
        }
    }

    /// Records an action on the keys that were changed: the only key, or their number.
    pub(super) async fn record_keys(
        &self,
        queue: &Queue,
        action: &str,
        keys: &[OsString],
        changed: &[bool],
    ) {
        let mut done = keys.iter().zip(changed).filter(|(_, changed)| **changed);
        let Some((first, _)) = done.next() else { return };
        let target = match done.count() {
            0 => shown(first.as_bytes()),
            others => counted(others as u64 + 1, "key"),
        };
        self.record(queue, action, target).await;
    }
}

/// Returns the start of a name without control characters.
fn cleaned(name: &str) -> String {
    let mut bytes = 0;
    name.chars()
        .filter(|char| !char.is_control())
        .take_while(|char| {
            bytes += char.len_utf8();
            bytes <= MAX_NAME
        })
        .collect()
}

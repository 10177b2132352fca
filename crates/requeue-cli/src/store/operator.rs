//! The user who acts on a queue, and the record of the action in the store.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use requeue_store::{ActionRecord, Key, Queue};

use crate::args::store::NoteFlags;
use crate::client::Server;
use crate::exit::{Refusal, complain, error_chain};
use crate::key::shown;
use crate::output::summary::counted;

/// The maximum length of the name of a user or of a host, in bytes. A store accepts the combination of two names of
/// this length.
const MAX_NAME: usize = 90;

/// The user who performs an action, and the reason that the user gives.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    by: String,
    note: String,
}

impl NoteFlags {
    /// Returns the user of this process, with the note of the flags.
    pub(super) fn to_operator(&self) -> Operator {
        let named = |name| env::var(name).ok().map(|user| cleaned(&user));
        let user = ["USER", "LOGNAME"].into_iter().filter_map(named).find(|user| !user.is_empty());
        let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
        let host = rustix::system::uname();
        let host = cleaned(&host.nodename().to_string_lossy());
        let note = self.note.clone().unwrap_or_default();
        Operator { by: format!("{user} on {host}"), note }
    }
}

impl Operator {
    /// Sends the user and the note with each change at this server.
    pub(super) fn identify_to(&self, server: Server) -> Server {
        server.acting_for(&self.by, &self.note)
    }

    /// Records an action that has been done. If the record fails, the action is not undone, and the user gets a
    /// warning.
    pub(super) async fn record(&self, queue: &Queue, action: &str, target: impl Into<String>) {
        let record = ActionRecord::new(action, &*self.by).target(target).note(&*self.note);
        if let Err(error) = queue.record_action(record).await {
            complain(&format!("the action was done but not recorded: {}", error_chain(&error)));
        }
    }

    /// Changes one key after another. Then records the action with the changed keys, even if the change of a later key
    /// failed.
    pub(super) async fn change_each(
        &self,
        queue: &Queue,
        action: &str,
        keys: &[OsString],
        change: impl AsyncFn(Key) -> Result<bool, Refusal>,
    ) -> Result<Vec<bool>, Refusal> {
        let (mut changed, mut failed) = (Vec::with_capacity(keys.len()), None);
        for key in keys {
            match change(Key::from(key.as_bytes())).await {
                Ok(is_changed) => changed.push(is_changed),
                Err(refusal) => {
                    failed = Some(refusal);
                    break;
                }
            }
        }
        self.record_keys(queue, action, keys, &changed).await;
        failed.map_or(Ok(changed), Err)
    }

    /// Records an action on the changed keys. For one key, the record contains the key. For several keys, it contains
    /// their number.
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

/// Returns the first part of a name, without control characters.
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use requeue_store::Store;

    use super::*;

    #[tokio::test]
    async fn an_action_that_fails_for_a_later_key_is_recorded_for_the_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("queues.db").display());
        let store = Store::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let queue = store.queue("q").open().await.unwrap();
        let operator = Operator { by: "ann".to_owned(), note: "why".to_owned() };
        let keys = ["a", "unchanged", "b", "bad", "never"].map(OsString::from);
        let change = async |key: Key| match key.as_str() {
            Some("bad") => Err(Refusal::failure("the store is gone".to_owned())),
            key => Ok(key != Some("unchanged")),
        };
        let failed = operator.change_each(&queue, "cancel-run", &keys, change).await;
        assert_eq!(failed.unwrap_err().message, "the store is gone");
        let done = operator.change_each(&queue, "cancel-run", &keys[..2], change).await;
        assert_eq!(done.unwrap(), [true, false]);
        let actions = queue.last_actions(9).await.unwrap();
        let actions: Vec<_> = actions.iter().map(|done| (&*done.target, &*done.note)).collect();
        assert_eq!(actions, [("a", "why"), ("2 keys", "why")]);
    }
}

//! The connection of a process to the servers of its world. It knows whether the process has
//! crashed, and which versions of objects the process has received.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::State;
use crate::invariants::Writer;
use crate::store::Key;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The state of a process. All clients of the process share it.
pub(super) struct Link {
    pub(super) state: Arc<State>,
    pub(super) writer: Writer,
    is_dead: AtomicBool,
    crash: Notify,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The end of a partition. Until this time, no request for a Lease reaches the server.
    partition: Option<Instant>,
    seen: Seen,
}

/// The newest versions that a process has received from the API server.
#[derive(Default)]
struct Seen {
    /// The newest version of the lists and watches of each resource, by group and plural.
    kinds: BTreeMap<(String, String), u64>,
    objects: BTreeMap<Key, u64>,
}

impl Link {
    pub(super) fn new(state: Arc<State>, writer: Writer) -> Self {
        let (is_dead, crash) = (AtomicBool::new(false), Notify::new());
        Self { state, writer, is_dead, crash, inner: Mutex::default() }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Marks the process as crashed, so that all of its connections stop.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.crash.notify_one();
    }

    /// Waits until the process has crashed.
    pub(super) async fn wait_for_crash(&self) {
        while !self.is_dead() {
            self.crash.notified().await;
        }
    }

    /// If the process has crashed, never returns, because no code of the process may
    /// continue.
    pub(super) async fn stop_if_dead(&self) {
        if self.is_dead() {
            pending().await
        }
    }

    pub(super) fn note_seen_kind(&self, group: &str, plural: &str, version: u64) {
        let mut inner = self.inner.lock();
        let seen = inner.seen.kinds.entry((group.to_owned(), plural.to_owned())).or_default();
        *seen = version.max(*seen);
    }

    pub(super) fn note_seen_object(&self, key: Key, version: u64) {
        self.inner.lock().seen.objects.insert(key, version);
    }

    /// Begins a partition: until this time, no request of the process for a Lease reaches the
    /// server.
    pub(super) fn begin_partition(&self, until: Instant) {
        self.inner.lock().partition = Some(until);
    }

    pub(super) fn is_partitioned(&self) -> bool {
        self.inner.lock().partition.is_some_and(|until| until > Instant::now())
    }

    /// Returns the newest version at which the process has received the state of an object,
    /// or `None` if it has received none.
    pub(super) fn seen_version(&self, key: &Key) -> Option<u64> {
        let inner = self.inner.lock();
        let kind = inner.seen.kinds.get(&(key.group.clone(), key.plural.clone())).copied();
        kind.max(inner.seen.objects.get(key).copied())
    }
}

/// Returns a random delay of a message: usually up to 10 ms, and rarely up to 500 ms.
pub(super) fn draw_delay(random: &mut Rng) -> Duration {
    let longest = if random.u8(0..16) == 0 { 500 } else { 10 };
    Duration::from_millis(random.u64(1..=longest))
}

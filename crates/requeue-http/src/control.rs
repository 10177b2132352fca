//! The changes of a queue in memory that clients with the token may ask for.

use std::error::Error;
use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use requeue::{Add, Added, CancelledRun, Key, Merge, Queue};

/// Changes a queue in memory for the actions of a site: [`Builder::control`](crate::Builder::control).
///
/// A [`Queue`] is its own control. Implement it if the program has its own state per key, such as failures that a
/// cancel must forget.
///
/// # Examples
///
/// ```
/// use requeue::{Added, Queue};
/// use requeue_http::{AdminToken, Control, RefusedKey, Site};
/// use std::time::Duration;
///
/// struct OnlyCancel(Queue<String>);
///
/// impl Control<String> for OnlyCancel {
///     fn add(&self, _: String, _: Option<Duration>, _: i32) -> Result<Added, RefusedKey> {
///         Err(RefusedKey::new("keys come from the file system only"))
///     }
///
///     fn cancel(&self, key: &String) -> bool {
///         self.0.cancel(key).any()
///     }
///
///     fn run_now(&self, _: &String, _: i32) -> bool {
///         false
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let queue = Queue::new();
/// let site = Site::builder(queue.clone())
///     .admin(AdminToken::new("a token of 16 characters or more".replace(' ', "-").as_str())?)
///     .control(OnlyCancel(queue))
///     .build();
/// # Ok::<(), requeue_http::TokenError>(())
/// # }).unwrap();
/// ```
pub trait Control<K>: Send + Sync {
    /// Adds a key, which is due after `delay`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the program accepts no such key.
    fn add(&self, key: K, delay: Option<Duration>, priority: i32) -> Result<Added, RefusedKey>;

    /// Cancels the pending run of a key. Returns true if there was one.
    fn cancel(&self, key: &K) -> bool;

    /// Cancels the run in flight of a key. Returns true if it was in flight and not cancelled before.
    ///
    /// The default cancels nothing.
    fn cancel_running(&self, key: &K) -> bool {
        let _ = key;
        false
    }

    /// Makes a waiting key ready. `priority` is that of its pending run. Returns false if it is refused.
    fn run_now(&self, key: &K, priority: i32) -> bool;
}

/// The reason why a program accepts no such key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedKey(String);

impl RefusedKey {
    /// Returns the refusal of a key with this reason, which the client sees.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for RefusedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for RefusedKey {}

impl<K: Key, S: BuildHasher + Send + Sync> Control<K> for Queue<K, S> {
    fn add(&self, key: K, delay: Option<Duration>, priority: i32) -> Result<Added, RefusedKey> {
        Ok(self.add_with(key, delay.map_or(Add::now(), Add::after).priority(priority)))
    }

    fn cancel(&self, key: &K) -> bool {
        Self::cancel(self, key).any()
    }

    fn cancel_running(&self, key: &K) -> bool {
        Self::cancel_running(self, key) == CancelledRun::Cancelled
    }

    /// Forgets the failures of the key, because a backoff would hold the add.
    fn run_now(&self, key: &K, priority: i32) -> bool {
        let add = Add::now().merge(Merge::Exactly).priority(priority);
        self.add_with(key.clone(), add) != Added::Refused
    }
}

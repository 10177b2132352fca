//! The trait `Control`: the changes of a queue in memory that clients can request.

use std::hash::BuildHasher;
use std::time::Duration;

use async_trait::async_trait;
use requeue::{
    Add, Added, CancelledRun, Completion, Item, Key, Merge, Queue, describe_reasons, intern_reason,
};

/// Executes the actions of a site on a queue in memory: see
/// [`Builder::control`](crate::Builder::control).
///
/// By default, the [`Queue`] is its own control. A program can use another control to update its
/// own state of each key together with the queue. An example is a count of failures that a cancel
/// must reset.
#[async_trait]
pub trait Control<K>: Send + Sync {
    /// Adds a key, which becomes due after `delay`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the program refuses the key. The response to the client contains
    /// this reason.
    fn add(&self, key: K, delay: Option<Duration>, priority: i32) -> Result<Added, String>;

    /// Cancels the pending run of a key. Returns true if the key had a pending run.
    fn cancel(&self, key: &K) -> bool;

    /// Cancels the run in flight of a key. Returns true if the key was in flight, and the run had
    /// not been cancelled before.
    ///
    /// The default implementation cancels nothing.
    fn cancel_running(&self, key: &K) -> bool {
        let _ = key;
        false
    }

    /// Makes a waiting key ready. `priority` is the priority of its pending run. Returns false if
    /// the program refuses the change.
    fn run_now(&self, key: &K, priority: i32) -> bool;

    /// Waits for the next ready key, which a client will run. Returns `None` if no more keys will
    /// become ready. The default implementation returns an error.
    ///
    /// # Errors
    ///
    /// Returns the reason why clients cannot claim keys from this program.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no key is lost.
    async fn claim(&self) -> Result<Option<Item<'static, K>>, String>
    where
        K: Key,
    {
        Err("this process runs its keys itself".to_owned())
    }

    /// Returns the number of the attempt that the client will run.
    fn attempt(&self, item: &Item<'static, K>) -> u32
    where
        K: Key,
    {
        item.attempt()
    }

    /// Completes a run that a client has reported as ended.
    async fn end_run(&self, item: Item<'static, K>, end: RunEnd)
    where
        K: Key,
    {
        item.complete(end.completion());
    }

    /// Pauses or resumes the deliveries of the queue. Returns false if the program cannot do this
    /// now. The default implementation returns false.
    fn set_paused(&self, paused: bool) -> bool {
        let _ = paused;
        false
    }
}

/// The result of a run, as a client reports it.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum RunEnd {
    Succeeded,
    Failed(FailedRun),
    /// The client did not run the key, or interrupted the run.
    Released,
    Cancelled,
}

/// A failure that a client reports.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct FailedRun {
    pub error: Option<String>,
    pub exit_status: Option<i32>,
    pub output: Option<String>,
    /// The delay before the next attempt. If it is `None`, the limiter computes the backoff.
    pub after: Option<Duration>,
    pub gives_up: bool,
}

impl RunEnd {
    const fn completion(&self) -> Completion {
        match self {
            Self::Succeeded => Completion::Succeed,
            Self::Failed(FailedRun { gives_up: true, .. }) => Completion::GiveUp,
            Self::Failed(FailedRun { after: Some(delay), .. }) => Completion::RetryAfter(*delay),
            Self::Failed(_) => Completion::Retry,
            Self::Released => Completion::Release,
            Self::Cancelled => Completion::Cancelled,
        }
    }
}

#[async_trait]
impl<K: Key, S: BuildHasher + Send + Sync> Control<K> for Queue<K, S> {
    fn add(&self, key: K, delay: Option<Duration>, priority: i32) -> Result<Added, String> {
        let add = delay.map_or(Add::now(), Add::after).priority(priority);
        Ok(self.add_with(key, add.reason(intern_reason("added by a client"))))
    }

    fn cancel(&self, key: &K) -> bool {
        Self::cancel(self, key).any()
    }

    fn cancel_running(&self, key: &K) -> bool {
        Self::cancel_running(self, key) == CancelledRun::Cancelled
    }

    /// The add forgets the failures of the key. Otherwise, the key would wait for its backoff.
    fn run_now(&self, key: &K, priority: i32) -> bool {
        let add = Add::now().merge(Merge::Exactly).priority(priority);
        let add = add.reason(intern_reason("run now"));
        // The add replaces the pending run, and would lose its reasons. They are therefore stored
        // as the cause of the add.
        let reasons = self.reasons(key);
        let added = if reasons.is_empty() {
            self.add_with(key.clone(), add)
        } else {
            self.add_caused_by(key.clone(), add, describe_reasons(&reasons).to_string())
        };
        added.is_accepted()
    }

    async fn claim(&self) -> Result<Option<Item<'static, K>>, String> {
        Ok(self.get().await.map(Item::into_owned))
    }

    fn set_paused(&self, paused: bool) -> bool {
        if paused {
            self.pause()
        } else {
            self.resume()
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_a_client_are_reasons_and_keep_the_former_reasons() {
        let queue = Queue::new();
        let run = |queue: &Queue<&'static str>| {
            let item = queue.try_get().unwrap();
            let reasons = describe_reasons(&item.reasons()).to_string();
            item.retry();
            reasons
        };
        Control::add(&queue, "a", None, 0).unwrap();
        assert_eq!(run(&queue), "added by a client");
        assert!(Control::run_now(&queue, &"a", 0));
        assert_eq!(run(&queue), "run now (added by a client)");
    }
}

//! The methods that revive, run or cancel many keys. One transaction changes up to 1,000 keys.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::api::queue::Queue;
use crate::client::shared::Shared;
use crate::engine::{Answers, Cursor, Walked, by_shard};
use crate::types::error::{Answer, EngineError, Kind, UpdateError};
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// The maximum number of keys that one transaction changes. A batch of this size shares the cost of one commit of about
/// 5 ms. Other transactions wait about 10 ms at most for its locks.
const BATCH: usize = 1000;

/// The change that a bulk operation makes to each of its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Revive,
    RunNow,
    /// Cancels keys in the given state. With `None`, the state has no effect.
    Cancel(Option<State>),
}

impl Change {
    /// Returns the state that a key must have for the change, or `None` if every state is permitted.
    const fn state(self) -> Option<State> {
        match self {
            Self::Revive => Some(State::Parked),
            Self::RunNow => Some(State::Waiting),
            Self::Cancel(only) => only,
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Revive => "revived",
            Self::RunNow => "made ready",
            Self::Cancel(_) => "cancelled",
        }
    }

    /// Changes distinct keys of one shard. The answer for a key is `Some(true)` if the key was changed, and
    /// `Some(false)` if it was not. The answer is `None` if another transaction has locked the key.
    async fn apply_to(self, shared: &Shared, keys: Vec<Key>) -> Answers<bool> {
        let Shared { engine, place, .. } = shared;
        match self {
            Self::Revive => engine.make_ready(place, keys, State::Parked).await,
            Self::RunNow => engine.make_ready(place, keys, State::Waiting).await,
            Self::Cancel(only) => engine.cancel_keys(place, keys, only).await,
        }
    }
}

impl Queue {
    /// Removes the pending run of a key, or the key itself if it is parked or damaged. The call also resets the key's
    /// failures. Returns true if the call removed something. A run in flight continues.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, the queue was dropped, or another transaction of PostgreSQL
    /// keeps the key locked for 5 s. [`UpdateError::may_have_happened`] returns true if the store's answer was lost, so
    /// that the change may have been made.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the key may have been cancelled. Repeating the call also removes an add that was made
    /// after the first call.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add("alice").await?;
    /// assert!(queue.cancel("alice").await?);
    /// assert_eq!(queue.look_up("alice").await?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn cancel(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        self.change_key(Change::Cancel(None), key.into()).await
    }

    /// Makes a parked key ready, and resets its failures. Returns false, and changes nothing, if the key is not parked.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the key may have been revived. If the key is parked again after the first call,
    /// repeating the call revives it again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add("alice").await?;
    /// queue.get().await.expect("the queue is open").give_up("no such address").await?;
    /// assert!(queue.revive("alice").await?);
    /// assert_eq!(queue.get().await.expect("the queue is open").attempt(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn revive(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        self.change_key(Change::Revive, key.into()).await
    }

    /// Makes the parked keys among `keys` ready, and resets their failures. The result has a `bool` for each key, in
    /// the order of `keys`: true if the key was parked.
    ///
    /// Each transaction changes up to 1,000 keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Self::cancel). Some of the keys may have been revived. Repeating the call also
    /// revives a key that was parked again after the first call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the keys may have been revived.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add("alice").await?;
    /// queue.get().await.expect("the queue is open").give_up("no such address").await?;
    /// assert_eq!(queue.revive_keys(["alice", "bob"]).await?, [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)] // Only `requeue-http` and `requeue-cli` change many named keys.
    pub async fn revive_keys<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<bool>, UpdateError> {
        self.change_keys(Change::Revive, keys.into_iter().map(Into::into).collect()).await
    }

    /// Makes the waiting keys among `keys` ready, and resets their failures. A key that backs off is also waiting. The
    /// result has a `bool` for each key, in the order of `keys`: true if the key was waiting.
    ///
    /// The key's priority, its number of adds and their flags do not change. Each transaction changes up to 1,000 keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Self::cancel). Some of the keys may have become ready. Repeating the call also
    /// makes ready the keys that have begun to wait after the first call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the keys may have become ready.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// use std::time::Duration;
    ///
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_after("alice", Duration::from_secs(3600)).await?;
    /// assert_eq!(queue.run_now_keys(["alice", "bob"]).await?, [true, false]);
    /// assert_eq!(queue.get().await.expect("the queue is open").as_str(), Some("alice"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)] // Only `requeue-http` and `requeue-cli` change many named keys.
    pub async fn run_now_keys<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<bool>, UpdateError> {
        self.change_keys(Change::RunNow, keys.into_iter().map(Into::into).collect()).await
    }

    /// Cancels `keys`, as [`cancel`](Self::cancel) does. The result has a `bool` for each key, in the order of `keys`:
    /// true if the call removed something.
    ///
    /// Each transaction changes up to 1,000 keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Self::cancel). Some of the keys may have been cancelled.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the keys may have been cancelled.
    #[doc(hidden)] // Only `requeue-http` and `requeue-cli` change many named keys.
    pub async fn cancel_keys<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<bool>, UpdateError> {
        self.change_keys(Change::Cancel(None), keys.into_iter().map(Into::into).collect()).await
    }

    /// Revives all parked keys, up to 1,000 in each transaction. A key that is parked during the call may stay parked.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add("alice").await?;
    /// queue.get().await.expect("the queue is open").give_up("no such address").await?;
    /// assert_eq!(queue.revive_all().await?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn revive_all(&self) -> Bulk {
        Bulk::new(self, Change::Revive)
    }

    /// Cancels all keys in `state`, up to 1,000 in each transaction. With `None`, the keys can be in any state.
    ///
    /// If a key leaves the state before the call reaches the key, the key is not changed. Runs in flight continue, and
    /// only the next run of their keys is cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::{State, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_all(["alice", "bob"]).await?;
    /// assert_eq!(queue.cancel_all(State::Parked).await?, 0);
    /// assert_eq!(queue.cancel_all(None).await?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_all(&self, state: impl Into<Option<State>>) -> Bulk {
        Bulk::new(self, Change::Cancel(state.into()))
    }

    pub(crate) fn cancel_all_of_group(&self, state: Option<State>, group: &Arc<str>) -> Bulk {
        Bulk { group: Some(Arc::clone(group)), ..Bulk::new(self, Change::Cancel(state)) }
    }

    async fn change_key(&self, change: Change, key: Key) -> Result<bool, UpdateError> {
        let changed = self.try_change(change, vec![key]).await;
        let said = || format!("the key was not {}", change.participle());
        let changed = changed.map_err(|fault| UpdateError::from_engine(said(), fault))?;
        Ok(changed == [true])
    }

    async fn change_keys(&self, change: Change, keys: Vec<Key>) -> Result<Vec<bool>, UpdateError> {
        self.try_change(change, keys).await.map_err(|fault| update_error(change, 0, fault))
    }

    async fn try_change(&self, change: Change, keys: Vec<Key>) -> Answer<Vec<bool>> {
        let mut changed = vec![false; keys.len()];
        let mut order: Vec<usize> = (0..keys.len()).collect();
        // The keys are sorted so that all calls lock keys in the same order.
        order.sort_by_key(|&n| &keys[n]);
        // A key that the caller passes twice is changed once.
        order.dedup_by_key(|n| &keys[*n]);
        for batch in order.chunks(BATCH) {
            let Shared { engine, place, .. } = &*self.shared;
            let batch = batch.iter().map(|&n| (n, keys[n].clone())).collect();
            for part in by_shard(&**engine, place, batch, |(_, key): &(usize, Key)| key) {
                let apply = async |keys, changed: &[bool]| {
                    let answers = change.apply_to(&self.shared, keys).await;
                    answers.map_err(|fault| {
                        let fault = fault.of_a_key();
                        if changed.contains(&true) { fault.after_a_part() } else { fault }
                    })
                };
                let all = part.iter().map(|(_, key)| key.clone()).collect();
                let answers = apply(all, &changed).await?;
                let mut locked = Vec::new();
                for ((n, key), answer) in part.into_iter().zip(answers) {
                    match answer {
                        Some(answer) => changed[n] = answer,
                        None => locked.push((n, key)),
                    }
                }
                for (n, key) in locked {
                    // The key is sent in a separate request, because only a request for a single key waits for the
                    // key's lock.
                    changed[n] = apply(vec![key], &changed).await? == [Some(true)];
                }
            }
        }
        Ok(changed)
    }
}

/// A change of all keys in a state. [`Queue::revive_all`], [`Queue::cancel_all`] and
/// [`GroupHandle::cancel_all`](crate::GroupHandle::cancel_all) return this value.
///
/// No key is changed until the caller awaits the value or its [steps](Self::step). The awaited value returns the number
/// of changed keys.
///
/// A transaction never contains keys of two steps. If the caller stops between two steps, the keys of the completed
/// steps are changed, and the other keys are not.
#[must_use = "nothing is changed until this is awaited"]
pub struct Bulk {
    shared: Arc<Shared>,
    change: Change,
    /// The group of the keys, or `None` for the keys of all groups.
    group: Option<Arc<str>>,
    stage: Stage,
    /// The keys that were skipped, because other transactions had locked them.
    locked: Vec<Key>,
    changed: u64,
}

#[derive(Debug)]
enum Stage {
    /// Walks over the keys. The value is the position at which the walk continues.
    Walk(Option<Cursor>),
    /// Changes the keys that other transactions had locked, one key at a time.
    Locked,
    Over,
}

impl Bulk {
    fn new(queue: &Queue, change: Change) -> Self {
        let shared = Arc::clone(&queue.shared);
        let (group, stage, locked) = (None, Stage::Walk(None), Vec::new());
        Self { shared, change, group, stage, locked, changed: 0 }
    }

    /// Returns the number of keys that the completed steps have changed.
    #[must_use]
    pub const fn changed(&self) -> u64 {
        self.changed
    }

    /// Changes up to 1,000 more keys. Returns false when no keys are left.
    ///
    /// # Errors
    ///
    /// Returns an error if the keys belong to a group, and the queue has no groups or the name is not valid.
    ///
    /// Returns an error if the store cannot be reached. The next call continues with the same keys. In PostgreSQL, the
    /// last step fails if other transactions keep some of the keys locked for 5 s. The locked keys are unchanged.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the keys of this step may have been changed, although [`changed`](Self::changed) does
    /// not include them. The next call continues with the same keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// let mut reviving = queue.revive_all();
    /// while reviving.step().await? {
    ///     println!("{} revived so far", reviving.changed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn step(&mut self) -> Result<bool, UpdateError> {
        if let Some(group) = &self.group {
            self.shared.check_group(group).map_err(UpdateError)?;
        }
        let stepped = match &self.stage {
            Stage::Walk(from) => {
                // The position changes only after a success, so that the next call repeats a failed or dropped step.
                let from = from.clone();
                self.walk_step(from).await
            }
            Stage::Locked => self.take_locked().await,
            Stage::Over => Ok(()),
        };
        stepped.map_err(|fault| update_error(self.change, self.changed, fault))?;
        Ok(!matches!(self.stage, Stage::Over))
    }

    async fn walk_step(&mut self, from: Option<Cursor>) -> Answer<()> {
        let Shared { engine, place, .. } = &*self.shared;
        let state = self.change.state();
        let walked = match &self.group {
            None => engine.walk_keys(place, state, from, BATCH).await?,
            // The keys of a group are not stored together, so the walk reads all keys in the state.
            Some(group) => {
                let after = from.map(|Cursor { at, .. }| Key::from(at));
                let page = engine.read_page(place, state, after.as_ref(), BATCH).await?;
                let next = page.last().filter(|_| page.len() >= BATCH);
                let next = next.map(|last| Cursor { shard: 0, at: last.key.to_vec() });
                let is_of_group = |entry: &Entry| entry.group.as_deref() == Some(group);
                let keys = page.into_iter().filter(is_of_group).map(|entry| entry.key).collect();
                Walked { keys, next }
            }
        };
        for keys in by_shard(&**engine, place, walked.keys, |key| key) {
            let answers = self.change.apply_to(&self.shared, keys.clone()).await?;
            self.changed += count_changed(&answers);
            let locked = keys.into_iter().zip(answers).filter(|(_, answer)| answer.is_none());
            self.locked.extend(locked.map(|(key, _)| key));
        }
        self.stage = match walked.next {
            Some(next) => Stage::Walk(Some(next)),
            None if self.locked.is_empty() => Stage::Over,
            None => {
                // A repeated step may have found the same locked key twice.
                self.locked.sort_unstable();
                self.locked.dedup();
                Stage::Locked
            }
        };
        Ok(())
    }

    /// Changes one key that was locked, and waits for its lock. If the wait fails, the call changes all keys that are
    /// no longer locked, and waits for no other lock.
    async fn take_locked(&mut self) -> Answer<()> {
        let Some(key) = self.locked.last() else {
            self.stage = Stage::Over;
            return Ok(());
        };
        match self.change.apply_to(&self.shared, vec![key.clone()]).await {
            Ok(answers) => {
                self.locked.pop();
                self.changed += count_changed(&answers);
                Ok(())
            }
            // This call has already waited 5 s for one lock, and does not wait again for each of the other locks.
            Err(fault) if fault.kind == Kind::Locked => {
                let Shared { engine, place, .. } = &*self.shared;
                let mut left = 0;
                for keys in by_shard(&**engine, place, self.locked.clone(), |key| key) {
                    let answers = match keys.len() {
                        // A request for a single key would wait for the lock again, so the key is skipped.
                        1 => vec![None],
                        _ => self.change.apply_to(&self.shared, keys).await?,
                    };
                    self.changed += count_changed(&answers);
                    left += answers.iter().filter(|answer| answer.is_none()).count();
                }
                self.stage = Stage::Over;
                let s = if left == 1 { "" } else { "s" };
                let why = format!("other transactions have locked {left} key{s}; try again later");
                Err(EngineError::absent(why))
            }
            Err(fault) => Err(fault),
        }
    }
}

fn count_changed(answers: &[Option<bool>]) -> u64 {
    answers.iter().filter(|&&answer| answer == Some(true)).count() as u64
}

fn update_error(change: Change, changed: u64, fault: EngineError) -> UpdateError {
    let (done, fault) = (change.participle(), fault.of_a_key());
    match changed {
        0 => UpdateError::from_engine(format!("not all keys were {done}"), fault),
        n => UpdateError::from_engine(format!("not all keys were {done}, only {n} of them"), fault),
    }
}

impl IntoFuture for Bulk {
    type Output = Result<u64, UpdateError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            while self.step().await? {}
            Ok(self.changed)
        })
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("change", &self.change)
            .field("stage", &self.stage)
            .field("changed", &self.changed)
            .finish_non_exhaustive()
    }
}

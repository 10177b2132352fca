//! What an engine does for a queue: verbs, each for a batch of keys at once.

pub(crate) mod address;
pub(crate) mod counters;
pub(crate) mod damage;
pub(crate) mod outage;
pub(crate) mod parked;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod peer;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod retry_delay;
pub(crate) mod row;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod time;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::counters::Counters;
use crate::engine::damage::Damaged;
use crate::engine::outage::Outage;
use crate::engine::parked::OnParked;
use crate::types::add::{Add, Added, Cancelled, ParkedAdd, Priority, ReAdd};
use crate::types::error::EngineError;
use crate::types::inspect::{Counts, Entry, ParkedKey, QueueInfo, State};
use crate::types::key::Key;

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, EngineError>>;

/// A queue that has been opened, as its engine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) re_add: ReAdd,
    pub(crate) parked_add: ParkedAdd,
    /// Of this process: stored with each key that it claims.
    pub(crate) worker: Arc<str>,
    /// Which of the queues that had this name, one after the other, where the number does not tell.
    pub(crate) generation: u64,
    /// Of this process.
    pub(crate) meters: Arc<Counters>,
    /// Of this process's connections.
    pub(crate) outage: Arc<Outage>,
    /// Of this process.
    pub(crate) on_parked: OnParked,
}

impl Place {
    pub(crate) fn new(id: i64, name: impl Into<String>, settings: impl Into<Settings>) -> Self {
        let Settings { re_add, parked_add } = settings.into();
        let (meters, outage, on_parked) = Default::default();
        let (worker, generation) = (Arc::from(""), 0);
        let name = name.into();
        Self { id, name, re_add, parked_add, worker, generation, meters, outage, on_parked }
    }

    /// Whether the add revives a parked key.
    pub(crate) fn revives(&self, add: &Add) -> bool {
        add.revives || self.parked_add == ParkedAdd::Revive
    }
}

/// The settings that a queue has in the store, for all processes. Its first opener chooses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) re_add: ReAdd,
    pub(crate) parked_add: ParkedAdd,
}

impl From<ReAdd> for Settings {
    fn from(re_add: ReAdd) -> Self {
        Self { re_add, ..Self::default() }
    }
}

/// An add of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    pub(crate) add: Add,
    /// How many adds it stands for.
    pub(crate) adds: u32,
}

/// What a run was asked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) adds: u32,
    pub(crate) reasons: u32,
    pub(crate) priority: Priority,
}

/// How long a key waits after a failure: the n-th one in a row that counts, n from 0, min(base · 2ⁿ,
/// cap), of which `share` says where between a half and the whole. A failure before the wait of the
/// last one is over doesn't count, and gets the rest of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Backoff {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    /// From 0 to 1.
    pub(crate) share: f64,
}

impl Failing {
    /// For the n-th of several keys that fail at once, counted from 1. They are not to come back
    /// together, so each has a share of its own, by steps of what the drawn one lacks.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        let step = 1.0 - self.backoff.share.clamp(0.0, 1.0);
        self.backoff.share = 1.0 - (step * n as f64).fract();
        self
    }
}

/// A claim of the next keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// How many keys at most.
    pub(crate) max: usize,
    /// Of these, how many go to those that have been ready longest, whatever their priority.
    pub(crate) oldest: usize,
    pub(crate) lease: Duration,
    /// For keys whose holders have let their lease run out.
    pub(crate) expired: Failing,
    /// If there is none: when the caller claims again at the latest, without being woken. Zero for
    /// a claim that nobody waits for, so that the engine need not wake the caller.
    #[allow(dead_code, reason = "not every engine has it")]
    pub(crate) poll: Duration,
}

/// What becomes of keys that fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failing {
    pub(crate) backoff: Backoff,
    /// After so many failures in a row a key is parked.
    pub(crate) max_failures: Option<u32>,
}

/// A key that was handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HandOut {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) asked: Asked,
    pub(crate) failures: u32,
    /// How long it was ready; of a dirty key, from the add that made it so.
    pub(crate) queued: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) items: Vec<HandOut>,
    /// If there were fewer than asked for: how long until the next one may be ready, or a lease run
    /// out, as far as the engine knows without looking for long. Always something while a key is ready
    /// or waits.
    pub(crate) next: Option<Duration>,
    /// Keys that this claim has set aside, because their rows are damaged.
    pub(crate) damaged: Vec<Damaged>,
    /// Keys that this claim has parked: their lease expired, and that was their last failure.
    pub(crate) parked: Vec<ParkedKey>,
}

/// The end of a hand-out.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) how: Finish,
}

/// The way a delivery ends: a [`Completion`](requeue::Completion) with the settings of its queue, or a key
/// that no worker got.
#[derive(Clone, Debug)]
pub(crate) enum Finish {
    /// The failures are forgotten.
    Succeed,
    /// As `Succeed`, and the key is added again after this delay, with this priority.
    RequeueAfter(Duration, Priority),
    /// A failure: the key runs again after the backoff, or is parked at the limit.
    Retry(Failing, Failure),
    /// A failure: the key runs again after this delay, or is parked after this many failures.
    RetryAfter(Duration, Option<u32>, Failure),
    /// A failure: the key is parked.
    GiveUp(Failure),
    /// The delivery is undone, and the key goes behind those that are ready.
    Release(Asked),
    /// No run was started: the key gets back the place that it had when it was claimed, after it had been
    /// ready for this long.
    Unclaim(Asked, Duration),
}

/// A run that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) asked: Asked,
    pub(crate) error: String,
}

impl Finish {
    pub(crate) const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Retry(_, failure) | Self::RetryAfter(_, _, failure) | Self::GiveUp(failure) => {
                Some(failure)
            }
            Self::Succeed | Self::RequeueAfter(..) | Self::Release(_) | Self::Unclaim(..) => None,
        }
    }

    /// Whether this is the failure that parks the key, the `failures`-th in a row, unless the key was
    /// added during the run.
    pub(crate) fn parks(&self, failures: u32) -> bool {
        match self {
            Self::Retry(Failing { max_failures: most, .. }, _) | Self::RetryAfter(_, most, _) => {
                most.is_some_and(|most| failures >= most)
            }
            Self::GiveUp(_) => true,
            Self::Succeed | Self::RequeueAfter(..) | Self::Release(_) | Self::Unclaim(..) => false,
        }
    }
}

/// What became of a lease that was to be renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    /// The key is its holder's for so long again.
    Yes,
    /// It is its holder's no more.
    Lost,
    /// It is as it was: somebody is about to change that.
    #[allow(dead_code, reason = "not every engine has it")]
    Busy,
}

/// The outcome of a drop of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropped {
    /// With what it had.
    Yes(Counts),
    /// It is as it was: it has keys.
    HasKeys(Counts),
    Missing,
}

impl Dropped {
    /// Whether a queue with these keys stays.
    pub(crate) const fn keeps(counts: &Counts, keys_too: bool) -> bool {
        let Counts { ready, waiting, processing, parked, damaged, .. } = *counts;
        !keys_too && ready + waiting + processing + parked + damaged > 0
    }
}

/// The place where a walk over the keys goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    pub(crate) shard: usize,
    /// In the engine's terms.
    pub(crate) at: Vec<u8>,
}

/// A step of a walk over the keys.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) keys: Vec<Key>,
    /// `None` at the end of the walk.
    pub(crate) next: Option<Cursor>,
}

/// All in one batch happens, or nothing of it. No batch of adds has a key twice; those of adds, ends
/// and renewals are of one [shard](Self::shard).
pub(crate) trait Engine: Debug + Send + Sync {
    /// Brings the schema up to this version.
    fn migrate(&self) -> Answer<'_, ()>;

    /// Closes all connections that do not close with the process by themselves. Nothing can be asked
    /// for afterwards.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Opens the queue, and makes it with these settings if there is none.
    fn open<'a>(&'a self, name: &'a str, settings: Settings) -> Answer<'a, Place>;

    /// Opens the queue, if there is one.
    fn find<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Place>>;

    /// Removes the queue with its keys and settings: if it has none, or has `keys_too`. Every verb on a
    /// place that was opened before then fails with [dropped](crate::types::error::Kind::Dropped), also
    /// when there is a queue of this name again, and changes nothing.
    fn drop_queue<'a>(&'a self, name: &'a str, keys_too: bool) -> Answer<'a, Dropped>;

    /// All queues, in no order. The time it takes does not depend on how many keys they have.
    fn queues(&self) -> Answer<'_, Vec<QueueInfo>>;

    /// How many parts the queue has. What goes well in one may fail in another.
    fn shards(&self, _queue: &Place) -> usize {
        1
    }

    /// Which of them has the key.
    fn shard(&self, _queue: &Place, _key: &Key) -> usize {
        0
    }

    /// An answer each.
    fn add<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Added>>;

    /// The same for those keys alone that nobody has [locked](crate::types::error::Kind::Locked); for the
    /// others, `None`.
    fn add_free<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Option<Added>>> {
        Box::pin(async move { Ok(self.add(queue, asks).await?.into_iter().map(Some).collect()) })
    }

    fn claim<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed>;

    /// Of each, whether it was still its holder's.
    fn finish<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>>;

    /// The same for those keys alone that nobody has [locked](crate::types::error::Kind::Locked); for the
    /// others, `None`.
    fn finish_free<'a>(
        &'a self,
        queue: &'a Place,
        ends: Vec<End>,
    ) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move { Ok(self.finish(queue, ends).await?.into_iter().map(Some).collect()) })
    }

    /// Has each hand-out that still is its holder's be that for so long again.
    fn renew<'a>(
        &'a self,
        queue: &'a Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<'a, Vec<Renewed>>;

    /// Cancels the keys that are in this state, or in any. The keys differ and are of one
    /// [shard](Self::shard). An answer each: `None` for a key that was
    /// [locked](crate::types::error::Kind::Locked) and stayed as it is. A single key is waited for instead.
    fn cancel<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answer<'a, Vec<Option<Cancelled>>>;

    /// Makes parked keys ready and resets their failures. The keys, and locked ones, are as for
    /// [`cancel`](Self::cancel). Answers whether each was parked.
    fn revive<'a>(&'a self, queue: &'a Place, keys: Vec<Key>) -> Answer<'a, Vec<Option<bool>>>;

    /// The next step of a walk over the keys in this state, or in any. A key that is in it throughout
    /// the walk is met at least once; one that enters it during the walk may be missed.
    fn walk<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Answer<'a, Walked> {
        Box::pin(async move {
            let after = from.map(|Cursor { at, .. }| Key::from(at));
            let page = self.page(queue, state, after.as_ref(), limit).await?;
            let is_full = page.len() >= limit;
            let keys: Vec<Key> = page.into_iter().map(|entry| entry.key).collect();
            let last = keys.last().filter(|_| is_full);
            let next = last.map(|last| Cursor { shard: 0, at: last.to_vec() });
            Ok(Walked { keys, next })
        })
    }

    fn look_up<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Option<Entry>>;

    /// Up to `limit` keys in this state, or any, by key, from the one after `after`.
    fn page<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        after: Option<&'a Key>,
        limit: usize,
    ) -> Answer<'a, Vec<Entry>>;

    fn counts<'a>(&'a self, queue: &'a Place) -> Answer<'a, Counts>;

    /// Whether no key is ready, waiting or with a worker. Takes no longer where there are many.
    fn is_idle<'a>(&'a self, queue: &'a Place) -> Answer<'a, bool> {
        Box::pin(async move {
            let Counts { ready, waiting, processing, .. } = self.counts(queue).await?;
            Ok(ready + waiting + processing == 0)
        })
    }

    /// Changes when somebody may have made a key ready. It may change for nothing, and may miss one:
    /// who waits polls besides.
    fn wakes(&self, queue: &Place) -> watch::Receiver<u64>;

    /// How many batches at once it is good for.
    fn breadth(&self) -> usize;
}

/// The parts of a batch that are of one shard each.
pub(crate) fn by_shard<T>(
    engine: &dyn Engine,
    queue: &Place,
    batch: Vec<T>,
    key: impl Fn(&T) -> &Key,
) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = (0..engine.shards(queue)).map(|_| Vec::new()).collect();
    for what in batch {
        parts[engine.shard(queue, key(&what))].push(what);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

//! What an engine does for a queue: verbs, each for a batch of keys at once.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::add::{Add, Added, Cancelled, EarlyAdd, Priority};
use crate::error::Fault;
use crate::inspect::{Counts, Entry, State};
use crate::key::Key;
use crate::meters::Meters;
use crate::outage::Outage;

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, Fault>>;

/// A queue that has been opened, as its engine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) early_add: EarlyAdd,
    /// Of this process.
    pub(crate) meters: Arc<Meters>,
    /// Of this process's connections.
    pub(crate) outage: Arc<Outage>,
}

impl Place {
    pub(crate) fn new(id: i64, name: impl Into<String>, early_add: EarlyAdd) -> Self {
        Self { id, name: name.into(), early_add, meters: Arc::default(), outage: Arc::default() }
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
    /// If there is none: when whoever claims asks again at the latest, without being woken.
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
}

/// The end of a hand-out.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) key: Key,
    pub(crate) epoch: i64,
    pub(crate) how: How,
}

#[derive(Clone, Debug)]
pub(crate) enum How {
    /// Failures are forgotten.
    Succeed,
    /// As `Succeed`, and again after this long, with this priority.
    Later(Duration, Priority),
    /// A failure: again after a delay, or parked.
    Fail { delay: Delay, asked: Asked, error: String },
    /// As if the key had not been handed out.
    PutBack(Asked),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Delay {
    /// By the backoff; parked after too many.
    Backoff(Failing),
    /// This long, and the backoff grows no longer; parked after too many.
    Exactly(Duration, Option<u32>),
    /// Parked at once.
    Park,
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

    /// Opens the queue, and makes it if there is none. Its early adds are what its maker said.
    fn open<'a>(&'a self, name: &'a str, early_add: EarlyAdd) -> Answer<'a, Place>;

    /// Opens the queue, if there is one.
    fn find<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Place>>;

    /// The names of queues, up to a thousand; none where they are not known.
    fn names(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

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

    /// The same for those keys alone that nobody has [locked](crate::error::Kind::Locked); for the
    /// others, `None`.
    fn add_free<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Option<Added>>> {
        Box::pin(async move { Ok(self.add(queue, asks).await?.into_iter().map(Some).collect()) })
    }

    fn claim<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed>;

    /// Of each, whether it was still its holder's.
    fn finish<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>>;

    /// The same for those keys alone that nobody has [locked](crate::error::Kind::Locked); for the
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

    fn cancel<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Cancelled>;

    /// Makes a parked key ready, with its failures forgotten. Whether it was parked.
    fn revive<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, bool>;

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

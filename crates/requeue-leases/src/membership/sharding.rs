//! The connection of controllers with their shard group. The module tells the controllers which shards they hold. When
//! the runs of a shard have ended, it hands the shard over.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::error::MembershipError;
use super::handle::{Ended, Membership, spawn_until_dropped};
use super::held::{Change, HeldShard};

/// The time limit for leaving the group, if no run is in flight.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Work that is divided into shards, such as the work of controllers.
pub trait ShardedWork: Send + Sync {
    /// Takes over these shards. Runs of their objects may begin.
    fn gain(&self, gained: &[HeldShard]);

    /// Returns true if no run of the shard is in flight.
    fn is_idle(&self, shard: u32) -> bool;

    /// Starts no more runs in these shards. The future completes when no run in these shards is in flight.
    fn release(&self, shards: &[u32]) -> BoxFuture<'static, ()>;

    /// Works like [`release`](Self::release), and also drops the runs in flight.
    fn cancel(&self, shards: &[u32]) -> BoxFuture<'static, ()>;

    /// Tells the work that this process no longer holds these shards.
    fn forget(&self, shards: &[u32]);
}

/// The membership of running controllers. If this value is dropped, the membership ends without a handover.
pub struct Sharding {
    stop: CancellationToken,
    ended: Ended,
    work: Arc<dyn ShardedWork>,
    count: u32,
}

impl Sharding {
    /// Starts a task that applies the changes of the group to `work`.
    #[must_use]
    pub fn begin(membership: Membership, work: Arc<dyn ShardedWork>) -> Self {
        let count = membership.count();
        let stop = CancellationToken::new();
        let driver = Driver {
            membership,
            work: Arc::clone(&work),
            releasing: BTreeMap::new(),
            releases: FuturesUnordered::new(),
            last_release: 0,
        };
        let ended = spawn_until_dropped(driver.apply_changes(stop.clone()).in_current_span());
        Self { stop, ended, work, count }
    }

    /// Waits until the membership is lost, and returns the reason.
    pub async fn lost(&self) -> MembershipError {
        match self.ended.clone().await {
            Err(error) => error,
            Ok(()) => pending().await,
        }
    }

    /// Begins to hand all shards over. Each shard moves when its runs in flight have completed.
    pub fn begin_to_leave(&self) {
        self.stop.cancel();
    }

    /// Hands all shards over, and leaves the group. Returns false if this takes longer than `limit`.
    pub async fn leave(&self, limit: Duration) -> bool {
        self.begin_to_leave();
        timeout(limit, self.ended.clone()).await.is_ok()
    }

    /// Cancels the runs in flight, hands all shards over, and leaves the group.
    pub async fn cut_off(&self) {
        // The future is dropped, because the driver waits for the end of the runs anyway.
        drop(self.work.cancel(&Vec::from_iter(0..self.count)));
        self.leave_now().await;
    }

    /// Hands all shards over, and leaves the group. All runs must have ended or been cancelled before this call.
    pub async fn leave_now(&self) {
        if !self.leave(LEAVE_TIMEOUT).await {
            tracing::warn!("the shards were not handed over, and the member Lease expires");
        }
    }
}

/// The task that applies the changes of the group to the work.
struct Driver {
    membership: Membership,
    work: Arc<dyn ShardedWork>,
    /// The shards that are being released, each with the number of its release. Only a shard in this map may be
    /// reported as drained. Any other shard may have been gained again in the meantime.
    releasing: BTreeMap<u32, u64>,
    /// The releases in progress. Each future completes when no run in its shards is in flight.
    releases: FuturesUnordered<BoxFuture<'static, (Vec<u32>, u64)>>,
    /// The number of the last release.
    last_release: u64,
}

/// If the driver ends, nothing would tell the work about a later loss. Dropping the driver therefore releases all
/// shards.
impl Drop for Driver {
    fn drop(&mut self) {
        let all = Vec::from_iter(0..self.membership.count());
        // The call alone prevents further runs. The future is dropped, because it only waits for the runs in flight,
        // and the controllers drop these.
        drop(self.work.release(&all));
        self.work.forget(&all);
    }
}

impl Driver {
    async fn apply_changes(mut self, stop: CancellationToken) -> Result<(), MembershipError> {
        let mut stopping = false;
        loop {
            let change = tokio::select! {
                biased;
                // Changes are polled first. If the membership is lost, the work must learn this before a stop begins to
                // hand shards over.
                change = self.membership.next() => change?,
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.membership.stop();
                    continue;
                }
                Some((shards, number)) = self.releases.next() => {
                    self.report_released(shards, number);
                    continue;
                }
            };
            match change {
                Some(Change::Gained(gained)) => self.work.gain(&gained),
                Some(Change::Release(shards)) => self.release_shards(shards),
                Some(Change::Cancel(shards)) => self.cancel_shards(shards),
                Some(Change::Lost(shards)) => self.lose_shards(shards),
                None => return Ok(()),
            }
        }
    }

    fn release_shards(&mut self, shards: Vec<u32>) {
        // All shards without runs are released together, so that one write hands them over. Each shard with runs is
        // released separately, so that it does not wait for the runs of others.
        let (idle, busy): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|&shard| self.work.is_idle(shard));
        let parts = [idle].into_iter().filter(|idle| !idle.is_empty());
        for part in parts.chain(busy.into_iter().map(|shard| vec![shard])) {
            let released = self.work.release(&part);
            self.await_release(part, released);
        }
    }

    fn cancel_shards(&mut self, shards: Vec<u32>) {
        for shard in shards {
            if self.releasing.contains_key(&shard) {
                let cancelled = self.work.cancel(&[shard]);
                self.await_release(vec![shard], cancelled);
            }
        }
    }

    fn lose_shards(&mut self, shards: Vec<u32>) {
        let lost = self.work.cancel(&shards);
        self.work.forget(&shards);
        self.releasing.retain(|shard, _| !shards.contains(shard));
        // The future is polled because it drops the keys of the shards at its end. Its empty list reports no shard as
        // drained.
        self.releases.push(lost.map(|()| (Vec::new(), 0)).boxed());
    }

    fn await_release(&mut self, shards: Vec<u32>, released: BoxFuture<'static, ()>) {
        self.last_release += 1;
        let number = self.last_release;
        self.releasing.extend(shards.iter().map(|&shard| (shard, number)));
        self.releases.push(released.map(move |()| (shards, number)).boxed());
    }

    fn report_released(&mut self, mut shards: Vec<u32>, number: u64) {
        shards.retain(|shard| self.releasing.get(shard) == Some(&number));
        shards.iter().for_each(|shard| _ = self.releasing.remove(shard));
        self.work.forget(&shards);
        // The shards are reported as drained at the end. As soon as this is reported, another member may act on them.
        self.membership.drained(shards);
    }
}

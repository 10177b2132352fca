//! The claims of a queue in memory. The site owns the items of the claimed keys, and
//! expires their leases.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::FutureExt;
use parking_lot::Mutex;
use requeue::{Completion, Item, Key};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::ClaimOutcome;
use crate::control::{Control, FailedRun, RunEnd};
use crate::params::Problem;
use crate::source::{Claim, Ending, HandOver};
use crate::time::unix_time;

/// The claims of a queue in memory by clients.
pub(crate) struct Claims<K: Key> {
    control: Arc<dyn Control<K>>,
    held: Mutex<Held<K>>,
    /// Wakes the task that expires leases, when a claim is added or the claims are
    /// dropped.
    changed: Arc<Notify>,
}

struct Held<K: Key> {
    /// The fencing token of the last claim.
    last: u64,
    /// The claimed items and the ends of their leases, by fencing token.
    items: BTreeMap<u64, Lease<K>>,
}

struct Lease<K: Key> {
    item: Item<'static, K>,
    until: Instant,
}

impl<K: Key> Claims<K> {
    /// Creates an empty set of claims, and starts a task that expires their leases. The
    /// task stops when this value is dropped.
    pub(crate) fn start(control: Arc<dyn Control<K>>) -> Arc<Self> {
        let held = Mutex::new(Held { last: 0, items: BTreeMap::new() });
        let changed = Arc::new(Notify::new());
        let claims = Arc::new(Self { control, held, changed: Arc::clone(&changed) });
        tokio::spawn(keep_expiring(Arc::downgrade(&claims), changed));
        claims
    }

    /// Waits until a key is ready, and claims up to `claim.max` ready keys. If no key
    /// becomes ready within `claim.wait`, returns no keys.
    pub(super) async fn take_keys(self: &Arc<Self>, claim: &Claim) -> Result<Taken<K>, Problem> {
        let mut taken = Taken { of: Arc::clone(self), items: Vec::new(), lease: claim.lease };
        let Ok(first) = timeout(claim.wait, self.control.claim()).await else { return Ok(taken) };
        let first = first.map_err(|why| Problem::new(StatusCode::CONFLICT, why))?;
        taken.push(first.ok_or_else(Problem::stopped)?);
        while taken.items.len() < claim.max
            && let Some(Ok(Some(item))) = self.control.claim().now_or_never()
        {
            taken.push(item);
        }
        Ok(taken)
    }

    /// Renews the lease of a claim.
    pub(super) fn renew(&self, token: u64, key: &K, lease: Duration) -> ClaimOutcome {
        let now = Instant::now();
        let mut held = self.held.lock();
        let lease_of = held.items.get_mut(&token);
        match lease_of.filter(|held| held.until > now && held.item.key() == key) {
            None => ClaimOutcome::Lost,
            Some(held) => {
                held.until = now + lease;
                match held.item.cancel_reason() {
                    Some(_) => ClaimOutcome::Cancelled,
                    None => ClaimOutcome::Renewed,
                }
            }
        }
    }

    /// Completes an item that was removed from the claims. Returns the outcome for the
    /// client.
    pub(super) async fn end(&self, item: Item<'static, K>, ending: Ending) -> ClaimOutcome {
        let (outcome, end) = match ending {
            Ending::Complete => (ClaimOutcome::Completed, RunEnd::Succeeded),
            // If the run was cancelled, the result that the client reports is ignored:
            // the run neither fails nor runs again.
            _ if item.cancel_reason().is_some() => (ClaimOutcome::Cancelled, RunEnd::Cancelled),
            Ending::Release => (ClaimOutcome::Released, RunEnd::Released),
            Ending::Fail(failure) => (ClaimOutcome::Failed, RunEnd::Failed(failure)),
        };
        self.control.end_run(item, end).await;
        outcome
    }

    /// Removes and returns the item of a claim, if its lease has not expired.
    pub(super) fn take_live(&self, token: u64, key: &K) -> Option<Item<'static, K>> {
        let now = Instant::now();
        let mut held = self.held.lock();
        let is_live = |lease: &&Lease<K>| lease.until > now && lease.item.key() == key;
        held.items.get(&token).filter(is_live)?;
        held.items.remove(&token).map(|lease| lease.item)
    }

    /// Removes and returns the items whose leases have expired. Also returns the time at
    /// which the next lease expires.
    fn take_expired(&self) -> (Vec<Item<'static, K>>, Option<Instant>) {
        let now = Instant::now();
        let mut held = self.held.lock();
        let over = held.items.iter().filter(|(_, lease)| lease.until <= now);
        let over: Vec<u64> = over.map(|(token, _)| *token).collect();
        let expired = over.iter().filter_map(|token| held.items.remove(token));
        let expired = expired.map(|lease| lease.item).collect();
        (expired, held.items.values().map(|lease| lease.until).min())
    }
}

impl<K: Key> Drop for Claims<K> {
    /// Releases all claimed keys, because no client can reach this site any longer.
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held.get_mut().items);
        held.into_values().for_each(|lease| lease.item.complete(Completion::Release));
        self.changed.notify_one();
    }
}

/// Completes the runs whose leases have expired as failures, until the claims are
/// dropped.
async fn keep_expiring<K: Key>(claims: Weak<Claims<K>>, changed: Arc<Notify>) {
    loop {
        let Some(of) = claims.upgrade() else { return };
        let (expired, next) = of.take_expired();
        for item in expired {
            let error = Some("the lease expired before the end of the run".to_owned());
            let end = match item.cancel_reason() {
                Some(_) => RunEnd::Cancelled,
                None => RunEnd::Failed(FailedRun { error, ..FailedRun::default() }),
            };
            of.control.end_run(item, end).await;
        }
        // While the task waits, it must not keep the claims alive.
        drop(of);
        tokio::select! {
            () = changed.notified() => {}
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
    }
}

/// Claimed keys whose response has not been written yet. If this value is dropped, the
/// keys return to the queue.
pub(super) struct Taken<K: Key> {
    of: Arc<Claims<K>>,
    items: Vec<(u64, Item<'static, K>)>,
    lease: Duration,
}

impl<K: Key> Taken<K> {
    fn push(&mut self, item: Item<'static, K>) {
        // The tokens begin at the current time in microseconds. A later process therefore
        // uses greater tokens, unless its clock is behind.
        let now = (unix_time() * 1e6) as u64;
        let mut held = self.of.held.lock();
        held.last = now.max(held.last + 1);
        self.items.push((held.last, item));
    }

    /// Returns the fencing token, the item and the number of the attempt of each key.
    pub(super) fn items(&self) -> impl Iterator<Item = (u64, &Item<'static, K>, u32)> {
        let control = &self.of.control;
        self.items.iter().map(|(token, item)| (*token, item, control.attempt(item)))
    }
}

impl<K: Key> HandOver for Taken<K> {
    fn hand_over(mut self: Box<Self>) {
        let until = Instant::now() + self.lease;
        let leases = self.items.drain(..).map(|(token, item)| (token, Lease { item, until }));
        self.of.held.lock().items.extend(leases);
        self.of.changed.notify_one();
    }
}

impl<K: Key> Drop for Taken<K> {
    fn drop(&mut self) {
        for (_, item) in self.items.drain(..) {
            // The client has not received the key, so the delivery is not counted as a
            // start.
            item.uncount_start();
            item.complete(Completion::Release);
        }
    }
}

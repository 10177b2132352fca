//! Claims for the workers of other programs, such as the clients of `requeue-http`.
//!
//! The documentation hides these items, because only `requeue-http` needs them. The state of a claim is only in the
//! store. Any process that has opened the queue can renew and complete the claim, with its key and its fencing token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::api::queue::Queue;
use crate::client::ahead::Unstarted;
use crate::client::claim_loop::{Holder, Waiter};
use crate::client::item::Item;
use crate::client::shared::Shared;
use crate::engine::defaults::MAX_BATCH;
use crate::engine::{Engine, Place, Renewed, by_shard};
use crate::types::error::{Answer, EngineError, Failed, Kind, ReadError, UpdateError};
use crate::types::inspect::Entry;
use crate::types::key::Key;
use crate::types::worker::invalid_worker;

/// Keys that were claimed for a worker of another program. If this value is dropped, the keys return to the store, and
/// no failure is counted.
#[doc(hidden)]
#[must_use = "keys that are not handed over return to the store"]
pub struct Claims {
    items: Unstarted,
    shared: Arc<Shared>,
}

impl Claims {
    /// Returns the claimed keys.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &Item> {
        self.items.items()
    }

    /// Leaves the keys to the other program's worker. The worker must renew and complete them.
    pub fn hand_over(self) {
        self.shared.place.meters.count_deliveries(self.items.items().map(Item::queued));
        self.items.hand_over();
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.items()).finish()
    }
}

/// The key and the fencing token of a claim, which identify it.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub key: Key,
    pub fencing_token: u64,
}

impl Ticket {
    /// Returns the fencing token in the integer type of the engines, or `None` if it is larger than any token of a
    /// delivery.
    fn epoch(&self) -> Option<i64> {
        i64::try_from(self.fencing_token).ok()
    }
}

/// The answer to the renewal of a claim.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewal {
    Renewed,
    /// The lease was renewed. The run was cancelled, so the worker should stop it.
    Cancelled,
    /// The claim no longer exists, or never existed.
    Lost,
    /// Another transaction has locked the key, so the lease was not renewed.
    Locked,
    /// The store has not answered in time, or has answered with this error. The lease may have been renewed.
    Unknown(String),
}

/// The state of the delivery that a [`Ticket`] identifies.
#[doc(hidden)]
#[derive(Debug)]
pub enum Resumed {
    /// The claim exists. Its lease has probably not expired.
    Item(Box<Item>),
    /// The claim no longer exists, or never existed. Contains the entry of the key, if the key is in the queue.
    Over(Option<Box<Entry>>),
    /// This process itself holds the delivery: a worker of this process runs the key, or another call completes the
    /// delivery.
    Held,
}

#[doc(hidden)]
impl Queue {
    /// Waits until a key is ready, and claims up to `max` keys for a worker of another program. The result is empty if
    /// no key becomes ready within `wait`, or the queue is shut down in this process. Even with a `wait` of 0, the call
    /// sends one claim to the store.
    ///
    /// # Errors
    ///
    /// Returns an error if the name of the worker is invalid.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, keys that were claimed for this call become ready again at their places in the order.
    /// No failure is counted.
    pub async fn claim_for(
        &self,
        worker: &str,
        lease: Duration,
        max: usize,
        wait: Duration,
    ) -> Result<Claims, UpdateError> {
        if let Some(why) = invalid_worker(worker) {
            return Err(UpdateError(Failed::invalid(why)));
        }
        let holder = Holder { worker: worker.into(), lease };
        let (reply, passed) = oneshot::channel();
        let until = Instant::now().checked_add(wait);
        let waiter = Waiter { max: max.max(1), holder: Some(holder), until, reply };
        let is_open = !self.shutting_down() && self.wait_for_keys(waiter);
        let mut items =
            if is_open { passed.await.unwrap_or_default() } else { Unstarted::default() };
        // A lease may have expired before this task continued.
        items.remove_lost();
        Ok(Claims { items, shared: Arc::clone(&self.shared) })
    }

    /// Returns true if no key is ready, waiting or in flight in any process.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn is_idle(&self) -> Result<bool, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let is_idle = engine.is_idle(place).await;
        is_idle.map_err(|fault| ReadError::from_engine("the keys were not counted", fault))
    }

    /// Renews the leases of `tickets`, so that each lease expires `lease` from now. Waits up to `patience` for each
    /// shard of the store. The answers are in the order of the tickets. If the queue was dropped, the answer for each
    /// ticket is [`Renewal::Lost`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some leases may have been renewed. Repeating the call is harmless.
    pub async fn renew_claims(
        &self,
        tickets: &[Ticket],
        lease: Duration,
        patience: Duration,
    ) -> Vec<Renewal> {
        let Shared { engine, place, .. } = &*self.shared;
        let mut answers = vec![Renewal::Lost; tickets.len()];
        let held = tickets.iter().enumerate();
        let held = held.filter_map(|(n, ticket)| Some((n, ticket.key.clone(), ticket.epoch()?)));
        // A shard that does not answer must not delay the other shards.
        let mut parts = JoinSet::new();
        for part in by_shard(&**engine, place, held.collect(), |(_, key, _)| key) {
            for part in part.chunks(MAX_BATCH) {
                let renewal =
                    renew_part(Arc::clone(engine), Arc::clone(place), part.to_vec(), lease);
                let numbers: Vec<_> = part.iter().map(|(n, ..)| *n).collect();
                parts.spawn(async move {
                    let renewed = timeout(patience, renewal).await;
                    let renewed = renewed.unwrap_or_else(|_| Err(EngineError::late()));
                    let renewed = renewed.unwrap_or_else(|fault| {
                        let renewal = match fault.kind {
                            Kind::Dropped => Renewal::Lost,
                            _ => Renewal::Unknown(fault.source.to_string()),
                        };
                        vec![renewal; numbers.len()]
                    });
                    numbers.into_iter().zip(renewed).collect::<Vec<_>>()
                });
            }
        }
        for (n, renewal) in parts.join_all().await.into_iter().flatten() {
            answers[n] = renewal;
        }
        answers
    }

    /// Returns an item with which the caller completes a claim. If the item is dropped before its completion, the run
    /// counts as a failure.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn resume_claim(&self, ticket: Ticket) -> Result<Resumed, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let since = Instant::now();
        let found = engine.look_up(place, &ticket.key).await;
        let found =
            found.map_err(|fault| ReadError::from_engine("the claim was not read", fault))?;
        let is_its_own = |entry: &Entry| entry.fencing_token == Some(ticket.fencing_token);
        match (found, ticket.epoch()) {
            (Some(entry), Some(epoch)) if is_its_own(&entry) => {
                // The engine decides whether the lease has expired. This deadline only limits the attempts to complete
                // the delivery.
                let deadline = since + self.shared.options.lease;
                let item = Item::resume(Arc::clone(&self.shared), entry, epoch, deadline);
                Ok(item.map_or(Resumed::Held, |item| Resumed::Item(Box::new(item))))
            }
            (found, _) => Ok(Resumed::Over(found.map(Box::new))),
        }
    }
}

/// Renews leases of one shard.
async fn renew_part(
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
    part: Vec<(usize, Key, i64)>,
    lease: Duration,
) -> Answer<Vec<Renewal>> {
    let held = part.into_iter().map(|(_, key, epoch)| (key, epoch)).collect();
    let renewed = engine.renew_leases(&place, held, lease).await?;
    Ok(renewed.into_iter().map(Renewal::from).collect())
}

impl From<Renewed> for Renewal {
    fn from(renewed: Renewed) -> Self {
        match renewed {
            Renewed::Yes => Self::Renewed,
            Renewed::Cancelled => Self::Cancelled,
            Renewed::Lost => Self::Lost,
            Renewed::Busy => Self::Locked,
        }
    }
}

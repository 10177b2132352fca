//! Sends completions, and retries them until their leases expire.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::batcher::Wish;
use crate::client::leases::Ending;
use crate::engine::outage::Part;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::{End, Engine, Failure, Place, Tried};
use crate::types::error::{CompleteError, EngineError, Kind, chain};
use crate::types::inspect::{ParkedKey, State};
use crate::types::key::Key;

/// The channel to the caller of a completion. The caller receives true if the key was parked.
pub(crate) type Reply = oneshot::Sender<Result<bool, CompleteError>>;

/// A completion that the store has not recorded yet.
#[derive(Debug)]
pub(crate) struct Finishing {
    end: End,
    /// The number of consecutive failures, including this run if it failed.
    failures: u32,
    /// The lease of the key. After its expiry, the completion can have no effect.
    lease: Ending,
    /// True if an earlier attempt may have taken effect.
    unsure: bool,
    reply: Option<Reply>,
}

impl Finishing {
    pub(crate) const fn new(end: End, failures: u32, lease: Ending, reply: Option<Reply>) -> Self {
        Self { end, failures, lease, unsure: false, reply }
    }

    /// Answers the caller of a completion that reached the limit of failures. Engines do not report whether they parked
    /// the key, so this function looks the key up. If the key is parked, it reports the key. A key that was added
    /// during the run, or revived after the completion, is not parked.
    async fn answer_parked(self, engine: Arc<dyn Engine>, place: Arc<Place>) {
        let key = &self.end.key;
        let is_parked = match self.lease.send_deadline() {
            Some(deadline) => match timeout_at(deadline, engine.look_up(&place, key)).await {
                Ok(Ok(found)) => found.is_some_and(|entry| entry.state == State::Parked),
                // The completion has taken effect. Although the lookup failed, the key is most likely parked.
                Ok(Err(_)) | Err(_) => true,
            },
            None => true,
        };
        if is_parked && let Some(Failure { error, .. }) = self.end.how.failure() {
            let (key, error) = (key.clone(), error.clone());
            let parked = ParkedKey { key, failures: self.failures, error, lease_expired: false };
            place.report_parked(&parked);
        }
        self.send_answer(&place, Ok(is_parked));
    }

    /// Sends the answer to the caller, or logs an error if no caller waits for it.
    fn send_answer(self, place: &Place, ended: Result<bool, CompleteError>) {
        let Self { end, lease, reply, .. } = self;
        // The lease is dropped before the answer. When the caller receives the answer, this process must no longer hold
        // the key.
        drop(lease);
        match reply {
            // The caller may have been dropped.
            Some(reply) => _ = reply.send(ended),
            None => {
                if let Err(error) = ended {
                    let (queue, key) = (&place.name, &end.key);
                    let error = chain(&error);
                    tracing::warn!(queue, %key, error, "a completion had no effect");
                }
            }
        }
    }

    /// Answers the caller of a completion that will not be sent again.
    fn send_failure(self, place: &Place, fault: Option<&EngineError>) {
        let error = match fault {
            Some(fault) if fault.kind == Kind::Dropped => CompleteError::Dropped,
            _ if self.unsure => CompleteError::Unsure,
            Some(fault) => CompleteError::Unreachable(fault.source.to_string().into()),
            None => CompleteError::Lost,
        };
        self.send_answer(place, Err(error));
    }
}

impl Wish for Finishing {
    fn key(&self) -> &Key {
        &self.end.key
    }

    /// Sends the completions, retries them until their leases expire, and answers the callers.
    async fn submit_batch(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        mut batch: Vec<Self>,
        mut tried: Tried,
    ) -> Vec<Self> {
        // The caller of a completion sets no timeout. Therefore, the completion is retried until its lease expires.
        let mut delay = RetryDelay::new();
        let mut fault = None;
        // All keys are in one shard.
        let first = batch.first().map(|first| first.end.key.clone());
        let part = || Part::Shard(first.as_ref().map_or(0, |key| engine.shard_of(&place, key)));
        loop {
            // The leases of these completions have expired. The engine may have delivered the keys to other workers,
            // and would refuse the completions.
            for lost in batch.extract_if(.., |finishing| finishing.lease.send_deadline().is_none())
            {
                lost.send_failure(&place, fault.as_ref());
            }
            let deadlines = batch.iter().filter_map(|finishing| finishing.lease.send_deadline());
            let Some(deadline) = deadlines.max() else { return batch };
            let ends = batch.iter().map(|finishing| finishing.end.clone()).collect();
            let finished = engine.send_completions(&place, ends, tried);
            let why = match place.answer_by(deadline, part, finished).await {
                Ok(held) => return answer(&engine, &place, batch, held),
                // The next request skips locked keys, which must not delay the completions of other keys.
                Err(why) if why.kind == Kind::Locked && tried == Tried::No => {
                    tried = Tried::InVain;
                    continue;
                }
                Err(why) => why,
            };
            let is_unsure = why.kind.may_have_happened();
            // If the lease no longer exists at a later attempt, the reason may be that an earlier attempt took effect.
            batch.iter_mut().for_each(|finishing| finishing.unsure |= is_unsure);
            let wait = delay.wait();
            let again = Instant::now() + wait;
            let is_refused = why.kind.is_final();
            // If the lease of a completion expires before the next attempt, the engine would refuse that attempt. The
            // caller receives the cause of the failure immediately.
            let over = |finishing: &mut Self| {
                is_refused
                    || finishing.lease.send_deadline().is_none_or(|deadline| deadline <= again)
            };
            for finishing in batch.extract_if(.., over) {
                finishing.send_failure(&place, Some(&why));
            }
            fault = Some(why);
            if !batch.is_empty() {
                sleep(wait).await;
            }
        }
    }
}

/// Sends the answers to the callers. Returns the completions whose keys are locked.
fn answer(
    engine: &Arc<dyn Engine>,
    place: &Arc<Place>,
    batch: Vec<Finishing>,
    held: Vec<Option<bool>>,
) -> Vec<Finishing> {
    let mut left = Vec::new();
    for (finishing, held) in batch.into_iter().zip(held) {
        match held {
            None => left.push(finishing),
            // The lookup runs in a separate task, so that the next batch does not wait for it.
            Some(true) if finishing.end.how.parks(finishing.failures) => {
                tokio::spawn(finishing.answer_parked(Arc::clone(engine), Arc::clone(place)));
            }
            Some(true) => finishing.send_answer(place, Ok(false)),
            Some(false) => finishing.send_failure(place, None),
        }
    }
    left
}

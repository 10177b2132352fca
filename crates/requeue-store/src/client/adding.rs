//! Adds keys. Retries until the deadline of the add, and reports whether the add may have taken effect.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::client::batcher::Wish;
use crate::client::locked_keys::LAST;
use crate::engine::outage::Part;
use crate::engine::receipts::Attempts;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::row::join_traces;
use crate::engine::{Ask, Engine, Place, Tried};
use crate::types::add::{Added, repeat_answer};
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::key::Key;

/// An add whose caller waits for the answer.
#[derive(Debug)]
pub(crate) struct Adding {
    ask: Ask,
    /// True if an earlier attempt may have added the key.
    unsure: bool,
    deadline: Instant,
    reply: oneshot::Sender<Answer<Added>>,
}

impl Adding {
    pub(crate) fn new(ask: Ask, deadline: Instant, reply: oneshot::Sender<Answer<Added>>) -> Self {
        Self { ask, unsure: false, deadline, reply }
    }

    /// Sends the answer to the caller. The caller may have been dropped.
    fn send_answer(self, answer: Answer<Added>) {
        let answer = answer.map_err(|fault| if self.unsure { fault.after_a_part() } else { fault });
        let _ = self.reply.send(answer);
    }
}

impl Wish for Adding {
    fn key(&self) -> &Key {
        &self.ask.key
    }

    /// Adds the keys, and answers the callers. Equal adds of a key become one request. Different adds of the same key
    /// are sent in successive requests.
    async fn submit_batch(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        mut batch: Vec<Self>,
        tried: Tried,
    ) -> Vec<Self> {
        let mut locked = Vec::new();
        while !batch.is_empty() {
            let mut asks: Vec<Ask> = Vec::with_capacity(batch.len());
            // Each position has the adds that the request at the same position in `asks` combines.
            let mut askers: Vec<Vec<Self>> = Vec::with_capacity(batch.len());
            let mut found: HashMap<Key, usize> = HashMap::with_capacity(batch.len());
            let mut left = Vec::new();
            let mut deadline = None;
            for adding in batch {
                // The request is tried until the latest deadline of its callers. Each caller also has a separate
                // timeout.
                deadline = deadline.max(Some(adding.deadline));
                match found.get(&adding.ask.key) {
                    None => {
                        found.insert(adding.ask.key.clone(), asks.len());
                        asks.push(adding.ask.clone());
                        askers.push(vec![adding]);
                    }
                    Some(&at) if asks[at].add == adding.ask.add => {
                        asks[at].adds = asks[at].adds.saturating_add(1);
                        let later = adding.ask.trace.clone();
                        asks[at].trace = join_traces(asks[at].trace.take(), later);
                        askers[at].push(adding);
                    }
                    Some(_) => left.push(adding),
                }
            }
            // A batch that is not empty has a deadline.
            let Some(deadline) = deadline else { break };
            let added = try_add(&*engine, &place, asks, deadline, tried).await;
            locked.extend(answer(added, askers));
            batch = left;
        }
        // The answer must arrive before the caller's deadline, so that the caller receives the cause.
        let now = Instant::now() + LAST;
        for adding in locked.extract_if(.., |adding: &mut Self| adding.deadline <= now) {
            adding.send_answer(Err(EngineError::locked()));
        }
        // Adds whose callers were dropped need not be tried again.
        locked.retain(|adding| !adding.reply.is_closed());
        locked
    }
}

/// Sends the answers to the callers. Returns the adds whose keys are locked.
fn answer(added: Answer<Free>, askers: Vec<Vec<Adding>>) -> Vec<Adding> {
    let mut left = Vec::new();
    match added {
        Ok(Free { answers, unsure }) => {
            for (added, askers) in answers.into_iter().zip(askers) {
                let Some(mut added) = added else {
                    let askers = askers.into_iter();
                    left.extend(
                        askers.map(|adding| Adding { unsure: adding.unsure || unsure, ..adding }),
                    );
                    continue;
                };
                for adding in askers {
                    adding.send_answer(Ok(added));
                    added = repeat_answer(added);
                }
            }
        }
        Err(fault) => {
            // Each caller receives a copy of the message, because the source of an error cannot be cloned.
            let said = fault.source.to_string();
            for adding in askers.into_iter().flatten() {
                adding.send_answer(Err(EngineError {
                    kind: fault.kind,
                    source: said.clone().into(),
                }));
            }
        }
    }
    left
}

/// The answers to a request. The answer is `None` for an add whose key is locked.
struct Free {
    answers: Vec<Option<Added>>,
    /// True if an earlier attempt may have added the keys.
    unsure: bool,
}

/// Adds keys of one shard, and retries until `deadline`.
async fn try_add(
    engine: &dyn Engine,
    place: &Place,
    asks: Vec<Ask>,
    deadline: Instant,
    mut tried: Tried,
) -> Answer<Free> {
    let mut delay = RetryDelay::new();
    let (mut unsure, mut attempts) = (false, Attempts::until(deadline));
    // All keys are in one shard.
    let first = asks.first().map(|ask| ask.key.clone());
    let part = || Part::Shard(first.as_ref().map_or(0, |key| engine.shard_of(place, key)));
    loop {
        let added = engine.send_adds(place, asks.clone(), &mut attempts, tried);
        let fault = match place.answer_by(deadline, part, added).await {
            Ok(answers) => {
                place.meters.count_adds(&asks, &answers);
                return Ok(Free { answers, unsure });
            }
            // The next request skips the locked keys, which must not delay the other keys of the batch.
            Err(fault) if fault.kind == Kind::Locked && tried == Tried::No => {
                tried = Tried::InVain;
                continue;
            }
            Err(fault) => fault,
        };
        // If an earlier attempt may have taken effect, a later refusal does not prove that the keys were not added.
        unsure |= fault.kind.may_have_happened();
        let wait = delay.wait();
        if fault.kind.is_final() || Instant::now() + wait >= deadline {
            return Err(if unsure { fault.after_a_part() } else { fault });
        }
        sleep(wait).await;
    }
}

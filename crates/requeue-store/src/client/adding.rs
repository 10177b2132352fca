//! Adds keys. Retries until the deadline of the add, and reports whether the add may have happened.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::batcher::{Tried, Wish};
use crate::engine::outage::Part;
use crate::engine::receipts::Attempts;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::{Ask, Engine, Place, by_shard};
use crate::types::add::{Add, AddCounts, Added};
use crate::types::error::{AddError, EngineError, Kind};
use crate::types::key::Key;

pub(crate) type Reply = oneshot::Sender<Result<Added, AddError>>;

/// An add whose caller waits for the answer.
#[derive(Debug)]
pub(crate) struct Adding {
    ask: Ask,
    /// True if an earlier attempt may have added the key.
    unsure: bool,
    deadline: Instant,
    reply: Reply,
}

impl Adding {
    pub(crate) fn new(key: Key, add: Add, deadline: Instant, reply: Reply) -> Self {
        Self { ask: Ask { key, add, adds: 1 }, unsure: false, deadline, reply }
    }

    /// Answers the caller, which may have been dropped.
    fn answer(self, answer: Result<Added, (bool, EngineError)>) {
        let answer = answer.map_err(|(unsure, fault)| {
            AddError::from_engine("the key was not added", unsure || self.unsure, fault)
        });
        let _ = self.reply.send(answer);
    }
}

impl Wish for Adding {
    fn key(&self) -> &Key {
        &self.ask.key
    }

    /// Adds the keys, and answers the callers. Equal adds of a key become one request. Different adds of a
    /// key are sent one after the other.
    async fn submit(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        mut batch: Vec<Self>,
        tried: Tried,
    ) -> Vec<Self> {
        let mut locked = Vec::new();
        while !batch.is_empty() {
            let mut asks: Vec<Ask> = Vec::with_capacity(batch.len());
            // The adds that each request stands for.
            let mut askers: Vec<Vec<Self>> = Vec::with_capacity(batch.len());
            let mut found: HashMap<Key, usize> = HashMap::with_capacity(batch.len());
            let mut left = Vec::new();
            let mut deadline = None;
            for adding in batch {
                deadline = deadline.max(Some(adding.deadline));
                match found.get(&adding.ask.key) {
                    None => {
                        found.insert(adding.ask.key.clone(), asks.len());
                        asks.push(adding.ask.clone());
                        askers.push(vec![adding]);
                    }
                    Some(&at) if asks[at].add == adding.ask.add => {
                        asks[at].adds = asks[at].adds.saturating_add(1);
                        askers[at].push(adding);
                    }
                    Some(_) => left.push(adding),
                }
            }
            // There is a deadline, because the batch is not empty.
            let Some(deadline) = deadline else { break };
            let added = try_add(&*engine, &place, asks, deadline, tried).await;
            locked.extend(answer(added, askers));
            batch = left;
        }
        // Answer before the caller's own deadline, so that the caller gets the reason.
        let now = Instant::now() + crate::client::locked_keys::LAST;
        for adding in locked.extract_if(.., |adding: &mut Self| adding.deadline <= now) {
            adding.answer(Err((false, is_locked())));
        }
        locked.retain(|adding| !adding.reply.is_closed());
        locked
    }
}

fn is_locked() -> EngineError {
    EngineError::locked()
}

/// Answers the adds, and returns those whose keys are locked.
fn answer(added: Result<Free, (bool, EngineError)>, askers: Vec<Vec<Adding>>) -> Vec<Adding> {
    let mut left = Vec::new();
    match added {
        Ok(Free { answers, unsure }) => {
            for (added, askers) in answers.into_iter().zip(askers) {
                let Some(mut added) = added else {
                    left.extend(
                        askers
                            .into_iter()
                            .map(|adding| Adding { unsure: adding.unsure || unsure, ..adding }),
                    );
                    continue;
                };
                for adding in askers {
                    adding.answer(Ok(added));
                    added = added.again();
                }
            }
        }
        Err((unsure, fault)) => {
            let said = fault.source.to_string();
            for adding in askers.into_iter().flatten() {
                let fault = EngineError { kind: fault.kind, source: said.clone().into() };
                adding.answer(Err((unsure, fault)));
            }
        }
    }
    left
}

/// Adds keys of any shards. An error states whether some of the keys may have been added.
pub(crate) async fn add_all(
    engine: &Arc<dyn Engine>,
    place: &Arc<Place>,
    asks: Vec<Ask>,
    deadline: Instant,
) -> Result<AddCounts, (bool, EngineError)> {
    let mut parts = by_shard(&**engine, place, asks, |ask| &ask.key);
    if parts.len() == 1 {
        return add(&**engine, place, parts.remove(0), deadline).await;
    }
    let mut adding: JoinSet<_> = parts
        .into_iter()
        .map(|part| {
            let (engine, place) = (Arc::clone(engine), Arc::clone(place));
            async move { add(&*engine, &place, part, deadline).await }
        })
        .collect();
    let (mut all, mut failed) = (AddCounts::default(), None);
    while let Some(added) = adding.join_next().await {
        match added {
            Ok(Ok(added)) => all += added,
            Ok(Err(fault)) => failed = Some(fault),
            Err(error) => failed = Some((true, EngineError::unsure(error))),
        }
    }
    match failed {
        Some((unsure, fault)) => Err((unsure || all.total() > 0, fault)),
        None => Ok(all),
    }
}

/// Adds keys of one shard. Retries locked keys until they are free. An error states whether some of the keys
/// may have been added.
async fn add(
    engine: &dyn Engine,
    place: &Place,
    mut asks: Vec<Ask>,
    deadline: Instant,
) -> Result<AddCounts, (bool, EngineError)> {
    let mut delay = RetryDelay::up_to(crate::client::locked_keys::LAST);
    let (mut all, mut unsure, mut tried) = (AddCounts::default(), false, Tried::No);
    loop {
        let added = try_add(engine, place, asks.clone(), deadline, tried).await;
        let free = added.map_err(|(maybe, fault)| (unsure || maybe || all.total() > 0, fault))?;
        unsure |= free.unsure;
        let mut answers = free.answers.iter();
        asks.retain(|ask| match answers.next() {
            Some(&Some(added)) => {
                all.count(added, ask.adds);
                false
            }
            Some(None) => true,
            None => false,
        });
        if asks.is_empty() {
            return Ok(all);
        }
        let wait = delay.wait();
        if Instant::now() + wait >= deadline {
            return Err((unsure || all.total() > 0, is_locked()));
        }
        sleep(wait).await;
        tried = Tried::InVain;
    }
}

/// The answers to adds. Adds of locked keys have none.
struct Free {
    answers: Vec<Option<Added>>,
    /// True if an earlier attempt may have added the keys nevertheless.
    unsure: bool,
}

/// Adds keys of one shard, and retries until `deadline`. An error states whether an attempt may have added
/// them.
async fn try_add(
    engine: &dyn Engine,
    place: &Place,
    asks: Vec<Ask>,
    deadline: Instant,
    mut tried: Tried,
) -> Result<Free, (bool, EngineError)> {
    let mut delay = RetryDelay::new();
    let (mut unsure, mut attempts) = (false, Attempts::until(deadline));
    // All keys are in one shard.
    let first = asks.first().map(|ask| ask.key.clone());
    let part = || Part::Shard(first.as_ref().map_or(0, |key| engine.shard(place, key)));
    loop {
        let sent = asks.clone();
        let added = async {
            match tried {
                Tried::No => {
                    let added = engine.add_once(place, sent, &mut attempts).await?;
                    Ok(added.into_iter().map(Some).collect())
                }
                Tried::InVain => engine.add_free(place, sent).await,
            }
        };
        let fault = match timeout_at(deadline, added).await {
            Ok(Ok(answers)) => {
                place.meters.added(&asks, &answers);
                place.note_answer(part);
                return Ok(Free { answers, unsure });
            }
            Ok(Err(fault)) if fault.kind == Kind::Locked && tried == Tried::No => {
                tried = Tried::InVain;
                continue;
            }
            Ok(Err(fault)) => fault,
            Err(_) => EngineError::unsure("the store did not answer in time"),
        };
        unsure |= fault.kind.may_have_happened();
        if !fault.kind.is_final() {
            place.note_failure(part(), &fault);
        }
        let wait = delay.wait();
        if fault.kind.is_final() || Instant::now() + wait >= deadline {
            return Err((unsure, fault));
        }
        sleep(wait).await;
    }
}

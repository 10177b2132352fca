//! Adds on their way.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::add::{Add, Added};
use crate::engine::{Ask, Engine, Place, by_shard};
use crate::error::{AddError, Fault, Kind};
use crate::key::Key;
use crate::patience::Patience;

pub(crate) type Reply = oneshot::Sender<Result<Added, AddError>>;

/// An add that somebody waits for.
#[derive(Debug)]
pub(crate) struct Adding {
    pub(crate) key: Key,
    pub(crate) add: Add,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
}

/// Adds them, and answers. Of a key that is in there in several ways, one way after the other.
pub(crate) async fn submit(engine: Arc<dyn Engine>, place: Arc<Place>, mut batch: Vec<Adding>) {
    while !batch.is_empty() {
        let mut asks: Vec<Ask> = Vec::with_capacity(batch.len());
        let mut replies: Vec<Vec<Reply>> = Vec::with_capacity(batch.len());
        let mut found: HashMap<Key, usize> = HashMap::with_capacity(batch.len());
        let mut left = Vec::new();
        let mut deadline = None;
        for adding in batch {
            deadline = deadline.max(Some(adding.deadline));
            match found.get(&adding.key) {
                None => {
                    found.insert(adding.key.clone(), asks.len());
                    asks.push(Ask { key: adding.key, add: adding.add, adds: 1 });
                    replies.push(vec![adding.reply]);
                }
                Some(&at) if asks[at].add == adding.add => {
                    asks[at].adds = asks[at].adds.saturating_add(1);
                    replies[at].push(adding.reply);
                }
                Some(_) => left.push(adding),
            }
        }
        // There is one: the batch is not empty.
        let Some(deadline) = deadline else { return };
        answer(add(&*engine, &place, asks, deadline).await, replies);
        batch = left;
    }
}

fn answer(answers: Result<Vec<Added>, (bool, Fault)>, replies: Vec<Vec<Reply>>) {
    match answers {
        Ok(answers) => {
            for (mut added, replies) in answers.into_iter().zip(replies) {
                for reply in replies {
                    // Who asked may have gone.
                    let _ = reply.send(Ok(added));
                    added = added.again();
                }
            }
        }
        Err((unsure, fault)) => {
            let said = fault.source.to_string();
            for reply in replies.into_iter().flatten() {
                let fault = Fault { kind: fault.kind, source: said.clone().into() };
                let _ = reply.send(Err(AddError::of("the key was not added", unsure, fault)));
            }
        }
    }
}

/// Adds them, in any order of the answers. With an error, whether some may have been added.
pub(crate) async fn add_all(
    engine: &Arc<dyn Engine>,
    place: &Arc<Place>,
    asks: Vec<Ask>,
    deadline: Instant,
) -> Result<Vec<Added>, (bool, Fault)> {
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
    let (mut all, mut failed) = (Vec::new(), None);
    while let Some(added) = adding.join_next().await {
        match added {
            Ok(Ok(added)) => all.extend(added),
            Ok(Err(fault)) => failed = Some(fault),
            Err(error) => failed = Some((true, Fault::unsure(error))),
        }
    }
    match failed {
        Some((unsure, fault)) => Err((unsure || !all.is_empty(), fault)),
        None => Ok(all),
    }
}

/// Adds them, which are of one shard, as often as it takes until `deadline`. With an error, whether an earlier try may have
/// added them.
pub(crate) async fn add(
    engine: &dyn Engine,
    place: &Place,
    asks: Vec<Ask>,
    deadline: Instant,
) -> Result<Vec<Added>, (bool, Fault)> {
    let mut patience = Patience::new();
    let mut unsure = false;
    loop {
        let fault = match timeout_at(deadline, engine.add(place, asks.clone())).await {
            Ok(Ok(answers)) => return Ok(answers),
            Ok(Err(fault)) => fault,
            Err(_) => Fault::unsure("there was no answer in time"),
        };
        unsure |= fault.kind == Kind::Unsure;
        let wait = patience.wait();
        if fault.kind == Kind::Refused || Instant::now() + wait >= deadline {
            return Err((unsure, fault));
        }
        sleep(wait).await;
    }
}

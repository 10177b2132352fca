//! Ends of hand-outs on their way.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::engine::{End, Engine, Place};
use crate::error::{Fault, FinishError, Kind};
use crate::patience::Patience;

/// The end of a hand-out.
#[derive(Debug)]
pub(crate) struct Finishing {
    pub(crate) end: End,
    /// The end of the lease: after that it can have no effect.
    pub(crate) deadline: Instant,
    pub(crate) reply: Option<oneshot::Sender<Result<(), FinishError>>>,
}

/// Ends them, as often as it takes while their leases last, and answers.
pub(crate) async fn submit(engine: Arc<dyn Engine>, place: Arc<Place>, mut batch: Vec<Finishing>) {
    let mut patience = Patience::new();
    let mut unsure = false;
    while let Some(deadline) = batch.iter().map(|finishing| finishing.deadline).max() {
        let ends = batch.iter().map(|finishing| finishing.end.clone()).collect();
        let fault = match timeout_at(deadline, engine.finish(&place, ends)).await {
            Ok(Ok(held)) => {
                for (finishing, held) in batch.into_iter().zip(held) {
                    answer(
                        finishing,
                        &place,
                        match held {
                            true => Ok(()),
                            false if unsure => Err(FinishError::Unsure),
                            false => Err(FinishError::Lost),
                        },
                    );
                }
                return;
            }
            Ok(Err(fault)) => fault,
            Err(_) => Fault::unsure("there was no answer in time"),
        };
        unsure |= fault.kind == Kind::Unsure;
        let wait = patience.wait();
        let again = Instant::now() + wait;
        let refused = fault.kind == Kind::Refused;
        let over = |finishing: &mut Finishing| refused || finishing.deadline <= again;
        for finishing in batch.extract_if(.., over) {
            let error = match unsure {
                true => FinishError::Unsure,
                false => FinishError::Unreachable(fault.source.to_string().into()),
            };
            answer(finishing, &place, Err(error));
        }
        if !batch.is_empty() {
            sleep(wait).await;
        }
    }
}

fn answer(finishing: Finishing, place: &Place, ended: Result<(), FinishError>) {
    match finishing.reply {
        // Who asked may have gone.
        Some(reply) => _ = reply.send(ended),
        None => {
            if let Err(error) = ended {
                let (queue, key) = (&place.name, &finishing.end.key);
                tracing::warn!(queue, %key, %error, "a hand-out was not ended");
            }
        }
    }
}

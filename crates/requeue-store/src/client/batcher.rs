//! Combines concurrent requests to a shard into batches. No request is delayed to wait for further requests.
//!
//! A batch contains the requests that arrive while the previous batch is in flight. It also contains the requests of
//! tasks that are ready to run when the batch is about to be sent.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::yield_now;

use crate::client::locked_keys::LockedKeys;
use crate::engine::defaults::MAX_BATCH;
use crate::engine::{Engine, Place, Tried};
use crate::types::key::Key;

/// After this number of consecutive batches with one request, the task no longer waits for concurrent requests.
const LONELY: u32 = 8;

/// A request about one key that can be sent in a batch.
pub(crate) trait Wish: Sized + Send + 'static {
    fn key(&self) -> &Key;

    /// Sends a batch to one shard, and answers its requests. Returns the requests whose keys are locked.
    fn submit_batch(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        batch: Vec<Self>,
        tried: Tried,
    ) -> impl Future<Output = Vec<Self>> + Send;
}

/// The batchers of a queue, one for each shard. A shard that does not answer must not delay the others.
#[derive(Debug)]
pub(crate) struct Lanes<T>(Vec<Batcher<T>>);

#[derive(Debug)]
struct Batcher<T> {
    sender: mpsc::UnboundedSender<T>,
    /// The requests whose keys are locked. They are retried separately.
    aside: Arc<LockedKeys<T>>,
}

impl<T: Wish> Lanes<T> {
    /// Starts a task for each shard. Each task sends up to as many batches at the same time as the engine supports. The
    /// tasks stop when this value is dropped and all requests have been sent.
    pub(crate) fn new(engine: &Arc<dyn Engine>, place: &Arc<Place>) -> Self {
        let lane = |_| Batcher::new(Arc::clone(engine), Arc::clone(place));
        Self((0..engine.shard_count(place)).map(lane).collect())
    }

    pub(crate) fn put_wish(&self, shard: usize, what: T) {
        let Batcher { sender, aside } = &self.0[shard];
        if let Some(what) = aside.join_locked(what) {
            // The send fails if the runtime of the task has stopped. The request is then dropped without an answer.
            let _ = sender.send(what);
        }
    }
}

impl<T: Wish> Batcher<T> {
    fn new(engine: Arc<dyn Engine>, place: Arc<Place>) -> Self {
        let (sender, mut come) = mpsc::unbounded_channel();
        let aside = Arc::new(LockedKeys::new(Arc::clone(&engine), Arc::clone(&place)));
        let beside = Arc::clone(&aside);
        // The number of batches in flight is limited, so batches become larger while the engine is busy.
        let turns = Arc::new(Semaphore::new(engine.max_batches()));
        tokio::spawn(async move {
            let mut batch = Vec::new();
            // The number of consecutive batches with a single request.
            let mut lone = 0;
            loop {
                // Nothing closes the semaphore.
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                if batch.is_empty() && come.recv_many(&mut batch, MAX_BATCH).await == 0 {
                    return;
                }
                if lone < LONELY {
                    // Tasks that are ready to run may send requests during this yield. Their requests join the batch.
                    yield_now().await;
                }
                while batch.len() < MAX_BATCH
                    && let Ok(what) = come.try_recv()
                {
                    batch.push(what);
                }
                lone = if batch.len() == 1 { lone.saturating_add(1) } else { 0 };
                let submitting = {
                    let (engine, place) = (Arc::clone(&engine), Arc::clone(&place));
                    let (aside, batch) = (Arc::clone(&beside), std::mem::take(&mut batch));
                    async move {
                        let left = T::submit_batch(engine, place, batch, Tried::No).await;
                        // The next batch need not wait until the locked keys are put aside.
                        drop(turn);
                        aside.put_locked(left);
                    }
                };
                if lone < LONELY {
                    tokio::spawn(submitting);
                    continue;
                }
                // This task itself sends the batch until another request arrives. Without concurrent requests, no
                // second task must be woken.
                let mut submitting = Box::pin(submitting);
                tokio::select! {
                    // The batch is polled first, because a new request must not delay the sending of the batch.
                    biased;
                    () = poll_fn(|at| unless_it_panics(submitting.as_mut(), at)) => {}
                    _ = come.recv_many(&mut batch, MAX_BATCH) => {
                        tokio::spawn(submitting);
                    }
                }
            }
        });
        Self { sender, aside }
    }
}

/// Catches a panic, as a spawned task does. The callers then receive an error, and the batcher continues.
fn unless_it_panics(what: Pin<&mut impl Future<Output = ()>>, at: &mut Context<'_>) -> Poll<()> {
    catch_unwind(AssertUnwindSafe(|| what.poll(at))).unwrap_or(Poll::Ready(()))
}

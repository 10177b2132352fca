//! What several callers want at the same time goes to the engine together. Nothing waits for
//! company: a batch is what has come while the one before was under way.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use crate::engine::{Engine, Place};

/// How much one batch takes at most.
pub(crate) const MOST: usize = 256;

/// Where callers put what they want: a lane for each shard, since one that does not answer is to hold
/// up no other.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    senders: Vec<mpsc::UnboundedSender<T>>,
}

impl<T: Send + 'static> Lanes<T> {
    /// `submit` gets batches, each of one shard, as many at once in each as the engine is good for. It
    /// ends with the lanes, when all has been submitted.
    pub(crate) fn new<F>(
        engine: &Arc<dyn Engine>,
        place: &Arc<Place>,
        submit: fn(Arc<dyn Engine>, Arc<Place>, Vec<T>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let lane = |_| Self::lane(Arc::clone(engine), Arc::clone(place), submit);
        Self { senders: (0..engine.shards(place)).map(lane).collect() }
    }

    fn lane<F>(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        submit: fn(Arc<dyn Engine>, Arc<Place>, Vec<T>) -> F,
    ) -> mpsc::UnboundedSender<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, mut come) = mpsc::unbounded_channel();
        let turns = Arc::new(Semaphore::new(engine.breadth()));
        tokio::spawn(async move {
            loop {
                // It is never closed.
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                let mut batch = Vec::new();
                if come.recv_many(&mut batch, MOST).await == 0 {
                    return;
                }
                let submitted = submit(Arc::clone(&engine), Arc::clone(&place), batch);
                tokio::spawn(async move {
                    submitted.await;
                    drop(turn);
                });
            }
        });
        sender
    }

    pub(crate) fn put(&self, shard: usize, what: T) {
        // The task ends with the sender, or with its runtime; then nobody hears of `what`.
        let _ = self.senders[shard].send(what);
    }
}

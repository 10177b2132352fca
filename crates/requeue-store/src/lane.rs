//! What several callers want at the same time goes to the engine together. Nothing waits for
//! company: a batch is what has come while the one before was under way.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

/// How much one batch takes at most.
pub(crate) const MOST: usize = 256;

/// Where callers put what they want: a lane for each shard, since one that does not answer is to hold
/// up no other.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    senders: Vec<mpsc::UnboundedSender<T>>,
}

impl<T: Send + 'static> Lanes<T> {
    /// `submit` gets batches, each of one shard, `breadth` of them at once in each. It ends with the
    /// lanes, when all has been submitted.
    pub(crate) fn new<F>(
        shards: usize,
        breadth: usize,
        submit: impl Fn(Vec<T>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { senders: (0..shards).map(|_| Self::lane(breadth, submit.clone())).collect() }
    }

    fn lane<F>(
        breadth: usize,
        submit: impl Fn(Vec<T>) -> F + Send + Sync + 'static,
    ) -> mpsc::UnboundedSender<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, mut come) = mpsc::unbounded_channel();
        let turns = Arc::new(Semaphore::new(breadth));
        tokio::spawn(async move {
            loop {
                // It is never closed.
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                let mut batch = Vec::new();
                if come.recv_many(&mut batch, MOST).await == 0 {
                    return;
                }
                let submitted = submit(batch);
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

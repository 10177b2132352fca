//! What several callers want at the same time goes to the engine together. Nothing waits for
//! company: a batch is what has come while the one before was under way.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

/// How much one batch takes at most.
pub(crate) const MOST: usize = 256;

/// Where callers put what they want.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    sender: mpsc::UnboundedSender<T>,
}

impl<T: Send + 'static> Lane<T> {
    /// `submit` gets batches, `breadth` of them at once. It ends with the lane, when all has been
    /// submitted.
    pub(crate) fn new<F>(
        breadth: usize,
        submit: impl Fn(Vec<T>) -> F + Send + Sync + 'static,
    ) -> Self
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
        Self { sender }
    }

    pub(crate) fn put(&self, what: T) {
        // The task ends with the sender, or with its runtime; then nobody hears of `what`.
        let _ = self.sender.send(what);
    }
}

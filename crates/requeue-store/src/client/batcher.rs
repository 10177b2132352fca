//! What several callers want at the same time goes to the engine together. Nothing waits for
//! company: a batch is what has come while the one before was under way, or comes from tasks that can
//! run before it leaves.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::yield_now;

use crate::client::locked_keys::LockedKeys;
use crate::engine::{Engine, Place};
use crate::types::key::Key;

/// How much one batch takes at most.
pub(crate) const MOST: usize = 256;
/// After how many batches of one in a row nobody else is expected to want anything.
const LONELY: u32 = 8;

/// What callers want of a key.
pub(crate) trait Wish: Sized + Send + 'static {
    fn key(&self) -> &Key;

    /// Does what it can of a batch of one shard. What is left is of keys that somebody has locked.
    fn submit(
        engine: Arc<dyn Engine>,
        place: Arc<Place>,
        batch: Vec<Self>,
        tried: Tried,
    ) -> impl Future<Output = Vec<Self>> + Send;
}

/// Whether keys of a batch are known to be locked, so that it is not waited for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    No,
    InVain,
}

/// Where callers put what they want: a lane for each shard, since one that does not answer is to hold
/// up no other.
#[derive(Debug)]
pub(crate) struct Lanes<T>(Vec<Batcher<T>>);

#[derive(Debug)]
struct Batcher<T> {
    sender: mpsc::UnboundedSender<T>,
    /// What is of keys that somebody has locked.
    aside: Arc<LockedKeys<T>>,
}

impl<T: Wish> Lanes<T> {
    /// As many batches at once in each lane as the engine is good for. It ends with this, when all
    /// has been submitted.
    pub(crate) fn new(engine: &Arc<dyn Engine>, place: &Arc<Place>) -> Self {
        let lane = |_| Batcher::new(Arc::clone(engine), Arc::clone(place));
        Self((0..engine.shards(place)).map(lane).collect())
    }

    pub(crate) fn put(&self, shard: usize, what: T) {
        let Batcher { sender, aside } = &self.0[shard];
        if let Some(what) = aside.join(what) {
            // The task ends with the sender, or with its runtime; then nobody hears of `what`.
            let _ = sender.send(what);
        }
    }
}

impl<T: Wish> Batcher<T> {
    fn new(engine: Arc<dyn Engine>, place: Arc<Place>) -> Self {
        let (sender, mut come) = mpsc::unbounded_channel();
        let aside = Arc::new(LockedKeys::new(Arc::clone(&engine), Arc::clone(&place)));
        let beside = Arc::clone(&aside);
        let turns = Arc::new(Semaphore::new(engine.breadth()));
        tokio::spawn(async move {
            let mut batch = Vec::new();
            // How many batches in a row were of one.
            let mut lone = 0;
            loop {
                // It is never closed.
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                if batch.is_empty() && come.recv_many(&mut batch, MOST).await == 0 {
                    return;
                }
                if lone < LONELY {
                    // Those who can run now may be about to want something, too.
                    yield_now().await;
                }
                while batch.len() < MOST
                    && let Ok(what) = come.try_recv()
                {
                    batch.push(what);
                }
                lone = if batch.len() == 1 { lone.saturating_add(1) } else { 0 };
                let submitting = {
                    let (engine, place) = (Arc::clone(&engine), Arc::clone(&place));
                    let (aside, batch) = (Arc::clone(&beside), std::mem::take(&mut batch));
                    async move {
                        let left = T::submit(engine, place, batch, Tried::No).await;
                        drop(turn);
                        aside.put(left);
                    }
                };
                if lone < LONELY {
                    tokio::spawn(submitting);
                    continue;
                }
                // A task of its own would only be one more to wake, until something else comes.
                let mut submitting = Box::pin(submitting);
                tokio::select! {
                    biased;
                    () = poll_fn(|at| unless_it_panics(submitting.as_mut(), at)) => {}
                    _ = come.recv_many(&mut batch, MOST) => {
                        tokio::spawn(submitting);
                    }
                }
            }
        });
        Self { sender, aside }
    }
}

/// As in a task of its own: whoever waits is told, and the others go on.
fn unless_it_panics(what: Pin<&mut impl Future<Output = ()>>, at: &mut Context<'_>) -> Poll<()> {
    catch_unwind(AssertUnwindSafe(|| what.poll(at))).unwrap_or(Poll::Ready(()))
}

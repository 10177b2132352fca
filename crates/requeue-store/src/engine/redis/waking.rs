//! Wakes waiting processes with tokens in Redis lists.
//!
//! Each shard has a list, and only one of the waiting processes takes a token from it. If ready keys remain after its
//! claim, the process adds another token. If the process no longer waits, it returns the token. For each open queue,
//! this process has one connection per shard, which it opens when it first waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use tokio::sync::watch;
use tokio::time::sleep;

use super::names::Shard;
use super::nodes::Nodes;
use crate::engine::retry_delay::RetryDelay;

/// The maximum time, in seconds, for which the server lets a request wait for a token.
const BLOCKING: u64 = 10;
const ANSWERING: Duration = Duration::from_secs(BLOCKING + 5);

/// The wakes of a queue in this process.
#[derive(Debug)]
pub(super) struct Waiting {
    woken: watch::Sender<u64>,
    /// True if the process waits for a token, because the last claim found no key. A busy process takes no tokens.
    wanted: watch::Sender<bool>,
    /// The number of the shard from which the last token came, until a claim has begun there.
    shard: AtomicUsize,
}

/// The value of [`Waiting::shard`] if there is no such shard.
const NONE: usize = usize::MAX;

impl Waiting {
    pub(super) fn new() -> Self {
        let (woken, wanted) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { woken, wanted, shard: AtomicUsize::new(NONE) }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.woken.subscribe()
    }

    pub(super) fn is_over(&self) -> bool {
        self.woken.is_closed()
    }

    /// Sets whether this process waits for a token.
    pub(super) fn want_tokens(&self, wanted: bool) {
        self.wanted.send_if_modified(|was| std::mem::replace(was, wanted) != wanted);
    }

    /// Returns the number of the shard from which the last token came. A second call returns `None`.
    pub(super) fn shard(&self) -> Option<usize> {
        Some(self.shard.swap(NONE, Ordering::Relaxed)).filter(|&shard| shard != NONE)
    }

    /// Starts a task for each shard that takes its tokens. The tasks stop when the last receiver is dropped.
    pub(super) fn begin(self: &Arc<Self>, nodes: &Arc<Nodes>, shards: &Arc<Vec<Shard>>) {
        for number in 0..shards.len() {
            let (nodes, shards) = (Arc::clone(nodes), Arc::clone(shards));
            let waiting = Arc::clone(self);
            tokio::spawn(async move {
                tokio::select! {
                    () = waiting.take_tokens(number, &nodes, &shards[number]) => {}
                    () = waiting.woken.closed() => {}
                }
            });
        }
    }

    async fn take_tokens(&self, number: usize, nodes: &Arc<Nodes>, shard: &Shard) {
        let mut wanted = self.wanted.subscribe();
        let mut connection = None;
        let mut delay = RetryDelay::new();
        // This value owns the sender, so the channel is not closed.
        while wanted.wait_for(|&wanted| wanted).await.is_ok() {
            match self.pop_token(&mut connection, nodes, shard).await {
                Ok(token) => {
                    delay = RetryDelay::new();
                    if !token {
                        continue;
                    }
                    if !self.wake_claims(number) {
                        return_token(nodes, shard).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        error,
                        "no notifications of ready keys: the process polls for keys"
                    );
                    connection = None;
                    sleep(delay.wait()).await;
                }
            }
        }
    }

    /// Wakes the claims of this process if it still waits for a token. Returns false if it does not.
    fn wake_claims(&self, number: usize) -> bool {
        // The first token sets the value to false, so that two tokens do not wake the same claim. A claim that does not
        // use its token passes it on: see `Engine::pass_wake_on`.
        self.wanted.send_if_modified(|wanted| {
            let was_wanted = std::mem::take(wanted);
            if was_wanted {
                // The number is stored before the wake. `Relaxed` suffices, because the channel orders the accesses.
                self.shard.store(number, Ordering::Relaxed);
                self.woken.send_modify(|woken| *woken += 1);
            }
            was_wanted
        })
    }

    async fn pop_token(
        &self,
        connection: &mut Option<MultiplexedConnection>,
        nodes: &Arc<Nodes>,
        shard: &Shard,
    ) -> Result<bool, String> {
        let open = match connection {
            Some(open) => open,
            None => {
                let new = nodes.dedicated_connection(shard.slot, ANSWERING).await;
                connection.insert(new.map_err(|fault| fault.source.to_string())?)
            }
        };
        let mut pop = cmd("BLPOP");
        pop.arg(shard.wake()).arg(BLOCKING);
        let popped = open.send_packed_command(&pop).await.and_then(Value::extract_error);
        popped.map(|token| token != Value::Nil).map_err(|error| error.to_string())
    }
}

/// Returns a token, so that another process can take it. If the request fails, other processes find the key when they
/// poll.
pub(super) async fn return_token(nodes: &Arc<Nodes>, shard: &Shard) {
    let wake = nodes.scripts.wake.on(shard);
    let _ = nodes.run_script(shard.slot, &wake).await;
}

//! Wakes waiting processes by tokens in Redis lists.
//!
//! Only one of the waiting processes takes a token. If ready keys remain after its claim, the process adds another
//! token. If the process no longer waits, it returns the token. Each shard has a list. Each queue that is open in this
//! process has one connection per shard, which is opened when the process first waits.

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

/// The time for which the server blocks a request for a token, in seconds.
const BLOCKING: u64 = 10;
const ANSWERING: Duration = Duration::from_secs(BLOCKING + 5);

/// The wake state of a queue in this process.
#[derive(Debug)]
pub(super) struct Waiting {
    woken: watch::Sender<u64>,
    /// True if the last claim found no key. A busy process takes no tokens.
    wanted: watch::Sender<bool>,
    /// The shard of the last token, until a claim has begun there.
    shard: AtomicUsize,
}

/// The value of [`Waiting::shard`] if no such shard is known.
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

    /// Sets whether tokens are wanted.
    pub(super) fn want_tokens(&self, wanted: bool) {
        self.wanted.send_if_modified(|was| std::mem::replace(was, wanted) != wanted);
    }

    /// Returns the number of the shard of the last token, and forgets it.
    pub(super) fn shard(&self) -> Option<usize> {
        Some(self.shard.swap(NONE, Ordering::Relaxed)).filter(|&shard| shard != NONE)
    }

    /// Takes the tokens of all shards, in tasks that stop when the last receiver is dropped.
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
        // The channel is never closed, because `self` owns its sender.
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

    /// Wakes the claims of this process and returns true, if it still wants a token.
    fn wake_claims(&self, number: usize) -> bool {
        // The value changes to false with the first token, so that two tokens do not wake the same claim. A claim that
        // does not use its token passes the token on: see `Engine::pass_wake_on`.
        self.wanted.send_if_modified(|wanted| {
            let was_wanted = std::mem::take(wanted);
            if was_wanted {
                // The number is stored before the wake. `Relaxed` suffices, because the channel of the wake orders the
                // accesses.
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

/// Returns a token for another process. If this fails, other processes find the key by polling.
pub(super) async fn return_token(nodes: &Arc<Nodes>, shard: &Shard) {
    let wake = nodes.scripts.wake.on(shard);
    let _ = nodes.run_script(shard.slot, &wake).await;
}

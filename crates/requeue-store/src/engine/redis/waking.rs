//! Who waits is woken by a token in a list: one in all who wait takes it, and whoever takes it and
//! leaves keys behind puts another. Each shard has a list, and each queue that is open here a
//! connection for each shard, made when it first waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use tokio::sync::watch;
use tokio::time::sleep;

use super::names::Shard;
use super::nodes::Nodes;
use super::scripts::Scripts;
use crate::engine::retry_delay::RetryDelay;

/// How long a server is waited for, in seconds, before it is asked anew.
const BLOCKING: u64 = 10;
const ANSWERING: Duration = Duration::from_secs(BLOCKING + 5);

/// A queue, as one who claims for it here sees it.
#[derive(Debug)]
pub(super) struct Waiting {
    woken: watch::Sender<u64>,
    /// Whether the last claim found nothing. Who is busy takes no token.
    wanted: watch::Sender<bool>,
    /// The shard whose token was the last, until a claim has begun there.
    shard: AtomicUsize,
}

/// Of [`Waiting::shard`].
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

    /// Says whether tokens are wanted.
    pub(super) fn want(&self, wanted: bool) {
        self.wanted.send_if_modified(|was| std::mem::replace(was, wanted) != wanted);
    }

    /// Where a token was found.
    pub(super) fn shard(&self) -> Option<usize> {
        Some(self.shard.swap(NONE, Ordering::Relaxed)).filter(|&shard| shard != NONE)
    }

    /// Takes tokens of all shards, in tasks that end with the last receiver.
    pub(super) fn begin(
        self: &Arc<Self>,
        nodes: &Arc<Nodes>,
        scripts: &Arc<Scripts>,
        shards: &Arc<Vec<Shard>>,
    ) {
        for number in 0..shards.len() {
            let (nodes, scripts, shards) =
                (Arc::clone(nodes), Arc::clone(scripts), Arc::clone(shards));
            let waiting = Arc::clone(self);
            tokio::spawn(async move {
                tokio::select! {
                    () = waiting.take(number, &nodes, &scripts, &shards[number]) => {}
                    () = waiting.woken.closed() => {}
                }
            });
        }
    }

    async fn take(&self, number: usize, nodes: &Arc<Nodes>, scripts: &Scripts, shard: &Shard) {
        let mut wanted = self.wanted.subscribe();
        let mut connection = None;
        let mut delay = RetryDelay::new();
        // It is not closed: its sender is here.
        while wanted.wait_for(|&wanted| wanted).await.is_ok() {
            match self.token(&mut connection, nodes, shard).await {
                Ok(token) => {
                    delay = RetryDelay::new();
                    if !token {
                        continue;
                    }
                    if self.wanted.send_if_modified(std::mem::take) {
                        self.shard.store(number, Ordering::Relaxed);
                        self.woken.send_modify(|woken| *woken += 1);
                    } else {
                        // For another one. If it is lost, they poll.
                        let wake = scripts.wake.on(shard);
                        let _ = nodes.run(shard.slot, &wake, Some(&scripts.wake)).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(error, "no messages that a key is there: it is polled");
                    connection = None;
                    sleep(delay.wait()).await;
                }
            }
        }
    }

    async fn token(
        &self,
        connection: &mut Option<MultiplexedConnection>,
        nodes: &Arc<Nodes>,
        shard: &Shard,
    ) -> Result<bool, String> {
        let open = match connection {
            Some(open) => open,
            None => {
                let new = nodes.dedicated(shard.slot, ANSWERING).await;
                connection.insert(new.map_err(|fault| fault.source.to_string())?)
            }
        };
        let mut pop = cmd("BLPOP");
        pop.arg(shard.wake()).arg(BLOCKING);
        let popped = open.send_packed_command(&pop).await.and_then(Value::extract_error);
        popped.map(|token| token != Value::Nil).map_err(|error| error.to_string())
    }
}

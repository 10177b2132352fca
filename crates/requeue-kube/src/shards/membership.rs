//! A process's membership in a shard group: the public handle.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use kube::Client;
use requeue::Time;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::config::Shards;
use super::driver::{self, Command};
use super::error::ShardsError;
use crate::leader::{Fence, Leadership, LeadershipLost, Right, Token};
use crate::shard::{Shard, ShardBy};

/// The membership of this process in a shard group.
///
/// Take the changes from [`next`](Self::next), and answer each [`Change::Release`] and
/// [`Change::Cancel`] with [`drained`](Self::drained). A task of the runtime renews the member Lease.
///
/// Dropping it ends the membership without a handover. The shards then have no holder until the
/// member Lease expires.
///
/// ```no_run
/// use requeue_kube::shards::{Change, Shards};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let shards = Shards::new("website", "default");
/// let client = shards.client(kube::Config::infer().await?)?;
/// let mut membership = shards.join(client).await?;
/// while let Some(change) = membership.next().await? {
///     match change {
///         Change::Gained(held) => println!("start to work on {} shards", held.len()),
///         // Here, no work is in flight.
///         Change::Release(shards) | Change::Cancel(shards) => membership.drained(shards),
///         Change::Lost(shards) => println!("cancel all work on {shards:?}"),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Membership {
    name: String,
    changes: mpsc::UnboundedReceiver<Change>,
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<Result<(), ShardsError>>,
    ended: Option<Result<(), ShardsError>>,
}

/// A change of the shards that a process holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// This process holds these shards, and must reconcile all of their objects.
    ///
    /// A shard that was drained can be gained again, with the same token, if its handover is no
    /// longer necessary.
    Gained(Vec<HeldShard>),
    /// Start no more runs for these shards, wait for those in flight, and call
    /// [`Membership::drained`].
    Release(Vec<u32>),
    /// The [time limit](Shards::handover_timeout) of the release has passed. Cancel the runs that are
    /// left, and call [`Membership::drained`] when they have ended.
    Cancel(Vec<u32>),
    /// Another process has changed the holder of these shards, which no member does. Cancel their
    /// runs now.
    Lost(Vec<u32>),
}

impl Membership {
    pub(super) async fn join(shards: Shards, client: Client) -> Result<Self, ShardsError> {
        let (send_change, changes) = mpsc::unbounded_channel();
        let (commands, receive_command) = mpsc::unbounded_channel();
        let (send_joined, joined) = oneshot::channel();
        let task = driver::run(
            shards,
            client,
            send_change,
            commands.clone(),
            receive_command,
            send_joined,
        );
        let mut membership =
            Self { name: String::new(), changes, commands, task: tokio::spawn(task), ended: None };
        match joined.await {
            Ok(name) => {
                membership.name = name;
                Ok(membership)
            }
            // The task has ended before.
            Err(_) => match membership.end().await {
                Err(error) => Err(error),
                Ok(()) => Err(ShardsError::Lost(LeadershipLost::Abandoned)),
            },
        }
    }

    /// Returns the name of the member Lease, which is unique.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next change.
    ///
    /// Returns `None` when the process has left the group, after [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// The membership has ended, and with it the right to all shards. All runs must be cancelled at
    /// once. To join again, call [`Shards::join`].
    ///
    /// # Cancel safety
    ///
    /// No change is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Change>, ShardsError> {
        match self.changes.recv().await {
            Some(change) => Ok(Some(change)),
            None => self.end().await.map(|()| None),
        }
    }

    /// Reports that no run of these shards is left, after their release or cancellation.
    ///
    /// Shards that are not being released are ignored.
    pub fn drained(&self, shards: impl IntoIterator<Item = u32>) {
        let shards = shards.into_iter().map(|shard| shard as usize).collect();
        // It fails only if the membership has ended.
        let _ = self.commands.send(Command::Drained(shards));
    }

    /// Leaves the group: announces it, and releases all shards.
    ///
    /// Continue to take changes until [`next`](Self::next) returns `None`. The member Lease is
    /// released and deleted when all shards are drained and handed over.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    async fn end(&mut self) -> Result<(), ShardsError> {
        if self.ended.is_none() {
            let ended = (&mut self.task).await;
            // The runtime is shutting down.
            let lost = |_| Err(ShardsError::Lost(LeadershipLost::Abandoned));
            self.ended = Some(ended.unwrap_or_else(lost));
        }
        self.ended.clone().unwrap_or(Ok(()))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state that the driver and the held shards share.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The fencing numbers of the shards on which this process acts.
    pub(super) held: Vec<Option<i32>>,
    /// The start of the last read or write of the group object.
    pub(super) confirmed: Option<Time>,
}

/// A shard that this process holds.
///
/// It is cheap to clone, and does not delay a handover.
#[derive(Clone)]
pub struct HeldShard {
    pub(super) index: u32,
    pub(super) count: u32,
    pub(super) by: ShardBy,
    pub(super) token: Arc<Token>,
    pub(super) leadership: Leadership,
    pub(super) view: watch::Receiver<View>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl HeldShard {
    /// The default name of the annotation of [`fence`](Self::fence).
    pub const ANNOTATION: &str = "requeue/shard-term";

    /// Returns the number of the shard, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the range of hashes of the shard.
    #[must_use]
    pub fn shard(&self) -> Shard {
        // The index is below the count, which the driver has checked.
        Shard::new(self.index, self.count)
            .map_or_else(|_| unreachable!(), |shard| shard.by(self.by))
    }

    /// Returns the fencing token: the uid of the group object, and the number of the shard's holder.
    ///
    /// Within one group object, a later holder of the same shard has a greater number.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Returns true if this process holds the shard at this moment, by a clock that also counts while
    /// the machine is suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leadership.is_leading() && self.is_named()
    }

    /// Returns a fence, with which the API server rejects late writes of former holders.
    ///
    /// Its annotation is [`ANNOTATION`](Self::ANNOTATION).
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::new(self.clone()), Arc::clone(&self.token), Self::ANNOTATION)
    }

    fn is_named(&self) -> bool {
        let number = self.view.borrow().held.get(self.index as usize).copied().flatten();
        number == Some(self.token.transitions())
    }
}

impl Right for HeldShard {
    fn check(&self) -> Result<(), LeadershipLost> {
        self.leadership.check()?;
        if self.is_named() { Ok(()) } else { Err(LeadershipLost::Shard(self.index)) }
    }

    /// Reads the group object, because the member Lease says nothing about the holder of a shard.
    fn confirm(&self) -> BoxFuture<'_, Result<(), LeadershipLost>> {
        Box::pin(async move {
            let since = self.leadership.now();
            let _ = self.commands.send(Command::Confirm);
            let mut view = self.view.clone();
            let confirmed = view.wait_for(|view| view.confirmed.is_some_and(|at| at >= since));
            tokio::select! {
                biased;
                lost = self.leadership.lost() => return Err(lost),
                confirmed = confirmed => drop(confirmed),
            }
            self.check()
        })
    }
}

impl fmt::Debug for HeldShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldShard")
            .field("index", &self.index)
            .field("token", &self.token)
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}

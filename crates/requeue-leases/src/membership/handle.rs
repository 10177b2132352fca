//! The user's handle of the membership of a process in a shard group.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::config::ShardGroup;
use super::driver::{self, Outputs};
use super::error::MembershipError;
use super::held::{Change, Command, View};
use super::rights;
use super::status::{GroupStatus, Observer};
use crate::leader::LeadershipLost;

/// The membership of this process in a shard group.
///
/// Call [`next`](Self::next) in a loop to receive the changes. After each [`Change::Release`] and [`Change::Cancel`],
/// call [`drained`](Self::drained) when the runs have ended. A task of the runtime renews the member Lease.
///
/// If the membership is dropped, it ends without a handover. Its shards then have no holder until the member Lease has
/// expired.
///
/// ```no_run
/// use requeue_leases::membership::{Change, ShardGroup};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let group = ShardGroup::new("website", "default");
/// let client = group.client(kube::Config::infer().await?)?;
/// let mut membership = group.join(client).await?;
/// while let Some(change) = membership.next().await? {
///     match change {
///         Change::Gained(held) => println!("start to work on {} shards", held.len()),
///         // When the runs of these shards have ended, report this.
///         Change::Release(shards) | Change::Cancel(shards) => membership.drained(shards),
///         Change::Lost(shards) => println!("cancel all work on {shards:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Membership {
    count: u32,
    observer: Observer,
    changes: mpsc::UnboundedReceiver<Change>,
    commands: mpsc::UnboundedSender<Command>,
    ended: Ended,
}

/// The result of a task. Any number of callers can await it. When this future and all its clones are dropped, the task
/// is aborted.
pub(super) type Ended = Shared<BoxFuture<'static, Result<(), MembershipError>>>;

/// Runs a part of a membership as a task. The task is aborted when the result is dropped.
pub(super) fn spawn_until_dropped(
    part: impl Future<Output = Result<(), MembershipError>> + Send + 'static,
) -> Ended {
    let task = AbortOnDropHandle::new(tokio::spawn(part));
    // The task gives no result if it has panicked, or if the runtime is shutting down.
    let lost = |_| Err(MembershipError::Lost(LeadershipLost::Abandoned));
    task.map(move |ended| ended.unwrap_or_else(lost)).boxed().shared()
}

impl ShardGroup {
    /// Joins the group.
    ///
    /// If the API server cannot be reached, the method repeats its requests until they succeed.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid, if a permission is missing, or if the existing group has
    /// another number of shards.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this process does not join. If it has already created a Lease, a task of the runtime
    /// deletes this Lease. If the runtime ends before that, the Lease expires.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use requeue_leases::membership::ShardGroup;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ShardGroup::new("website", "default");
    /// let client = group.client(kube::Config::infer().await?)?;
    /// let membership = group.join(client).await?;
    /// println!("joined as {}", membership.status().member);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join(self, client: Client) -> Result<Membership, MembershipError> {
        self.join_by(client, &mut None).await
    }

    /// Like [`join`](Self::join). If the future is dropped before this process has joined, `joining` contains the
    /// attempt, so that the caller can leave the group.
    #[doc(hidden)]
    pub async fn join_by(
        self,
        client: Client,
        joining: &mut Option<Joining>,
    ) -> Result<Membership, MembershipError> {
        // The checks come before the first write. A process that can never be a member must not create a Lease.
        self.check()?;
        rights::review_permissions(&client, &self.lease.namespace).await?;
        let joined = joining.insert(Joining::begin_join(self, client)).wait_until_joined().await;
        *joining = None;
        joined
    }
}

/// An attempt to join a group. If it is dropped, the process leaves the group in the background.
#[derive(Debug)]
pub struct Joining {
    membership: Option<Membership>,
    joined: oneshot::Receiver<String>,
}

impl Joining {
    fn begin_join(group: ShardGroup, client: Client) -> Self {
        // The channels are unbounded. If the user receives slowly, the driver must still be able to renew the Lease.
        let (send_change, changes) = mpsc::unbounded_channel();
        let (commands, receive_command) = mpsc::unbounded_channel();
        let (send_joined, joined) = oneshot::channel();
        let (view, seen) = watch::channel(View::default());
        let count = group.count;
        let metrics = group.metrics.as_ref();
        let meters = metrics.map(|metrics| metrics.group_meters(&group.name)).unwrap_or_default();
        let observer = Observer {
            group: group.name.clone(),
            member: String::new(),
            clock: group.clock.clone(),
            view: seen,
            meters: meters.clone(),
        };
        let outputs = Outputs { changes: send_change, commands: commands.clone(), view, meters };
        let run = driver::run_membership(group, client, outputs, receive_command, send_joined);
        let ended = spawn_until_dropped(run);
        let membership = Membership { count, observer, changes, commands, ended };
        Self { membership: Some(membership), joined }
    }

    async fn wait_until_joined(&mut self) -> Result<Membership, MembershipError> {
        let name = (&mut self.joined).await;
        let abandoned = MembershipError::Lost(LeadershipLost::Abandoned);
        let Some(mut membership) = self.membership.take() else { return Err(abandoned) };
        match name {
            Ok(name) => {
                membership.observer.member = name;
                Ok(membership)
            }
            // The task has ended before this process has joined.
            Err(_) => Err(membership.ended.clone().await.err().unwrap_or(abandoned)),
        }
    }

    /// Leaves the group, and waits until this process has left it.
    pub async fn leave(mut self) {
        if let Some(membership) = self.membership.take() {
            membership.leave().await;
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(membership) = self.membership.take()
            // Without a runtime, this process cannot send requests, and its Lease expires.
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(membership.leave());
        }
    }
}

impl Membership {
    /// Returns the last state of the group that this process has seen.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        self.observer.status()
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Returns the number of shards of the group.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Waits for the next change.
    ///
    /// Returns `None` when the process has left the group after a call of [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// Returns an error if the membership has ended, and with it the right to all shards. The caller must then cancel
    /// all runs immediately. To join again, it can call [`ShardGroup::join`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no change is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use requeue_leases::membership::{Change, Membership};
    ///
    /// # async fn example(mut membership: Membership) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(change) = membership.next().await? {
    ///     // When the runs of these shards have ended, report this.
    ///     if let Change::Release(shards) | Change::Cancel(shards) = change {
    ///         membership.drained(shards);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Change>, MembershipError> {
        match self.changes.recv().await {
            Some(change) => Ok(Some(change)),
            None => self.ended.clone().await.map(|()| None),
        }
    }

    /// Reports that no run of these shards is in flight. Call this method after a release or cancellation of the
    /// shards.
    ///
    /// The method ignores shards that are not being released.
    pub fn drained(&self, shards: impl IntoIterator<Item = u32>) {
        let shards = shards.into_iter().map(|shard| shard as usize).collect();
        // The send fails only if the membership has ended. The error is ignored.
        let _ = self.commands.send(Command::Drained(shards));
    }

    /// Announces that this process leaves the group. All of its shards are then released.
    ///
    /// Continue to call [`next`](Self::next) until it returns `None`. When all shards are drained and handed over, the
    /// member Lease is released and deleted.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Leaves the group. The caller must have no run in flight.
    async fn leave(mut self) {
        self.stop();
        while let Ok(Some(change)) = self.next().await {
            if let Change::Release(shards) | Change::Cancel(shards) = change {
                self.drained(shards);
            }
        }
    }
}

//! The shards that a process holds, and the changes of these shards.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use requeue::Time;
use tokio::sync::{mpsc, watch};

use crate::leader::{Fence, Leadership, LeadershipLost, Right};
use crate::token::FencingToken;

/// The default name of the annotation that contains the token of a shard.
const ANNOTATION: &str = "requeue/shard-term";

/// A change of the shards that this process holds.
///
/// The enum is exhaustive, because a user must handle each kind of change.
#[derive(Clone, Debug)]
pub enum Change {
    /// This process now holds these shards, and must reconcile all of their objects.
    ///
    /// The list may contain a shard that was drained. If its handover is no longer necessary, this process keeps it
    /// with the same token.
    Gained(Vec<HeldShard>),
    /// Start no more runs in these shards. When the runs in flight have ended, call
    /// [`Membership::drained`](super::Membership::drained).
    Release(Vec<u32>),
    /// These shards were not drained within the [time limit](super::ShardGroup::handover_timeout). Cancel the runs that
    /// are still in flight. When they have ended, call [`Membership::drained`](super::Membership::drained).
    Cancel(Vec<u32>),
    /// Another process has changed the holder of these shards, against the rules of the group. Cancel all runs in these
    /// shards now.
    Lost(Vec<u32>),
}

/// A request from the user to the driver.
#[derive(Debug)]
pub(super) enum Command {
    Drained(Vec<usize>),
    Stop,
    Confirm,
}

/// The state that the driver writes, and the held shards and observers read.
#[derive(Debug, Default)]
pub(super) struct View {
    /// For each shard on which this process acts: the number of its fencing token, and the time from which this process
    /// has acted on it.
    pub(super) held: Vec<Option<(i32, Time)>>,
    /// The holder of each shard, from the last version of the group object that was seen.
    pub(super) holders: Vec<Option<Arc<str>>>,
    /// The time at which the last successful read or write of the group object was sent.
    pub(super) confirmed: Option<Time>,
}

/// A shard that this process holds.
///
/// A clone is cheap. The handle does not delay a handover.
#[derive(Clone)]
pub struct HeldShard {
    pub(super) index: u32,
    pub(super) token: Arc<FencingToken>,
    pub(super) leadership: Leadership,
    pub(super) view: watch::Receiver<View>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl View {
    /// Updates the state at the time `now`. Returns true if it has changed.
    pub(super) fn update(
        &mut self,
        held: Vec<Option<i32>>,
        holders: Vec<Option<Arc<str>>>,
        confirmed: Option<Time>,
        now: Time,
    ) -> bool {
        let numbers = self.held.iter().map(|held| held.map(|(number, _)| number));
        if numbers.eq(held.iter().copied())
            && self.confirmed == confirmed
            && self.holders == holders
        {
            return false;
        }
        let since = |shard: usize, number: i32| match self.held.get(shard) {
            Some(&Some((same, since))) if same == number => since,
            _ => now,
        };
        let held = held.into_iter().enumerate();
        self.held = held
            .map(|(shard, number)| number.map(|number| (number, since(shard, number))))
            .collect();
        self.holders = holders;
        self.confirmed = confirmed;
        true
    }
}

impl HeldShard {
    /// Returns the number of the shard, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the fencing token. It consists of the uid of the group object, and of a number.
    ///
    /// In one group object, each new holder of a shard gets a greater number than all former holders.
    #[must_use]
    pub fn fencing_token(&self) -> &FencingToken {
        &self.token
    }

    /// Returns true if this process holds the shard at this moment. The clock also advances while the machine is
    /// suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leadership.is_leading() && self.is_named()
    }

    /// Returns a fence of this shard. Its patches make the API server reject writes of former holders.
    ///
    /// The name of the fence's annotation is `requeue/shard-term`.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::new(self.clone()), Arc::clone(&self.token), ANNOTATION)
    }

    /// Returns true if the member Lease has not expired. While the shard is being released, [`is_held`](Self::is_held)
    /// may be false although this result is true.
    #[doc(hidden)]
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.leadership.is_leading()
    }

    fn is_named(&self) -> bool {
        let held = self.view.borrow().held.get(self.index as usize).copied().flatten();
        held.is_some_and(|(number, _)| number == self.token.transitions())
    }
}

impl Right for HeldShard {
    fn check(&self) -> Result<(), LeadershipLost> {
        // The member Lease is checked first. Its loss is final, and a more precise reason than the loss of one shard.
        self.leadership.check()?;
        if self.is_named() { Ok(()) } else { Err(LeadershipLost::Shard(self.index)) }
    }

    /// Reads the group object. A renewal of the member Lease would not prove that this process holds the shard.
    fn confirm(&self) -> BoxFuture<'_, Result<(), LeadershipLost>> {
        Box::pin(async move {
            // The clock is read before the command is sent. An earlier read of the group object does not prove that
            // this process holds the shard now.
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

//! The shards that a process holds, and their changes.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use requeue::Time;
use tokio::sync::{mpsc, watch};

use crate::leader::{Fence, Leadership, LeadershipLost, Right};
use crate::token::FencingToken;

/// The default name of the annotation with the token of a shard.
const ANNOTATION: &str = "requeue/shard-term";

/// A change of the shards that a process holds.
///
/// The enum is exhaustive, because each kind of change needs a reaction of the user.
#[derive(Clone, Debug)]
pub enum Change {
    /// This process holds these shards, and must reconcile all of their objects.
    ///
    /// A shard that was drained can be gained again, with the same token, if its handover is no
    /// longer necessary.
    Gained(Vec<HeldShard>),
    /// Start no more runs for these shards, wait for the runs in flight, and call
    /// [`Membership::drained`](super::Membership::drained).
    Release(Vec<u32>),
    /// The [time limit](super::ShardGroup::handover_timeout) of the release has passed. Cancel the runs that are still
    /// in flight, and call [`Membership::drained`](super::Membership::drained) when they have ended.
    Cancel(Vec<u32>),
    /// Another process, which is not a member, has changed the holder of these shards. Cancel their runs now.
    Lost(Vec<u32>),
}

/// A request of the user to the driver.
#[derive(Debug)]
pub(super) enum Command {
    Drained(Vec<usize>),
    Stop,
    Confirm,
}

/// The state that the driver and the held shards share.
#[derive(Debug, Default)]
pub(super) struct View {
    /// For each shard on which this process acts: the fencing token, and the time at which this process began to act on
    /// the shard.
    pub(super) held: Vec<Option<(i32, Time)>>,
    /// The holders of all shards at the last read.
    pub(super) holders: Vec<Option<Arc<str>>>,
    /// The time at which the last read or write of the group object was sent.
    pub(super) confirmed: Option<Time>,
}

/// A shard that this process holds.
///
/// The handle is cheap to clone, and does not delay a handover.
#[derive(Clone)]
pub struct HeldShard {
    pub(super) index: u32,
    pub(super) token: Arc<FencingToken>,
    pub(super) leadership: Leadership,
    pub(super) view: watch::Receiver<View>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl View {
    /// Updates the view at `now`. Returns true if the view has changed.
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

    /// Returns the fencing token: the uid of the group object, and the number that the shard's holder has received.
    ///
    /// Within one group object, a later holder of the same shard has a greater number.
    #[must_use]
    pub fn fencing_token(&self) -> &FencingToken {
        &self.token
    }

    /// Returns true if this process holds the shard at this moment, by a clock that also counts while
    /// the machine is suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leadership.is_leading() && self.is_named()
    }

    /// Returns a fence. With its patches, the API server rejects late writes of former holders.
    ///
    /// The annotation of the fence is `requeue/shard-term`.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::new(self.clone()), Arc::clone(&self.token), ANNOTATION)
    }

    /// Returns true if the member Lease has not expired. During a release, the result is true,
    /// although [`is_held`](Self::is_held) may be false.
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
        // The member Lease is checked first, because its loss is final, and is the more precise reason.
        self.leadership.check()?;
        if self.is_named() { Ok(()) } else { Err(LeadershipLost::Shard(self.index)) }
    }

    /// Reads the group object, because the member Lease says nothing about the holder of a shard.
    fn confirm(&self) -> BoxFuture<'_, Result<(), LeadershipLost>> {
        Box::pin(async move {
            // The clock is read before the command is sent, because an earlier read of the object
            // proves nothing about the time of this call.
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

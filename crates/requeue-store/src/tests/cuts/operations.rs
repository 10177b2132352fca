//! The operations: the answer of each, and the state of a key before and after it.

use crate::{Added, FinishError, Item, Queue, State};

use super::HOUR;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Operation {
    Add,
    AddAll,
    Get,
    Succeed,
    Retry,
    RetryAfter,
    RequeueAfter,
    Release,
    GiveUp,
    Cancel,
    Revive,
    Counts,
    Page,
    LookUp,
    Renew,
    /// Waits for the notification of a key.
    Listen,
}

/// The operations that a test calls. The process starts the others itself.
pub(super) const CALLS: [Operation; 14] = [
    Operation::Add,
    Operation::AddAll,
    Operation::Get,
    Operation::Succeed,
    Operation::Retry,
    Operation::RetryAfter,
    Operation::RequeueAfter,
    Operation::Release,
    Operation::GiveUp,
    Operation::Cancel,
    Operation::Revive,
    Operation::Counts,
    Operation::Page,
    Operation::LookUp,
];

/// The answer of a call.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Said {
    Added(Added),
    New(usize),
    Attempt(u32),
    Ended,
    Unsure,
    Cancelled(bool),
    Revived(bool),
    Seen,
    Failed,
}

/// The state of a key, and its failures.
pub(super) type Stand = Option<(State, u32)>;

impl Operation {
    /// Returns the state of the key before the operation.
    pub(super) const fn before(self) -> Stand {
        match self {
            Self::Add | Self::AddAll => None,
            Self::Get | Self::Cancel | Self::Counts | Self::Page | Self::LookUp | Self::Listen => {
                Some((State::Ready, 0))
            }
            Self::Revive => Some((State::Parked, 1)),
            _ => Some((State::Processing, 0)),
        }
    }

    /// Returns the state of the key after the operation.
    pub(super) const fn after(self) -> Stand {
        match self {
            Self::Succeed | Self::Cancel => None,
            Self::Add | Self::AddAll | Self::Release | Self::Revive => Some((State::Ready, 0)),
            Self::Counts | Self::Page | Self::LookUp => Some((State::Ready, 0)),
            Self::Get | Self::Renew | Self::Listen => Some((State::Processing, 0)),
            Self::Retry | Self::RetryAfter => Some((State::Waiting, 1)),
            Self::RequeueAfter => Some((State::Waiting, 0)),
            Self::GiveUp => Some((State::Parked, 1)),
        }
    }

    /// Returns true if the library retries the operation itself.
    pub(super) const fn is_tried_again(self) -> bool {
        !matches!(self, Self::Cancel | Self::Revive | Self::Counts | Self::Page | Self::LookUp)
    }

    /// Returns the answer to the first request, or to a repeated one that already took effect.
    pub(super) fn says(self, was_done: bool) -> Said {
        match self {
            Self::Add => Said::Added(if was_done { Added::Coalesced } else { Added::New }),
            Self::AddAll => Said::New(if was_done { 0 } else { 3 }),
            Self::Get | Self::Listen => Said::Attempt(1 + u32::from(was_done)),
            Self::Cancel => Said::Cancelled(!was_done),
            Self::Revive => Said::Revived(!was_done),
            Self::Counts | Self::Page | Self::LookUp => Said::Seen,
            _ if was_done => Said::Unsure,
            _ => Said::Ended,
        }
    }
}

pub(super) async fn ended(ended: impl Future<Output = Result<(), FinishError>>) -> Said {
    match ended.await {
        Ok(()) => Said::Ended,
        Err(FinishError::Unsure) => Said::Unsure,
        Err(error) => panic!("{error}"),
    }
}

/// Calls an operation. Returns its answer, and its item if it has one.
pub(super) async fn call(
    operation: Operation,
    queue: Queue,
    item: Option<Item>,
) -> (Said, Option<Item>) {
    let its = || item.expect("the test has an item");
    let said = match operation {
        Operation::Add => Said::Added(queue.add("a").await.expect("added at last")),
        Operation::AddAll => {
            Said::New(queue.add_all(["a", "b", "c"]).await.expect("added at last").new)
        }
        Operation::Get | Operation::Listen => {
            let item = queue.get().await.expect("the queue is open");
            return (Said::Attempt(item.attempt()), Some(item));
        }
        Operation::Succeed => ended(its().succeed()).await,
        Operation::Retry => ended(its().retry("no")).await,
        Operation::RetryAfter => ended(its().retry_after(HOUR, "no")).await,
        Operation::RequeueAfter => ended(its().requeue_after(HOUR)).await,
        Operation::Release => ended(its().release()).await,
        Operation::GiveUp => ended(its().give_up("no")).await,
        Operation::Cancel => {
            queue.cancel("a").await.map_or(Said::Failed, |c| Said::Cancelled(c.any()))
        }
        Operation::Revive => queue.revive("a").await.map_or(Said::Failed, Said::Revived),
        Operation::Counts => match queue.counts().await {
            Ok(counts) => {
                assert_eq!((counts.ready, counts.processing), (1, 0));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Operation::Page => match queue.snapshot(None, None, 9).await {
            Ok(page) => {
                assert_eq!((page.len(), page[0].key.as_str()), (1, Some("a")));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Operation::LookUp => match queue.look_up("a").await {
            Ok(found) => {
                assert!(found.is_some());
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Operation::Renew => unreachable!("renewals are not called"),
    };
    (said, None)
}

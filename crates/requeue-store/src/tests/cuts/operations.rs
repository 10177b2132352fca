//! The operations, the answer to each of them, and the state of a key before and after each.

use crate::{Added, CancelledRun, CompleteError, Completion, Item, Queue, State, UpdateError};

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
    CancelRunning,
    Revive,
    RunNow,
    Pause,
    Counts,
    Page,
    LookUp,
    Renew,
    /// Waits for the notification of a key.
    Listen,
}

/// The operations that the test calls. The process starts the other operations itself.
pub(super) const CALLS: [Operation; 17] = [
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
    Operation::CancelRunning,
    Operation::Revive,
    Operation::RunNow,
    Operation::Pause,
    Operation::Counts,
    Operation::Page,
    Operation::LookUp,
];

/// The result of a call.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Said {
    Added(Added),
    New(usize),
    Attempt(u32),
    Ended,
    Unsure,
    Cancelled(bool),
    CancelledRun(CancelledRun),
    Revived(bool),
    Paused,
    Seen,
    /// The operation has failed, and has had no effect.
    Failed,
    /// The operation has failed, but may have taken effect.
    MayHaveHappened,
}

/// The state and the number of failures of a key, or `None` if it has no state.
pub(super) type Stand = Option<(State, u32)>;

impl Operation {
    /// Returns the state of the key before the operation.
    pub(super) const fn before(self) -> Stand {
        match self {
            Self::Add | Self::AddAll => None,
            Self::Get | Self::Cancel | Self::Counts | Self::Page | Self::LookUp | Self::Listen => {
                Some((State::Ready, 0))
            }
            Self::Pause => Some((State::Ready, 0)),
            Self::Revive => Some((State::Parked, 1)),
            Self::RunNow => Some((State::Waiting, 0)),
            _ => Some((State::InFlight, 0)),
        }
    }

    /// Returns the state of the key after the operation.
    pub(super) const fn after(self) -> Stand {
        match self {
            Self::Succeed | Self::Cancel => None,
            Self::Add | Self::AddAll | Self::Release | Self::Revive | Self::RunNow => {
                Some((State::Ready, 0))
            }
            Self::Pause | Self::Counts | Self::Page | Self::LookUp => Some((State::Ready, 0)),
            Self::Get | Self::CancelRunning | Self::Renew | Self::Listen => {
                Some((State::InFlight, 0))
            }
            Self::Retry | Self::RetryAfter => Some((State::Waiting, 1)),
            Self::RequeueAfter => Some((State::Waiting, 0)),
            Self::GiveUp => Some((State::Parked, 1)),
        }
    }

    /// Returns true if the library retries the operation itself.
    pub(super) const fn is_tried_again(self) -> bool {
        !self.is_update() && !matches!(self, Self::Counts | Self::Page | Self::LookUp)
    }

    /// Returns true if the operation is a change whose error says whether it may have taken effect.
    pub(super) const fn is_update(self) -> bool {
        matches!(
            self,
            Self::Cancel | Self::CancelRunning | Self::Revive | Self::RunNow | Self::Pause
        )
    }

    /// Returns the answer to the first request, or to a repetition of a request that has taken effect if `was_done` is
    /// true.
    pub(super) fn says(self, was_done: bool) -> Said {
        match self {
            Self::Add => Said::Added(if was_done { Added::Coalesced } else { Added::New }),
            Self::AddAll => Said::New(if was_done { 0 } else { 3 }),
            Self::Get | Self::Listen => Said::Attempt(1 + u32::from(was_done)),
            Self::Cancel => Said::Cancelled(!was_done),
            Self::CancelRunning if was_done => Said::CancelledRun(CancelledRun::AlreadyCancelled),
            Self::CancelRunning => Said::CancelledRun(CancelledRun::Cancelled),
            Self::Revive | Self::RunNow => Said::Revived(!was_done),
            Self::Pause => Said::Paused,
            Self::Counts | Self::Page | Self::LookUp => Said::Seen,
            _ if was_done => Said::Unsure,
            _ => Said::Ended,
        }
    }
}

pub(super) async fn ended(ended: impl Future<Output = Result<(), CompleteError>>) -> Said {
    match ended.await {
        Ok(()) => Said::Ended,
        Err(CompleteError::Unsure) => Said::Unsure,
        Err(error) => panic!("{error}"),
    }
}

async fn completed(item: Item, completion: Completion) -> Result<(), CompleteError> {
    item.complete(completion).await.map(drop)
}

fn updated<T>(answer: Result<T, UpdateError>, said: impl FnOnce(T) -> Said) -> Said {
    match answer {
        Ok(answer) => said(answer),
        Err(error) if error.may_have_happened() => Said::MayHaveHappened,
        Err(_) => Said::Failed,
    }
}

/// Calls an operation. Returns its answer, and an item if the operation delivers one.
pub(super) async fn call(
    operation: Operation,
    queue: Queue,
    item: Option<Item>,
) -> (Said, Option<Item>) {
    if operation == Operation::CancelRunning {
        return (updated(queue.cancel_running("a").await, Said::CancelledRun), item);
    }
    let its = || item.expect("the test has an item");
    let said = match operation {
        Operation::Add => Said::Added(queue.add("a").await.expect("added at last")),
        Operation::AddAll => {
            let added = queue.add_all(["a", "b", "c"]).await.expect("added at last");
            Said::New(added.into_iter().filter(|added| *added == Added::New).count())
        }
        Operation::Get | Operation::Listen => {
            let item = queue.get().await.expect("the queue is open");
            return (Said::Attempt(item.attempt()), Some(item));
        }
        Operation::Succeed => ended(its().succeed()).await,
        Operation::Retry => ended(its().retry("no")).await,
        Operation::RetryAfter => ended(completed(its(), Completion::RetryAfter(HOUR))).await,
        Operation::RequeueAfter => ended(completed(its(), Completion::RequeueAfter(HOUR))).await,
        Operation::Release => ended(its().release()).await,
        Operation::GiveUp => ended(its().give_up("no")).await,
        Operation::Cancel => updated(queue.cancel("a").await, Said::Cancelled),
        Operation::Revive => updated(queue.revive("a").await, Said::Revived),
        Operation::RunNow => {
            updated(queue.run_now_keys(["a"]).await, |ready| Said::Revived(ready == [true]))
        }
        Operation::Pause => updated(queue.pause().await, |()| Said::Paused),
        Operation::Counts => match queue.counts().await {
            Ok(counts) => {
                assert_eq!((counts.ready, counts.in_flight), (1, 0));
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
        Operation::CancelRunning | Operation::Renew => unreachable!("it has no answer here"),
    };
    (said, None)
}

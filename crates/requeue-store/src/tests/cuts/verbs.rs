//! The verbs, what each says, and where a key stands before and after it.

use crate::{Added, FinishError, Item, Queue, State};

use super::HOUR;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verb {
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
    /// Waits to be told of keys.
    Listen,
}

/// What is called. Nobody calls for the others.
pub(super) const CALLS: [Verb; 14] = [
    Verb::Add,
    Verb::AddAll,
    Verb::Get,
    Verb::Succeed,
    Verb::Retry,
    Verb::RetryAfter,
    Verb::RequeueAfter,
    Verb::Release,
    Verb::GiveUp,
    Verb::Cancel,
    Verb::Revive,
    Verb::Counts,
    Verb::Page,
    Verb::LookUp,
];

/// What a call says.
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

/// A state, and failures.
pub(super) type Stand = Option<(State, u32)>;

impl Verb {
    /// Where the key stands before it.
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

    /// And after it.
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

    /// Whether the library asks again by itself.
    pub(super) const fn is_tried_again(self) -> bool {
        !matches!(self, Self::Cancel | Self::Revive | Self::Counts | Self::Page | Self::LookUp)
    }

    /// What is said when it is done for the first time; and when it has been done before.
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

/// What a verb says; with the item, if it gives one.
pub(super) async fn call(verb: Verb, queue: Queue, item: Option<Item>) -> (Said, Option<Item>) {
    let its = || item.expect("it is there");
    let said = match verb {
        Verb::Add => Said::Added(queue.add("a").await.expect("added in the end")),
        Verb::AddAll => {
            Said::New(queue.add_all(["a", "b", "c"]).await.expect("added in the end").new)
        }
        Verb::Get | Verb::Listen => {
            let item = queue.get().await.expect("it is not shut down");
            return (Said::Attempt(item.attempt()), Some(item));
        }
        Verb::Succeed => ended(its().succeed()).await,
        Verb::Retry => ended(its().retry("no")).await,
        Verb::RetryAfter => ended(its().retry_after(HOUR, "no")).await,
        Verb::RequeueAfter => ended(its().requeue_after(HOUR)).await,
        Verb::Release => ended(its().release()).await,
        Verb::GiveUp => ended(its().give_up("no")).await,
        Verb::Cancel => queue.cancel("a").await.map_or(Said::Failed, |c| Said::Cancelled(c.any())),
        Verb::Revive => queue.revive("a").await.map_or(Said::Failed, Said::Revived),
        Verb::Counts => match queue.counts().await {
            Ok(counts) => {
                assert_eq!((counts.ready, counts.processing), (1, 0));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::Page => match queue.snapshot(None, None, 9).await {
            Ok(page) => {
                assert_eq!((page.len(), page[0].key.as_str()), (1, Some("a")));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::LookUp => match queue.look_up("a").await {
            Ok(found) => {
                assert!(found.is_some());
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::Renew => unreachable!("nobody calls for it"),
    };
    (said, None)
}

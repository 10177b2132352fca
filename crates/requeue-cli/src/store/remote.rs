//! A queue in a store as a remote queue of the runner.

use requeue_http::{Builder, Site};
use requeue_store::{Failed, Failure, Item, Key, Queue};

use crate::exit::chain;
use crate::runner::hooks::BoxFuture;
use crate::runner::outcome::Outcome;
use crate::runner::remote::{Lease, RemoteQueue};

impl RemoteQueue for Queue {
    fn next(&self) -> BoxFuture<'_, Option<Box<dyn Lease>>> {
        Box::pin(async { self.get().await.map(|item| Box::new(item) as _) })
    }

    fn close(&self) {
        self.shut_down_when_idle();
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.shut_down();
        Box::pin(self.settled())
    }

    fn is_gone(&self) -> bool {
        self.is_dropped()
    }

    fn page(&self) -> Builder<Key> {
        Site::of_store(self.clone())
    }
}

impl Lease for Item {
    fn key(&self) -> &[u8] {
        self.key()
    }

    fn attempt(&self) -> u32 {
        self.attempt()
    }

    fn priority(&self) -> i32 {
        self.priority().number().into()
    }

    fn adds(&self) -> u32 {
        self.adds()
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn is_lost(&self) -> bool {
        self.is_lost()
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.lost())
    }

    fn finish(self: Box<Self>, outcome: Outcome) -> BoxFuture<'static, Result<bool, String>> {
        Box::pin(async move {
            let parks = |failed| failed == Failed::Parked;
            let ended = match outcome {
                Outcome::Succeeded => self.succeed().await.map(|()| false),
                Outcome::PutBack => self.put_back().await.map(|()| false),
                Outcome::Failed { why, is_final, .. } => {
                    let failure = if is_final { Failure::Final } else { Failure::Backoff };
                    self.fail(failure, why).await.map(parks)
                }
            };
            ended.map_err(|error| chain(&error))
        })
    }
}

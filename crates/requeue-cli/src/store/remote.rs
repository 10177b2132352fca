//! Keys of a queue in a store, as they are lent for runs.

use requeue_http::{Builder, Site};
use requeue_store::{Failed, Failure, Item, Key, Queue};

use crate::exit::chain;
use crate::given::Later;
use crate::lent::{Back, Lender, Loan};

impl Lender for Queue {
    fn next(&self) -> Later<'_, Option<Box<dyn Loan>>> {
        Box::pin(async { self.get().await.map(|item| Box::new(item) as _) })
    }

    fn close(&self) {
        self.shut_down_when_idle();
    }

    fn settle(&self) -> Later<'_, ()> {
        self.shut_down();
        Box::pin(self.settled())
    }

    fn page(&self) -> Builder<Key> {
        Site::of_store(self.clone())
    }
}

impl Loan for Item {
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

    fn lost(&self) -> Later<'_, ()> {
        Box::pin(self.lost())
    }

    fn end(self: Box<Self>, how: Back) -> Later<'static, Result<bool, String>> {
        Box::pin(async move {
            let parks = |failed| failed == Failed::Parked;
            let ended = match how {
                Back::Done => self.succeed().await.map(|()| false),
                Back::AsItWas => self.put_back().await.map(|()| false),
                Back::Failed(why) => self.fail(Failure::Backoff, why).await.map(parks),
                Back::GivenUp(why) => self.fail(Failure::Final, why).await.map(parks),
            };
            ended.map_err(|error| chain(&error))
        })
    }
}

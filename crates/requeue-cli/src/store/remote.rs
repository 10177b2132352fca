//! A queue in a store as a remote queue of the runner.

use os_display::Quotable;
use requeue::Completion;
use requeue_http::{Builder, Site};
use requeue_store::Key;
use requeue_store::{Item, Queue};

use crate::exit::chain;
use crate::runner::hooks::BoxFuture;
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
        Site::of_store(self.clone()).hint(how_to_add(self.name()))
    }
}

/// Returns the command that adds a key. The address of the store is not shown, because it may have a password.
pub(super) fn how_to_add(queue: &str) -> String {
    format!("requeue add --store URL --queue {} KEY", queue.maybe_quote())
}

impl Lease for Item {
    fn key(&self) -> &[u8] {
        self.key()
    }

    fn attempt(&self) -> u32 {
        self.attempt()
    }

    fn priority(&self) -> i32 {
        self.priority().into()
    }

    fn adds(&self) -> u32 {
        self.adds()
    }

    fn fencing_token(&self) -> u64 {
        self.fencing_token()
    }

    fn is_lost(&self) -> bool {
        self.is_lost()
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.lost())
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled()
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { _ = self.cancelled().await })
    }

    fn complete(
        mut self: Box<Self>,
        completion: Completion,
        error: Option<&str>,
    ) -> BoxFuture<'static, Result<bool, String>> {
        if let Some(error) = error {
            self.set_error(error);
        }
        Box::pin(async move {
            let completed = Self::complete(*self, completion).await;
            completed.map(|completed| completed.parked).map_err(|error| chain(&error))
        })
    }
}

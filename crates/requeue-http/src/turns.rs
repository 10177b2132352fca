//! Limits the number of requests that search through keys at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The number of concurrent searches. Each search occupies a processor, which the workers also need.
const AT_ONCE: usize = 1;

/// The turns, in the order of the requests.
#[derive(Debug)]
pub(crate) struct Turns {
    at_once: Semaphore,
    all: Semaphore,
}

/// The right to search, until it is dropped: a permit for a search, and a place in the queue of requests.
pub(crate) type Turn<'a> = (SemaphorePermit<'a>, SemaphorePermit<'a>);

impl Turns {
    /// Creates turns for only an eighth of the connections, but at least one, because other requests also need
    /// connections.
    pub(crate) fn new(connections: usize) -> Self {
        let most = (connections / 8).max(AT_ONCE);
        Self { at_once: Semaphore::new(AT_ONCE), all: Semaphore::new(most) }
    }

    /// Waits for a turn. Returns `None` immediately if too many requests wait.
    pub(crate) async fn wait_turn(&self) -> Option<Turn<'_>> {
        // A place in the queue of requests is taken first, so that the number of waiting requests is limited.
        let of_all = self.all.try_acquire().ok()?;
        // The semaphore is never closed.
        let one = self.at_once.acquire().await.ok()?;
        Some((one, of_all))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_walks_some_wait_and_the_rest_is_refused() {
        const WAITING: usize = 15;
        let turns = Turns::new(8 * (AT_ONCE + WAITING));
        let walking: Vec<_> = (0..AT_ONCE).map(|_| turns.wait_turn().now_or_never()).collect();
        assert!(walking.iter().all(|turn| matches!(turn, Some(Some(_)))));
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(turns.wait_turn())).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        assert!(matches!(turns.wait_turn().now_or_never(), Some(None)));
        drop(walking);
        assert!(matches!(waiting.remove(0).now_or_never(), Some(Some(_))));
        // A dropped request frees its turn.
        waiting.clear();
        assert!(matches!(turns.wait_turn().now_or_never(), Some(Some(_))));
        // A site with one connection can still search.
        assert!(matches!(Turns::new(1).wait_turn().now_or_never(), Some(Some(_))));
    }
}

//! Limits the number of requests that search through keys at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The maximum number of concurrent searches. Each search may use a processor
/// completely, and the workers need processors too.
const AT_ONCE: usize = 1;

/// The permits of searches: one for each search that runs, and one for each search that
/// runs or waits.
#[derive(Debug)]
pub(crate) struct Turns {
    at_once: Semaphore,
    all: Semaphore,
}

/// The right of a request to search, until this value is dropped. It consists of a
/// permit to run, and a permit to run or wait.
pub(crate) type Turn<'a> = (SemaphorePermit<'a>, SemaphorePermit<'a>);

impl Turns {
    /// Creates turns for a server with this number of connections. Searches may occupy
    /// an eighth of them, but at least one. The others are left to other requests.
    pub(crate) fn new(connections: usize) -> Self {
        let most = (connections / 8).max(AT_ONCE);
        Self { at_once: Semaphore::new(AT_ONCE), all: Semaphore::new(most) }
    }

    /// Waits for a turn. Returns `None` immediately if the maximum number of requests
    /// is already waiting.
    pub(crate) async fn wait_turn(&self) -> Option<Turn<'_>> {
        // The permit to wait is taken first, because it limits the number of waiting
        // requests.
        let of_all = self.all.try_acquire().ok()?;
        // `acquire` fails only if the semaphore is closed, and it is never closed.
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
        // If the future of a waiting request is dropped, its place becomes free.
        waiting.clear();
        assert!(matches!(turns.wait_turn().now_or_never(), Some(Some(_))));
        // A server with one connection permits one search.
        assert!(matches!(Turns::new(1).wait_turn().now_or_never(), Some(Some(_))));
    }
}

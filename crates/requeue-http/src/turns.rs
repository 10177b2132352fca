//! Limits how many requests search through keys at once.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The number of searches at a time. Each one occupies a processor, which the workers need too.
const AT_ONCE: usize = 1;
/// The number of searches that wait: as many as the program has connections. A client that is
/// refused asks again at once, which costs more than letting it wait.
const WAITING: usize = 64;

/// The turns, in the order of the requests.
#[derive(Debug)]
pub(crate) struct Turns {
    at_once: Semaphore,
    all: Semaphore,
}

/// The right to search, until it is dropped.
pub(crate) struct Turn<'a> {
    _one: SemaphorePermit<'a>,
    _of_all: SemaphorePermit<'a>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { at_once: Semaphore::new(AT_ONCE), all: Semaphore::new(AT_ONCE + WAITING) }
    }

    /// Waits for a turn. Returns `None` at once if too many requests wait.
    pub(crate) async fn take(&self) -> Option<Turn<'_>> {
        let _of_all = self.all.try_acquire().ok()?;
        // The semaphore is never closed.
        let _one = self.at_once.acquire().await.ok()?;
        Some(Turn { _one, _of_all })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_walks_as_many_wait_as_there_are_connections_and_the_rest_is_refused() {
        let turns = Turns::new();
        let walking: Vec<_> = (0..AT_ONCE).map(|_| turns.take().now_or_never()).collect();
        assert!(walking.iter().all(|turn| matches!(turn, Some(Some(_)))));
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(turns.take())).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        assert!(matches!(turns.take().now_or_never(), Some(None)));
        drop(walking);
        assert!(matches!(waiting.remove(0).now_or_never(), Some(Some(_))));
        // A client that disconnects frees its turn.
        waiting.clear();
        assert!(matches!(turns.take().now_or_never(), Some(Some(_))));
    }
}

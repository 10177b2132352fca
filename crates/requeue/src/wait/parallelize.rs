//! A function that processes numbered pieces of work on several threads. Each piece is processed at
//! most once.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::handle_crash;

/// Calls `f` once with each number below `pieces`, on up to `workers` threads. Returns when all
/// calls have returned, or when `stop` has returned true.
///
/// This is client-go's `ParallelizeUntil`. The calling thread is one of the workers. Each worker
/// takes `chunk` pieces at a time, in order. For many small pieces, a larger chunk is faster.
/// `stop` is called before every piece. A piece that was started is always completed. If `workers`
/// or `chunk` is 0, it is treated as 1.
///
/// The call blocks its thread. In a runtime, call it in `spawn_blocking`. If the operating system
/// refuses to start a thread, there are fewer workers.
///
/// # Panics
///
/// Panics if `stop` panics, or if `f` panics and [`set_really_crash`](super::set_really_crash) was
/// called with `true`. The other workers then stop before their next piece, and the panic continues
/// on the calling thread. In all other cases, a panic of `f` is passed to [`handle_crash`], and the
/// worker takes the next piece. In client-go, that worker takes no more pieces.
///
/// # Examples
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use requeue::wait::parallelize_until;
///
/// let sum = AtomicU64::new(0);
/// parallelize_until(4, 1000, 10, || false, |piece| {
///     sum.fetch_add(piece as u64, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 499_500);
/// ```
pub fn parallelize_until(
    workers: usize,
    pieces: usize,
    chunk: usize,
    stop: impl Fn() -> bool + Sync,
    f: impl Fn(usize) + Sync,
) {
    let chunk = chunk.max(1);
    let chunks = pieces.div_ceil(chunk);
    let next = AtomicUsize::new(0);
    let crashed = AtomicBool::new(false);
    let take_chunks = || {
        loop {
            // A relaxed operation is sufficient. The counter only assigns numbers, and the join of
            // the threads makes their writes visible.
            let taken = next.fetch_add(1, Ordering::Relaxed);
            if taken >= chunks {
                return;
            }
            let start = taken * chunk;
            for piece in start..start.saturating_add(chunk).min(pieces) {
                if crashed.load(Ordering::Relaxed) || stop() {
                    return;
                }
                if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| f(piece))) {
                    handle_crash(payload);
                }
            }
        }
    };
    let work = || {
        let worked = panic::catch_unwind(AssertUnwindSafe(take_chunks));
        worked.inspect_err(|_| crashed.store(true, Ordering::Relaxed))
    };
    let panicked = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..workers.min(chunks)).map_while(start).collect();
        let mine = work();
        let others = others.into_iter().map(|other| other.join().flatten());
        others.fold(mine, Result::and)
    });
    if let Err(payload) = panicked {
        panic::resume_unwind(payload);
    }
}

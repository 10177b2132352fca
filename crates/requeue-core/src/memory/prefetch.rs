//! Prefetching: a request for memory that the queue will read soon. The processor loads the memory
//! while the queue does other work.

/// Makes the processor load the cache line of `items[at]`. The call is only a hint, and has no
/// visible effect.
#[cfg(feature = "prefetch")]
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    prefetch_index::prefetch_index(items, at);
}

#[cfg(not(feature = "prefetch"))]
#[inline(always)]
pub(crate) const fn prefetch<T>(_: &[T], _: usize) {}

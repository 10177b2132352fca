//! Prefetching: memory that will be read soon is requested early, so that the processor does not wait for the memory.

/// Makes the processor fetch the cache line of `items[at]`. The call is a hint and has no other effect.
#[cfg(feature = "prefetch")]
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    prefetch_index::prefetch_index(items, at);
}

#[cfg(not(feature = "prefetch"))]
#[inline(always)]
pub(crate) const fn prefetch<T>(_: &[T], _: usize) {}

//! What will be read soon, asked for ahead of time, so that the processor does not wait for memory.

/// Has the processor fetch the line of `items[at]`. Nothing else depends on it.
#[cfg(feature = "prefetch")]
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    prefetch_index::prefetch_index(items, at);
}

#[cfg(not(feature = "prefetch"))]
#[inline(always)]
pub(crate) const fn prefetch<T>(_: &[T], _: usize) {}

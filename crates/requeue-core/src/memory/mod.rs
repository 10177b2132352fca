//! Containers without a long step: each grows and shrinks a little at a time.

pub(crate) mod chunked;
pub(crate) mod index;
pub(crate) mod list;
pub(crate) mod prefetch;
pub(crate) mod slab;
pub(crate) mod sparse;
pub(crate) mod timer_heap;

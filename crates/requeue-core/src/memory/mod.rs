//! Containers that grow and shrink a little at a time, so that no operation takes long.

pub(crate) mod chunked;
pub(crate) mod index;
pub(crate) mod key_map;
pub(crate) mod list;
pub(crate) mod prefetch;
pub(crate) mod slab;
pub(crate) mod sparse;
pub(crate) mod timer_heap;

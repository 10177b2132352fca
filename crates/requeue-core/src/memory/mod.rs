//! Containers that grow and shrink in small steps, so that no single operation takes long.

pub(crate) mod chunked;
pub(crate) mod index;
pub(crate) mod key_map;
pub(crate) mod list;
pub(crate) mod prefetch;
pub(crate) mod slab;
pub(crate) mod sparse;
pub(crate) mod timer_heap;

pub(crate) use self::chunked::Chunked;
pub(crate) use self::index::{Found, Index, Indexed, Position, fold};
pub(crate) use self::key_map::KeyMap;
pub(crate) use self::list::{Links, List};
pub(crate) use self::slab::Slab;
pub(crate) use self::sparse::Sparse;
pub(crate) use self::timer_heap::TimerHeap;

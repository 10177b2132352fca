//! The public types: a store, its queues, what is added and what is delivered.

pub(crate) mod bulk;
pub(crate) mod cache;
pub(crate) mod item;
pub(crate) mod options;
pub(crate) mod queue;
mod reads;
pub(crate) mod store;
pub(crate) mod work;

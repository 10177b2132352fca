//! The public types with behaviour: stores, queues, items and bulk changes.

mod actions;
pub(crate) mod bulk;
pub(crate) mod claims;
pub(crate) mod groups;
pub(crate) mod queue;
mod reads;
pub(crate) mod schedules;
pub(crate) mod store;
pub(crate) mod work;

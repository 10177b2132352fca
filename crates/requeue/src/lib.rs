//! A work queue of keys.

pub mod clock;
pub mod wait;

pub use requeue_core::Time;

//! Kubernetes controllers on kube-rs that back off, order and show themselves.

mod key;
pub mod watch;

pub use crate::key::ObjectKey;

//! A Kubernetes API server of its own for each test that asks for one.
//!
//! - [`Server`] is etcd, kube-apiserver, and the controllers that delete namespaces and collect
//!   garbage, as processes on free ports of 127.0.0.1. It takes about four seconds to start;
//!   [`Server::shared`] is one for all tests of a binary, which take a namespace each.
//! - Each process can be killed, ended, frozen, thawed and started again: [`Node`]. So can programs of
//!   one's own: [`Server::spawn`].
//! - [`Proxy`] is a network between client and server that can be cut, frozen and slowed down.
//! - [`Server::compact`] makes resource versions too old, for `410 Gone`.
//! - However the tests end, no process outlives them, and no file.
//!
//! It is a harness for tests: what goes wrong in it panics, and says what and why.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::Api;
//! use requeue_e2e::Server;
//!
//! # async fn test() {
//! // `None` where there is no server to start; that is said.
//! let Some(server) = Server::shared().await else { return };
//! let namespace = server.namespace("example").await;
//! let maps: Api<ConfigMap> = Api::namespaced(server.client().await, &namespace);
//! assert!(maps.list(&Default::default()).await.unwrap().items.is_empty());
//! # }
//! ```

mod access;
mod exclusive;
mod node;
mod proxy;
mod server;
mod wait;

pub use access::Access;
pub use exclusive::Exclusive;
pub use node::Node;
pub use proxy::{Cutting, Proxy};
pub use server::Server;
pub use wait::{Nanos, full, now, until};

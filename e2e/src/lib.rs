//! Kubernetes API servers for tests.
//!
//! - [`Server`] is etcd, kube-apiserver, and the controllers that delete namespaces and collect
//!   garbage, as processes on free ports of 127.0.0.1. The server takes about four seconds to
//!   start. [`Server::shared`] is one server for all tests of a binary, each of which has a
//!   separate namespace.
//! - A test can kill, terminate, freeze, thaw and restart each process: [`Node`]. A test can do the
//!   same with other programs: [`Server::spawn`].
//! - [`Proxy`] is a network between a client and a server, which can be cut, frozen and slowed
//!   down.
//! - [`Server::compact`] makes resource versions too old, for `410 Gone`.
//! - [`apply`] applies a manifest as `kubectl` does.
//! - No process and no file outlives the tests, even if they are killed.
//!
//! This crate is only for tests, so a function that fails panics. The message contains the
//! operation and the reason.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::Api;
//! use requeue_e2e::Server;
//!
//! # async fn test() {
//! // `None` if there is no server to start; the list of tests that did not run says so.
//! let Some(server) = Server::shared().await else { return };
//! let namespace = server.namespace("example").await;
//! let maps: Api<ConfigMap> = Api::namespaced(server.client().await, &namespace);
//! assert!(maps.list(&Default::default()).await.unwrap().items.is_empty());
//! # }
//! ```

mod access;
mod exclusive;
mod manifests;
mod node;
mod proxy;
mod server;
mod wait;

pub use access::Access;
pub use exclusive::Exclusive;
pub use manifests::{apply, objects};
pub use node::Node;
pub use proxy::{Cutting, Proxy};
pub use server::Server;
pub use wait::{Nanos, full, now, until};

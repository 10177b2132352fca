//! The server through kube's client: each test shows one behaviour of a real API server.

mod access;
mod applying;
mod common;
mod custom;
mod discovery;
mod garbage;
mod namespaces;
mod objects;
mod properties;
mod refusals;
mod rules;
mod subresources;
mod unknown;
mod watches;

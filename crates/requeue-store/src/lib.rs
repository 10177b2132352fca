//! The [`requeue`] work queue, durable and shared: the same promises across
//! processes and machines, on an engine that you run anyway.
//!
//! - **Coalesced, exclusive, never lost, delayed and retried**, as in memory: a key added ten times
//!   before a worker takes it is handed out once; it is with one worker at a time, on whatever
//!   machine; one that is added while it is worked on is handed out once more; failures back off.
//! - **Durable**: an add that returned survives a crash of every process of yours, and of the engine
//!   as far as that promises.
//! - **Leased and fenced**: a worker that dies or is cut off loses its key when the lease ends, and
//!   whatever it does after that has no effect here; [`Item::epoch`] makes the same true elsewhere.
//! - **Parked**: a key that fails too often is put out of the way, with its last error, until it is
//!   added again, revived or cancelled.
//!
//! ```
//! use std::time::Duration;
//! use requeue_store::Store;
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = Store::connect(&url).await?;
//! store.migrate().await?;
//! let queue = store.queue("invoices").max_failures(5).open().await?;
//!
//! queue.add_all(["a-17", "a-18"]).await?;
//! queue.add_after("a-19", Duration::from_secs(3600)).await?;
//!
//! let item = queue.get().await.expect("it is not shut down");
//! match send_invoice(&item).await {
//!     Ok(()) => item.succeed().await?,
//!     Err(error) => item.retry(error).await?,
//! }
//! # async fn send_invoice(_: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`requeue::workers`] run on such a queue as on one in memory:
//!
//! ```
//! use requeue::workers::{Action, Context, Error, Workers};
//! # use requeue_store::{Key, Store};
//!
//! async fn send(key: Key, context: Context) -> Result<Action, Error> {
//!     // What is written elsewhere carries `context.epoch()`.
//!     # let _ = (key, context);
//!     Ok(Action::succeed())
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let store = Store::connect(&url).await?;
//! # store.migrate().await?;
//! # let queue = store.queue("invoices").max_failures(5).open().await?;
//! queue.shut_down_when_idle(); // a service has `run_until(...)` instead
//! Workers::new(queue, send).concurrency(2).run().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `sqlite`, which is on unless switched off, `postgres` and `redis`: the engines. `prometheus`: metrics.
//!
//! # Time
//!
//! All times are the engine's: a client whose clock is wrong adds, claims and loses as any other.
//! In a file time goes on as the machine has been running, on Linux, so that nobody who sets its clock
//! ends a lease.
//! How long a lease surely lasts is counted here, from before the engine was asked for it.
#![cfg_attr(docsrs, feature(doc_cfg))]
// What only some engines use is there for all of them.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(dead_code, unreachable_code, unused_imports, unused_variables)
)]

mod api;
mod client;
mod engine;
#[doc(hidden)]
pub mod fuzz_api;
#[cfg(test)]
mod tests;
mod types;

pub use requeue::Completion;

pub use crate::api::bulk::Bulk;
pub use crate::api::item::{Completed, Item};
pub use crate::api::queue::Queue;
pub use crate::api::store::{OpenOptions, Store};
#[cfg(feature = "postgres")]
pub use crate::engine::postgres;
pub use crate::types::add::{Add, AddCounts, Added, Cancelled, Merge, ParkedAdd, Priority, ReAdd};
pub use crate::types::error::{
    AddError, ConnectError, ConnectErrorKind, DropError, FinishError, MigrateError, OpenError,
    ReadError, UpdateError,
};
pub use crate::types::inspect::{Counts, Entry, ParkedKey, QueueInfo, State};
pub use crate::types::key::Key;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;

//! A durable [`requeue`] work queue in SQLite, PostgreSQL or Redis. Processes on several machines can share the queue.
//!
//! - **The rules of a queue in memory**: a key that is added ten times before a worker takes it is delivered once. At
//!   most one worker has a key in flight, on any machine. A key that is added again while it is in flight is delivered
//!   once more. A failed key is retried after a backoff.
//! - **Durable**: an add that has returned survives a crash of all your processes. The add also survives a crash of the
//!   engine, if the engine promises durability.
//! - **Leased and fenced**: a worker that dies, or that can no longer reach the store, loses its key when the lease
//!   expires. After the expiry, no action of this worker changes the store. [`Item::fencing_token`] is a number with
//!   which other systems can also reject late writes of the worker.
//! - **Parked**: a key that fails too often is parked with its last error. The key stays parked until it is added
//!   again, revived or cancelled.
//!
//! Delivery is at least once, so handlers must be idempotent.
//!
//! # Open a store
//!
//! [`Store::connect`] takes the address of a file or a server. [`Store::migrate`] creates or updates the schema.
//! [`OpenOptions::open`] opens a queue, and creates it if it does not exist.
//!
//! ```
//! use std::time::Duration;
//! use requeue_store::Store;
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // Or `postgres://HOST/DATABASE`, or `redis://HOST`.
//! let store = Store::connect(&url).await?;
//! store.migrate().await?;
//! let queue = store.queue("invoices").max_failures(10).open().await?;
//!
//! queue.add_all(["a-17", "a-18"]).await?;
//! queue.add_after("a-19", Duration::from_secs(3600)).await?;
//! # assert_eq!(queue.counts().await?.ready, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Run workers
//!
//! [`requeue::workers`] run on a queue in a store in the same way as on a queue in memory:
//!
//! ```
//! use requeue::workers::{Action, Context, Error, Workers};
//! use requeue_store::{Key, Store};
//!
//! async fn send(key: Key, context: Context) -> Result<Action, Error> {
//!     // Writes to other systems carry `context.fencing_token()`.
//!     println!("{key}, attempt {}", context.attempt());
//!     Ok(Action::succeed())
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let store = Store::connect(&url).await?;
//! # store.migrate().await?;
//! # let queue = store.queue("invoices").max_failures(10).open().await?;
//! # queue.add("a-17").await?;
//! queue.shut_down_when_idle(); // a service uses `run_until(...)` instead
//! Workers::new(queue, send).concurrency(2).run().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Your own loop calls [`Queue::get`] and completes each [`Item`]:
//!
//! ```
//! # use requeue_store::Store;
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let store = Store::connect(&url).await?;
//! # store.migrate().await?;
//! # let queue = store.queue("invoices").max_failures(10).open().await?;
//! # queue.add("a-17").await?;
//! # queue.shut_down_when_idle();
//! while let Some(item) = queue.get().await {
//!     match send_invoice(item.key()).await {
//!         Ok(()) => item.succeed().await?,
//!         Err(error) => item.retry(error).await?,
//!     }
//! }
//! # async fn send_invoice(_: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Add in your own transaction
//!
//! With the feature `postgres`, `postgres::add_in` adds keys in your own transaction. The keys are added when the
//! transaction commits, together with your rows, or not at all. Other stores cannot add keys in your transaction. With
//! another store, write your data first and then add the key. A crash between the two steps loses the add.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # async fn pay(mut client: tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
//! use requeue_store::Add;
//! use requeue_store::postgres::add_in;
//!
//! let transaction = client.transaction().await?;
//! transaction.execute("update invoices set paid = true where id = 17", &[]).await?;
//! add_in(&transaction, "invoices", [("a-17", Add::now())]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Inspect and revive parked keys
//!
//! [`Queue::snapshot`] lists parked keys with their errors. [`Queue::revive`] and [`Queue::revive_all`] make parked
//! keys ready again, and [`Queue::cancel`] removes a parked key:
//!
//! ```
//! # use requeue_store::Store;
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let store = Store::connect(&url).await?;
//! # store.migrate().await?;
//! # let queue = store.queue("invoices").open().await?;
//! # queue.add_all(["a-17", "a-18"]).await?;
//! # queue.get().await.expect("the queue is open").give_up("no such address").await?;
//! # queue.get().await.expect("the queue is open").give_up("no such address").await?;
//! use requeue_store::State;
//!
//! for entry in queue.snapshot(State::Parked, None, 100).await? {
//!     // a-17: parked for 3.2s, after a failure; it runs again only after a revive, or an add that revives it:
//!     // no such address
//!     println!("{}", entry.explain());
//! }
//! assert!(queue.revive("a-17").await?);
//! assert_eq!(queue.revive_all().await?, 1); // the others
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Shut down
//!
//! Workers that were started with `run_until` shut the queue down themselves. They return when the store has recorded
//! their completions. A program with its own loop waits for [`Queue::settled`] before it exits. Otherwise, other
//! processes receive some of the keys that this process has claimed only after the leases expire.
//!
//! ```
//! # use requeue_store::Store;
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let store = Store::connect(&url).await?;
//! # store.migrate().await?;
//! # let queue = store.queue("invoices").open().await?;
//! queue.shut_down(); // `get` returns `None` from now on
//! queue.settled().await;
//! store.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `sqlite` (default), `postgres` and `redis`: the engines.
//! - `prometheus`: metrics.
//!
//! # Time
//!
//! The engine's clock determines all times in the store. A wrong clock of a client has no effect on adds, claims and
//! leases. With a file on Linux, times follow the uptime of the machine. Therefore, a change of the machine's clock
//! lets no lease expire. A client measures each lease with its own monotonic clock, from the moment at which it sends
//! the request. Therefore, a client never relies on a lease for longer than the engine grants it.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Code that several engines share is compiled with any engine. If some engines are disabled, parts of this code are
// unused.
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

pub use requeue::history::Ended;
pub use requeue::{CancelReason, CancelledRun, Completion};

pub use crate::api::bulk::Bulk;
#[doc(hidden)]
pub use crate::api::claims::{Claims, Renewal, Resumed, Ticket};
pub use crate::api::groups::GroupHandle;
pub use crate::api::queue::Queue;
pub use crate::api::store::{OpenOptions, Store};
pub use crate::client::item::{Completed, Item};
#[cfg(feature = "postgres")]
pub use crate::engine::postgres;
// Only requeue-testkit needs this module: it simulates several processes with one database.
#[cfg(all(feature = "sqlite", any(test, feature = "test-util")))]
#[doc(hidden)]
pub use crate::engine::sqlite::simulated;
pub use crate::types::action::ActionRecord;
pub use crate::types::activity::{Activity, LiveWorker, Minute, Tally};
pub use crate::types::add::{Add, Added, Merge, ParkedAdd, Priority, ReaddPolicy};
pub use crate::types::error::{
    AddError, CompleteError, ConnectError, ErrorKind, MigrateError, OpenError, ReadError,
    UpdateError,
};
pub use crate::types::group::GroupBy;
pub use crate::types::inspect::{
    Attempt, CompletedRun, Entry, GroupInfo, ParkedKey, QueueInfo, State, StateCounts,
};
#[doc(hidden)]
pub use crate::types::inspect::{Hold, Part};
pub use crate::types::key::Key;
pub use crate::types::rate::{ParseRateError, Rate};
pub use crate::types::schedule::{Schedule, ScheduleInfo};
#[doc(hidden)]
pub use crate::types::worker::this_process;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;

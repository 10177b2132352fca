//! A work queue of keys for programs that reconcile state: Kubernetes' `client-go` workqueue for
//! Rust.
//!
//! - **Deduplicated**: if a key is added ten times before a worker takes it, it is delivered once.
//! - **Exclusive**: a key is never delivered to two workers at the same time. There are two
//!   exceptions: blocking code that continues after its time limit, and a worker of a store that
//!   stalls for longer than its lease.
//! - **Never lost**: if a key is added while it is in flight, it is delivered once more afterwards.
//!   If a worker panics, is cancelled or returns early, its run has failed, and the key is retried.
//! - **Delayed and retried**: [`add_after`](Queue::add_after) delivers a key no earlier than its
//!   due time. Each failing key has a separate backoff, until a run succeeds.
//! - **Fair**: keys are delivered first in, first out; by [priority](Order::Priority), without
//!   starvation; or in [fair shares](Builder::fair) among groups.
//!
//! ```
//! use requeue::{Added, Queue};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let queue = Queue::new();
//! queue.add("default/web");
//! assert_eq!(queue.add("default/web"), Added::Coalesced);
//!
//! let item = queue.get().await.expect("the queue is open");
//! assert_eq!(*item, "default/web");
//! // The key is added again while it is in flight, so it runs once more after this run.
//! assert_eq!(queue.add("default/web"), Added::Dirty);
//! item.succeed();
//!
//! // This run fails, and is retried after a backoff.
//! queue.get().await.expect("the queue is open").retry();
//!
//! // Refuse new keys. The known keys still run, and then `get` returns `None`.
//! queue.close();
//! while let Some(item) = queue.get().await {
//!     assert_eq!(item.attempt(), 2);
//!     item.succeed();
//! }
//! # });
//! ```
//!
//! # Modules and main types
//!
//! - [`Queue`] adds and delivers keys. [`Builder`] configures a queue. An [`Item`] is a delivered
//!   key, and completes its delivery.
//! - [`workers`] runs a handler for each key, on tasks or on threads. Workers add retries, the
//!   handling of panics, and shutdown to the loop above.
//! - [`clock`] contains the clocks: of the system, of a tokio runtime, of the processor, and for
//!   tests.
//! - [`history`] contains the recorded events of keys, which [`Queue::history`] returns.
//! - [`limiter`] contains the limiters, which compute how long a key waits after a failure.
//! - [`metrics`] contains hooks and collectors for metrics backends.
//! - [`trace`] creates OpenTelemetry spans for keys. It needs the feature `opentelemetry`.
//! - [`wait`] contains loops that wait: for a condition, for a period, or with a backoff. They need
//!   the feature `wait`, but no queue.
//!
//! # Workers
//!
//! [`workers`] runs a handler for each key. If the handler returns an error, the key is retried
//! with a backoff. After too many failures, the key is given up. A handler may run again after a
//! failure or a panic, so it must be idempotent.
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use requeue::Queue;
//! use requeue::workers::{Action, Context, Error, Workers};
//!
//! async fn reconcile(key: String, context: Context) -> Result<Action, Error> {
//!     println!("{key}, attempt {}", context.attempt());
//!     Ok(Action::succeed())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let queue: Queue<String> = Queue::new();
//! queue.add_ref("default/web");
//! queue.close(); // the end of the input
//! Workers::new(queue, reconcile).concurrency(4).max_retries(10).run().await;
//! # });
//! # }
//! ```
//!
//! # Threads
//!
//! Programs without an async runtime can use the queue: [`ThreadWorkers`](workers::ThreadWorkers)
//! runs the handler on threads, and [`Get::blocking`] blocks the calling thread until a key is
//! ready.
//!
//! ```
//! use requeue::Queue;
//! use requeue::workers::{Action, ThreadWorkers};
//!
//! let queue = Queue::new();
//! queue.add_all(["a", "b", "c"]);
//! queue.close();
//! ThreadWorkers::new(queue, |key, _context| {
//!     println!("{key}");
//!     Ok(Action::succeed())
//! })
//! .threads(4)
//! .run();
//! ```
//!
//! # Debouncing
//!
//! [`Add::debounce`] delivers a key when no add of it has come for a quiet time.
//! [`at_most`](Add::at_most) limits the wait, so that a key that is constantly added is also
//! delivered.
//!
//! ```
//! use requeue::{Add, Queue, clock::FakeClock};
//! use std::time::Duration;
//!
//! let clock = FakeClock::new();
//! let queue = Queue::builder().clock(clock.clone()).build()?;
//! let when_quiet = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
//! queue.add_with("draft", when_quiet);
//! clock.advance(Duration::from_millis(200));
//! queue.add_with("draft", when_quiet);
//! clock.advance(Duration::from_millis(299));
//! assert!(queue.try_get().is_none());
//! clock.advance(Duration::from_millis(1));
//! assert_eq!(queue.try_get().expect("300 ms without an add").adds(), 2);
//! # Ok::<(), requeue::BuildError>(())
//! ```
//!
//! # Testing with a fake clock
//!
//! A queue with a [`FakeClock`](clock::FakeClock) gets its time from the test. The time changes
//! only when the test changes it. A test of an hour therefore takes microseconds, and gives the
//! same result each time.
//!
//! ```
//! use requeue::{Queue, clock::FakeClock};
//! use std::time::Duration;
//!
//! let clock = FakeClock::new();
//! let queue = Queue::builder().clock(clock.clone()).build()?;
//! queue.add_after("report", Duration::from_secs(3600));
//! assert!(queue.try_get().is_none());
//! clock.advance(Duration::from_secs(3600));
//! assert_eq!(queue.try_get().as_deref(), Some(&"report"));
//! # Ok::<(), requeue::BuildError>(())
//! ```
//!
//! # Shutdown
//!
//! There are three ways to stop a queue. After each of them, [`get`](Queue::get) returns `None`
//! when the queue has no more keys. Workers that call `get` in a loop then return.
//!
//! | call | new keys | waiting keys | ready keys | use |
//! |---|---|---|---|---|
//! | [`close`](Queue::close) | refused | delivered when due | delivered | the end of the input |
//! | [`shut_down`](Queue::shut_down) | refused | dropped and returned | delivered | a signal |
//! | [`shut_down_with_drain`](Queue::shut_down_with_drain) | refused | dropped and reported | delivered | a signal, if the program waits until no key is ready or in flight |
//!
//! [`Workers::run_until`](workers) waits for a future, then shuts the queue down and drains it:
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use requeue::Queue;
//! use requeue::workers::{Action, Context, Error, Workers};
//! use std::time::Duration;
//!
//! async fn reconcile(_key: &'static str, _: Context) -> Result<Action, Error> {
//!     Ok(Action::succeed())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let queue = Queue::new();
//! queue.add("ready");
//! queue.add_after("later", Duration::from_secs(3600));
//! let signal = async { /* for example, `tokio::signal::ctrl_c().await` */ };
//! let workers = Workers::new(queue, reconcile).drain_timeout(Duration::from_secs(3600));
//! let drained = workers.run_until(signal).await;
//! assert!(drained.finished);
//! assert_eq!(drained.dropped, ["later"]);
//! # });
//! # }
//! ```
//!
//! # Re-add policies
//!
//! [`ReaddPolicy`] decides the effect of an add on a key that already waits, or that backs off
//! after a failure. The default is `Hold`: one run is pending, and a failing key never runs before
//! its backoff has ended. With `Replace`, an add ends the backoff. `KeepBoth` is the behaviour of
//! client-go, in which a key can have two pending runs. [`Queue::client_go`] uses `KeepBoth`, for
//! code that comes from client-go.
//!
//! # Limiters
//!
//! [`BackoffLimiter`](limiter::BackoffLimiter) is the default, and suits most programs. Each key
//! has a backoff from 1 s to 5 min, with jitter. At most one failure per wait is counted.
//! [`Builder::backoff`] sets other delays. [`default_controller`](limiter::default_controller) is
//! the limiter of client-go. It also limits the retries of all keys together to ten per second.
//!
//! # Features
//!
//! A feature only adds items. No feature changes a default or the result of a call.
//!
//! - `tokio` (default): [`workers`] on tasks, and a clock for tests that pause the time of a
//!   runtime. The queue itself needs no runtime: [`get`](Queue::get) works in any runtime, and
//!   [`Get::blocking`] on any thread. In a task of tokio, a getter also yields to other tasks when
//!   the task has used up its cooperative budget. Together with `wait`, `wait::handle_crash` also
//!   emits a `tracing` event.
//! - `prometheus`: a collector for `prometheus-client`.
//! - `opentelemetry`: [`trace`], which creates spans for keys.
//! - `tsc`: a clock that reads the counter of the processor, for queues with metrics.
//! - `wait`: the loops and delay managers of [`wait`], for code that comes from apimachinery and
//!   client-go.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
mod completion;
pub mod metrics;
mod queue;
mod ranked_mutex;
mod reasons;
mod sync;
#[cfg(feature = "opentelemetry")]
pub mod trace;
pub mod wait;
pub mod workers;

pub use requeue_core::history;
pub use requeue_core::limiter;
pub use requeue_core::{
    Add, Added, CancelReason, Cancelled, CancelledRun, ConsecutiveFailures, Cursor, CustomOrder,
    Entry, GroupId, Histogram, InFlightPolicy, Merge, Order, Pace, Page, Phase, ReaddPolicy,
    Reason, ReasonCount, Reasons, StateCounts, Time, Totals,
};

pub use crate::completion::Completion;
pub use crate::queue::{
    BuildError, Builder, Drain, Drained, Get, GetMany, GroupHandle, Item, Key, NoGroups, Queue,
    SucceedAndGet, Ticket,
};
pub use crate::reasons::{caller_reason, describe_reasons, intern_reason, reason_text};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct PackageReadme;

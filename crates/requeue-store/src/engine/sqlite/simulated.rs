//! A database in memory for simulations: all operations run on the thread of their caller, at a time that a test sets.
//!
//! It is the engine of a file, with the same SQL.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rusqlite::TransactionBehavior;
use tokio::time::Instant;

use super::clock::{Clock, Reading};
use super::thread::{Job, Server, Thread};
use super::{Sqlite, Synchronous};
use crate::engine::lock;
use crate::engine::time::{Micros, after};
use crate::engine::wakes::Wakes;
use crate::types::error::{Answer, ConnectError, EngineError};

/// The time at which a simulation begins, in microseconds since 1970: in 2001.
const BEGIN: Micros = 1_000_000_000_000_000;

/// The way of one operation to the database and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// It is executed and answered.
    Through,
    /// It is not executed, and fails.
    Lost,
    /// It is executed, and its answer is lost.
    Unanswered,
}

/// The connection of a simulated process.
#[async_trait]
pub trait Link: fmt::Debug + Send + Sync {
    /// Waits until an operation reaches the database.
    async fn begin(&self) -> Way;

    /// Waits until the answer of an operation arrives.
    async fn end(&self);
}

/// A database in memory, which several simulated processes share.
#[derive(Clone)]
pub struct Database(Arc<Mutex<Server>>);

impl Database {
    /// Opens an empty database, whose time is that of the tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if SQLite finds no memory.
    pub fn open() -> Result<Self, ConnectError> {
        let start = Instant::now();
        let clock: Clock = Arc::new(move || {
            let now = after(BEGIN, start.elapsed());
            Reading { start: "simulated".into(), running: now, clock: now }
        });
        let opened = Self::open_with(clock);
        opened.map_err(|fault| ConnectError::from_engine("the store cannot be opened", fault))
    }

    pub(super) fn open_with(clock: Clock) -> Answer<Self> {
        let path = Path::new(":memory:");
        let server = Server::open(path, TransactionBehavior::Immediate, clock)?;
        server.begin(Synchronous::Normal)?;
        Ok(Self(Arc::new(Mutex::new(server))))
    }

    pub(crate) fn engine(&self, link: Arc<dyn Link>) -> Sqlite {
        let caller = Caller { server: Arc::clone(&self.0), link };
        Sqlite { thread: Thread::of_caller(caller), readers: None, wakes: Wakes::default() }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// Runs jobs on the thread of the caller.
pub(super) struct Caller {
    server: Arc<Mutex<Server>>,
    link: Arc<dyn Link>,
}

impl Caller {
    pub(super) async fn run(&self, job: Job) -> Answer<()> {
        let way = self.link.begin().await;
        if way == Way::Lost {
            return Err(EngineError::absent("the connection failed, by a fault of the test"));
        }
        lock(&self.server).run_job(job);
        self.link.end().await;
        match way {
            Way::Unanswered => {
                Err(EngineError::unsure("the answer was lost, by a fault of the test"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("link", &self.link).finish_non_exhaustive()
    }
}

//! A database in memory for simulations. Each operation runs on the thread of its caller, at a time that the test sets.
//!
//! The engine and its SQL are the same as for a file.

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

/// The time at which a simulation begins, in microseconds since 1970. It is in 2001.
const BEGIN: Micros = 1_000_000_000_000_000;

/// The fate of one operation on its way to the database and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The database executes and answers the operation.
    Through,
    /// The database does not execute the operation, and the operation fails.
    Lost,
    /// The database executes the operation, but its answer is lost.
    Unanswered,
}

/// The connection of a simulated process.
#[async_trait]
pub trait Link: fmt::Debug + Send + Sync {
    /// Waits until an operation reaches the database, and returns its fate.
    async fn begin(&self) -> Way;

    /// Waits until the answer to an operation reaches the process.
    async fn end(&self);
}

/// A database in memory that several simulated processes share.
#[derive(Clone)]
pub struct Database(Arc<Mutex<Server>>);

impl Database {
    /// Opens an empty database. Its time advances with the time of the tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if SQLite has too little memory.
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

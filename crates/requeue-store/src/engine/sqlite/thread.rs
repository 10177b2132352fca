//! The threads that own the connections to a file: one that writes, and two that read.
//!
//! The reading threads neither wait for the writing thread nor block it. Operations that arrive while a thread is busy
//! share one transaction, and thus the cost of its commit.
//!
//! A simulation has no threads: each operation runs on the thread of its caller.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, ffi};
use tokio::sync::oneshot;

use super::Synchronous;
use super::clock::{Clock, Time};
use super::place;
use super::reserve::Reserve;
use super::schema::{self, Found, Steps, VERSION};
use crate::engine::time::Micros;
use crate::types::error::{self, Answer, EngineError, ErrorKind, Reason, newer_schema};

/// The maximum number of operations in one transaction.
const MAX_OPERATIONS: usize = 256;
/// The maximum time for which a transaction waits while another process has locked the file.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit for opening the file, or a queue in it. It equals the default timeout of an add.
pub(super) const OPENING: Duration = Duration::from_secs(30);
/// The maximum number of pages of a SQLite file.
const MOST_PAGES: i64 = 4_294_967_294;
/// The delay between two attempts in cases in which SQLite itself does not wait.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The maximum length of the log, in bytes. SQLite can restart the log only if no process writes at this moment, and no
/// process reads content that is not yet in the file. With several busy processes, such a moment may never come.
pub(super) const MAX_LOG: u64 = if cfg!(test) { 1 << 18 } else { 1 << 25 };
/// The time for which a thread waits for other processes to restart the log, and the interval after a failed attempt.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(5);

/// Receives the outcome of the commit, and sends the result of the operation to its caller.
type Reply = Box<dyn FnOnce(Answer<()>) + Send>;

/// Runs an operation, if there is a transaction. Returns SQLite's error if the operation failed, and the function that
/// later receives the outcome of the commit.
type Run = Box<dyn FnOnce(Option<&Work<'_>>) -> (Result<(), Option<ffi::Error>>, Reply) + Send>;

pub(super) struct Operation {
    run: Run,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Plain,
    /// The operation enlarges the file, and fails while the disk is full. In this case, all other operations must still
    /// succeed.
    Grows,
    /// No caller waits for the operation yet. If each commit waits for the disk, the operation waits briefly, so that
    /// it can share the commit of another operation.
    Patient,
}

pub(super) enum Job {
    Operation(Operation),
    Migrate(Steps, oneshot::Sender<Answer<()>>),
    Check(Steps, oneshot::Sender<Answer<()>>),
    Close(oneshot::Sender<Answer<()>>),
}

/// A transaction, and the times at which it runs.
pub(super) struct Work<'c> {
    pub(super) connection: &'c Connection,
    /// The time of the store file.
    pub(super) now: Micros,
    /// The time of the machine's clock.
    pub(super) clock: Micros,
}

#[derive(Debug)]
pub(super) struct Thread {
    jobs: Jobs,
    path: Arc<Path>,
}

#[derive(Debug)]
enum Jobs {
    Thread(Sender<Job>),
    #[cfg(any(test, feature = "test-util"))]
    Caller(super::simulated::Caller),
}

impl Thread {
    /// Starts a thread that writes, and two threads that read. The reading threads are missing if the file has no log.
    /// A database in memory has none, and some file systems do not support a log.
    pub(super) fn start(
        path: &Path,
        synchronous: Synchronous,
        clock: Clock,
    ) -> Answer<(Self, Option<[Self; 2]>)> {
        let mut writer = Server::open(path, TransactionBehavior::Immediate, Arc::clone(&clock))?;
        // With `Full`, each commit waits for the disk, so an operation can save time by waiting for a shared commit.
        writer.syncs = synchronous == Synchronous::Full;
        // The readers open the file when its log exists, because the writer creates the log.
        let has_log = writer.begin(synchronous)?;
        let read = || {
            let clock = Arc::clone(&clock);
            let reader = Server::open(path, TransactionBehavior::Deferred, clock)?;
            // If a reader could write by mistake, it would lock the file and block all writers.
            let only = reader.connection.pragma_update(None, "query_only", true);
            only.map_err(|error| fault(path, &error))?;
            reader.spawn()
        };
        let readers = if has_log { Some([read()?, read()?]) } else { None };
        Ok((writer.spawn()?, readers))
    }

    /// Runs `work` in a transaction. If the future is dropped after `work` has begun, the thread completes `work`.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.call_as(Kind::Plain, work).await
    }

    pub(super) async fn call_as<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<T> {
        let path = Arc::clone(&self.path);
        self.send_job(|answer: oneshot::Sender<Answer<T>>| {
            let run = Box::new(move |at: Option<&Work<'_>>| {
                // If the caller was dropped, the work is skipped. Otherwise, a claim would take keys of which no
                // process knows.
                let done = at.filter(|_| !answer.is_closed()).map(work);
                let went_well = match &done {
                    Some(Err(error)) => Err(error.sqlite_error().copied()),
                    _ => Ok(()),
                };
                let reply: Reply = Box::new(move |committed| {
                    let done = committed.and_then(|()| match done {
                        Some(done) => done.map_err(|error| fault(&path, &error)),
                        None => Err(EngineError::absent("the request was cancelled")),
                    });
                    // The caller may have been dropped.
                    let _ = answer.send(done);
                });
                (went_well, reply)
            });
            Job::Operation(Operation { run, kind })
        })
        .await
    }

    /// Creates the tables, or upgrades them with `steps`.
    pub(super) async fn migrate(&self, steps: Steps) -> Answer<()> {
        self.send_job(|answer| Job::Migrate(steps, answer)).await
    }

    /// Checks that the file has the schema of this version. Upgrades an older schema with `steps`.
    pub(super) async fn check(&self, steps: Steps) -> Answer<()> {
        self.send_job(|answer| Job::Check(steps, answer)).await
    }

    /// Completes all earlier operations, and then closes the connection. No operation can follow.
    pub(super) async fn close(&self) {
        // The send fails if the connection is already closed.
        let _ = self.send_job(Job::Close).await;
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn of_caller(caller: super::simulated::Caller) -> Self {
        Self { jobs: Jobs::Caller(caller), path: Path::new(":memory:").into() }
    }

    async fn send_job<T>(&self, job: impl FnOnce(oneshot::Sender<Answer<T>>) -> Job) -> Answer<T> {
        let (answer, answered) = oneshot::channel();
        let job = job(answer);
        let closed =
            || EngineError::refused(format!("{}: the store is closed", self.path.display()));
        match &self.jobs {
            Jobs::Thread(jobs) => jobs.send(job).map_err(|_| closed())?,
            #[cfg(any(test, feature = "test-util"))]
            Jobs::Caller(caller) => caller.run(job).await?,
        }
        answered.await.map_err(|_| EngineError::unsure("the thread of the database has stopped"))?
    }
}

pub(super) struct Server {
    connection: Connection,
    path: PathBuf,
    /// The path of the file without symbolic links.
    place: PathBuf,
    /// The mode in which transactions begin. It is deferred for the reading threads.
    behaviour: TransactionBehavior,
    clock: Clock,
    /// The time of the last failed attempt to restart the log.
    held_up: Option<Instant>,
    /// True if each commit waits for the disk.
    syncs: bool,
    /// The duration of the last commit.
    took: Duration,
    reserve: Option<Reserve>,
}

impl Server {
    pub(super) fn open(path: &Path, behaviour: TransactionBehavior, clock: Clock) -> Answer<Self> {
        let place = place::prepare_path(path).map_err(|error| path_refusal(path, &error))?;
        let open = || {
            // The path has no links, unless another user has replaced a part of it after the links were resolved.
            let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_NOFOLLOW;
            let connection = Connection::open_with_flags(&place, flags)?;
            // SQLite waits up to this time for the locks of other processes.
            connection.busy_timeout(PATIENCE)?;
            connection.set_prepared_statement_cache_capacity(64);
            // With this option, SQLite reuses the plan of a query if only a limit differs. Otherwise, it would plan
            // most claims again.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Ok(connection)
        };
        let connection = open().map_err(|error| fault(path, &error))?;
        let (reserve, path) = (Reserve::beside(&place), path.to_owned());
        Ok(Self {
            connection,
            path,
            place,
            behaviour,
            clock,
            held_up: None,
            syncs: false,
            took: Duration::ZERO,
            reserve,
        })
    }

    fn spawn(self) -> Answer<Thread> {
        let (jobs, come) = channel();
        let path = self.path.as_path().into();
        std::thread::Builder::new()
            .name("requeue-sqlite".to_owned())
            .spawn(move || self.serve_jobs(come))
            .map_err(EngineError::absent)?;
        Ok(Thread { jobs: Jobs::Thread(jobs), path })
    }

    /// Sets up the file. Returns true if it has a write-ahead log, with which readers and writers do not block each
    /// other. A file of another program is not changed.
    pub(super) fn begin(&self, synchronous: Synchronous) -> Answer<bool> {
        let set_up = || {
            let mut has_log = false;
            // The owner of the file is read first, because a file of another program must not be changed.
            let found = self.found()?;
            if found != Found::Foreign {
                has_log = self.connection.pragma_update_and_check(
                    None,
                    "journal_mode",
                    "wal",
                    |row| Ok(row.get::<_, String>(0)? == "wal"),
                )?;
                let synchronous = match synchronous {
                    Synchronous::Normal => "normal",
                    Synchronous::Full => "full",
                };
                self.connection.pragma_update(None, "synchronous", synchronous)?;
            }
            Ok((found, has_log))
        };
        // SQLite does not wait for another process that creates the log at this moment, so this loop waits.
        let since = Instant::now();
        let mut tried = set_up();
        while tried.as_ref().is_err_and(is_busy) && since.elapsed() < OPENING {
            std::thread::sleep(PAUSE);
            tried = set_up();
        }
        if tried.as_ref().is_err_and(is_short_of_space)
            && let Some(reserve) = &self.reserve
        {
            // The creation of the log also needs disk space. The deletion of the reserve provides it.
            reserve.release();
            tried = set_up();
        }
        let tried = tried.map_err(|error| fault(&self.path, &error))?;
        // After the first check, another user may have put a file in the place of the log.
        place::check(&self.place).map_err(|error| path_refusal(&self.path, &error))?;
        match tried {
            (Found::Foreign, _) => {
                let said = format!("{}: the file belongs to another program", self.path.display());
                Err(Reason::new(ErrorKind::WrongServer, said).into())
            }
            (Found::Nothing | Found::Ours(_), has_log) => Ok(has_log),
        }
    }

    fn serve_jobs(mut self, come: Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| come.recv().ok()) {
            match job {
                Job::Operation(operation) => {
                    let mut operations = vec![operation];
                    let until = Instant::now() + self.patient_wait();
                    // All operations that have arrived share one commit. Their number is limited, so that other
                    // processes do not wait long for the lock of the file.
                    while operations.len() < MAX_OPERATIONS {
                        // If a caller already waits for a result, the transaction begins immediately.
                        let waits = self.syncs
                            && operations.iter().all(|operation| operation.kind == Kind::Patient);
                        let wait = until.saturating_duration_since(Instant::now());
                        let wait = if waits { wait } else { Duration::ZERO };
                        match come.recv_timeout(wait) {
                            Ok(Job::Operation(operation)) => operations.push(operation),
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.commit_apart(operations);
                }
                Job::Close(answer) => {
                    // The receiver is dropped before the answer, so that later jobs are refused.
                    drop(come);
                    drop(self.connection);
                    // The caller may have been dropped.
                    let _ = answer.send(Ok(()));
                    return;
                }
                other => self.run_job(other),
            }
        }
    }

    /// Runs a job by itself. The connection stays open.
    pub(super) fn run_job(&mut self, job: Job) {
        // The callers may have been dropped, so errors of the sends are ignored.
        match job {
            Job::Operation(operation) => self.commit_apart(vec![operation]),
            Job::Migrate(steps, answer) => _ = answer.send(self.migrate(steps)),
            Job::Check(steps, answer) => _ = answer.send(self.check(steps)),
            Job::Close(answer) => _ = answer.send(Ok(())),
        }
    }

    /// Returns the maximum time for which a patient operation waits for another operation, such as the completion of
    /// the key in flight. A worker may begin to wait for the result in this time. Therefore, the time is shorter than
    /// the commit that the wait can save.
    fn patient_wait(&self) -> Duration {
        if cfg!(test) { Duration::from_secs(2) } else { self.took / 2 }
    }

    /// Commits operations. While the disk is full, adds run in a separate transaction, which can use only the existing
    /// pages of the file.
    fn commit_apart(&mut self, mut operations: Vec<Operation>) {
        let grows = operations.iter().any(|operation| operation.kind == Kind::Grows);
        let Some(reserve) = self.reserve.as_mut().filter(|_| grows) else {
            return self.commit(operations);
        };
        if reserve.allows_growth() {
            return self.commit(operations);
        }
        let adds = operations.extract_if(.., |operation| operation.kind == Kind::Grows).collect();
        if !operations.is_empty() {
            self.commit(operations);
        }
        // If the limit is below the present number of pages, SQLite uses that number as the limit. These two statements
        // need no disk space, and no lock that another process may hold.
        let _ = self.connection.pragma_update(None, "max_page_count", 1);
        self.commit(adds);
        let _ = self.connection.pragma_update(None, "max_page_count", MOST_PAGES);
    }

    fn commit(&mut self, operations: Vec<Operation>) {
        let (clock, behaviour) = (&self.clock, self.behaviour);
        let is_writer = !matches!(behaviour, TransactionBehavior::Deferred);
        let grows = operations.iter().any(|operation| operation.kind == Kind::Grows);
        let mut replies = Vec::with_capacity(operations.len());
        let mut operations = operations.into_iter();
        // The duration includes the wait for the lock, because an operation that shares a commit saves this wait too.
        let began = Instant::now();
        let committed = in_transaction(&mut self.connection, behaviour, |transaction| {
            // The clock is read when the lock is held, because another process may have held the lock for a long time.
            let reading = clock();
            let time = Time::read(transaction, &reading)?;
            let (now, changes) = (time.now(&reading), transaction.total_changes());
            while !operations.as_slice().is_empty() {
                // If an operation fails, only this operation is rolled back. The other operations of the transaction
                // take effect.
                let part = transaction.savepoint()?;
                let Some(operation) = operations.next() else { break };
                let work = Work { connection: &part, now, clock: reading.clock };
                let (went_well, reply) = (operation.run)(Some(&work));
                replies.push(reply);
                if part.is_autocommit() {
                    // After some errors, such as a full disk, SQLite rolls back the whole transaction.
                    let error = went_well.err().flatten();
                    let error = error.unwrap_or_else(|| ffi::Error::new(ffi::SQLITE_ABORT));
                    return Err(rusqlite::Error::SqliteFailure(error, None));
                }
                if went_well.is_ok() {
                    part.commit()?;
                }
            }
            if is_writer {
                time.keep_time(transaction, now, &reading, transaction.total_changes() > changes)?;
            }
            Ok(())
        });
        self.took = began.elapsed();
        // The operations that were not run must also answer their callers.
        replies.extend(operations.map(|operation| (operation.run)(None).1));
        if is_writer && committed.as_ref().is_err_and(is_short_of_space) {
            // Space is made before the answers, so that a caller that retries can use it.
            self.make_space(grows);
        }
        // Callers are answered after the commit, because an acknowledged change must survive a crash of this process.
        for reply in replies {
            // The transaction was not committed, so the operation has had no effect.
            let absent =
                |error| EngineError { kind: error::Kind::Unable, ..fault(&self.path, error) };
            reply(committed.as_ref().copied().map_err(absent));
        }
        if is_writer {
            self.shorten_log();
        }
    }

    /// Makes space after a transaction has found the disk full. If the transaction contained adds, the reserve is kept,
    /// because it is only for other operations.
    fn make_space(&mut self, has_adds: bool) {
        let Some(reserve) = &mut self.reserve else { return };
        reserve.note_shortage();
        if !has_adds {
            reserve.release();
            // The log restarts within the space that it already has. If the checkpoint fails, the next transaction
            // tries again.
            let _ = self.run_checkpoint("restart");
        }
    }

    /// Runs a checkpoint. Returns true if the checkpoint has written the whole log into the file.
    fn run_checkpoint(&self, how: &str) -> rusqlite::Result<bool> {
        // During a checkpoint, the thread runs no operation, so it must not wait long for readers.
        self.connection.busy_timeout(SHORT_PATIENCE)?;
        let sql = format!("pragma wal_checkpoint({how})");
        let is_held_up = self.connection.query_row(&sql, [], |row| row.get::<_, bool>(0));
        self.connection.busy_timeout(PATIENCE)?;
        is_held_up.map(|is_held_up| !is_held_up)
    }

    /// Restarts the log if it is longer than [`MAX_LOG`].
    fn shorten_log(&mut self) {
        let log = place::beside(&self.path, "-wal");
        let is_long = || std::fs::metadata(log).is_ok_and(|log| log.len() > MAX_LOG);
        if self.held_up.is_some_and(|since| since.elapsed() < REST) || !is_long() {
            return;
        }
        let is_shorter = self.run_checkpoint("truncate").unwrap_or(false);
        self.held_up = (!is_shorter).then(Instant::now);
    }

    fn found(&self) -> rusqlite::Result<Found> {
        // Another process may be creating the tables. Therefore, one transaction reads all values.
        schema::found(&*self.connection.unchecked_transaction()?)
    }

    /// Checks that the file has the schema of this version. Upgrades an older schema with `steps`.
    fn check(&mut self, steps: Steps) -> Answer<()> {
        let refuse = |why: &dyn Display| path_refusal(&self.path, why);
        match self.found().map_err(|error| fault(&self.path, &error))? {
            Found::Ours(VERSION) => {
                schema::verify_columns(&self.connection).map_err(|error| fault(&self.path, &error))
            }
            found if found.missing_steps(steps).is_some() => self.migrate(steps),
            Found::Ours(version) => Err(refuse(&newer_schema(version, VERSION).source)),
            Found::Nothing => Err(refuse(&error::UNPREPARED)),
            Found::Foreign => Err(refuse(&"the file belongs to another program")),
        }
    }

    /// Creates the tables, or upgrades them with `steps`.
    fn migrate(&mut self, steps: Steps) -> Answer<()> {
        let has_nothing_to_do =
            |found: Found| matches!(found, Found::Ours(_)) && found.missing_steps(steps).is_none();
        // If the schema is up to date, no lock is needed.
        if !self.found().is_ok_and(has_nothing_to_do) {
            let migrated = in_transaction(&mut self.connection, self.behaviour, |transaction| {
                schema::migrate(transaction, steps)
            });
            migrated.map_err(|error| fault(&self.path, &error))?;
        }
        // No step is missing now, so this check does not upgrade the file again.
        self.check(&[])
    }
}

fn in_transaction<T>(
    connection: &mut Connection,
    behaviour: TransactionBehavior,
    work: impl FnOnce(&mut Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut transaction = connection.transaction_with_behavior(behaviour)?;
    let done = work(&mut transaction)?;
    transaction.commit()?;
    Ok(done)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Returns true if the error says that the disk is full or a quota is exhausted.
fn is_short_of_space(error: &rusqlite::Error) -> bool {
    const CODES: [i32; 3] = [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
    error.sqlite_error().is_some_and(|error| CODES.contains(&error.extended_code))
}

/// Returns the error that says why a file cannot be used.
fn path_refusal(path: &Path, why: &dyn Display) -> EngineError {
    EngineError::refused(format!("{}: {why}", path.display()))
}

/// The source of an error about a file that another process has locked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Busy(String);

/// Converts an error of SQLite. The error means that the transaction was not committed and had no effect.
pub(super) fn fault(file: &Path, error: &rusqlite::Error) -> EngineError {
    let path = file.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            EngineError::unable(Busy(format!("{path}: another process holds the lock on the file")))
        }
        Some(ErrorCode::DiskFull) => EngineError::unable(format!(
            "{path}: the disk is full; free some space, or let workers complete keys"
        )),
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted
            | ErrorCode::CannotOpen,
        ) => place::find_obstacle(file)
            .unwrap_or_else(|| EngineError::unable(format!("{path}: {error}"))),
        Some(ErrorCode::ReadOnly) => place::find_obstacle(file)
            .unwrap_or_else(|| EngineError::refused(format!("{path}: {error}"))),
        Some(ErrorCode::NotADatabase) => {
            let said = format!("{path}: {error}");
            Reason::new(ErrorKind::WrongServer, said).into()
        }
        _ => EngineError::refused(format!("{path}: {error}")),
    }
}

//! The threads that have connections: one that writes, and one that reads, which neither waits for
//! those who write nor holds them up. What comes while one is busy is one transaction: of what a
//! commit costs, each verb then pays a part.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::Synchronous;
use super::clock::{Clock, Time};
use crate::error::Fault;
use crate::time::Micros;

/// What a file of ours has as its `application_id`: "rque".
const OURS: i32 = 0x7271_7565;
const VERSION: i32 = 1;
/// How many verbs one transaction takes at most.
const MOST: usize = 256;
/// How long another process may keep the file to itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a file that SQLite does not wait for is left alone.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the log may get. SQLite begins it anew only when nobody has written or reads what is not in the
/// file itself: among several who are busy that may never be.
pub(super) const LONGEST_LOG: u64 = if cfg!(test) { 1 << 18 } else { 1 << 25 };
/// How long the others may hold that up, and how long they are left alone if they do.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(5);

/// Told whether what it did has been committed.
type Told = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// Does what it is for, in a transaction if there is one. Whether it went well, and whom to tell.
type Verb = Box<dyn FnOnce(Option<&Work<'_>>) -> (bool, Told) + Send>;

enum Job {
    Verb(Verb),
    Migrate(oneshot::Sender<Result<(), Fault>>),
    Check(oneshot::Sender<Result<(), Fault>>),
}

/// A transaction, and its time.
pub(super) struct Work<'c> {
    pub(super) connection: &'c Connection,
    /// By the clock of the file.
    pub(super) now: Micros,
    /// By the clock of the machine.
    pub(super) clock: Micros,
}

#[derive(Debug)]
pub(super) struct Thread {
    jobs: Sender<Job>,
}

impl Thread {
    /// One that writes, and one that reads. A file for which there is only one is none, but in memory
    /// or on a disk that is too simple.
    pub(super) fn start(
        path: &Path,
        synchronous: Synchronous,
        clock: Clock,
    ) -> Result<(Self, Option<Self>), Fault> {
        let writer = Server::open(path, TransactionBehavior::Immediate, Arc::clone(&clock))?;
        let has_log = writer.begin(synchronous)?;
        let reader = match has_log {
            true => {
                let reader = Server::open(path, TransactionBehavior::Deferred, clock)?;
                let only = reader.connection.pragma_update(None, "query_only", true);
                only.map_err(|error| fault(&error))?;
                Some(reader.spawn()?)
            }
            false => None,
        };
        Ok((writer.spawn()?, reader))
    }

    /// Does `work` in a transaction. Cancel safe, but what was begun is done.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let (answer, answered) = oneshot::channel();
        let verb = Box::new(move |at: Option<&Work<'_>>| {
            // For who has gone nothing is begun: a claim would hold keys that nobody knows of.
            let done = at.filter(|_| !answer.is_closed()).map(work);
            let went_well = done.as_ref().is_none_or(Result::is_ok);
            let told: Told = Box::new(move |committed| {
                let done = committed.and_then(|()| match done {
                    Some(done) => done.map_err(|error| fault(&error)),
                    None => Err(Fault::absent("nobody waited for it any more")),
                });
                // Whoever asked may have gone.
                let _ = answer.send(done);
            });
            (went_well, told)
        });
        self.ask(Job::Verb(verb), answered).await
    }

    pub(super) async fn migrate(&self) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        self.ask(Job::Migrate(answer), answered).await
    }

    /// Whether the file has this version's schema.
    pub(super) async fn check(&self) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        self.ask(Job::Check(answer), answered).await
    }

    async fn ask<T>(
        &self,
        job: Job,
        answered: oneshot::Receiver<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let gone = || Fault::unsure("the thread of the database has ended");
        self.jobs.send(job).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

struct Server {
    connection: Connection,
    path: PathBuf,
    /// Of whoever only reads, deferred.
    behaviour: TransactionBehavior,
    clock: Clock,
    /// When the log was last too long, and could not be begun anew.
    held_up: Option<Instant>,
}

impl Server {
    fn open(path: &Path, behaviour: TransactionBehavior, clock: Clock) -> Result<Self, Fault> {
        let open = || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(PATIENCE)?;
            connection.set_prepared_statement_cache_capacity(64);
            Ok(connection)
        };
        let connection = open().map_err(|error| fault(&error))?;
        Ok(Self { connection, path: path.to_owned(), behaviour, clock, held_up: None })
    }

    fn spawn(self) -> Result<Thread, Fault> {
        let (jobs, come) = channel();
        std::thread::Builder::new()
            .name("requeue-sqlite".to_owned())
            .spawn(move || self.serve(&come))
            .map_err(Fault::absent)?;
        Ok(Thread { jobs })
    }

    /// Sets the file up: whether it has a log, so that who reads and who writes are in nobody's way.
    /// One that is not ours is left as it is.
    fn begin(&self, synchronous: Synchronous) -> Result<bool, Fault> {
        let set_up = || {
            let mut has_log = false;
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
        // Who makes the log while others open the file is not waited for by SQLite itself.
        let since = Instant::now();
        let mut tried = set_up();
        while tried.as_ref().is_err_and(is_busy) && since.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
            tried = set_up();
        }
        match tried.map_err(|error| fault(&error))? {
            (Found::Foreign, _) => Err(self.refuse("it belongs to another program")),
            (Found::Nothing | Found::Ours(_), has_log) => Ok(has_log),
        }
    }

    fn refuse(&self, why: &str) -> Fault {
        Fault::refused(format!("{}: {why}", self.path.display()))
    }

    fn serve(mut self, come: &Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| come.recv().ok()) {
            match job {
                Job::Verb(verb) => {
                    let mut verbs = vec![verb];
                    while verbs.len() < MOST {
                        match come.try_recv() {
                            Ok(Job::Verb(verb)) => verbs.push(verb),
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.commit(verbs);
                }
                Job::Migrate(answer) => _ = answer.send(self.migrate()),
                Job::Check(answer) => _ = answer.send(self.check()),
            }
        }
    }

    fn commit(&mut self, verbs: Vec<Verb>) {
        let (clock, behaviour) = (&self.clock, self.behaviour);
        let is_writer = !matches!(behaviour, TransactionBehavior::Deferred);
        let mut told = Vec::with_capacity(verbs.len());
        let mut verbs = verbs.into_iter();
        let committed = transact(&mut self.connection, behaviour, |transaction| {
            // What time it is when the file is ours: another may have had it for long.
            let (time, reading) = (Time::of(transaction)?, clock());
            let (now, changes) = (time.now(&reading), transaction.total_changes());
            while !verbs.as_slice().is_empty() {
                let part = transaction.savepoint()?;
                let Some(verb) = verbs.next() else { break };
                let work = Work { connection: &part, now, clock: reading.clock };
                let (went_well, tell) = verb(Some(&work));
                told.push(tell);
                if went_well {
                    part.commit()?;
                }
            }
            if is_writer {
                time.keep(transaction, now, &reading, transaction.total_changes() > changes)?;
            }
            Ok(())
        });
        // Those that it did not come to are told, too.
        told.extend(verbs.map(|verb| verb(None).1));
        for tell in told {
            // What does not commit has not happened.
            tell(committed.as_ref().copied().map_err(|error| Fault::absent(error.to_string())));
        }
        if is_writer {
            self.shorten_log();
        }
    }

    /// Begins the log anew when it has got long.
    fn shorten_log(&mut self) {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let is_long = || std::fs::metadata(log).is_ok_and(|log| log.len() > LONGEST_LOG);
        if self.held_up.is_some_and(|since| since.elapsed() < REST) || !is_long() {
            return;
        }
        let shorten = || {
            self.connection.busy_timeout(SHORT_PATIENCE)?;
            let sql = "pragma wal_checkpoint(truncate)";
            let is_held_up = self.connection.query_row(sql, [], |row| row.get::<_, bool>(0));
            self.connection.busy_timeout(PATIENCE)?;
            is_held_up
        };
        let is_shorter = shorten().is_ok_and(|is_held_up| !is_held_up);
        self.held_up = (!is_shorter).then(Instant::now);
    }

    fn found(&self) -> rusqlite::Result<Found> {
        // All that it looks at at one time: somebody may be making the tables.
        found(&*self.connection.unchecked_transaction()?)
    }

    fn check(&self) -> Result<(), Fault> {
        match self.found().map_err(|error| fault(&error))? {
            Found::Ours(VERSION) => Ok(()),
            Found::Ours(version) => {
                let said = format!("its version is {version}, and this program's {VERSION}");
                Err(self.refuse(&said))
            }
            Found::Nothing => Err(self.refuse(crate::error::UNPREPARED)),
            Found::Foreign => Err(self.refuse("it belongs to another program")),
        }
    }

    fn migrate(&mut self) -> Result<(), Fault> {
        let migrated = transact(&mut self.connection, self.behaviour, |transaction| {
            // In the transaction: somebody else may have been quicker.
            if found(transaction)? == Found::Nothing {
                transaction.execute_batch(include_str!("schema.sql"))?;
                transaction.pragma_update(None, "application_id", OURS)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            Ok(())
        });
        migrated.map_err(|error| fault(&error))?;
        self.check()
    }
}

/// Whose a file is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// With the version of the schema.
    Ours(i32),
    Foreign,
}

fn found(connection: &Connection) -> rusqlite::Result<Found> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (id, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables = "select count(*) from sqlite_schema";
    let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
    Ok(match (id, version, tables) {
        (OURS, version, _) => Found::Ours(version),
        (0, 0, 0) => Found::Nothing,
        _ => Found::Foreign,
    })
}

fn transact<T>(
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

/// What does not commit has not happened.
fn fault(error: &rusqlite::Error) -> Fault {
    let said = error.to_string();
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted
            | ErrorCode::CannotOpen,
        ) => Fault::absent(said),
        _ => Fault::refused(said),
    }
}

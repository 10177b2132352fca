//! The threads that have connections: one that writes, and one that reads, which neither waits for
//! those who write nor holds them up. What comes while one is busy is one transaction: of what a
//! commit costs, each verb then pays a part.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, ffi};
use tokio::sync::oneshot;

use super::Synchronous;
use super::clock::{Clock, Time};
use super::reserve::Reserve;
use super::rows::{CHECK, define_readable};
use crate::engine::time::Micros;
use crate::types::error::{self, ConnectErrorKind, EngineError, Reason};

/// What a file of ours has as its `application_id`: "rque".
const OURS: i32 = 0x7271_7565;
const VERSION: i32 = 1;
/// How many verbs one transaction takes at most.
const MOST: usize = 256;
/// How long a transaction waits while another process has the file locked.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to open the file, and a queue in it: as long as an add may take.
pub(super) const OPENING: Duration = Duration::from_secs(30);
/// As many pages as SQLite can have.
const MOST_PAGES: i64 = 4_294_967_294;
/// How long a file is left alone between two attempts, where SQLite itself does not wait.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// How long the log may get. SQLite begins it anew only when nobody has written or reads what is not in the
/// file itself: among several who are busy that may never be.
pub(super) const LONGEST_LOG: u64 = if cfg!(test) { 1 << 18 } else { 1 << 25 };
/// How long the others may hold that up, and how long they are left alone if they do.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(5);

/// Told whether what it did has been committed.
type Told = Box<dyn FnOnce(Result<(), EngineError>) + Send>;

/// Does what it is for, in a transaction if there is one. Whether it went well, or what SQLite said,
/// and whom to tell.
type Run = Box<dyn FnOnce(Option<&Work<'_>>) -> (Result<(), Option<ffi::Error>>, Told) + Send>;

struct Verb {
    run: Run,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    /// It puts more into the file. All other verbs must go on while the disk is full.
    Grows,
    /// No caller waits for it yet, so it shares the sync of another verb that comes soon.
    Patient,
}

enum Job {
    Verb(Verb),
    Migrate(oneshot::Sender<Result<(), EngineError>>),
    Check(oneshot::Sender<Result<(), EngineError>>),
    Close(oneshot::Sender<Result<(), EngineError>>),
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
    path: Arc<Path>,
}

impl Thread {
    /// One that writes, and one that reads. A file for which there is only one is none, but in memory
    /// or on a disk that is too simple.
    pub(super) fn start(
        path: &Path,
        synchronous: Synchronous,
        clock: Clock,
    ) -> Result<(Self, Option<Self>), EngineError> {
        let mut writer = Server::open(path, TransactionBehavior::Immediate, Arc::clone(&clock))?;
        writer.syncs = synchronous == Synchronous::Full;
        let has_log = writer.begin(synchronous)?;
        let reader = match has_log {
            true => {
                let reader = Server::open(path, TransactionBehavior::Deferred, clock)?;
                let only = reader.connection.pragma_update(None, "query_only", true);
                only.map_err(|error| fault(path, &error))?;
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
    ) -> Result<T, EngineError> {
        self.verb(Kind::Plain, work).await
    }

    /// The same for `work` that puts more into the file, which has to wait while the disk is full.
    pub(super) async fn call_growing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.verb(Kind::Grows, work).await
    }

    /// The same for `work` whose result is not needed yet. Where each commit waits for the disk, this waits a
    /// moment for another verb, and shares its commit.
    pub(super) async fn call_patiently<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.verb(Kind::Patient, work).await
    }

    async fn verb<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(&Work<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (answer, answered) = oneshot::channel();
        let path = Arc::clone(&self.path);
        let run = Box::new(move |at: Option<&Work<'_>>| {
            // For who has gone nothing is begun: a claim would hold keys that nobody knows of.
            let done = at.filter(|_| !answer.is_closed()).map(work);
            let went_well = match &done {
                Some(Err(error)) => Err(error.sqlite_error().copied()),
                _ => Ok(()),
            };
            let told: Told = Box::new(move |committed| {
                let done = committed.and_then(|()| match done {
                    Some(done) => done.map_err(|error| fault(&path, &error)),
                    None => Err(EngineError::absent("nobody waited for it any more")),
                });
                // Whoever asked may have gone.
                let _ = answer.send(done);
            });
            (went_well, told)
        });
        self.ask(Job::Verb(Verb { run, kind }), answered).await
    }

    pub(super) async fn migrate(&self) -> Result<(), EngineError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Job::Migrate(answer), answered).await
    }

    /// Whether the file has this version's schema.
    pub(super) async fn check(&self) -> Result<(), EngineError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Job::Check(answer), answered).await
    }

    /// Closes the connection when all that was asked for before is done. Nothing can be asked for
    /// afterwards.
    pub(super) async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        // It fails if it is closed already.
        let _ = self.ask(Job::Close(answer), answered).await;
    }

    async fn ask<T>(
        &self,
        job: Job,
        answered: oneshot::Receiver<Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let closed =
            || EngineError::refused(format!("{}: the store is closed", self.path.display()));
        self.jobs.send(job).map_err(|_| closed())?;
        answered.await.map_err(|_| EngineError::unsure("the thread of the database has ended"))?
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
    /// Each commit waits for the disk.
    syncs: bool,
    /// How long the last commit took.
    took: Duration,
    reserve: Option<Reserve>,
}

impl Server {
    fn open(
        path: &Path,
        behaviour: TransactionBehavior,
        clock: Clock,
    ) -> Result<Self, EngineError> {
        #[cfg(unix)]
        prepare(path)
            .map_err(|error| EngineError::refused(format!("{}: {error}", path.display())))?;
        let open = || {
            let connection = Connection::open(path)?;
            define_readable(&connection)?;
            connection.busy_timeout(PATIENCE)?;
            connection.set_prepared_statement_cache_capacity(64);
            Ok(connection)
        };
        let connection = open().map_err(|error| fault(path, &error))?;
        let (reserve, path) = (Reserve::of(path), path.to_owned());
        Ok(Self {
            connection,
            path,
            behaviour,
            clock,
            held_up: None,
            syncs: false,
            took: Duration::ZERO,
            reserve,
        })
    }

    fn spawn(self) -> Result<Thread, EngineError> {
        let (jobs, come) = channel();
        let path = self.path.as_path().into();
        std::thread::Builder::new()
            .name("requeue-sqlite".to_owned())
            .spawn(move || self.serve(come))
            .map_err(EngineError::absent)?;
        Ok(Thread { jobs, path })
    }

    /// Sets the file up: whether it has a log, so that who reads and who writes are in nobody's way.
    /// One that is not ours is left as it is.
    fn begin(&self, synchronous: Synchronous) -> Result<bool, EngineError> {
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
        while tried.as_ref().is_err_and(is_busy) && since.elapsed() < OPENING {
            std::thread::sleep(PAUSE);
            tried = set_up();
        }
        if tried.as_ref().is_err_and(is_short_of_space)
            && let Some(reserve) = &self.reserve
        {
            // Even to begin with a log takes some.
            reserve.release();
            tried = set_up();
        }
        match tried.map_err(|error| fault(&self.path, &error))? {
            (Found::Foreign, _) => {
                let said = format!("{}: it belongs to another program", self.path.display());
                Err(Reason::new(ConnectErrorKind::WrongServer, said).into())
            }
            (Found::Nothing | Found::Ours(_), has_log) => Ok(has_log),
        }
    }

    fn refuse(&self, why: &str) -> EngineError {
        EngineError::refused(format!("{}: {why}", self.path.display()))
    }

    fn serve(mut self, come: Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| come.recv().ok()) {
            match job {
                Job::Verb(verb) => {
                    let mut verbs = vec![verb];
                    let until = Instant::now() + self.patience();
                    while verbs.len() < MOST {
                        let waits =
                            self.syncs && verbs.iter().all(|verb| verb.kind == Kind::Patient);
                        let wait = until.saturating_duration_since(Instant::now());
                        let wait = if waits { wait } else { Duration::ZERO };
                        match come.recv_timeout(wait) {
                            Ok(Job::Verb(verb)) => verbs.push(verb),
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.commit_apart(verbs);
                }
                Job::Migrate(answer) => _ = answer.send(self.migrate()),
                Job::Check(answer) => _ = answer.send(self.check()),
                Job::Close(answer) => {
                    // First, so that whoever comes later is refused.
                    drop(come);
                    drop(self.connection);
                    // Whoever asked may have gone.
                    let _ = answer.send(Ok(()));
                    return;
                }
            }
        }
    }

    /// The longest time that a patient verb waits for another one, such as the completion of the key in flight. A
    /// worker may begin to wait for the verb meanwhile, so this is shorter than the commit that it saves.
    fn patience(&self) -> Duration {
        if cfg!(test) { Duration::from_secs(2) } else { self.took / 2 }
    }

    /// While the disk is full, adds get a transaction of their own, and no more pages than there are.
    fn commit_apart(&mut self, mut verbs: Vec<Verb>) {
        let grows = verbs.iter().any(|verb| verb.kind == Kind::Grows);
        let Some(reserve) = self.reserve.as_mut().filter(|_| grows) else {
            return self.commit(verbs);
        };
        if reserve.allows_growth() {
            return self.commit(verbs);
        }
        let adds = verbs.extract_if(.., |verb| verb.kind == Kind::Grows).collect();
        if !verbs.is_empty() {
            self.commit(verbs);
        }
        // SQLite takes the pages that there are for the least limit. These two need no space, and no
        // lock that others may have.
        let _ = self.connection.pragma_update(None, "max_page_count", 1);
        self.commit(adds);
        let _ = self.connection.pragma_update(None, "max_page_count", MOST_PAGES);
    }

    fn commit(&mut self, verbs: Vec<Verb>) {
        let (clock, behaviour) = (&self.clock, self.behaviour);
        let is_writer = !matches!(behaviour, TransactionBehavior::Deferred);
        let grows = verbs.iter().any(|verb| verb.kind == Kind::Grows);
        let mut told = Vec::with_capacity(verbs.len());
        let mut verbs = verbs.into_iter();
        let began = Instant::now();
        let committed = transact(&mut self.connection, behaviour, |transaction| {
            // What time it is when the file is ours: another may have had it for long.
            let (time, reading) = (Time::of(transaction)?, clock());
            let (now, changes) = (time.now(&reading), transaction.total_changes());
            while !verbs.as_slice().is_empty() {
                let part = transaction.savepoint()?;
                let Some(verb) = verbs.next() else { break };
                let work = Work { connection: &part, now, clock: reading.clock };
                let (went_well, tell) = (verb.run)(Some(&work));
                told.push(tell);
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
                time.keep(transaction, now, &reading, transaction.total_changes() > changes)?;
            }
            Ok(())
        });
        self.took = began.elapsed();
        // Those that it did not come to are told, too.
        told.extend(verbs.map(|verb| (verb.run)(None).1));
        if is_writer && committed.as_ref().is_err_and(is_short_of_space) {
            self.make_space(grows);
        }
        for tell in told {
            // What does not commit has not happened.
            let absent =
                |error| EngineError { kind: error::Kind::Absent, ..fault(&self.path, error) };
            tell(committed.as_ref().copied().map_err(absent));
        }
        if is_writer {
            self.shorten_log();
        }
    }

    /// After a transaction that found the disk full. Adds get no space at the cost of the others.
    fn make_space(&mut self, has_adds: bool) {
        let Some(reserve) = &mut self.reserve else { return };
        reserve.note_shortage();
        if !has_adds {
            reserve.release();
            // The log begins anew in the space that it has. If it can't, the next transaction tries again.
            let _ = self.checkpoint("restart");
        }
    }

    /// Whether all of the log could be written to the file.
    fn checkpoint(&self, how: &str) -> rusqlite::Result<bool> {
        self.connection.busy_timeout(SHORT_PATIENCE)?;
        let sql = format!("pragma wal_checkpoint({how})");
        let is_held_up = self.connection.query_row(&sql, [], |row| row.get::<_, bool>(0));
        self.connection.busy_timeout(PATIENCE)?;
        is_held_up.map(|is_held_up| !is_held_up)
    }

    /// Begins the log anew when it has got long.
    fn shorten_log(&mut self) {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let is_long = || std::fs::metadata(log).is_ok_and(|log| log.len() > LONGEST_LOG);
        if self.held_up.is_some_and(|since| since.elapsed() < REST) || !is_long() {
            return;
        }
        let is_shorter = self.checkpoint("truncate").unwrap_or(false);
        self.held_up = (!is_shorter).then(Instant::now);
    }

    fn found(&self) -> rusqlite::Result<Found> {
        // All that it looks at at one time: somebody may be making the tables.
        found(&*self.connection.unchecked_transaction()?)
    }

    fn check(&self) -> Result<(), EngineError> {
        match self.found().map_err(|error| fault(&self.path, &error))? {
            Found::Ours(VERSION) => Ok(()),
            Found::Ours(version) => {
                let said = format!("its version is {version}, and this program's {VERSION}");
                Err(self.refuse(&said))
            }
            Found::Nothing => Err(self.refuse(crate::types::error::UNPREPARED)),
            Found::Foreign => Err(self.refuse("it belongs to another program")),
        }
    }

    fn migrate(&mut self) -> Result<(), EngineError> {
        // Without a lock, if there is nothing to do.
        if matches!(self.found(), Ok(Found::Ours(_))) {
            return self.check();
        }
        let migrated = transact(&mut self.connection, self.behaviour, |transaction| {
            // In the transaction: somebody else may have been quicker.
            if found(transaction)? == Found::Nothing {
                let schema = include_str!("schema.sql").replace("{readable}", CHECK);
                transaction.execute_batch(&schema)?;
                transaction.pragma_update(None, "application_id", OURS)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            Ok(())
        });
        migrated.map_err(|error| fault(&self.path, &error))?;
        self.check()
    }
}

/// Refuses a path that leads over a symbolic link of another user, and creates the file so that its owner
/// alone can read it. SQLite creates its log and its shared memory with the same mode, and follows no link to
/// them. A file that exists is not even opened: closing it would release the locks that this process has on it.
#[cfg(unix)]
fn prepare(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    const MOST_LINKS: usize = 40;
    let bytes = path.as_os_str().as_encoded_bytes();
    // These are no paths for SQLite.
    if bytes.starts_with(b":") || bytes.starts_with(b"file:") {
        return Ok(());
    }
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        // If there is another error than that the file does not exist, SQLite reports that.
        let Some(link) = at.symlink_metadata().ok().filter(std::fs::Metadata::is_symlink) else {
            break;
        };
        if ![0, rustix::process::geteuid().as_raw()].contains(&link.uid()) {
            let why =
                format!("a symbolic link of another user (uid {}) is not followed", link.uid());
            return Err(std::io::Error::other(why));
        }
        at = at.parent().unwrap_or(Path::new("")).join(at.read_link()?);
    }
    let _ = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(at);
    Ok(())
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

/// As on a full disk, or where a quota is used up.
fn is_short_of_space(error: &rusqlite::Error) -> bool {
    const CODES: [i32; 3] = [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
    error.sqlite_error().is_some_and(|error| CODES.contains(&error.extended_code))
}

/// What does not commit has not happened.
fn fault(path: &Path, error: &rusqlite::Error) -> EngineError {
    let path = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            EngineError::absent(format!("{path}: another process holds the lock on the file"))
        }
        Some(ErrorCode::DiskFull) => EngineError::absent(format!(
            "{path}: the disk is full; free some space, or have workers take keys out of the queue"
        )),
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted
            | ErrorCode::CannotOpen,
        ) => EngineError::absent(format!("{path}: {error}")),
        Some(ErrorCode::NotADatabase) => {
            let said = format!("{path}: {error}");
            Reason::new(ConnectErrorKind::WrongServer, said).into()
        }
        _ => EngineError::refused(format!("{path}: {error}")),
    }
}

//! A PostgreSQL server for tests, with backups and a replica.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::certificate::write_certificate;
use crate::keeper::{Keeper, write};
use crate::local::{did_not_run, free_ports, shared};

const MISSING: &str = "there is no PostgreSQL server here";

/// The verifier of the password `quick`, with one iteration instead of 4,096, so that clients that
/// reconnect often authenticate quickly.
const QUICK: &str = "SCRAM-SHA-256$1:cmVxdWV1ZS1yZXF1ZXVlIQ==\
    $pK7iW/2VWTbWFj394XqYqDVs4W+nblNOT6e8cQC4kDw=:oTZVlsV57QmcYXnBiX86+DDdsAaRatoSw+qWLwBhMyU=";

/// A PostgreSQL server, which is killed when it is dropped or when the test process dies.
///
/// The server listens on a Unix socket, where everyone can connect as any user. It also listens on
/// loopback with TLS, where the superuser `postgres` has a [password](Self::PASSWORD). Its data
/// does not survive a crash of the machine.
#[derive(Debug)]
pub struct Postgres {
    keeper: Keeper,
    programs: PathBuf,
    port: u16,
    databases: AtomicU32,
}

impl Postgres {
    /// The password of the superuser.
    pub const PASSWORD: &str = "s3cret+/@:?&=";

    /// Starts a server. Returns `None` if PostgreSQL is not installed, and adds the test to the
    /// list that `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with these settings, each as `name=value`.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let Some(programs) = programs() else {
            did_not_run(MISSING);
            return None;
        };
        let [port] = free_ports();
        let settings: String = settings.iter().map(|setting| format!(" -c {setting}")).collect();
        let args = [&*programs.to_string_lossy(), &port.to_string(), &settings];
        let keeper = Keeper::new(include_str!("postgres.sh"), &args, |dir| {
            write_certificate(dir);
            write(&dir.join("password"), Self::PASSWORD);
        });
        keeper.order("made");
        keeper.order("started");
        let started = Self { keeper, programs, port, databases: AtomicU32::new(0) };
        let quick = format!("create role quick superuser login password '{QUICK}'");
        started.psql("postgres", &quick);
        Some(started)
    }

    /// Returns the server that all tests of a program share. The tests must leave the server
    /// running.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        shared(&SHARED, Self::start, MISSING)
    }

    /// Creates a database, and returns its address.
    ///
    /// # Panics
    /// Panics if the database cannot be created.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("create database {name}"));
        self.url("postgres", &name)
    }

    /// Returns the address of a database by Unix socket, for this user.
    pub fn url(&self, user: &str, database: &str) -> String {
        let dir = self.keeper.dir().to_string_lossy().replace('/', "%2F");
        format!("postgres://{user}@{dir}:{}/{database}", self.port)
    }

    /// Returns the address of a database by TCP, which requires a password and offers TLS. The
    /// server's certificate is for `localhost`.
    pub fn tcp_url(&self, host: &str, credentials: &str, database: &str) -> String {
        format!("postgresql://{credentials}@{host}:{}/{database}", self.port)
    }

    /// Returns the address of the same database by TCP without TLS, at the port of a
    /// [proxy](crate::Proxy).
    pub fn proxied(&self, url: &str, port: u16) -> String {
        let database = url.rsplit_once('/').map_or(url, |(_, database)| database);
        format!("postgres://quick:quick@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    /// Returns the path of the certificate with which clients verify the server.
    pub fn certificate(&self) -> PathBuf {
        self.keeper.dir().join("server.crt")
    }

    /// Returns the directory of the Unix socket.
    pub(crate) fn socket_dir(&self) -> &Path {
        self.keeper.dir()
    }

    /// Returns the port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL in the database as the superuser. Returns the output: rows, with `|` between
    /// columns.
    ///
    /// # Panics
    /// Panics if the SQL fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        command.arg("-h").arg(self.keeper.dir()).args(["-p", &self.port.to_string()]);
        command.args(["-U", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql, database]);
        let done = command.output().unwrap_or_else(|err| panic!("psql: {err}"));
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
    }

    /// Stops the server cleanly. Clients lose their connections.
    ///
    /// # Panics
    /// Panics if the server does not stop.
    pub fn stop(&self) {
        self.keeper.order("stopped");
    }

    /// Kills the server immediately.
    ///
    /// # Panics
    /// Panics if the kill fails.
    pub fn kill(&self) {
        self.keeper.order("killed");
    }

    /// Freezes the server. The server keeps its connections, but sends no responses.
    ///
    /// # Panics
    /// Panics if the freeze fails.
    pub fn freeze(&self) {
        self.keeper.order("frozen");
    }

    /// Lets a frozen server continue.
    ///
    /// # Panics
    /// Panics if the server cannot continue.
    pub fn thaw(&self) {
        self.keeper.order("thawed");
    }

    /// Starts the server again.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn restart(&self) {
        self.keeper.order("started");
    }

    /// Makes a backup of all databases, while they are in use.
    ///
    /// # Panics
    /// Panics if the backup cannot be made.
    pub fn back_up(&self) {
        self.keeper.order("backed_up");
    }

    /// Kills the server, and starts it again from the last backup.
    ///
    /// # Panics
    /// Panics if there is no unused backup, or if the server does not start.
    pub fn restore(&self) {
        self.keeper.order("restored");
    }

    /// Starts a replica, which streams the server's writes.
    ///
    /// # Panics
    /// Panics if the replica does not start. The message contains the logs of both servers.
    pub fn follow(&self) {
        self.keeper.order("followed");
    }

    /// Stops the replication. The replica receives no further writes.
    ///
    /// # Panics
    /// Panics if there is no replica.
    pub fn leave_behind(&self) {
        self.keeper.order("left_behind");
    }

    /// Kills the server, and promotes the replica that was left behind. The replica takes over the
    /// server's address.
    ///
    /// # Panics
    /// Panics if there is no replica, or if its promotion fails.
    pub fn promote(&self) {
        self.keeper.order("promoted");
    }
}

/// Returns the directory of PostgreSQL's programs: a directory in `PATH`, or the newest version in
/// Debian's directory.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    let newest = versions.into_iter().rev().map(|(_, dir)| dir);
    newest.chain(std::env::split_paths(&path)).find(|dir| {
        ["initdb", "pg_basebackup", "pg_ctl", "postgres", "psql"]
            .iter()
            .all(|name| dir.join(name).is_file())
    })
}

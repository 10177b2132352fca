use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::keeper::{Keeper, write};
use crate::local::{did_not_run, free_ports, shared};

const MISSING: &str = "there is no PostgreSQL server here";

/// The password `quick`, which takes one round to prove instead of 4,096: who is cut off often proves
/// it often.
const QUICK: &str = "SCRAM-SHA-256$1:cmVxdWV1ZS1yZXF1ZXVlIQ==\
    $pK7iW/2VWTbWFj394XqYqDVs4W+nblNOT6e8cQC4kDw=:oTZVlsV57QmcYXnBiX86+DDdsAaRatoSw+qWLwBhMyU=";

/// A PostgreSQL server, which is killed when this is dropped, or when the process dies that has it.
///
/// It listens on a Unix socket, where everybody may come in as anybody, and on loopback with TLS,
/// where the superuser `postgres` has a [password](Self::PASSWORD). What it writes does not survive
/// its machine.
#[derive(Debug)]
pub struct Postgres {
    keeper: Keeper,
    programs: PathBuf,
    port: u16,
    databases: AtomicU32,
}

impl Postgres {
    /// The superuser's.
    pub const PASSWORD: &str = "s3cret+/@:?&=";

    /// Starts one; `None` where there is none to start, which is then said in the list that
    /// `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same, with other settings, each as `name=value`.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let Some(programs) = programs() else {
            did_not_run(MISSING);
            return None;
        };
        let [port] = free_ports();
        let settings: String = settings.iter().map(|setting| format!(" -c {setting}")).collect();
        let args = [&*programs.to_string_lossy(), &port.to_string(), &settings];
        let keeper = Keeper::new(include_str!("postgres.sh"), &args, |dir| {
            let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
            let certificate = certificate.unwrap_or_else(|err| panic!("a certificate: {err}"));
            write(&dir.join("password"), Self::PASSWORD);
            write(&dir.join("server.crt"), &certificate.cert.pem());
            write(&dir.join("server.key"), &certificate.signing_key.serialize_pem());
        });
        keeper.order("made");
        keeper.order("started");
        let started = Self { keeper, programs, port, databases: AtomicU32::new(0) };
        let quick = format!("create role quick superuser login password '{QUICK}'");
        started.psql("postgres", &quick);
        Some(started)
    }

    /// The one that all tests of a program share, who leave it running.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        shared(&SHARED, Self::start, MISSING)
    }

    /// The address of a new database.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("create database {name}"));
        self.url("postgres", &name)
    }

    /// By the Unix socket, as this user.
    pub fn url(&self, user: &str, database: &str) -> String {
        let dir = self.keeper.dir().to_string_lossy().replace('/', "%2F");
        format!("postgres://{user}@{dir}:{}/{database}", self.port)
    }

    /// By TCP, where one needs a password, and gets TLS. The server's certificate is `localhost`'s.
    pub fn tcp_url(&self, host: &str, credentials: &str, database: &str) -> String {
        format!("postgresql://{credentials}@{host}:{}/{database}", self.port)
    }

    /// By TCP without TLS, at a [proxy](crate::Proxy)'s port, to the database of that address.
    pub fn proxied(&self, url: &str, port: u16) -> String {
        let database = url.rsplit_once('/').map_or(url, |(_, database)| database);
        format!("postgres://quick:quick@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    /// What vouches for its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.keeper.dir().join("server.crt")
    }

    /// The directory of its Unix socket.
    pub(crate) fn socket_dir(&self) -> &Path {
        self.keeper.dir()
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL in the database, as the superuser, and returns what it prints: rows, columns between
    /// `|`.
    ///
    /// # Panics
    /// When it fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        command.arg("-h").arg(self.keeper.dir()).args(["-p", &self.port.to_string()]);
        command.args(["-U", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql, database]);
        let done = command.output().unwrap_or_else(|err| panic!("psql: {err}"));
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
    }

    /// Lets it end in order; who is connected loses that.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop(&self) {
        self.keeper.order("stopped");
    }

    /// Has it die at once.
    ///
    /// # Panics
    /// When it does not.
    pub fn kill(&self) {
        self.keeper.order("killed");
    }

    /// Starts it again.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn restart(&self) {
        self.keeper.order("started");
    }

    /// Makes a backup of all databases, while they are used.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn back_up(&self) {
        self.keeper.order("backed_up");
    }

    /// Has it die, and starts it again with what the last backup has.
    ///
    /// # Panics
    /// When there is no backup that was not restored yet, or it does not start.
    pub fn restore(&self) {
        self.keeper.order("restored");
    }

    /// Starts a replica, which streams what the server writes.
    ///
    /// # Panics
    /// When it does not start, with the log of both.
    pub fn follow(&self) {
        self.keeper.order("followed");
    }

    /// From now on the replica gets nothing more.
    ///
    /// # Panics
    /// When there is none.
    pub fn leave_behind(&self) {
        self.keeper.order("left_behind");
    }

    /// Has the server die, and promotes the replica that was left behind: it gets the address of the
    /// server.
    ///
    /// # Panics
    /// When there is none, or it is not promoted.
    pub fn promote(&self) {
        self.keeper.order("promoted");
    }
}

/// Where its programs are: in the path, or where Debian has the newest.
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

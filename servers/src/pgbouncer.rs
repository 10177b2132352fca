//! A pgbouncer for tests.

use std::path::{Path, PathBuf};

use crate::keeper::{Keeper, write};
use crate::local::{did_not_run, free_ports};
use crate::postgres::Postgres;

/// A pgbouncer in front of a [`Postgres`], with transaction pooling. The process is killed when this value is dropped.
///
/// The pgbouncer listens on loopback, where all users are logged in as the superuser `postgres`, without a password.
#[derive(Debug)]
pub struct PgBouncer {
    keeper: Keeper,
    port: u16,
}

impl PgBouncer {
    /// Starts a pgbouncer with at most `connections` connections to each database of the server. Returns `None` if
    /// pgbouncer is not installed, and adds the test to the list that `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// Panics if pgbouncer does not start. The message contains its log.
    pub fn start(server: &Postgres, connections: u32) -> Option<Self> {
        Self::start_with(server, connections, "transaction")
    }

    /// Like [`start`](Self::start), with this `pool_mode`.
    ///
    /// # Panics
    /// Panics if pgbouncer does not start. The message contains its log.
    pub fn start_with(server: &Postgres, connections: u32, mode: &str) -> Option<Self> {
        let Some(program) = program() else {
            did_not_run("there is no pgbouncer here");
            return None;
        };
        let [port] = free_ports();
        let args = [&*program.to_string_lossy(), &port.to_string()];
        let keeper = Keeper::new(include_str!("pgbouncer.sh"), &args, |dir| {
            let settings = format!(
                "[databases]\n\
                 * = host={} port={} user=postgres\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {port}\n\
                 unix_socket_dir =\n\
                 logfile = {}\n\
                 auth_type = any\n\
                 pool_mode = {mode}\n\
                 default_pool_size = {connections}\n\
                 max_client_conn = 1000\n",
                server.socket_dir().display(),
                server.port(),
                dir.join("server.log").display(),
            );
            write(&dir.join("server.log"), "");
            write(&dir.join("pgbouncer.ini"), &settings);
        });
        keeper.order("started");
        Some(Self { keeper, port })
    }

    /// Kills pgbouncer, and starts it again.
    ///
    /// # Panics
    /// Panics if pgbouncer does not start. The message contains its log.
    pub fn restart(&self) {
        self.keeper.order("killed");
        self.keeper.order("started");
    }

    /// Returns the port on which pgbouncer listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of a database of the server through this pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

/// Returns the path of the program, which Debian installs outside of many users' `PATH`.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_owned()]);
    dirs.map(|dir| dir.join("pgbouncer")).find(|program| program.is_file())
}

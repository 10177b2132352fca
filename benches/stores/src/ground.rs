//! The servers of a run, which all contestants share, and a place on a server for each contestant.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use requeue_servers::{Postgres, Redis};
use tempfile::TempDir;

use crate::Failed;
use crate::table::Engine;

/// The settings of PostgreSQL that differ from its defaults.
const SETTINGS: [&str; 3] = ["shared_buffers=256MB", "max_wal_size=4GB", "fsync=on"];

pub(crate) struct Ground {
    postgres: Option<Postgres>,
    unsynced: Option<Postgres>,
    redis: Option<Redis>,
    dir: TempDir,
    /// The time of a disk sync, if it is fixed.
    sync: Option<Duration>,
}

impl Ground {
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(None)
    }

    /// Starts the servers. If `sync` is given, each disk sync takes that long.
    pub(crate) fn start_with(sync: Option<Duration>) -> io::Result<Self> {
        let timing = sync.map(|_| "track_wal_io_timing=on");
        let settings: Vec<&str> = SETTINGS.into_iter().chain(timing).collect();
        let postgres = Postgres::start_with(&settings);
        let unsynced = if sync.is_none() { Postgres::start_with(&SETTINGS[..2]) } else { None };
        for server in [&postgres, &unsynced].into_iter().flatten() {
            server.psql("postgres", "create role bench superuser login password 'bench'");
        }
        let redis = Redis::start();
        if let Some(server) = &redis {
            server.cli(&["config", "set", "appendfsync", "everysec"]);
        }
        Ok(Self { postgres, unsynced, redis, dir: tempfile::tempdir()?, sync })
    }

    /// Returns the microseconds that PostgreSQL waited for each sync of its log.
    pub(crate) fn sync_took(&self) -> Result<f64, Failed> {
        let (Some(server), Some(sync)) = (&self.postgres, self.sync) else { return Ok(f64::NAN) };
        let sql = "select 1000 * wal_sync_time / greatest(wal_sync, 1) from pg_stat_wal";
        let took = server.psql("postgres", sql).trim().parse()?;
        if took < sync.as_micros() as f64 {
            return Err(format!("a sync took {took:.0} us: the disk was not preloaded").into());
        }
        Ok(took)
    }

    /// Returns the versions of the servers, for the report.
    pub(crate) fn versions(&self) -> Vec<String> {
        let postgres = self.postgres.as_ref().map(|server| {
            let version = server.psql("postgres", "show server_version");
            format!("PostgreSQL {version}, {}", SETTINGS.join(", "))
        });
        let redis = self.redis.as_ref().map(|server| {
            let info = server.cli(&["info", "server"]);
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
            format!("Redis {}, appendonly=yes, appendfsync=everysec", version.unwrap_or("?").trim())
        });
        postgres.into_iter().chain(redis).collect()
    }

    /// Creates a place for the contestant of this name. Returns `None` if no such server is
    /// installed.
    pub(crate) fn place(&self, engine: Engine, name: &str, number: usize) -> Option<Place<'_>> {
        match engine {
            Engine::Postgres | Engine::PostgresUnsynced => {
                let synced = engine == Engine::Postgres;
                let server = if synced { &self.postgres } else { &self.unsynced }.as_ref()?;
                let database = format!("bench_{number}");
                server.psql("postgres", &format!("create database {database}"));
                Some(Place::Postgres { server, database, tables: tables(name) })
            }
            Engine::Redis => {
                Some(Place::Redis { server: self.redis.as_ref()?, number: number.to_string() })
            }
            Engine::Sqlite => {
                let file = self.dir.path().join(format!("{number}.db"));
                Some(Place::Sqlite { file, is_full: self.sync.is_some() })
            }
        }
    }
}

/// Returns the tables with the keys of a contestant.
fn tables(contestant: &str) -> &'static str {
    match contestant {
        "river" => "river_job",
        "requeue" | "requeue before" => "requeue.keys",
        _ => "graphile_worker._private_jobs",
    }
}

/// The place where one contestant keeps its keys.
pub(crate) enum Place<'a> {
    Postgres {
        server: &'a Postgres,
        database: String,
        tables: &'static str,
    },
    Redis {
        server: &'a Redis,
        number: String,
    },
    /// A SQLite file. If `is_full` is true, each commit waits for the disk.
    Sqlite {
        file: PathBuf,
        is_full: bool,
    },
}

impl Place<'_> {
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Postgres { server, database, .. } => {
                let address = server.tcp_url("127.0.0.1", "bench:bench", database);
                format!("{address}?sslmode=disable")
            }
            Self::Redis { server, number } => format!("{}/{number}", server.url("")),
            Self::Sqlite { file, is_full } => {
                let options = if *is_full { "?synchronous=full" } else { "" };
                format!("sqlite:{}{options}", file.display())
            }
        }
    }

    /// Removes all keys. The contestant may be running, unless the place is a file.
    pub(crate) fn clear(&self) {
        match self {
            Self::Postgres { server, database, tables } => {
                server.psql(database, &format!("truncate {tables}"));
            }
            Self::Redis { server, number } => {
                server.cli(&["-n", number, "flushdb"]);
            }
            Self::Sqlite { file, .. } => {
                for end in ["", "-wal", "-shm"] {
                    // The file may not exist.
                    let _ = fs::remove_file(format!("{}{end}", file.display()));
                }
            }
        }
    }

    /// Makes the server do its pending maintenance now. Otherwise, the maintenance would happen
    /// after a number of adds, or during another contestant's turn.
    pub(crate) fn settle(&self) {
        if let Self::Postgres { server, database, tables } = self {
            server.psql(database, &format!("vacuum (analyze) {tables}"));
            server.psql(database, "checkpoint");
        }
    }

    /// Returns the bytes that the keys occupy on disk.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Postgres { server, database, tables } => {
                let sql = format!("select pg_total_relation_size('{tables}')");
                server.psql(database, &sql).parse().unwrap_or(0)
            }
            Self::Redis { server, .. } => {
                let info = server.cli(&["info", "memory"]);
                let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
                used.and_then(|used| used.trim().parse().ok()).unwrap_or(0)
            }
            Self::Sqlite { file, .. } => ["", "-wal"]
                .iter()
                .filter_map(|end| fs::metadata(format!("{}{end}", file.display())).ok())
                .map(|file| file.len())
                .sum(),
        }
    }
}

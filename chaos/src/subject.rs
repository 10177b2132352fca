//! The stores under test, and the losses that deaths of their servers excuse.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use requeue_servers::{Failover, Language, PgBouncer, Postgres, Proxy, Redis, RedisCluster};
use requeue_store::Store;
use rusqlite::Connection;
use rusqlite::backup::Backup;
use tempfile::TempDir;

use crate::check::{Death, Losses};
use crate::event::now;
use crate::report::Fault;
use crate::worker::{Failed, LEASE};

/// A store under test: a store that is started here and stopped on drop, or an existing store.
#[derive(Debug)]
pub struct Subject {
    name: String,
    pub(crate) url: String,
    server: Server,
    /// The proxy between the workers and the server.
    pub(crate) proxy: Option<Proxy>,
}

#[derive(Debug)]
enum Server {
    File(Arc<TempDir>),
    /// PostgreSQL, with a pooler between the proxy and the server if a pooler is used.
    Postgres(Arc<Postgres>, Option<Arc<PgBouncer>>),
    Redis(Arc<Redis>),
    Cluster(Arc<RedisCluster>),
    Other,
}

/// The age of writes that a server may lose although it has acknowledged them: up to one second of
/// writes that are not on disk yet, and two more seconds if the disk is slow. `UNCOPIED` is the age
/// of writes that replicas may lack.
const UNWRITTEN: Duration = Duration::from_secs(3);
const UNCOPIED: Duration = Duration::from_secs(2);
/// The age of writes that an evicting server may lose. It may lose all pending keys.
const PENDING: Duration = Duration::from_secs(3600);
/// The number of server sessions that a pooler shares among all processes.
const POOLED: u32 = 6;
/// A script that creates 48 keys of 64 KiB each, which no process reads.
const BALLAST: &str =
    "for i = 1, 48 do redis.call('SET', 'ballast:' .. i, string.rep('x', 65536)) end";
/// The file of a store on SQLite.
const FILE: &str = "queues.db";

impl Subject {
    /// Starts a server for this store, or uses an existing one.
    ///
    /// `sqlite`, `postgres`, `redis` and `rediscluster` start a server. `redis-everysec`
    /// acknowledges a write before it is on disk, and `rediscluster-wait` acknowledges an add when
    /// a replica has received it. `redis-evicting` evicts keys. `pgbouncer` is PostgreSQL, which
    /// the processes reach through a pgbouncer with transaction pooling. Any other name is an
    /// address.
    ///
    /// Returns `None` if this machine has no such server, and adds the test to the list that
    /// `REQUEUE_NOT_RUN` names.
    ///
    /// # Errors
    ///
    /// Returns an error if no temporary directory can be created.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    pub fn start(name: &str) -> Result<Option<Self>, Failed> {
        let started = match name {
            "sqlite" => {
                let dir = tempfile::tempdir()?;
                let url = format!("sqlite:{}", dir.path().join(FILE).display());
                Some((url, Server::File(Arc::new(dir))))
            }
            "postgres" => Postgres::start().map(|server| {
                let server = Arc::new(server);
                (server.database(), Server::Postgres(server, None))
            }),
            "pgbouncer" => Postgres::start().and_then(|server| {
                let pooler = PgBouncer::start(&server, POOLED)?;
                let (server, pooler) = (Arc::new(server), Some(Arc::new(pooler)));
                Some((server.database(), Server::Postgres(server, pooler)))
            }),
            "redis" | "redis-everysec" | "redis-evicting" => {
                let fsync = if name == "redis-everysec" { "everysec" } else { "always" };
                let options = if name == "redis-evicting" { EVICTING } else { "" };
                let redis = Redis::start_syncing(fsync);
                redis.map(|server| {
                    (format!("{}{options}", server.url("")), Server::Redis(Arc::new(server)))
                })
            }
            "rediscluster" | "rediscluster-wait" => RedisCluster::start().map(|cluster| {
                let wait = if name == "rediscluster" { "" } else { "?wait=1" };
                (format!("{}{wait}", cluster.url()), Server::Cluster(Arc::new(cluster)))
            }),
            url => Some((url.to_owned(), Server::Other)),
        };
        Ok(started.map(|(url, server)| {
            let proxy = match &server {
                Server::Postgres(server, None) => Some((Language::Postgres, server.port())),
                Server::Postgres(_, Some(pooler)) => Some((Language::Postgres, pooler.port())),
                Server::Redis(server) => Some((Language::Redis, server.port())),
                // The nodes of a cluster publish their own addresses.
                Server::File(_) | Server::Cluster(_) | Server::Other => None,
            };
            let proxy = proxy.map(|(language, port)| Proxy::start(language, port));
            Self { name: name.to_owned(), url, server, proxy }
        }))
    }

    /// Returns the name of the store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address for the workers.
    pub(crate) fn proxied(&self) -> String {
        match (&self.server, &self.proxy) {
            (Server::Postgres(server, pooler), Some(proxy)) => {
                let url = server.proxied(&self.url, proxy.port());
                let direct = format!("&pooler=transaction&listen=127.0.0.1:{}", server.port());
                if pooler.is_some() { url + &direct } else { url }
            }
            (Server::Redis(_), Some(proxy)) => {
                let options = self.url.find('?').map_or("", |at| &self.url[at..]);
                format!("redis://127.0.0.1:{}{options}", proxy.port())
            }
            _ => self.url.clone(),
        }
    }

    /// Returns true if other clients can keep transactions open.
    pub(crate) const fn has_transactions(&self) -> bool {
        matches!(self.server, Server::Postgres(..))
    }

    /// Returns true if a server provides the time.
    pub(crate) const fn has_a_clock(&self) -> bool {
        !matches!(self.server, Server::File(_) | Server::Other)
    }

    /// Returns true if the queue may have a rate, and therefore only one shard. The queues of Redis have several shards in
    /// half of the runs.
    pub(crate) fn may_have_rate(&self, seed: u64) -> bool {
        match self.server {
            Server::File(_) | Server::Postgres(..) => true,
            Server::Redis(_) => seed % 2 == 1 && self.name != "redis-evicting",
            Server::Cluster(_) | Server::Other => false,
        }
    }

    /// Returns the losses that deaths excuse, without any deaths yet.
    pub(crate) fn losses(&self) -> Losses {
        // `None` means that no add may be lost.
        let (adds, moment) = match &*self.name {
            "redis-everysec" => (Some(UNWRITTEN), UNWRITTEN),
            "rediscluster" => (Some(UNCOPIED), UNCOPIED),
            // These stores lose only writes that are younger than a backup or a lagging replica.
            "sqlite" | "postgres" | "pgbouncer" => (Some(Duration::ZERO), Duration::ZERO),
            "redis-evicting" => (Some(PENDING), UNWRITTEN),
            _ => (None, UNCOPIED),
        };
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let evicts = self.name == "redis-evicting";
        let (adds, moment, lease) = (adds.map(nanos), nanos(moment), nanos(LEASE));
        Losses { adds, moment, lease, evicts, ..Losses::default() }
    }

    /// Injects the fault for the `n`th time, and returns when a server is available again. A
    /// replica or a backup that takes the server's place lags by `long`. Returns the death of the
    /// server if writes may be lost.
    pub(crate) async fn strike(
        &self,
        fault: Fault,
        n: u32,
        long: Duration,
    ) -> Result<Option<(Fault, Option<Death>)>, Failed> {
        let from = now();
        let struck: Box<dyn FnOnce() -> (Fault, Option<Death>) + Send> = match &self.server {
            Server::File(dir) if fault == Fault::Restored => {
                let dir = Arc::clone(dir);
                Box::new(move || {
                    let restored = restore(dir.path(), long);
                    restored.unwrap_or_else(|error| panic!("the file is not restored: {error}"));
                    (fault, Some(Death { from, to: now() }))
                })
            }
            Server::Postgres(_, pooler) if fault == Fault::PoolerKilled => {
                let Some(pooler) = pooler.as_ref().map(Arc::clone) else { return Ok(None) };
                Box::new(move || {
                    pooler.restart();
                    (fault, None)
                })
            }
            Server::Redis(server) if fault == Fault::Evicted => {
                if self.name != "redis-evicting" {
                    return Ok(None);
                }
                let server = Arc::clone(server);
                Box::new(move || {
                    evict(&server, u64::from(n % 3) + 1);
                    (fault, Some(Death { from, to: now() }))
                })
            }
            _ if matches!(fault, Fault::Evicted | Fault::PoolerKilled) => return Ok(None),
            Server::Postgres(server, _) => {
                let server = Arc::clone(server);
                Box::new(move || match fault {
                    Fault::Promoted => {
                        server.follow();
                        std::thread::sleep(long);
                        let from = now();
                        server.leave_behind();
                        std::thread::sleep(long);
                        server.promote();
                        (fault, Some(Death { from, to: now() }))
                    }
                    Fault::Restored => {
                        server.back_up();
                        std::thread::sleep(long);
                        server.restore();
                        (fault, Some(Death { from, to: now() }))
                    }
                    _ => {
                        server.kill();
                        server.restart();
                        (Fault::Killed, None)
                    }
                })
            }
            _ if fault != Fault::Killed => return Ok(None),
            Server::File(_) | Server::Other => return Ok(None),
            Server::Redis(server) => {
                let server = Arc::clone(server);
                let loses = self.name == "redis-everysec";
                Box::new(move || {
                    server.kill();
                    let death = loses.then(|| Death { from, to: now() });
                    server.restart();
                    (Fault::Killed, death)
                })
            }
            Server::Cluster(cluster) => {
                let cluster = Arc::clone(cluster);
                Box::new(move || {
                    let (how, fault) = match n % 4 {
                        0 | 2 => {
                            let long = Duration::from_millis(200 * u64::from(1 + n % 4));
                            (Failover::Behind(long), Fault::TakenOverLate)
                        }
                        1 => (Failover::ToldTo, Fault::TakenOver),
                        _ => (Failover::Elected, Fault::Elected),
                    };
                    let (third, mut to) = (n as usize % 3, from);
                    cluster.fail_over(third, how, || to = now());
                    cluster.reunite(third);
                    (fault, Some(Death { from, to }))
                })
            }
        };
        // Other tasks of this runtime continue.
        let struck = tokio::task::spawn_blocking(struck).await?;
        if fault == Fault::Evicted {
            // A migration is the documented repair for an evicted schema.
            Store::connect(&self.url).await?.migrate().await?;
        }
        Ok(Some(struck))
    }
}

/// The queue has several shards, so that an eviction leaves some of them.
const EVICTING: &str = "?eviction=accept&shards=4";

/// Makes the server evict about `many` times 64 KiB by `allkeys-lru`. Redis does not distinguish
/// keys that were used within the last second, so it also evicts some keys of the queue.
fn evict(server: &Redis, many: u64) {
    let set = |limit: u64| server.cli(&["config", "set", "maxmemory", &limit.to_string()]);
    set(0);
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["eval", BALLAST, "0"]);
    let memory = server.cli(&["info", "memory"]);
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.and_then(|used| used.trim().parse().ok()).unwrap_or(u64::MAX / 2);
    set(used.saturating_sub(many * 65_536));
    // The server evicts before it answers.
    set(used + (64 << 20));
}

/// Restores a backup of age `long`, while the file is in use.
fn restore(dir: &Path, long: Duration) -> rusqlite::Result<()> {
    let backup = dir.join("backup.db");
    // There is no backup to remove at the first call.
    let _ = std::fs::remove_file(&backup);
    let mut file = Connection::open(dir.join(FILE))?;
    file.busy_timeout(Duration::from_secs(60))?;
    file.execute("vacuum into ?1", [backup.to_string_lossy()])?;
    std::thread::sleep(long);
    let backup = Connection::open(&backup)?;
    // All pages are copied in one step, so that no reader sees a part of the backup.
    Backup::new(&backup, &mut file)?.run_to_completion(i32::MAX, Duration::from_millis(5), None)
}

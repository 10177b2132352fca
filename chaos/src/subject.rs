//! The stores that histories are of, and what their servers may lose.

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

/// A store of its own, which is gone with this; or one that is there.
#[derive(Debug)]
pub struct Subject {
    name: String,
    pub(crate) url: String,
    server: Server,
    /// Stands before it, for those who work.
    pub(crate) proxy: Option<Proxy>,
}

#[derive(Debug)]
enum Server {
    File(Arc<TempDir>),
    /// Perhaps with a pooler before it, for those who work.
    Postgres(Arc<Postgres>, Option<Arc<PgBouncer>>),
    Redis(Arc<Redis>),
    Cluster(Arc<RedisCluster>),
    Other,
}

/// How much a server may lose of what it has acknowledged: what it has not written yet, of a second and
/// two more if the disk is slow; and what its replicas have not got yet.
const UNWRITTEN: Duration = Duration::from_secs(3);
const UNCOPIED: Duration = Duration::from_secs(2);
/// A server that evicts may lose all keys that are pending.
const PENDING: Duration = Duration::from_secs(3600);
/// How many sessions of the server a pooler shares among all processes.
const POOLED: u32 = 6;
/// Makes 48 keys of 64 KiB each that no process reads.
const BALLAST: &str =
    "for i = 1, 48 do redis.call('SET', 'ballast:' .. i, string.rep('x', 65536)) end";
/// The file of a store on SQLite.
const FILE: &str = "queues.db";

impl Subject {
    /// `sqlite`, `postgres`, `redis` and `rediscluster` stand for one of their own; so do
    /// `redis-everysec`, whose disk comes after its answers, and `rediscluster-wait`, where adds are
    /// answered when a replica has them. `redis-evicting` evicts keys. `pgbouncer` is PostgreSQL, which the
    /// processes reach through a pgbouncer with transaction pooling. Else it is an address. `None` if there is no such server here,
    /// which is then said in the list that `REQUEUE_NOT_RUN` names.
    ///
    /// # Errors
    ///
    /// If there is no directory to be had.
    ///
    /// # Panics
    ///
    /// When the server does not start.
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
                // The nodes of a cluster say themselves where they are.
                Server::File(_) | Server::Cluster(_) | Server::Other => None,
            };
            let proxy = proxy.map(|(language, port)| Proxy::start(language, port));
            Self { name: name.to_owned(), url, server, proxy }
        }))
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, for those who work.
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

    /// Whether it has transactions that anybody may keep open.
    pub(crate) const fn has_transactions(&self) -> bool {
        matches!(self.server, Server::Postgres(..))
    }

    /// Whether its time is a server's.
    pub(crate) const fn has_a_clock(&self) -> bool {
        !matches!(self.server, Server::File(_) | Server::Other)
    }

    /// What it may lose by deaths, of which there were none yet.
    pub(crate) fn losses(&self) -> Losses {
        let adds = match &*self.name {
            "redis-everysec" => Some(UNWRITTEN),
            "rediscluster" => Some(UNCOPIED),
            // Only what is younger than a backup or a replica that lags.
            "sqlite" | "postgres" | "pgbouncer" => Some(Duration::ZERO),
            "redis-evicting" => Some(PENDING),
            _ => None,
        };
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        Losses { deaths: Vec::new(), adds: adds.map(nanos), lease: nanos(LEASE) }
    }

    /// Does this to a server, and is back when there is one again; the `n`th time. Where a replica or a
    /// backup takes its place, that is `long` behind. What dies may lose something, if a death is given.
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
                        // It may not have got yet what was written just now.
                        let from = now() - UNCOPIED.as_nanos() as u64;
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
        // Whoever else is at work here goes on.
        let struck = tokio::task::spawn_blocking(struck).await?;
        if fault == Fault::Evicted {
            // What the operator is told to do if the schema was evicted.
            Store::connect(&self.url).await?.migrate().await?;
        }
        Ok(Some(struck))
    }
}

/// The queue has several shards, so that some are left.
const EVICTING: &str = "?eviction=accept&shards=4";

/// Has the server evict about `many` times 64 KiB by `allkeys-lru`. Keys that were used within the last second
/// are as old as any to it, so it also evicts some of the queue's.
fn evict(server: &Redis, many: u64) {
    let set = |limit: u64| server.cli(&["config", "set", "maxmemory", &limit.to_string()]);
    set(0);
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["eval", BALLAST, "0"]);
    let memory = server.cli(&["info", "memory"]);
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.and_then(|used| used.trim().parse().ok()).unwrap_or(u64::MAX / 2);
    set(used.saturating_sub(many * 65_536));
    // It has evicted by the time that it answers.
    set(used + (64 << 20));
}

/// Restores a backup that is `long` old, while the file is in use.
fn restore(dir: &Path, long: Duration) -> rusqlite::Result<()> {
    let backup = dir.join("backup.db");
    // There is none the first time.
    let _ = std::fs::remove_file(&backup);
    let mut file = Connection::open(dir.join(FILE))?;
    file.busy_timeout(Duration::from_secs(60))?;
    file.execute("vacuum into ?1", [backup.to_string_lossy()])?;
    std::thread::sleep(long);
    let backup = Connection::open(&backup)?;
    // All pages in one step, so that nobody sees a part of it.
    Backup::new(&backup, &mut file)?.run_to_completion(i32::MAX, Duration::from_millis(5), None)
}

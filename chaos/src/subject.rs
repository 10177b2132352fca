//! The stores that histories are of, and what their servers may lose.

use std::sync::Arc;
use std::time::Duration;

use requeue_servers::{Failover, Language, Postgres, Proxy, Redis, RedisCluster};
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
    File(#[allow(dead_code, reason = "it is removed when this is dropped")] TempDir),
    Postgres(Arc<Postgres>),
    Redis(Arc<Redis>),
    Cluster(Arc<RedisCluster>),
    Other,
}

/// How much a server may lose of what it has acknowledged: what it has not written yet, of a second and
/// two more if the disk is slow; and what its replicas have not got yet.
const UNWRITTEN: Duration = Duration::from_secs(3);
const UNCOPIED: Duration = Duration::from_secs(2);

impl Subject {
    /// `sqlite`, `postgres`, `redis` and `rediscluster` stand for one of their own; so do
    /// `redis-everysec`, whose disk comes after its answers, and `rediscluster-wait`, where adds are
    /// answered when a replica has them. Else it is an address. `None` if there is no such server here,
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
                let url = format!("sqlite:{}", dir.path().join("queues.db").display());
                Some((url, Server::File(dir)))
            }
            "postgres" => Postgres::start().map(|server| {
                let server = Arc::new(server);
                (server.database(), Server::Postgres(server))
            }),
            "redis" | "redis-everysec" => {
                let fsync = if name == "redis" { "always" } else { "everysec" };
                let redis = Redis::start_syncing(fsync);
                redis.map(|server| (server.url(""), Server::Redis(Arc::new(server))))
            }
            "rediscluster" | "rediscluster-wait" => RedisCluster::start().map(|cluster| {
                let wait = if name == "rediscluster" { "" } else { "?wait=1" };
                (format!("{}{wait}", cluster.url()), Server::Cluster(Arc::new(cluster)))
            }),
            url => Some((url.to_owned(), Server::Other)),
        };
        Ok(started.map(|(url, server)| {
            let proxy = match &server {
                Server::Postgres(server) => Some((Language::Postgres, server.port())),
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
            (Server::Postgres(server), Some(proxy)) => server.proxied(&self.url, proxy.port()),
            (Server::Redis(_), Some(proxy)) => format!("redis://127.0.0.1:{}", proxy.port()),
            _ => self.url.clone(),
        }
    }

    /// Whether it has transactions that anybody may keep open.
    pub(crate) const fn has_transactions(&self) -> bool {
        matches!(self.server, Server::Postgres(_))
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
            _ => None,
        };
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        Losses { deaths: Vec::new(), adds: adds.map(nanos), lease: nanos(LEASE) }
    }

    /// Has a server die, and is back when there is one again; the `n`th time. What dies may lose
    /// something, if a death is given.
    pub(crate) async fn strike(&self, n: u32) -> Result<Option<(Fault, Option<Death>)>, Failed> {
        let from = now();
        let struck: Box<dyn FnOnce() -> (Fault, Option<Death>) + Send> = match &self.server {
            Server::File(_) | Server::Other => return Ok(None),
            Server::Postgres(server) => {
                let server = Arc::clone(server);
                Box::new(move || {
                    server.kill();
                    server.restart();
                    (Fault::Killed, None)
                })
            }
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
        Ok(Some(tokio::task::spawn_blocking(struck).await?))
    }
}

//! Redis servers and clusters for tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::certificate::write_certificate;
use crate::keeper::Keeper;
use crate::local::{did_not_run, find_program, free_ports, shared};

const MISSING: &str = "there is no Redis server here";

/// A Redis or Valkey server, which is killed when it is dropped or when the test process dies.
///
/// The server listens on loopback, with and without TLS, and requires no password. Its data
/// survives a kill of the server, but not a crash of the machine.
#[derive(Debug)]
pub struct Redis {
    keeper: Keeper,
    cli: PathBuf,
    port: u16,
    tls_port: u16,
    cluster_port: u16,
}

impl Redis {
    /// Starts a server. Returns `None` if neither Redis nor Valkey is installed, and adds the test
    /// to the list that `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn start() -> Option<Self> {
        Self::start_syncing("no")
    }

    /// Starts a server with the setting `appendfsync`: `always`, `everysec` or `no`. With
    /// `everysec`, a kill can lose acknowledged writes.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub fn start_syncing(fsync: &str) -> Option<Self> {
        let found = programs();
        if found.is_none() {
            did_not_run(MISSING);
        }
        found.map(|programs| Self::start_with(&programs, false, fsync, 0))
    }

    /// Starts a Sentinel that watches this server under the name `jobs`.
    ///
    /// # Panics
    /// Panics if the Sentinel does not start. The message contains its log.
    pub fn sentinel(&self) -> Self {
        let programs = programs().unwrap_or_else(|| panic!("{MISSING}"));
        Self::start_with(&programs, false, "no", self.port)
    }

    fn start_with(
        (program, cli): &(PathBuf, PathBuf),
        in_cluster: bool,
        fsync: &str,
        watched: u16,
    ) -> Self {
        let mut tries = 0;
        loop {
            tries += 1;
            let [port, tls_port, cluster_port] = free_ports();
            let cluster_port = if in_cluster { cluster_port } else { 0 };
            let paths = [program, cli].map(|path| path.to_string_lossy());
            let ports = [port, tls_port, cluster_port, watched].map(|port| port.to_string());
            let [port_arg, tls, cluster, watched] = ports.each_ref().map(|port| &**port);
            let args = [&*paths[0], &*paths[1], port_arg, tls, cluster, fsync, watched];
            let keeper = Keeper::new(include_str!("redis.sh"), &args, write_certificate);
            match keeper.try_order("started") {
                Ok(()) => return Self { keeper, cli: cli.clone(), port, tls_port, cluster_port },
                // The start may fail because another process has taken a port.
                Err(why) => assert!(tries < 3, "{why}"),
            }
        }
    }

    /// Returns the server that all tests of a program share. The tests must leave the server
    /// running.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Redis>> = OnceLock::new();
        shared(&SHARED, Self::start, MISSING)
    }

    /// Returns the address with these credentials, if any: `USER:PASSWORD@`.
    pub fn url(&self, credentials: &str) -> String {
        format!("redis://{credentials}127.0.0.1:{}", self.port)
    }

    /// Returns the address with TLS. The server's certificate is for `localhost`.
    pub fn tls_url(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.tls_port)
    }

    /// Returns the path of the certificate with which clients verify the server.
    pub fn certificate(&self) -> PathBuf {
        self.keeper.dir().join("server.crt")
    }

    /// Returns the port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port on which the server listens for connections with TLS.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Runs a command, and returns its output.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new(&self.cli);
        cli.args(["-e", "-p", &self.port.to_string()]).args(command);
        let done = cli.output().unwrap_or_else(|err| panic!("redis-cli: {err}"));
        let printed = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
        assert!(done.status.success(), "{command:?}: {printed}");
        printed
    }

    /// Kills the server immediately.
    ///
    /// # Panics
    /// Panics if the kill fails.
    pub fn kill(&self) {
        self.keeper.order("killed");
    }

    /// Starts the server again.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn restart(&self) {
        self.keeper.order("started");
    }

    fn is_dead(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err()
    }

    /// Freezes the server.
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
}

/// Three masters, each with a replica, that share the slots evenly. A failover happens on request,
/// or five seconds after the death of a master.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

/// The way in which the replica of a dead master takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failover {
    /// The replica takes over on request.
    ToldTo,
    /// The replica takes over on request, after it has received no data from the master for this
    /// time.
    Behind(Duration),
    /// The replica takes over after the other masters have noticed the death.
    Elected,
}

/// The number of masters.
const MASTERS: usize = 3;
const SLOTS: usize = 16384;

impl RedisCluster {
    /// Starts a cluster: see [`Redis::start`].
    ///
    /// # Panics
    /// Panics if the cluster does not start, or if its nodes do not find each other.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            did_not_run(MISSING);
            return None;
        };
        let node = |_| Redis::start_with(&programs, true, "no", 0);
        let nodes: Vec<_> = (0..2 * MASTERS).map(node).collect();
        let cluster = Self { nodes };
        cluster.join();
        Some(cluster)
    }

    /// Returns the cluster that all tests of a program share. The tests must leave the cluster
    /// running.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<RedisCluster>> = OnceLock::new();
        shared(&SHARED, Self::start, MISSING)
    }

    fn join(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            node.cli(&["cluster", "set-config-epoch", &epoch]);
            if number < MASTERS {
                let first = (SLOTS * number).div_ceil(MASTERS).to_string();
                let last = ((SLOTS * (number + 1)).div_ceil(MASTERS) - 1).to_string();
                node.cli(&["cluster", "addslotsrange", &first, &last]);
            }
            let (port, cluster_port) = (node.port.to_string(), node.cluster_port.to_string());
            self.nodes[0].cli(&["cluster", "meet", "127.0.0.1", &port, &cluster_port]);
        }
        let masters = self.nodes[..MASTERS].iter().map(|node| node.cli(&["cluster", "myid"]));
        for (master, replica) in masters.zip(&self.nodes[MASTERS..]) {
            let knows = || replica.cli(&["cluster", "nodes"]).contains(&master);
            until("the nodes meet", knows);
            replica.cli(&["cluster", "replicate", &master]);
        }
        until("the cluster is complete", || {
            self.nodes.iter().all(|node| {
                let (info, nodes) =
                    (node.cli(&["cluster", "info"]), node.cli(&["cluster", "nodes"]));
                info.contains("cluster_state:ok")
                    && nodes.matches("slave").count() == MASTERS
                    && !nodes.contains("handshake")
            }) && self.nodes[MASTERS..].iter().all(Self::is_replica_of_somebody)
        });
    }

    fn is_replica_of_somebody(node: &Redis) -> bool {
        node.cli(&["info", "replication"]).contains("master_link_status:up")
    }

    /// Returns the address of the cluster, with all nodes.
    pub fn url(&self) -> String {
        let hosts = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Returns all nodes: first the three masters, then the replica of each master.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Makes the replica of a killed master take its place.
    ///
    /// # Panics
    /// Panics if the replica does not take over.
    pub fn take_over(&self, master: usize) {
        let replica = &self.nodes[master + MASTERS];
        let says = |word: &str| replica.cli(&["info", "replication"]).contains(word);
        until("the replica sees that its master is gone", || says("master_link_status:down"));
        replica.cli(&["cluster", "failover", "takeover"]);
        until("the replica is a master", || says("role:master"));
    }

    /// Kills the master of a third of the slots, and makes its replica take its place. Calls
    /// `killed` once the master is dead. [`reunite`](Self::reunite) starts the old master again.
    ///
    /// # Panics
    /// If the replica does not take its place.
    pub fn fail_over(&self, third: usize, how: Failover, killed: impl FnOnce()) {
        let pair = [&self.nodes[third], &self.nodes[third + MASTERS]];
        let is_master = |node: &Redis| node.cli(&["info", "replication"]).contains("role:master");
        let [master, replica] = if is_master(pair[0]) { pair } else { [pair[1], pair[0]] };
        if let Failover::Behind(long) = how {
            // The replica is frozen first, because data that the master has already sent would
            // otherwise arrive after its death.
            replica.freeze();
            master.cli(&["client", "kill", "type", "replica"]);
            std::thread::sleep(long);
        }
        master.kill();
        killed();
        if let Failover::Behind(_) = how {
            replica.thaw();
        }
        if how != Failover::Elected {
            replica.cli(&["cluster", "failover", "takeover"]);
        }
        until("the replica is a master", || is_master(replica));
    }

    /// Starts the dead node of these slots again, as a replica of the new master.
    ///
    /// # Panics
    /// Panics if the node does not become a replica.
    pub fn reunite(&self, third: usize) {
        let pair = [&self.nodes[third], &self.nodes[third + MASTERS]];
        pair.iter().filter(|node| node.is_dead()).for_each(|node| node.restart());
        until("the replica is back", || {
            pair.iter().any(|node| Self::is_replica_of_somebody(node))
                && self.nodes.iter().all(|node| {
                    let nodes = node.cli(&["cluster", "nodes"]);
                    nodes.matches("slave").count() == MASTERS && !nodes.contains("fail")
                })
        });
    }

    /// Moves a slot from one master to another.
    ///
    /// # Panics
    /// Panics if the move fails.
    pub fn give_slot(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let ids = [from, to].map(|master| self.nodes[master].cli(&["cluster", "myid"]));
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        to.cli(&["cluster", "setslot", &slot, "importing", &ids[0]]);
        from.cli(&["cluster", "setslot", &slot, "migrating", &ids[1]]);
        let port = to.port.to_string();
        until("the slot is empty", || {
            let keys = from.cli(&["cluster", "getkeysinslot", &slot, "100"]);
            for key in keys.lines() {
                from.cli(&["migrate", "127.0.0.1", &port, key, "0", "5000"]);
            }
            keys.is_empty()
        });
        for node in [to, from] {
            node.cli(&["cluster", "setslot", &slot, "node", &ids[1]]);
        }
    }
}

/// Waits until `is` returns true, for at most a minute.
fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not within a minute");
}

/// Returns the server and its command line client, from `PATH`. The environment variable
/// `REQUEUE_REDIS` selects `redis` or `valkey`. By default, either is used.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let wanted = std::env::var("REQUEUE_REDIS").unwrap_or_default();
    ["redis", "valkey"].iter().filter(|&&name| wanted.is_empty() || wanted == name).find_map(
        |name| {
            Some((find_program(&format!("{name}-server"))?, find_program(&format!("{name}-cli"))?))
        },
    )
}

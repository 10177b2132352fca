use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::keeper::{Keeper, write};
use crate::local::{did_not_run, free_ports, shared};

const MISSING: &str = "there is no Redis server here";

/// A Redis server, or a Valkey server, which is killed when this is dropped, or when the process dies that has
/// it. It listens on loopback, with and without TLS, where everybody may come in. What it has written
/// survives it, though not its machine.
#[derive(Debug)]
pub struct Redis {
    keeper: Keeper,
    cli: PathBuf,
    port: u16,
    tls_port: u16,
    cluster_port: u16,
}

impl Redis {
    /// Starts one; `None` where there is none to start, which is then said in the list that
    /// `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn start() -> Option<Self> {
        Self::start_syncing("no")
    }

    /// The same, and how often what it writes reaches the disk: `always`, `everysec` or `no`. With
    /// `everysec` it may be killed before it has written what it has acknowledged.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    pub fn start_syncing(fsync: &str) -> Option<Self> {
        let found = programs();
        if found.is_none() {
            did_not_run(MISSING);
        }
        found.map(|programs| Self::start_with(&programs, false, fsync, 0))
    }

    /// Starts a Sentinel that watches this one, under the name `jobs`.
    ///
    /// # Panics
    /// When it does not start, with its log.
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
            let keeper = Keeper::new(include_str!("redis.sh"), &args, |dir| {
                let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
                let certificate = certificate.unwrap_or_else(|err| panic!("a certificate: {err}"));
                write(&dir.join("server.crt"), &certificate.cert.pem());
                write(&dir.join("server.key"), &certificate.signing_key.serialize_pem());
            });
            match keeper.try_order("started") {
                Ok(()) => return Self { keeper, cli: cli.clone(), port, tls_port, cluster_port },
                // Somebody may have been quicker to take a port.
                Err(why) => assert!(tries < 3, "{why}"),
            }
        }
    }

    /// The one that all tests of a program share, who leave it running.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Redis>> = OnceLock::new();
        shared(&SHARED, Self::start, MISSING)
    }

    /// Its address, for whoever has these credentials, if any: `USER:PASSWORD@`.
    pub fn url(&self, credentials: &str) -> String {
        format!("redis://{credentials}127.0.0.1:{}", self.port)
    }

    /// The same, with TLS. The server's certificate is `localhost`'s.
    pub fn tls_url(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.tls_port)
    }

    /// What vouches for its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.keeper.dir().join("server.crt")
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port that it listens on for connections with TLS.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Runs a command, and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new(&self.cli);
        cli.args(["-e", "-p", &self.port.to_string()]).args(command);
        let done = cli.output().unwrap_or_else(|err| panic!("redis-cli: {err}"));
        let printed = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
        assert!(done.status.success(), "{command:?}: {printed}");
        printed
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

    fn is_dead(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err()
    }

    /// Has it stand still.
    ///
    /// # Panics
    /// When it does not.
    pub fn freeze(&self) {
        self.keeper.order("frozen");
    }

    /// Has it go on.
    ///
    /// # Panics
    /// When it does not.
    pub fn thaw(&self) {
        self.keeper.order("thawed");
    }
}

/// Three masters, each with a replica, who share the slots evenly. They fail over when told to, and
/// otherwise after five seconds.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

/// How the replica of a master that dies takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failover {
    /// When it is told to.
    ToldTo,
    /// When it is told to, and it has heard nothing of the master for so long before.
    Behind(Duration),
    /// When the other masters have seen that theirs is gone.
    Elected,
}

/// How many masters there are.
const MASTERS: usize = 3;
const SLOTS: usize = 16384;

impl RedisCluster {
    /// As [`Redis::start`].
    ///
    /// # Panics
    /// When it does not start, or its nodes don't find each other.
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

    /// The one that all tests of a program share, who leave it running.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
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

    /// Its address, by all of its nodes.
    pub fn url(&self) -> String {
        let hosts = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// All of its nodes: three masters at first, then the replica of each.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Has the replica of a master that was killed take its place.
    ///
    /// # Panics
    /// When it does not.
    pub fn take_over(&self, master: usize) {
        let replica = &self.nodes[master + MASTERS];
        let says = |word: &str| replica.cli(&["info", "replication"]).contains(word);
        until("the replica sees that its master is gone", || says("master_link_status:down"));
        replica.cli(&["cluster", "failover", "takeover"]);
        until("the replica is a master", || says("role:master"));
    }

    /// Kills the master of a third of the slots, and has its replica take its place.
    /// [`reunite`](Self::reunite) has it back. `killed` is called when it is dead.
    ///
    /// # Panics
    /// When it does not.
    pub fn fail_over(&self, third: usize, how: Failover, killed: impl FnOnce()) {
        let pair = [&self.nodes[third], &self.nodes[third + MASTERS]];
        let is_master = |node: &Redis| node.cli(&["info", "replication"]).contains("role:master");
        let [master, replica] = if is_master(pair[0]) { pair } else { [pair[1], pair[0]] };
        if let Failover::Behind(long) = how {
            // What the master has sent already would still arrive when it is dead.
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

    /// Starts the dead node of these slots again, as the replica of the other.
    ///
    /// # Panics
    /// When it does not become that.
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

    /// Gives a slot of one master to another.
    ///
    /// # Panics
    /// When it does not take it.
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

/// Waits for what comes in its own time.
fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not within a minute");
}

/// The server and its command line, in the path. The environment variable `REQUEUE_REDIS` says which
/// it is to be, `redis` or `valkey`; otherwise it is whichever there is.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: String| {
        std::env::split_paths(&path).map(|dir| dir.join(&name)).find(|program| program.is_file())
    };
    let wanted = std::env::var("REQUEUE_REDIS").unwrap_or_default();
    ["redis", "valkey"]
        .iter()
        .filter(|&&name| wanted.is_empty() || wanted == name)
        .find_map(|name| Some((find(format!("{name}-server"))?, find(format!("{name}-cli"))?)))
}

//! The servers, and which of them has a slot.
//!
//! The driver's own client for clusters sends a command again when its connection breaks, and a claim
//! that is made twice holds keys that nobody knows of. So who has what is kept here: a command is sent
//! once more only if the server said that it did nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, RedisError, RedisResult,
    Value, cmd, pipe,
};
use tokio::time::Instant;

use super::faults::{failed, garbled, unconnected};
use super::scripts::Script;
use crate::error::{Fault, Kind};

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(3);
/// How long an answer may take.
const ANSWERING: Duration = Duration::from_secs(10);
/// How often a cluster is asked at most who has what.
const ASKING: Duration = Duration::from_millis(100);
/// How often a command is sent on to another server before it is left for later.
const HOPS: usize = 6;

/// A server, and a connection to it if there is one.
pub(super) struct Node {
    info: ConnectionInfo,
    address: String,
    /// All verbs go over these in turn.
    connections: Vec<tokio::sync::Mutex<Option<MultiplexedConnection>>>,
    turn: AtomicUsize,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    fn new(info: ConnectionInfo, connections: usize) -> Self {
        let address = info.addr().to_string();
        let connections = (0..connections).map(|_| tokio::sync::Mutex::default()).collect();
        Self { info, address, connections, turn: AtomicUsize::new(0) }
    }

    /// A connection of its own, whose answers may take this long.
    async fn connect(&self, answering: Duration) -> Result<MultiplexedConnection, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING))
            .set_response_timeout(Some(answering));
        let connected = async {
            let client = Client::open(self.info.clone())?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        connected.await.map_err(|error| unconnected(&self.address, &error))
    }

    /// One that others use, too.
    async fn connection(&self) -> Result<MultiplexedConnection, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut connection = self.connections[turn].lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let new = self.connect(ANSWERING).await?;
        Ok(connection.insert(new).clone())
    }

    /// What is under way on its connections may still be answered; what comes goes over new ones.
    async fn disconnect(&self) {
        for connection in &self.connections {
            *connection.lock().await = None;
        }
    }

    /// The answers to all of them, which go out together; an error, if that is the first one's.
    /// `ahead`: the slot is on its way to this server.
    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        commands: &[&Cmd],
        ahead: bool,
    ) -> RedisResult<Vec<Value>> {
        let mut answers = match commands {
            [command] if !ahead => vec![connection.send_packed_command(command).await?],
            _ => {
                let mut all = pipe();
                if ahead {
                    all.cmd("ASKING");
                }
                commands.iter().for_each(|&command| _ = all.add_command(command.clone()));
                let skipped = usize::from(ahead);
                connection.send_packed_commands(&all, skipped, commands.len()).await?
            }
        };
        if let Some(first) = answers.first_mut() {
            *first = std::mem::replace(first, Value::Nil).extract_error()?;
        }
        Ok(answers)
    }
}

/// Who has what.
#[derive(Debug, Default)]
struct Map {
    /// By the last of their slots, in order.
    ranges: Vec<(u16, Arc<Node>)>,
    is_cluster: bool,
}

#[derive(Debug)]
pub(super) struct Nodes {
    seeds: Vec<Arc<Node>>,
    /// To each.
    connections: usize,
    /// All that have been heard of, by their addresses.
    known: Mutex<HashMap<String, Arc<Node>>>,
    map: Mutex<Arc<Map>>,
    /// When a cluster was last asked who has what.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl Nodes {
    /// Looks for them.
    pub(super) async fn find(seeds: &[ConnectionInfo], connections: usize) -> Result<Self, Fault> {
        let seeds = seeds.iter().map(|info| Arc::new(Node::new(info.clone(), connections)));
        let seeds: Vec<_> = seeds.collect();
        let known = seeds.iter().map(|node| (node.address.clone(), Arc::clone(node))).collect();
        let nodes = Self {
            seeds,
            connections,
            known: Mutex::new(known),
            map: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
        };
        nodes.look().await?;
        Ok(nodes)
    }

    pub(super) fn is_cluster(&self) -> bool {
        lock(&self.map).is_cluster
    }

    /// Asks who has what, unless that was done a moment ago.
    async fn look(&self) -> Result<(), Fault> {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < ASKING) {
            return Ok(());
        }
        let others: Vec<_> = lock(&self.known).values().cloned().collect();
        let mut fault = Fault::absent("there is no server");
        for node in self.seeds.iter().chain(&others) {
            match self.ask(node).await {
                Ok(map) => {
                    *lock(&self.map) = Arc::new(map);
                    *asked = Some(Instant::now());
                    return Ok(());
                }
                Err(other) => fault = other,
            }
        }
        // Nothing was to happen.
        let kind = if fault.kind == Kind::Unsure { Kind::Absent } else { fault.kind };
        Err(Fault { kind, ..fault })
    }

    async fn ask(&self, node: &Arc<Node>) -> Result<Map, Fault> {
        let hello = self.ask_one(node, &cmd("HELLO")).await?;
        let Value::Array(words) = hello else { return Err(garbled()) };
        let says = |name: &str, what: &str| {
            words.chunks(2).any(|pair| matches!(pair, [a, b] if text(a) == name && text(b) == what))
        };
        let is_cluster = says("mode", "cluster");
        if !is_cluster {
            if says("role", "replica") {
                return Err(Fault::absent(format!("{}: it is a replica, for now", node.address)));
            }
            return Ok(Map { ranges: vec![(u16::MAX, Arc::clone(node))], is_cluster });
        }
        let mut slots = cmd("CLUSTER");
        slots.arg("SLOTS");
        let Value::Array(parts) = self.ask_one(node, &slots).await? else { return Err(garbled()) };
        let mut ranges = Vec::new();
        for part in parts {
            let Value::Array(part) = part else { return Err(garbled()) };
            let [_, Value::Int(last), Value::Array(master), ..] = &part[..] else {
                return Err(garbled());
            };
            let [host, Value::Int(port), ..] = &master[..] else { return Err(garbled()) };
            let (Ok(last), Ok(port)) = (u16::try_from(*last), u16::try_from(*port)) else {
                return Err(garbled());
            };
            ranges.push((last, self.node_at(node, &text(host), port)));
        }
        ranges.sort_by_key(|&(last, _)| last);
        Ok(Map { ranges, is_cluster })
    }

    async fn ask_one(&self, node: &Node, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = node.connection().await?;
        match node.send(&mut connection, &[command], false).await {
            Ok(mut answers) => answers.pop().ok_or_else(garbled),
            Err(error) => {
                if !is_answer(&error) {
                    node.disconnect().await;
                }
                Err(failed(&node.address, &error))
            }
        }
    }

    /// The server at an address that `from` has named; without a host, at its own.
    fn node_at(&self, from: &Node, host: &str, port: u16) -> Arc<Node> {
        let own = match from.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        let host = if matches!(host, "" | "?") { own } else { host.to_owned() };
        let addr = match from.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                let (insecure, tls_params) = (*insecure, tls_params.clone());
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let mut known = lock(&self.known);
        let node = known.entry(addr.to_string());
        let new = || Node::new(from.info.clone().set_addr(addr), self.connections);
        Arc::clone(node.or_insert_with(|| Arc::new(new())))
    }

    /// Who has the slot, as far as is known.
    async fn holder(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        let holder = |map: &Map| {
            let at = map.ranges.partition_point(|&(last, _)| last < slot);
            map.ranges.get(at).map(|(_, node)| Arc::clone(node))
        };
        let map = Arc::clone(&lock(&self.map));
        if let Some(node) = holder(&map) {
            return Ok(node);
        }
        self.look().await?;
        let map = Arc::clone(&lock(&self.map));
        holder(&map).ok_or_else(|| Fault::absent(format!("no server has slot {slot}")))
    }

    /// A connection of its own to the server that has the slot, whose answers may take this long.
    pub(super) async fn dedicated(
        &self,
        slot: u16,
        answering: Duration,
    ) -> Result<MultiplexedConnection, Fault> {
        let node = self.holder(slot).await?;
        let connected = node.connect(answering).await;
        if connected.is_err() {
            // Another may have it by now. What is known then is the next one's concern.
            let _ = self.look().await;
        }
        connected
    }

    /// What the server that has the slot answers to each of them, of which the first runs `script`, if
    /// one is named. An error is that of the first.
    pub(super) async fn send(
        &self,
        slot: u16,
        commands: &[&Cmd],
        script: Option<&Script>,
    ) -> Result<Vec<Value>, Fault> {
        let mut node = self.holder(slot).await?;
        let mut ahead = false;
        let mut fault = Fault::absent(format!("no server takes slot {slot}"));
        for _ in 0..HOPS {
            let mut connection = match node.connection().await {
                Ok(connection) => connection,
                Err(fault) => {
                    let _ = self.look().await;
                    let next = self.holder(slot).await?;
                    if Arc::ptr_eq(&next, &node) {
                        return Err(fault);
                    }
                    (node, ahead) = (next, false);
                    continue;
                }
            };
            let error = match node.send(&mut connection, commands, ahead).await {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            fault = failed(&node.address, &error);
            match (error.code(), error.redirect_node(), script) {
                (Some("NOSCRIPT"), _, Some(script)) => {
                    self.ask_one(&node, &script.load()).await?;
                }
                (Some(code), Some((address, _)), _) => {
                    let Some((host, port)) = address.rsplit_once(':') else { return Err(fault) };
                    let Ok(port) = port.parse() else { return Err(fault) };
                    ahead = code == "ASK";
                    node = self.node_at(&node, host, port);
                    if !ahead {
                        // For whatever comes next; this one knows where to go.
                        let _ = self.look().await;
                    }
                }
                (code, ..) => {
                    // Masters that have become replicas, and connections that have broken.
                    if code.is_none() || matches!(code, Some("READONLY" | "CLUSTERDOWN")) {
                        node.disconnect().await;
                        let _ = self.look().await;
                    }
                    return Err(fault);
                }
            }
        }
        Err(fault)
    }
}

fn is_answer(error: &RedisError) -> bool {
    error.code().is_some()
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

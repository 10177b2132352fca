//! The servers of a cluster, and the slots that each of them has.
//!
//! The cluster client of the driver sends a command again when its connection breaks. A claim that runs twice would
//! hold keys that no process knows of. Therefore, this module keeps the map of slots itself. It sends a command again
//! only if a server has reported that the command had no effect.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::faults::{command_fault, unknown_format};
use super::map::{self, Map};
use super::node::{Line, Node};
use super::requirements::examine_servers;
use super::scripts::{Call, Script, Scripts};
use crate::engine::lock;
use crate::types::error::{Answer, EngineError, Kind};

/// The minimum interval between two requests for the map of a cluster.
const ASKING: Duration = Duration::from_millis(100);
/// The time limit for servers to return their maps. When the first map has arrived, the other servers have at least
/// `OTHERS`, or as much time as the first answer took.
const SAYING: Duration = Duration::from_secs(3);
const OTHERS: Duration = Duration::from_millis(100);
/// The number of servers that are asked for their maps at the same time. Several servers are asked, because one of them
/// may be separated from the others.
const ASKED: usize = 5;
/// The maximum number of times that a command is sent before it fails with a temporary error.
const HOPS: usize = 6;

#[derive(Debug)]
pub(super) struct Nodes {
    seeds: Vec<Arc<Node>>,
    /// All known servers, by address.
    known: Mutex<HashMap<String, Arc<Node>>>,
    map: Mutex<Arc<Map>>,
    /// The time of the last request for a map.
    asked: tokio::sync::Mutex<Option<Instant>>,
    accepts_eviction: bool,
    /// The scripts that the engine runs on the servers.
    pub(super) scripts: Scripts,
}

impl Nodes {
    /// Finds the servers. Returns an error if a server evicts keys, unless `accepts_eviction` is true.
    pub(super) async fn find(
        seeds: &[ConnectionInfo],
        accepts_eviction: bool,
        scripts: Scripts,
    ) -> Answer<Arc<Self>> {
        let seeds: Vec<_> = seeds.iter().map(|info| Arc::new(Node::new(info.clone()))).collect();
        let known = seeds.iter().map(|node| (node.address.clone(), Arc::clone(node))).collect();
        let nodes = Arc::new(Self {
            seeds,
            known: Mutex::new(known),
            map: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
            accepts_eviction,
            scripts,
        });
        nodes.look_now().await?;
        examine_servers(nodes.all_masters(), accepts_eviction).await?;
        Ok(nodes)
    }

    fn all_masters(&self) -> Vec<Arc<Node>> {
        lock(&self.map).all_masters()
    }

    pub(super) fn is_cluster(&self) -> bool {
        lock(&self.map).is_cluster
    }

    /// Updates the map, unless the last update is recent. The update runs in a separate task, because the caller may be
    /// dropped.
    async fn update_map(self: &Arc<Self>) -> Answer<()> {
        let nodes = Arc::clone(self);
        let looked = tokio::spawn(async move {
            nodes.look_now().await?;
            // The settings of new masters are read in the background.
            tokio::spawn(async move {
                let examined = examine_servers(nodes.all_masters(), nodes.accepts_eviction).await;
                if let Err(EngineError { source: error, .. }) = examined {
                    tracing::warn!(%error, "a server may lose keys");
                }
            });
            Ok(())
        });
        looked.await.unwrap_or_else(|error| Err(EngineError::absent(error)))
    }

    async fn look_now(&self) -> Answer<()> {
        // The lock is held during the requests. Callers that arrive in the meantime wait for the new map.
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < ASKING) {
            return Ok(());
        }
        // The servers that have answered their last requests are asked first.
        let mut nodes = self.seeds.clone();
        let is_seed = |node: &Arc<Node>| self.seeds.iter().any(|seed| Arc::ptr_eq(seed, node));
        nodes.extend(lock(&self.known).values().filter(|node| !is_seed(node)).cloned());
        nodes.sort_by_key(|node| node.is_silent());
        let mut best: Option<Map> = None;
        let mut fault = EngineError::absent("no server answers");
        for some in nodes.chunks(ASKED) {
            let begun = Instant::now();
            let mut limit = begun + SAYING;
            let asking: FuturesUnordered<_> = some.iter().map(|node| self.seen_by(node)).collect();
            let mut asking = pin!(asking);
            while let Ok(Some(said)) = timeout_at(limit, asking.next()).await {
                match said {
                    Ok(map) if best.as_ref().is_none_or(|best| map.is_better_than(best)) => {
                        // When the first map has arrived, the other servers have a little more time, because their maps
                        // may be newer.
                        limit = limit.min(Instant::now() + begun.elapsed().max(OTHERS));
                        best = Some(map);
                    }
                    Ok(_) => {}
                    Err(other) => fault = other,
                }
            }
            if best.as_ref().is_some_and(|map| map.is_whole) {
                break;
            }
        }
        // The time is also set after a failure. Otherwise, each caller would send requests to a cluster that is down.
        *asked = Some(Instant::now());
        match best {
            Some(map) => {
                if map.is_whole {
                    // A server that never returns must not delay each update.
                    let stays =
                        |node: &Arc<Node>| is_seed(node) || map.has_node(node) || !node.is_silent();
                    lock(&self.known).retain(|_, node| stays(node));
                }
                *lock(&self.map) = Arc::new(map);
                Ok(())
            }
            // A request for a map changes nothing, so the error need not say that it may have taken effect.
            None if fault.kind.may_have_happened() => {
                Err(EngineError { kind: Kind::Absent, ..fault })
            }
            None => Err(fault),
        }
    }

    async fn seen_by(&self, node: &Arc<Node>) -> Answer<Map> {
        // Until the server answers, it counts as silent.
        node.note_silence();
        Map::ask_server(node, |address| self.node_at(node, address)).await
    }

    /// Returns the server at `address`, which `from` has named.
    fn node_at(&self, from: &Node, address: ConnectionAddr) -> Arc<Node> {
        let mut known = lock(&self.known);
        let node = known.entry(address.to_string());
        let info = || from.info.clone().set_addr(address);
        Arc::clone(node.or_insert_with(|| Arc::new(Node::new(info()))))
    }

    /// Returns the server that has the slot in the current map.
    pub(super) async fn holder_of(self: &Arc<Self>, slot: u16) -> Answer<Arc<Node>> {
        let holder = || lock(&self.map).holder_of(slot);
        if let Some(node) = holder() {
            return Ok(node);
        }
        self.update_map().await?;
        holder().ok_or_else(|| EngineError::absent(format!("no server has slot {slot}")))
    }

    /// Checks a server, because a caller has stopped waiting for its answer. Updates the map if the server does not
    /// answer the check. The check runs in a separate task, which no caller can cancel.
    fn doubt_node(self: &Arc<Self>, node: &Arc<Node>, wire: usize) {
        // Without a runtime, there are no later requests, so no check is needed.
        let Ok(runtime) = Handle::try_current() else { return };
        let (nodes, node) = (Arc::clone(self), Arc::clone(node));
        runtime.spawn(async move {
            if node.is_there(wire).await == Some(false) {
                node.disconnect();
                let _ = nodes.update_map().await;
            }
        });
    }

    /// Opens a separate connection to the server that has the slot. `answering` is the timeout of an answer.
    pub(super) async fn dedicated_connection(
        self: &Arc<Self>,
        slot: u16,
        answering: Duration,
    ) -> Answer<MultiplexedConnection> {
        let node = self.holder_of(slot).await?;
        let connected = node.connect(answering).await;
        if connected.is_err() {
            // Another server may have the slot now. The next request uses the new map.
            node.note_silence();
            let _ = self.update_map().await;
        }
        connected
    }

    /// Runs a command on the server that has the slot, and returns its answer. The command must not wait.
    pub(super) async fn run_command(self: &Arc<Self>, slot: u16, command: &Cmd) -> Answer<Value> {
        let mut answers = self.send(slot, Line::Quick, &[command], None).await?;
        answers.pop().ok_or_else(unknown_format)
    }

    /// Runs a script on the server that has the slot, as [`run_command`](Self::run_command) does with a command.
    pub(super) async fn run_script(self: &Arc<Self>, slot: u16, call: &Call<'_>) -> Answer<Value> {
        let mut answers = self.send(slot, Line::Quick, &[call], Some(call.script)).await?;
        answers.pop().ok_or_else(unknown_format)
    }

    /// Sends commands to the server that has the slot, and returns all answers. `script` is the script of the first
    /// command, or `None` if it runs no script. Returns an error if the first answer is an error.
    pub(super) async fn send(
        self: &Arc<Self>,
        slot: u16,
        line: Line,
        commands: &[&Cmd],
        script: Option<&Script>,
    ) -> Answer<Vec<Value>> {
        let mut node = self.holder_of(slot).await?;
        let mut ahead = false;
        let mut fault = EngineError::absent(format!("no server takes slot {slot}"));
        // While slots move, redirections can form a loop, so their number is limited.
        for _ in 0..HOPS {
            let wire = node.wire(line);
            let mut patient = Patient { nodes: self, node: &node, wire, gives_up: true };
            let sent = match node.connection(wire).await {
                Ok(mut connection) => Ok(node.send(&mut connection, commands, ahead).await),
                Err(fault) => Err(fault),
            };
            // The request has an answer or an error. Only if the caller is dropped at the wait, the flag stays set.
            patient.gives_up = false;
            drop(patient);
            let error = match sent {
                Ok(Ok(answers)) => return Ok(answers),
                Ok(Err(error)) => error,
                Err(fault) => {
                    node.note_silence();
                    let _ = self.update_map().await;
                    let next = self.holder_of(slot).await?;
                    if Arc::ptr_eq(&next, &node) {
                        return Err(fault);
                    }
                    (node, ahead) = (next, false);
                    continue;
                }
            };
            fault = command_fault(&node.address, &error);
            match (error.code(), error.redirect_node(), script) {
                (Some("NOSCRIPT"), _, Some(script)) => _ = node.ask([&script.load()]).await?,
                (Some(code), Some((address, _)), _) => {
                    let Some((host, port)) = address.rsplit_once(':') else { return Err(fault) };
                    let Ok(port) = port.parse() else { return Err(fault) };
                    // The slot is moving to another server. Only this command is sent to that server, after the command
                    // `ASKING`.
                    ahead = code == "ASK";
                    node = self.node_at(&node, map::address(&node, host, port));
                    if !ahead {
                        // This command already has the address of the other server. The update is for later commands.
                        let _ = self.update_map().await;
                    }
                }
                (code, ..) => {
                    // Another server may have the slot after one of these errors. The connection is broken, or the
                    // server has become a replica, is separated from its cluster, or is restarting.
                    const ELSEWHERE: [&str; 4] =
                        ["READONLY", "CLUSTERDOWN", "LOADING", "MASTERDOWN"];
                    if code.is_none_or(|code| ELSEWHERE.contains(&code)) {
                        node.disconnect();
                        let _ = self.update_map().await;
                    }
                    return Err(fault);
                }
            }
        }
        Err(fault)
    }
}

#[cfg(test)]
impl Nodes {
    /// Returns true if a silent server at this address is still known after an update of the map.
    pub(super) async fn remembers(&self, from: &Node, address: ConnectionAddr) -> bool {
        let known = address.to_string();
        self.node_at(from, address).note_silence();
        *self.asked.lock().await = None;
        self.look_now().await.expect("a server answers");
        lock(&self.known).contains_key(&known)
    }
}

/// Detects that a caller has stopped waiting for an answer.
struct Patient<'a> {
    nodes: &'a Arc<Nodes>,
    node: &'a Arc<Node>,
    wire: usize,
    gives_up: bool,
}

impl Drop for Patient<'_> {
    fn drop(&mut self) {
        if self.gives_up {
            self.nodes.doubt_node(self.node, self.wire);
        }
    }
}

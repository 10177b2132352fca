//! The servers, and which of them has a slot.
//!
//! The driver's own client for clusters sends a command again when its connection breaks, and a claim
//! that is made twice holds keys that nobody knows of. So who has what is kept here: a command is sent
//! once more only if the server said that it did nothing.

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

use super::faults::{failed, garbled};
use super::lock;
use super::map::{self, Map};
use super::node::{Line, Node};
use super::requirements::examine;
use super::scripts::Script;
use crate::types::error::{EngineError, Kind};

/// How often a cluster is asked at most who has what.
const ASKING: Duration = Duration::from_millis(100);
/// How long servers may take to say who has what, and the others when one has said so, unless that took
/// longer itself.
const SAYING: Duration = Duration::from_secs(3);
const OTHERS: Duration = Duration::from_millis(100);
/// How many servers are asked at once who has what: one may be cut off from the others.
const ASKED: usize = 5;
/// How often a command is sent on to another server before it is left for later.
const HOPS: usize = 6;

#[derive(Debug)]
pub(super) struct Nodes {
    seeds: Vec<Arc<Node>>,
    /// Those that have been heard of, by their addresses.
    known: Mutex<HashMap<String, Arc<Node>>>,
    map: Mutex<Arc<Map>>,
    /// When a cluster was last asked who has what.
    asked: tokio::sync::Mutex<Option<Instant>>,
    accepts_eviction: bool,
}

impl Nodes {
    /// Looks for them. Those that evict are refused, unless that is accepted.
    pub(super) async fn find(
        seeds: &[ConnectionInfo],
        accepts_eviction: bool,
    ) -> Result<Arc<Self>, EngineError> {
        let seeds: Vec<_> = seeds.iter().map(|info| Arc::new(Node::new(info.clone()))).collect();
        let known = seeds.iter().map(|node| (node.address.clone(), Arc::clone(node))).collect();
        let nodes = Arc::new(Self {
            seeds,
            known: Mutex::new(known),
            map: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
            accepts_eviction,
        });
        nodes.look_now().await?;
        examine(nodes.masters(), accepts_eviction).await?;
        Ok(nodes)
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        lock(&self.map).masters()
    }

    pub(super) fn is_cluster(&self) -> bool {
        lock(&self.map).is_cluster
    }

    /// Asks who has what, unless that was done a moment ago; in a task of its own, since whoever waits
    /// for it may give up.
    async fn look(self: &Arc<Self>) -> Result<(), EngineError> {
        let nodes = Arc::clone(self);
        let looked = tokio::spawn(async move {
            nodes.look_now().await?;
            // Those that have taken the place of others. Nobody waits for that.
            tokio::spawn(async move {
                let examined = examine(nodes.masters(), nodes.accepts_eviction).await;
                if let Err(EngineError { source: error, .. }) = examined {
                    tracing::warn!(%error, "a server may lose keys");
                }
            });
            Ok(())
        });
        looked.await.unwrap_or_else(|error| Err(EngineError::absent(error)))
    }

    async fn look_now(&self) -> Result<(), EngineError> {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < ASKING) {
            return Ok(());
        }
        // Those who have not answered last know least.
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
        *asked = Some(Instant::now());
        match best {
            Some(map) => {
                if map.is_whole {
                    // Who is gone for good is not to be waited for whenever somebody looks.
                    let stays =
                        |node: &Arc<Node>| is_seed(node) || map.has(node) || !node.is_silent();
                    lock(&self.known).retain(|_, node| stays(node));
                }
                *lock(&self.map) = Arc::new(map);
                Ok(())
            }
            // Nothing was to happen.
            None if fault.kind == Kind::Unsure => Err(EngineError { kind: Kind::Absent, ..fault }),
            None => Err(fault),
        }
    }

    async fn seen_by(&self, node: &Arc<Node>) -> Result<Map, EngineError> {
        // Until it answers.
        node.note_silence();
        Map::of(node, |address| self.node_at(node, address)).await
    }

    /// The server at this address, which `from` has named.
    fn node_at(&self, from: &Node, address: ConnectionAddr) -> Arc<Node> {
        let mut known = lock(&self.known);
        let node = known.entry(address.to_string());
        let info = || from.info.clone().set_addr(address);
        Arc::clone(node.or_insert_with(|| Arc::new(Node::new(info()))))
    }

    /// Who has the slot, as far as is known.
    pub(super) async fn holder(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, EngineError> {
        let holder = || lock(&self.map).holder(slot);
        if let Some(node) = holder() {
            return Ok(node);
        }
        self.look().await?;
        holder().ok_or_else(|| EngineError::absent(format!("no server has slot {slot}")))
    }

    /// Somebody has given up on a server. Whether it is there still, and who has its place if not, is
    /// found out by nobody who could give up on that.
    fn doubt(self: &Arc<Self>, node: &Arc<Node>, wire: usize) {
        // Without a runtime, nobody asks for anything any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let (nodes, node) = (Arc::clone(self), Arc::clone(node));
        runtime.spawn(async move {
            if node.is_there(wire).await == Some(false) {
                node.disconnect();
                let _ = nodes.look().await;
            }
        });
    }

    /// A connection of its own to the server that has the slot, whose answers may take this long.
    pub(super) async fn dedicated(
        self: &Arc<Self>,
        slot: u16,
        answering: Duration,
    ) -> Result<MultiplexedConnection, EngineError> {
        let node = self.holder(slot).await?;
        let connected = node.connect(answering).await;
        if connected.is_err() {
            // Another may have it by now. What is known then is the next one's concern.
            node.note_silence();
            let _ = self.look().await;
        }
        connected
    }

    /// What the server that has the slot answers to a command that it answers at once, and that runs
    /// `script`, if one is named.
    pub(super) async fn run(
        self: &Arc<Self>,
        slot: u16,
        command: &Cmd,
        script: Option<&Script>,
    ) -> Result<Value, EngineError> {
        let mut answers = self.send(slot, Line::Quick, &[command], script).await?;
        answers.pop().ok_or_else(garbled)
    }

    /// What the server that has the slot answers to each of them, of which the first runs `script`, if
    /// one is named. An error is that of the first.
    pub(super) async fn send(
        self: &Arc<Self>,
        slot: u16,
        line: Line,
        commands: &[&Cmd],
        script: Option<&Script>,
    ) -> Result<Vec<Value>, EngineError> {
        let mut node = self.holder(slot).await?;
        let mut ahead = false;
        let mut fault = EngineError::absent(format!("no server takes slot {slot}"));
        for _ in 0..HOPS {
            let wire = node.wire(line);
            let mut patient = Patient { nodes: self, node: &node, wire, gives_up: true };
            let sent = match node.connection(wire).await {
                Ok(mut connection) => Ok(node.send(&mut connection, commands, ahead).await),
                Err(fault) => Err(fault),
            };
            patient.gives_up = false;
            drop(patient);
            let error = match sent {
                Ok(Ok(answers)) => return Ok(answers),
                Ok(Err(error)) => error,
                Err(fault) => {
                    node.note_silence();
                    let _ = self.look().await;
                    let next = self.holder(slot).await?;
                    if Arc::ptr_eq(&next, &node) {
                        return Err(fault);
                    }
                    (node, ahead) = (next, false);
                    continue;
                }
            };
            fault = failed(&node.address, &error);
            match (error.code(), error.redirect_node(), script) {
                (Some("NOSCRIPT"), _, Some(script)) => _ = node.ask([&script.load()]).await?,
                (Some(code), Some((address, _)), _) => {
                    let Some((host, port)) = address.rsplit_once(':') else { return Err(fault) };
                    let Ok(port) = port.parse() else { return Err(fault) };
                    ahead = code == "ASK";
                    node = self.node_at(&node, map::address(&node, host, port));
                    if !ahead {
                        // For whatever comes next; this one knows where to go.
                        let _ = self.look().await;
                    }
                }
                (code, ..) => {
                    // Connections that have broken, and servers that have become replicas, have been
                    // cut off from their cluster, or come back: another may have the place.
                    const ELSEWHERE: [&str; 4] =
                        ["READONLY", "CLUSTERDOWN", "LOADING", "MASTERDOWN"];
                    if code.is_none_or(|code| ELSEWHERE.contains(&code)) {
                        node.disconnect();
                        let _ = self.look().await;
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
    /// Whether a server that has been silent is known after the next look.
    pub(super) async fn remembers(&self, from: &Node, address: ConnectionAddr) -> bool {
        let known = address.to_string();
        self.node_at(from, address).note_silence();
        *self.asked.lock().await = None;
        self.look_now().await.expect("one answers");
        lock(&self.known).contains_key(&known)
    }
}

/// One who waits for an answer. Whoever goes before there is one has given up on the server.
struct Patient<'a> {
    nodes: &'a Arc<Nodes>,
    node: &'a Arc<Node>,
    wire: usize,
    gives_up: bool,
}

impl Drop for Patient<'_> {
    fn drop(&mut self) {
        if self.gives_up {
            self.nodes.doubt(self.node, self.wire);
        }
    }
}

//! The map of a cluster's slots to servers, as one server has reported it.

use std::sync::Arc;

use redis::{ConnectionAddr, Value, cmd};

use super::faults::unknown_format;
use super::node::Node;
use super::requirements::{said, sentinel_error};
use crate::types::error::{Answer, EngineError};

#[derive(Debug, Default)]
pub(super) struct Map {
    /// The ranges of slots and their servers. A range is given by its last slot, and the ranges are in ascending order.
    ranges: Vec<(u16, Arc<Node>)>,
    pub(super) is_cluster: bool,
    /// True if the cluster is complete. A master that was separated from the cluster reports this with a delay.
    pub(super) is_whole: bool,
    /// The configuration epoch of the cluster, as the server knows it. It grows with each election of a master.
    epoch: u64,
}

impl Map {
    /// Requests the map from a server. `known` returns the node for an address that the server names.
    pub(super) async fn ask_server(
        node: &Arc<Node>,
        known: impl Fn(ConnectionAddr) -> Arc<Node>,
    ) -> Answer<Self> {
        let [hello] = node.ask([&cmd("HELLO")]).await?;
        let Value::Array(words) = hello else { return Err(unknown_format()) };
        let says = |name: &str, what: &str| find_value(&words, name).as_deref() == Some(what);
        if says("mode", "sentinel") {
            return Err(sentinel_error(node).await);
        }
        if !says("mode", "cluster") {
            // A replica refuses writes, so its map is not used. After the failover, the same address may lead to the
            // new master.
            if says("role", "replica") {
                return Err(EngineError::absent(format!(
                    "{}: the server is a replica at the moment",
                    node.address
                )));
            }
            let ranges = vec![(u16::MAX, Arc::clone(node))];
            return Ok(Self { ranges, is_cluster: false, is_whole: true, epoch: 0 });
        }
        let (mut slots, mut info) = (cmd("CLUSTER"), cmd("CLUSTER"));
        let [slots, info] = node.ask([slots.arg("SLOTS"), info.arg("INFO")]).await?;
        let info = value_text(&info);
        let said = |name: &str| said(&info, name);
        let epoch = said("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
        let Value::Array(parts) = slots else { return Err(unknown_format()) };
        let mut ranges = Vec::new();
        for part in parts {
            let Value::Array(part) = part else { return Err(unknown_format()) };
            let [_, Value::Int(last), Value::Array(master), ..] = &part[..] else {
                return Err(unknown_format());
            };
            let [host, Value::Int(port), ..] = &master[..] else { return Err(unknown_format()) };
            let (Ok(last), Ok(port)) = (u16::try_from(*last), u16::try_from(*port)) else {
                return Err(unknown_format());
            };
            ranges.push((last, known(address(node, &value_text(host), port))));
        }
        // Servers report their ranges in any order, but `holder_of` needs them in ascending order.
        ranges.sort_by_key(|&(last, _)| last);
        Ok(Self {
            ranges,
            is_cluster: true,
            is_whole: said("cluster_state") == Some("ok"),
            epoch: epoch.ok_or_else(unknown_format)?,
        })
    }

    /// Returns true if this map is more credible than `other`.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        (self.is_whole, self.epoch) > (other.is_whole, other.epoch)
    }

    /// Returns each server that has slots, once.
    pub(super) fn all_masters(&self) -> Vec<Arc<Node>> {
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for (_, node) in &self.ranges {
            if !masters.iter().any(|known| Arc::ptr_eq(known, node)) {
                masters.push(Arc::clone(node));
            }
        }
        masters
    }

    pub(super) fn has_node(&self, node: &Arc<Node>) -> bool {
        self.ranges.iter().any(|(_, holder)| Arc::ptr_eq(holder, node))
    }

    pub(super) fn holder_of(&self, slot: u16) -> Option<Arc<Node>> {
        let at = self.ranges.partition_point(|&(last, _)| last < slot);
        self.ranges.get(at).map(|(_, node)| Arc::clone(node))
    }
}

/// Returns the address of a server that `from` has named. If the host is missing, it is the host of `from`.
pub(super) fn address(from: &Node, host: &str, port: u16) -> ConnectionAddr {
    let own = match from.info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    let host = if matches!(host, "" | "?") { own } else { host.to_owned() };
    match from.info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            let (insecure, tls_params) = (*insecure, tls_params.clone());
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// Returns the value that follows `name` in a list of names and values.
pub(super) fn find_value(words: &[Value], name: &str) -> Option<String> {
    words.chunks(2).find_map(|pair| match pair {
        [said, value] if value_text(said) == name => Some(value_text(value)),
        _ => None,
    })
}

pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

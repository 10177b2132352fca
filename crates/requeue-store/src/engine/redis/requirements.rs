//! Checks that the configuration of servers lets them keep acknowledged writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Value, cmd};
use tokio::time::timeout;

use super::faults::unknown_format;
use super::map::{address, find_value, value_text};
use super::node::Node;
use crate::types::error::{Answer, EngineError};

/// The time limit for a server to report its configuration. If a server does not answer in time, it is asked again
/// later.
const SAYING: Duration = Duration::from_secs(3);

/// Reads the settings of each server that was not examined after its last connect. Returns an error with the name of a
/// server that evicts keys, unless `accepts_eviction` is true.
pub(super) async fn examine_servers(masters: Vec<Arc<Node>>, accepts_eviction: bool) -> Answer<()> {
    let asked = masters.iter().map(async |node| {
        // The flag is set before the request. Therefore, two updates of the map at the same time send it once.
        if node.is_examined.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let said = timeout(SAYING, read_settings(node)).await;
        let late = |_| Err(EngineError::absent("the server did not answer in time"));
        let settings = match said.unwrap_or_else(late) {
            Ok(settings) => settings,
            Err(fault) => {
                // The client may only lack the permission for `INFO`.
                let (server, error) = (&node.address, fault.source);
                tracing::debug!(server, error, "the eviction and persistence settings of \
                    the server are unknown");
                node.is_examined.store(false, Ordering::Relaxed);
                return Ok(());
            }
        };
        if !settings.persists {
            tracing::warn!(
                server = node.address,
                "appendonly is no: if this server stops, all keys since its last snapshot are lost; \
                 run CONFIG SET appendonly yes there"
            );
        }
        settings.evicts.filter(|_| !accepts_eviction).map_or(Ok(()), |policy| {
            // The flag is reset, so that the next attempt examines the server again.
            node.is_examined.store(false, Ordering::Relaxed);
            Err(EngineError::refused(format!(
                "{}: maxmemory-policy is {policy}: when its memory is full, this server removes keys \
                 that it has acknowledged; run CONFIG SET maxmemory-policy noeviction there, or accept \
                 the loss with ?eviction=accept",
                node.address
            )))
        })
    });
    join_all(asked).await.into_iter().collect()
}

struct Settings {
    /// The eviction policy, if it also evicts keys without a time to live, such as those of requeue.
    evicts: Option<String>,
    /// True if the server has an append-only file.
    persists: bool,
}

async fn read_settings(node: &Node) -> Answer<Settings> {
    let (mut memory, mut persistence) = (cmd("INFO"), cmd("INFO"));
    let asked = [&*memory.arg("memory"), persistence.arg("persistence")];
    let [memory, persistence] = node.ask(asked).await?.map(|said| value_text(&said));
    // A server without a memory limit evicts no key. The policies `volatile-*` do not evict keys without a time to
    // live.
    let has_limit = said(&memory, "maxmemory").is_some_and(|limit| limit != "0");
    let policy = said(&memory, "maxmemory_policy").filter(|policy| policy.starts_with("allkeys"));
    Ok(Settings {
        evicts: policy.filter(|_| has_limit).map(ToOwned::to_owned),
        persists: said(&persistence, "aof_enabled") != Some("0"),
    })
}

/// Returns the value of `name` in the output of `INFO`.
pub(super) fn said<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.find(|&(said, _)| said == name).map(|(_, value)| value)
}

/// Returns the error about the address of a Sentinel. The message contains the addresses of its masters.
pub(super) async fn sentinel_error(node: &Node) -> EngineError {
    let mut masters = cmd("SENTINEL");
    let masters =
        node.ask([masters.arg("MASTERS")]).await.and_then(|[masters]| master_names(node, masters));
    let instead = match masters {
        Ok(masters) if !masters.is_empty() => {
            format!("use the address of its master: {}", masters.join(" or "))
        }
        _ => "use the address of its master".to_owned(),
    };
    EngineError::refused(format!("{}: this is the address of a Sentinel; {instead}", node.address))
}

/// Returns the address and the name of each master.
fn master_names(node: &Node, masters: Value) -> Answer<Vec<String>> {
    let Value::Array(masters) = masters else { return Err(unknown_format()) };
    let named = masters.iter().map(|master| {
        let Value::Array(words) = master else { return Err(unknown_format()) };
        let said = |name: &str| find_value(words, name);
        let (Some(name), Some(ip), Some(port)) = (said("name"), said("ip"), said("port")) else {
            return Err(unknown_format());
        };
        let address = address(node, &ip, port.parse().map_err(|_| unknown_format())?);
        Ok(format!("{address} ({name})"))
    });
    named.collect()
}

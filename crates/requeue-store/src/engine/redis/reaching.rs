//! Finds the reason why no server was reached.

use redis::{ConnectionAddr, ConnectionInfo};

use crate::engine::peer::{self, Protocol};
use crate::types::error::EngineError;

/// Returns a more specific error than `fault` if the cause of a failed connection to these addresses can be determined,
/// and `fault` if it cannot.
pub(super) async fn explain_failure<'a>(
    seeds: &'a [ConnectionInfo],
    fault: EngineError,
) -> EngineError {
    let server = |seed: &'a ConnectionInfo| match seed.addr() {
        ConnectionAddr::Tcp(host, port) => Some((&**host, *port, Protocol::Redis)),
        ConnectionAddr::TcpTls { host, port, .. } => Some((&**host, *port, Protocol::RedisTls)),
        _ => None,
    };
    match seeds.iter().map(server).collect::<Option<Vec<_>>>() {
        Some(servers) => peer::explain_fault(fault, servers).await,
        None => fault,
    }
}

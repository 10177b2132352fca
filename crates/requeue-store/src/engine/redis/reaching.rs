//! Explains why no server was found.

use redis::{ConnectionAddr, ConnectionInfo};

use crate::engine::peer::{self, Protocol};
use crate::types::error::{EngineError, ErrorKind, Reason};

/// Returns the error of a connection attempt to these addresses, replaced by a more specific one if the
/// cause can be determined.
pub(super) async fn explain_failure(seeds: &[ConnectionInfo], fault: EngineError) -> EngineError {
    // A server that has given a reason needs no further check, except after a failure of TLS: the server
    // may not use TLS.
    let is_known = fault.source.downcast_ref::<Reason>();
    if is_known.is_some_and(|reason| reason.kind != ErrorKind::Tls) {
        return fault;
    }
    let mut all: Option<Reason> = None;
    for seed in seeds {
        let (host, port, wanted) = match seed.addr() {
            ConnectionAddr::Tcp(host, port) => (host, port, Protocol::Redis),
            ConnectionAddr::TcpTls { host, port, .. } => (host, port, Protocol::RedisTls),
            _ => return fault,
        };
        let Some(reason) = peer::explain_failure(host, *port, wanted).await else { return fault };
        all = Some(match all {
            None => reason,
            Some(before) => before.and(reason),
        });
    }
    all.map_or(fault, EngineError::from)
}

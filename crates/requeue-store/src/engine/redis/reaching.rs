//! Why no server was found.

use redis::{ConnectionAddr, ConnectionInfo};

use crate::engine::peer::{self, Protocol};
use crate::types::error::{ConnectErrorKind, EngineError, Reason};

/// The fault with which no server was found at any of these addresses, with what is wrong there if that
/// can be found out.
pub(super) async fn explained(seeds: &[ConnectionInfo], fault: EngineError) -> EngineError {
    // Where a server has said why, nothing is to be found out; but of TLS that fails, the other side
    // may be without.
    let is_known = fault.source.downcast_ref::<Reason>();
    if is_known.is_some_and(|reason| reason.kind != ConnectErrorKind::Tls) {
        return fault;
    }
    let mut all: Option<Reason> = None;
    for seed in seeds {
        let (host, port, wanted) = match seed.addr() {
            ConnectionAddr::Tcp(host, port) => (host, port, Protocol::Redis),
            ConnectionAddr::TcpTls { host, port, .. } => (host, port, Protocol::RedisTls),
            _ => return fault,
        };
        let Some(reason) = peer::explain(host, *port, wanted).await else { return fault };
        all = Some(match all {
            None => reason,
            Some(before) => before.and(reason),
        });
    }
    all.map_or(fault, EngineError::from)
}

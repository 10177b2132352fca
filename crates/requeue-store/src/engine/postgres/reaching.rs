//! Makes the first connection, and explains its failure.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::{Postgres, sessions};
use crate::engine::peer::{self, Protocol};
use crate::types::error::{Answer, EngineError, ErrorKind, Reason};

/// The time without an answer after which the engine checks that the server is a PostgreSQL server. Some
/// other servers wait for more data and never answer.
const SILENCE: Duration = Duration::from_secs(2);
/// The time in which a server must authenticate a client that has connected.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Postgres {
    /// Opens a connection, so that an unreachable server is reported early.
    pub(super) async fn check_reachable(&self) -> Answer<()> {
        // The attempt continues during the check of the server, because a slow server must not be given up.
        let mut first = pin!(sessions::check_server(&self.sessions, &self.renewals));
        let opened = match timeout(SILENCE, &mut first).await {
            Ok(opened) => opened,
            Err(_) => tokio::select! {
                opened = &mut first => opened,
                reason = self.explain_unreachable() => match reason {
                    Some(reason) if reason.kind == ErrorKind::WrongServer => {
                        return Err(reason.into());
                    }
                    reason => timeout(self.total_patience(), &mut first).await.unwrap_or_else(|_| {
                        let late = || EngineError::absent("the server did not answer in time");
                        Err(reason.map_or_else(late, EngineError::from))
                    }),
                },
            },
        };
        let Err(fault) = opened else { return Ok(()) };
        // A server that has given a reason needs no further check, except after a failure of TLS: another
        // kind of server does not support PostgreSQL's TLS negotiation either.
        let is_known = fault.source.downcast_ref::<Reason>();
        if is_known.is_some_and(|reason| reason.kind != ErrorKind::Tls) {
            return Err(fault);
        }
        Err(self.explain_unreachable().await.map_or(fault, EngineError::from))
    }

    fn total_patience(&self) -> Duration {
        let connecting = self.address.config.get_connect_timeout().copied().unwrap_or_default();
        let hosts = self.address.config.get_hosts().len().try_into().unwrap_or(u32::MAX);
        connecting.saturating_mul(hosts).saturating_add(HANDSHAKE)
    }

    /// Returns the reasons why the servers cannot be reached. Returns `None` if one of them is a PostgreSQL
    /// server or cannot be identified.
    async fn explain_unreachable(&self) -> Option<Reason> {
        let mut all: Option<Reason> = None;
        for (host, port) in self.address.tcp_servers() {
            let reason = peer::explain_failure(host, port, Protocol::Postgres).await?;
            all = Some(match all {
                None => reason,
                Some(before) => before.and(reason),
            });
        }
        all
    }
}

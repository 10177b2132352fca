//! The first connection, and why there is none.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::{Postgres, sessions};
use crate::engine::peer::{self, Protocol};
use crate::types::error::{ConnectErrorKind, EngineError, Reason};

/// After this long without an answer it is checked whether this is a PostgreSQL server at all. Some
/// servers wait for more to come, and would never answer.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a server that was connected to may take to let a client in.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Postgres {
    /// Opens a connection, to say early if there is none to be had.
    pub(super) async fn reach(&self) -> Result<(), EngineError> {
        let mut first = pin!(sessions::check(&self.sessions, &self.renewals));
        let opened = match timeout(SILENCE, &mut first).await {
            Ok(opened) => opened,
            Err(_) => tokio::select! {
                opened = &mut first => opened,
                reason = self.explain() => match reason {
                    Some(reason) if reason.kind == ConnectErrorKind::WrongServer => {
                        return Err(reason.into());
                    }
                    reason => timeout(self.patience(), &mut first).await.unwrap_or_else(|_| {
                        let late = || EngineError::absent("the server did not answer in time");
                        Err(reason.map_or_else(late, EngineError::from))
                    }),
                },
            },
        };
        let Err(fault) = opened else { return Ok(()) };
        // Where a server has said why, nothing is to be found out; but another kind of server has no TLS
        // in the way of PostgreSQL either.
        let is_known = fault.source.downcast_ref::<Reason>();
        if is_known.is_some_and(|reason| reason.kind != ConnectErrorKind::Tls) {
            return Err(fault);
        }
        Err(self.explain().await.map_or(fault, EngineError::from))
    }

    fn patience(&self) -> Duration {
        let connecting = self.address.config.get_connect_timeout().copied().unwrap_or_default();
        let hosts = self.address.config.get_hosts().len().try_into().unwrap_or(u32::MAX);
        connecting.saturating_mul(hosts).saturating_add(HANDSHAKE)
    }

    /// What is wrong with all of its addresses; `None` if some are those of a PostgreSQL server, or
    /// can't be asked.
    async fn explain(&self) -> Option<Reason> {
        let mut all: Option<Reason> = None;
        for (host, port) in self.address.servers() {
            let reason = peer::explain(host, port, Protocol::Postgres).await?;
            all = Some(match all {
                None => reason,
                Some(before) => before.and(reason),
            });
        }
        all
    }
}

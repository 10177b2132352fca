//! Makes the first connection, and finds the reason if it fails.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::{Postgres, sessions};
use crate::engine::peer::{self, Protocol};
use crate::types::error::{Answer, EngineError, ErrorKind};

/// If the server has not answered for this time, the engine checks whether it is a PostgreSQL server. Some other
/// servers wait for more data, and never answer.
const SILENCE: Duration = Duration::from_secs(2);
/// The time limit for the authentication of a connected client.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Postgres {
    /// Opens a connection, so that an unreachable server is reported when the store is opened.
    pub(super) async fn check_reachable(&self) -> Answer<()> {
        // The attempt continues while the kind of the server is checked, because a slow server must still be able to
        // answer.
        let mut first = pin!(sessions::check_server(&self.sessions, &self.renewals));
        let opened = match timeout(SILENCE, &mut first).await {
            Ok(opened) => opened,
            Err(_) => tokio::select! {
                opened = &mut first => opened,
                reason = peer::explain_all(self.servers()) => match reason {
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
        match opened {
            Ok(()) => Ok(()),
            Err(fault) => Err(peer::explain_fault(fault, self.servers()).await),
        }
    }

    fn total_patience(&self) -> Duration {
        let connecting = self.address.config.get_connect_timeout().copied().unwrap_or_default();
        let hosts = self.address.config.get_hosts().len().try_into().unwrap_or(u32::MAX);
        connecting.saturating_mul(hosts).saturating_add(HANDSHAKE)
    }

    fn servers(&self) -> impl Iterator<Item = (&str, u16, Protocol)> {
        self.address.tcp_servers().map(|(host, port)| (host, port, Protocol::Postgres))
    }
}

//! Manages connections, and runs statements on them.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use futures_util::TryStreamExt;
use tokio_postgres::{Client, Row};

use super::address::{Address, Pooling};
use super::faults;
use super::guard::Connector;
use super::params::{Params, with_types};
use crate::types::error::{Answer, EngineError, ErrorKind, Reason};

/// The settings that override those of the role and the database, for a session or for the current transaction. A
/// statement that waits for a lock fails after 5 s. A commit that waits for other transactions with notifications also
/// fails after 5 s. Each second, the server checks that the client is still connected, and it cancels the statements of
/// a disconnected client. JIT compilation is off, because it does not make these statements faster.
macro_rules! settings {
    ($set:literal, $is_local:literal) => {
        concat!(
            $set,
            " lock_timeout = '5s'; ",
            $set,
            " jit = off; ",
            $set,
            " client_min_messages = warning;
            select set_config('synchronous_commit', 'on', ",
            $is_local,
            ") where current_setting('synchronous_commit') = 'off';
            do $$ begin
                perform set_config('client_connection_check_interval', '1s', ",
            $is_local,
            ");
            exception when others then null; -- Not on every system.
            end $$"
        )
    };
}

/// Sets the options of a session that only this process uses.
const SESSION: &str = concat!(
    "set default_transaction_isolation = 'read committed'; set default_transaction_read_only = off; ",
    settings!("set", "false"),
);
/// Begins a transaction in a session that other clients also use.
pub(super) const BEGIN: &str =
    concat!("begin isolation level read committed read write; ", settings!("set local", "true"));
const PID: &str = "select pg_backend_pid()";

#[derive(Clone)]
pub(super) struct Sessions {
    pool: Pool,
    pooling: Pooling,
}

impl Sessions {
    pub(super) fn new(address: &Address, tls: Connector, most: usize) -> Self {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config.clone(), tls, config);
        let pooling = address.pooling;
        let prepare = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            Box::pin(async move {
                match pooling {
                    Pooling::None => {
                        client.batch_execute(SESSION).await.map_err(HookError::Backend)
                    }
                    Pooling::Transactions => Ok(()),
                }
            })
        });
        let pool = Pool::builder(manager)
            .max_size(most)
            .post_create(prepare)
            // This timeout also limits the first statements of a session. The connect timeout does not limit them.
            .create_timeout(Some(Duration::from_secs(30)))
            .runtime(Runtime::Tokio1)
            .build();
        // The build fails only for a pool that has timeouts but no runtime.
        let pool = pool.unwrap_or_else(|error| unreachable!("{error}"));
        Self { pool, pooling }
    }

    /// Returns a connection. The caller gives it back with [`Session::put_back`].
    pub(super) async fn open_session(&self) -> Answer<Session> {
        let client = self.pool.get().await.map_err(faults::of_connecting)?;
        Ok(Session(Some(client)))
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn query_rows(&self, sql: &str, params: &Params<'_>) -> Answer<Vec<Row>> {
        let session = self.open_session().await?;
        let rows = async {
            let client = session.client();
            let typed = with_types(params);
            match self.pooling {
                Pooling::None => {
                    let statement = client.prepare_cached(sql).await?;
                    client
                        .query_raw(&statement, typed.into_iter().map(|(value, _)| value))
                        .await?
                        .try_collect()
                        .await
                }
                // The statements are sent in this order, but the client waits for no result between them.
                Pooling::Transactions => {
                    let (begun, rows, committed) = tokio::join!(
                        biased;
                        client.batch_execute(BEGIN),
                        client.query_typed(sql, &typed),
                        client.batch_execute("commit"),
                    );
                    begun?;
                    let rows = rows?;
                    committed.map(|()| rows)
                }
            }
        };
        // If the caller is dropped at this wait, the session is dropped without `put_back`. The drop closes the
        // connection.
        let rows = rows.await;
        session.put_back();
        rows.map_err(|error| faults::of_statement(&error))
    }

    /// Runs a statement and returns its only row.
    pub(super) async fn query_row(&self, sql: &str, params: &Params<'_>) -> Answer<Row> {
        let rows = self.query_rows(sql, params).await?;
        rows.into_iter().next().ok_or_else(|| EngineError::refused("the server returned no row"))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("status", &self.pool.status()).finish()
    }
}

/// A connection of the pool. If it is dropped without [`put_back`](Self::put_back), the connection is closed.
/// Otherwise, an answer that never arrives could block the next user of the connection.
pub(super) struct Session(Option<Object>);

impl Session {
    pub(super) fn client(&self) -> &Object {
        match &self.0 {
            Some(client) => client,
            // Only `put_back` and `drop` take the client.
            None => unreachable!("the session has ended"),
        }
    }

    /// Gives the connection back to the pool.
    pub(super) fn put_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

/// Checks that the server can be reached, and is a PostgreSQL server. Also checks that each connection has a separate
/// session, unless the address names a pooler.
pub(super) async fn check_server(some: &Sessions, others: &Sessions) -> Answer<()> {
    let one = some.open_session().await?;
    let version = one.client().query_typed_one("select version()", &[]).await;
    let version = version.map_err(|error| faults::of_statement(&error))?;
    if let Some(reason) = version.try_get(0).ok().and_then(unsuitable_server) {
        return Err(reason.into());
    }
    if some.pooling == Pooling::None
        // If no second connection is available, the sessions cannot be compared.
        && let Ok(other) = others.open_session().await
    {
        let pids = (backend_pid(one.client()).await?, backend_pid(other.client()).await?);
        if pids.0 == pids.1 {
            // The pooler also gives this session to other clients. They must not inherit its settings.
            let _ = run_batch(one.client(), "reset all").await;
            return Err(EngineError::refused(faults::POOLED));
        }
        other.put_back();
    }
    one.put_back();
    Ok(())
}

/// Returns the reason why a server with this `version()` cannot be used, or `None` if it is PostgreSQL. The reason is
/// that the server is another database with the protocol of PostgreSQL. Some of these databases report a version of
/// PostgreSQL as their `server_version`.
fn unsuitable_server(version: &str) -> Option<Reason> {
    /// Databases whose `version()` begins like that of PostgreSQL, each with a word that identifies it.
    const OTHERS: [(&str, &str); 6] = [
        ("-YB-", "YugabyteDB"),
        ("Redshift", "Redshift"),
        ("QuestDB", "QuestDB"),
        ("RisingWave", "RisingWave"),
        ("CedarDB", "CedarDB"),
        ("Materialize", "Materialize"),
    ];
    let other = OTHERS.iter().find(|(mark, _)| version.contains(mark));
    let name = match (version.strip_prefix("PostgreSQL "), other) {
        (Some(_), None) => return None,
        (_, Some((_, name))) => *name,
        (None, None) => version.split([' ', ',']).next().unwrap_or_default(),
    };
    let said = format!(
        "the server is not PostgreSQL, but {name}, which only speaks its protocol: requeue needs the locks \
         and the notifications of PostgreSQL itself; use another server ({version})"
    );
    Some(Reason::new(ErrorKind::WrongServer, said))
}

/// Returns the process ID of the client's current session.
async fn backend_pid(client: &Client) -> Answer<Option<i32>> {
    let found = client.query_typed_one(PID, &[]).await;
    found.map(|row| row.get(0)).map_err(|error| faults::of_statement(&error))
}

/// Runs SQL without parameters or results.
pub(super) async fn run_batch(client: &Client, sql: &str) -> Answer<()> {
    client.batch_execute(sql).await.map_err(|error| faults::of_statement(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_only_speak_the_protocol_are_named() {
        for version in [
            "PostgreSQL 18.1 on x86_64-pc-linux-gnu, compiled by gcc, 64-bit",
            "PostgreSQL 14.9 (Debian 14.9-1.pgdg120+1) on x86_64-pc-linux-gnu",
            "PostgreSQL 16.2 (EnterpriseDB Advanced Server 16.2.0) on x86_64-pc-linux-gnu",
            "PostgreSQL 17devel on aarch64-apple-darwin",
        ] {
            assert!(unsuitable_server(version).is_none(), "{version}");
        }
        for (version, name) in [
            ("CockroachDB CCL v26.3.0 (x86_64-pc-linux-gnu, built 2026/09/01)", "CockroachDB"),
            ("PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu", "YugabyteDB"),
            ("PostgreSQL 8.0.2 on i686-pc-linux-gnu, Redshift 1.0.12103", "Redshift"),
            ("PostgreSQL 13.14.0-RisingWave-2.1.0 (fd0ca4e)", "RisingWave"),
            ("CrateDB 5.8.1 (built 1a2b3c4)", "CrateDB"),
        ] {
            let reason = unsuitable_server(version).expect(version);
            assert_eq!(reason.kind, ErrorKind::WrongServer, "{version}");
            let said = format!("the server is not PostgreSQL, but {name}, which only speaks");
            assert!(reason.said.starts_with(&said) && reason.said.contains(version), "{reason}");
        }
    }
}

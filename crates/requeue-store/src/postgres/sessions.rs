//! Connections, and calls by them.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Address;
use super::faults;
use crate::error::Fault;

/// How a session has to be, whatever its role or database say. What waits for a lock gives up after a
/// while, as does a commit, which waits for others who notify; what nobody waits for any more ends. No
/// plan of ours is worth compiling.
const SETTINGS: &str = "\
    set default_transaction_isolation = 'read committed';
    set default_transaction_read_only = off;
    set lock_timeout = '5s';
    set jit = off;
    set client_min_messages = warning;
    select set_config('synchronous_commit', 'on', false)
        where current_setting('synchronous_commit') = 'off';
    do $$ begin
        perform set_config('client_connection_check_interval', '1s', false);
    exception when others then null; -- Not on every system.
    end $$";

pub(super) type Params<'a> = [&'a (dyn ToSql + Sync)];

#[derive(Clone)]
pub(super) struct Sessions {
    pool: Pool,
}

impl Sessions {
    pub(super) fn new(address: &Address, tls: MakeRustlsConnect, most: usize) -> Self {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config.clone(), tls, config);
        let prepare = Hook::async_fn(|client: &mut deadpool_postgres::ClientWrapper, _| {
            Box::pin(async { client.batch_execute(SETTINGS).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager)
            .max_size(most)
            .post_create(prepare)
            .create_timeout(Some(Duration::from_secs(30)))
            .runtime(Runtime::Tokio1)
            .build();
        // Only a pool with time-outs and no runtime can't be built.
        Self { pool: pool.unwrap_or_else(|error| unreachable!("{error}")) }
    }

    /// A connection, to be given back with [`Session::end`].
    pub(super) async fn session(&self) -> Result<Session, Fault> {
        let client = self.pool.get().await.map_err(faults::of_connecting)?;
        Ok(Session(Some(client)))
    }

    /// The rows that a statement returns.
    pub(super) async fn rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, Fault> {
        let session = self.session().await?;
        let rows = async {
            let client = session.client();
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, params).await
        };
        let rows = rows.await;
        session.end();
        rows.map_err(|error| faults::of_statement(&error))
    }

    /// The one row that it returns.
    pub(super) async fn row(&self, sql: &str, params: &Params<'_>) -> Result<Row, Fault> {
        let rows = self.rows(sql, params).await?;
        rows.into_iter().next().ok_or_else(|| Fault::refused("the server answered with nothing"))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("status", &self.pool.status()).finish()
    }
}

/// A connection. One that is dropped before its end is closed: its answer may never come, and the
/// next who has it would wait for that.
pub(super) struct Session(Option<Object>);

impl Session {
    pub(super) fn client(&self) -> &Object {
        match &self.0 {
            Some(client) => client,
            // Only `end` and `drop` take it.
            None => unreachable!("the session has ended"),
        }
    }

    pub(super) fn end(mut self) {
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

/// Runs SQL without values, for its effect.
pub(super) async fn run(client: &Client, sql: &str) -> Result<(), Fault> {
    client.batch_execute(sql).await.map_err(|error| faults::of_statement(&error))
}

//! Connections, and calls by them.

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
use super::params::{Params, typed};
use crate::types::error::EngineError;

/// The settings of a session, or of the transaction that has begun, whatever the role or the database
/// says. What waits for a lock gives up after a while, as does a commit, which waits for others who notify.
/// What nobody waits for any more ends. No plan of ours is worth compiling.
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

/// A session of our own.
const SESSION: &str = concat!(
    "set default_transaction_isolation = 'read committed'; set default_transaction_read_only = off; ",
    settings!("set", "false"),
);
/// A transaction in a session that others use as well.
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
            .create_timeout(Some(Duration::from_secs(30)))
            .runtime(Runtime::Tokio1)
            .build();
        // Only a pool with time-outs and no runtime can't be built.
        let pool = pool.unwrap_or_else(|error| unreachable!("{error}"));
        Self { pool, pooling }
    }

    /// A connection, to be given back with [`Session::end`].
    pub(super) async fn session(&self) -> Result<Session, EngineError> {
        let client = self.pool.get().await.map_err(faults::of_connecting)?;
        Ok(Session(Some(client)))
    }

    /// The rows that a statement returns.
    pub(super) async fn rows(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<Vec<Row>, EngineError> {
        let session = self.session().await?;
        let rows = async {
            let client = session.client();
            let typed = typed(params);
            match self.pooling {
                Pooling::None => {
                    let statement = client.prepare_cached(sql).await?;
                    client
                        .query_raw(&statement, typed.into_iter().map(|(value, _)| value))
                        .await?
                        .try_collect()
                        .await
                }
                // They leave in this order, and without waiting for each other.
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
        let rows = rows.await;
        session.end();
        rows.map_err(|error| faults::of_statement(&error))
    }

    /// The one row that it returns.
    pub(super) async fn row(&self, sql: &str, params: &Params<'_>) -> Result<Row, EngineError> {
        let rows = self.rows(sql, params).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| EngineError::refused("the server answered with nothing"))
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

/// Checks that the server can be reached, and that its sessions are of one connection each, unless the
/// address says otherwise.
pub(super) async fn check(some: &Sessions, others: &Sessions) -> Result<(), EngineError> {
    let one = some.session().await?;
    if some.pooling == Pooling::None
        // Without a second connection there is nothing to compare.
        && let Ok(other) = others.session().await
    {
        let pids = (pid(one.client()).await?, pid(other.client()).await?);
        if pids.0 == pids.1 {
            // Its next client has other settings than ours in mind.
            let _ = run(one.client(), "reset all").await;
            return Err(EngineError::refused(faults::POOLED));
        }
        other.end();
    }
    one.end();
    Ok(())
}

/// The number of the session that a client has now.
async fn pid(client: &Client) -> Result<Option<i32>, EngineError> {
    let found = client.query_typed_one(PID, &[]).await;
    found.map(|row| row.get(0)).map_err(|error| faults::of_statement(&error))
}

/// Runs SQL without values, for its effect.
pub(super) async fn run(client: &Client, sql: &str) -> Result<(), EngineError> {
    client.batch_execute(sql).await.map_err(|error| faults::of_statement(&error))
}

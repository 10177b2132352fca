//! Creates the schema and checks its version.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::faults;
use super::sessions::{BEGIN, Sessions, run};
use crate::types::error::EngineError;

const VERSION: i32 = 1;
/// The oldest server version that this program was tested with.
const OLDEST_SERVER: i32 = 140_000;
/// Serializes migrations. The number is "requeue" in bytes.
const LOCK: &str = "select pg_advisory_xact_lock(32199685320308069)";

const SCHEMA: &str = concat!(
    include_str!("schema.sql"),
    include_str!("rows.sql"),
    include_str!("adding.sql"),
    include_str!("operations.sql"),
    include_str!("free.sql"),
    include_str!("dropping.sql"),
    include_str!("public.sql"),
);

/// Checks that the schema has the version of this program.
pub(super) async fn check(sessions: &Sessions) -> Result<(), EngineError> {
    let session = sessions.session().await?;
    let found = version(session.client()).await;
    session.end();
    match found? {
        Some(version) => is_current(version),
        None => Err(EngineError::refused(crate::types::error::UNPREPARED)),
    }
}

fn is_current(version: i32) -> Result<(), EngineError> {
    if version == VERSION {
        return Ok(());
    }
    let said = format!(
        "the schema has version {version}, and this program needs \
         {VERSION}; use a matching version of requeue"
    );
    Err(EngineError::refused(said))
}

/// Returns the version of the schema, if it exists.
async fn version(client: &Client) -> Result<Option<i32>, EngineError> {
    let there = "select from pg_catalog.pg_namespace where nspname = 'requeue'";
    let there =
        client.query_typed_opt(there, &[]).await.map_err(|error| faults::of_statement(&error))?;
    if there.is_none() {
        return Ok(None);
    }
    match client.query_typed_one("select version from requeue.version", &[]).await {
        Ok(row) => Ok(Some(row.get(0))),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Err(
            EngineError::refused("the schema `requeue` of the database belongs to another program"),
        ),
        Err(error) => Err(faults::of_statement(&error)),
    }
}

pub(super) async fn migrate(sessions: &Sessions) -> Result<(), EngineError> {
    let session = sessions.session().await?;
    let client = session.client();
    if let Some(version) = version(client).await? {
        session.end();
        return is_current(version);
    }
    let row =
        client.query_typed_one("select current_setting('server_version_num')::integer", &[]).await;
    let server: i32 = row.map_err(|error| faults::of_statement(&error))?.get(0);
    if server < OLDEST_SERVER {
        let said = format!("PostgreSQL {} is too old; use version 14 or later", server / 10_000);
        return Err(EngineError::refused(said));
    }
    // If this function returns early, the session is closed, which rolls the transaction back.
    run(client, &format!("{BEGIN}; set local lock_timeout = 0; {LOCK}")).await?;
    match version(client).await? {
        // Another process has migrated in the meantime.
        Some(version) => is_current(version)?,
        None => run(client, SCHEMA).await?,
    }
    run(client, "commit").await?;
    session.end();
    Ok(())
}

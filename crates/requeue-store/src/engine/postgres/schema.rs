//! Creates the schema, upgrades it, and checks its version.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::faults;
use super::sessions::{BEGIN, Sessions, run};
use crate::types::error::{EngineError, Kind, newer, older};

const VERSION: i32 = 3;
/// The oldest version that this program upgrades.
const OLDEST: i32 = 1;
/// The oldest server version that this program was tested with.
const OLDEST_SERVER: i32 = 140_000;
/// Serializes migrations. The number is "requeue" in bytes.
const LOCK: &str = "select pg_advisory_xact_lock(32199685320308069)";

/// Creates the tables of a new schema.
const TABLES: &str =
    concat!("create schema requeue;", include_str!("damage.sql"), include_str!("schema.sql"));

/// Creates the functions, or replaces those of an older version.
const FUNCTIONS: &str = concat!(
    include_str!("rows.sql"),
    include_str!("adding.sql"),
    include_str!("operations.sql"),
    include_str!("free.sql"),
    include_str!("dropping.sql"),
    include_str!("public.sql"),
);

/// The upgrades of the tables from each version to the next, starting with [`OLDEST`].
const UPGRADES: [&str; 2] = [
    concat!(include_str!("damage.sql"), include_str!("upgrades/to_2.sql")),
    include_str!("upgrades/to_3.sql"),
];
const BEGIN_UPGRADE: &str = include_str!("upgrades/begin.sql");
const END_UPGRADE: &str = include_str!("upgrades/end.sql");

/// An upgrade waits for a transaction that has added keys. While it waits, all later operations wait behind
/// it. So it gives up after this time, and tries again after the pause, for `PATIENCE` in total.
const WAITING: &str = "set local lock_timeout = '1s'";
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);

/// Checks that the schema has the version of this program. Upgrades an older schema if this role owns it.
pub(super) async fn check(sessions: &Sessions) -> Result<(), EngineError> {
    let session = sessions.session().await?;
    let client = session.client();
    let found = version(client).await?;
    let Some(found) = found else {
        session.end();
        return Err(EngineError::refused(crate::types::error::UNPREPARED));
    };
    let may_upgrade = is_older(found) && owns_schema(client).await?;
    session.end();
    match found {
        _ if may_upgrade => migrate(sessions).await,
        VERSION => Ok(()),
        _ => Err(mismatch(found)),
    }
}

const fn is_older(version: i32) -> bool {
    version >= OLDEST && version < VERSION
}

/// Returns the error about a schema of another version, which was not upgraded.
fn mismatch(version: i32) -> EngineError {
    if is_older(version) {
        older(
            version,
            VERSION,
            "run `requeue store init`, or call `Store::migrate`, as the role that owns the schema `requeue`",
        )
    } else {
        newer(version, VERSION)
    }
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

async fn owns_schema(client: &Client) -> Result<bool, EngineError> {
    let sql = "select pg_catalog.pg_has_role(nspowner, 'usage') from pg_catalog.pg_namespace \
               where nspname = 'requeue'";
    let row = client.query_typed_one(sql, &[]).await;
    Ok(row.map_err(|error| faults::of_statement(&error))?.get(0))
}

/// Creates the schema, or upgrades it to the version of this program.
pub(super) async fn migrate(sessions: &Sessions) -> Result<(), EngineError> {
    let since = Instant::now();
    loop {
        match try_migrate(sessions).await {
            Err(fault) if fault.kind == Kind::Locked => {
                if since.elapsed() >= PATIENCE {
                    return Err(EngineError {
                        source:
                            "a transaction that has added keys is still open, so the schema was \
                                 not upgraded; commit it or roll it back, and try again"
                                .into(),
                        ..fault
                    });
                }
                sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn try_migrate(sessions: &Sessions) -> Result<(), EngineError> {
    let session = sessions.session().await?;
    let client = session.client();
    if let Some(version) = version(client).await?
        && !is_older(version)
    {
        session.end();
        return if version == VERSION { Ok(()) } else { Err(mismatch(version)) };
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
    // Another process may have migrated in the meantime.
    match version(client).await? {
        None => run(client, &[TABLES, FUNCTIONS].concat()).await?,
        Some(version) if is_older(version) => {
            let steps = UPGRADES.iter().skip((version - OLDEST).unsigned_abs() as usize);
            let mut sql = vec![WAITING, ";", BEGIN_UPGRADE];
            sql.extend(steps);
            sql.extend([FUNCTIONS, END_UPGRADE]);
            run(client, &sql.concat()).await?;
            tracing::info!(from = version, to = VERSION, "the schema was upgraded");
        }
        Some(VERSION) => {}
        Some(version) => return Err(mismatch(version)),
    }
    run(client, "commit").await?;
    session.end();
    Ok(())
}

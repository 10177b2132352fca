//! Creates and upgrades the schema, and checks its version.

use std::time::Duration;

use requeue::limiter::DEFAULT_BACKOFF;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::claims::SAID;
use super::faults;
use super::sessions::{BEGIN, Sessions, run_batch};
use crate::engine::activity::encode_times;
use crate::engine::columns::Columns;
use crate::engine::defaults::{LEASE, MAX_BATCH, OLDEST_EVERY, POLL, SIGN};
use crate::engine::missing_steps;
use crate::engine::time::micros;
use crate::engine::turns::{LOOKED_UP, LOOKED_UP_IF_EMPTY};
use crate::types::activity::Tally;
use crate::types::error::{Answer, EngineError, Kind, newer_schema, older_schema};
use crate::types::inspect::StateCounts;

/// The version of the schema that this program creates and uses.
pub(super) const VERSION: i32 = 2;
/// The statements that change the tables from each version to the next one, up to [`VERSION`]. After the last step, all
/// functions are replaced.
pub(super) const STEPS: &[&str] = &[include_str!("upgrades/2.sql")];
/// The oldest version of the server with which this program was tested.
const OLDEST_SERVER: i32 = 140_000;
/// Prevents two migrations at the same time. The bytes of the number are "requeue".
const LOCK: &str = "select pg_advisory_xact_lock(32199685320308069)";

/// Creates the tables of version 1. The [`STEPS`] then change these tables, even in a new schema. Therefore, new and
/// upgraded schemas are equal.
pub(super) const TABLES: &str = concat!("create schema requeue;", include_str!("schema.sql"));

/// Creates the functions, or replaces the functions of an older version. [`function_sql`] replaces the names in braces.
const FUNCTIONS: &str = concat!(
    include_str!("rows.sql"),
    include_str!("adding.sql"),
    include_str!("rates.sql"),
    include_str!("turns.sql"),
    include_str!("attempts.sql"),
    include_str!("operations.sql"),
    include_str!("free.sql"),
    include_str!("schedules.sql"),
    include_str!("activity.sql"),
    include_str!("actions.sql"),
    include_str!("dropping.sql"),
    include_str!("public.sql"),
    include_str!("workers.sql"),
);

/// The options of functions that a worker or a producer calls. These functions have the rights of the owner of the
/// schema, and do not find objects that the caller has created.
const DEFINER: &str = "security definer set search_path = pg_catalog, pg_temp";
/// The options of functions whose plans must not depend on the size of the table. A query for the first keys in an
/// order must read the index with that order, instead of reading and sorting all keys. JIT compilation is off, because
/// the disabled plans make the estimated costs so high that the server would compile each query.
const PLANNED: &str = "{definer} set plan_cache_mode = force_generic_plan set jit = off \
                       set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off \
                       set enable_hashjoin = off set enable_mergejoin = off";

/// Returns [`FUNCTIONS`] with the names in braces replaced by common options, lists of columns, and constants. With
/// these replacements, the columns of a key are listed in one place only.
fn function_sql() -> String {
    let run = |form: fn(&&str) -> String| Columns::RUN.iter().map(form).collect::<Vec<_>>();
    let sql = FUNCTIONS
        .replace("{planned}", PLANNED)
        .replace("{definer}", DEFINER)
        .replace("{counts}", &StateCounts::columns("t"))
        .replace("{columns}", &Columns::join_names(|column| column.name.to_owned()))
        .replace("{k.columns}", &Columns::join_names(|column| format!("k.{}", column.name)))
        .replace("{no_run}", &run(|name| format!("{name} = null")).join(", "))
        .replace("{k.no_run}", &run(|name| format!("k.{name} := null;")).concat());
    let (backoff, max_backoff) = DEFAULT_BACKOFF;
    let no_times: String =
        encode_times(&Tally::default()).iter().map(|byte| format!("{byte:02x}")).collect();
    let constants = [
        ("{lease}", format!("{LEASE:?}")),
        ("{poll}", format!("{POLL:?}")),
        ("{backoff}", format!("{backoff:?}")),
        ("{max_backoff}", format!("{max_backoff:?}")),
        ("{oldest_every}", OLDEST_EVERY.to_string()),
        ("{max_batch}", MAX_BATCH.to_string()),
        ("{sign}", micros(SIGN).to_string()),
        ("{said}", micros(SAID).to_string()),
        ("{looked_up}", LOOKED_UP.to_string()),
        ("{looked_up_if_empty}", LOOKED_UP_IF_EMPTY.to_string()),
        ("{no_times}", format!("\\x{no_times}")),
    ];
    constants.iter().fold(sql, |sql, (name, value)| sql.replace(name, value))
}

const BEGIN_UPGRADE: &str = include_str!("upgrades/begin.sql");
const END_UPGRADE: &str = include_str!("upgrades/end.sql");

/// The timeout for the locks of one attempt. An upgrade waits for each transaction that has added keys, and all later
/// operations wait for the upgrade. Therefore, an attempt stops after this timeout, and the next one follows after
/// `PAUSE`. The attempts end after `PATIENCE`.
const WAITING: &str = "set local lock_timeout = '1s'";
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);

/// Checks that the schema has the version of this program. Upgrades an older schema if this role owns it.
pub(super) async fn check_version(sessions: &Sessions, steps: &[&str]) -> Answer<()> {
    let session = sessions.open_session().await?;
    let client = session.client();
    let found = read_version(client).await?;
    let Some(found) = found else {
        session.put_back();
        return Err(EngineError::refused(crate::types::error::UNPREPARED));
    };
    // If this role has no right to upgrade the schema, the error must name the role that has it. An error of the first
    // statement would not name it.
    let may_upgrade = missing_steps(found, VERSION, steps).is_some() && owns_schema(client).await?;
    session.put_back();
    match found {
        VERSION => Ok(()),
        _ if may_upgrade => migrate_schema(sessions, steps).await,
        _ => Err(version_mismatch(found, steps)),
    }
}

/// Returns the error about a schema of another version that was not upgraded.
fn version_mismatch(version: i32, steps: &[&str]) -> EngineError {
    if missing_steps(version, VERSION, steps).is_some() {
        older_schema(
            version,
            VERSION,
            "run `requeue store init`, or call `Store::migrate`, as the role that owns the schema `requeue`",
        )
    } else {
        newer_schema(version, VERSION)
    }
}

/// Returns the version of the schema, or `None` if there is no schema.
async fn read_version(client: &Client) -> Answer<Option<i32>> {
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

async fn owns_schema(client: &Client) -> Answer<bool> {
    let sql = "select pg_catalog.pg_has_role(nspowner, 'usage') from pg_catalog.pg_namespace \
               where nspname = 'requeue'";
    let row = client.query_typed_one(sql, &[]).await;
    Ok(row.map_err(|error| faults::of_statement(&error))?.get(0))
}

/// Creates the schema, or upgrades it to the version of this program.
pub(super) async fn migrate_schema(sessions: &Sessions, steps: &[&str]) -> Answer<()> {
    let since = Instant::now();
    loop {
        match try_migrate(sessions, steps).await {
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

async fn try_migrate(sessions: &Sessions, steps: &[&str]) -> Answer<()> {
    let session = sessions.open_session().await?;
    let client = session.client();
    if let Some(version) = read_version(client).await?
        && missing_steps(version, VERSION, steps).is_none()
    {
        session.put_back();
        return if version == VERSION { Ok(()) } else { Err(version_mismatch(version, steps)) };
    }
    let row =
        client.query_typed_one("select current_setting('server_version_num')::integer", &[]).await;
    let server: i32 = row.map_err(|error| faults::of_statement(&error))?.get(0);
    if server < OLDEST_SERVER {
        let said = format!("PostgreSQL {} is too old; use version 14 or later", server / 10_000);
        return Err(EngineError::refused(said));
    }
    // If this function returns early, the session is closed, which rolls the transaction back. Processes that start at
    // the same time migrate one after the other. Each process waits without a time limit for the migration of the
    // previous process.
    run_batch(client, &format!("{BEGIN}; set local lock_timeout = 0; {LOCK}")).await?;
    // Another process may have migrated the schema before this process got the lock.
    match read_version(client).await? {
        None => {
            let record = format!("insert into requeue.version values ({VERSION})");
            run_batch(client, &[TABLES, &STEPS.concat(), &function_sql(), &record].concat())
                .await?;
        }
        Some(VERSION) => {}
        Some(version) => {
            let missing = missing_steps(version, VERSION, steps)
                .ok_or_else(|| version_mismatch(version, steps))?;
            // The version changes in the same transaction as the tables. Therefore, a step that fails changes neither
            // of them.
            let record = format!("update requeue.version set version = {VERSION}");
            let all = [
                WAITING,
                ";",
                BEGIN_UPGRADE,
                &missing.join(";"),
                ";",
                &function_sql(),
                END_UPGRADE,
                &record,
            ];
            run_batch(client, &all.concat()).await?;
            tracing::info!(from = version, to = VERSION, "the schema was upgraded");
        }
    }
    run_batch(client, "commit").await?;
    session.put_back();
    Ok(())
}

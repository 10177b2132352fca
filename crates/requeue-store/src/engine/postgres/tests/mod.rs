//! Tests the engine with a real server.

mod changing;
mod conforming;
mod connecting;
mod cuts;
mod damaged;
mod dropping;
mod failover;
mod grouped;
mod guarded;
mod late;
mod locked;
mod mixed;
mod pooled;
mod rated;
mod roles;
mod sql;
mod upgrading;
mod waking;
mod workers;

use requeue_servers::Postgres as Server;
use tokio::sync::watch;

use super::*;
use crate::engine::{Ask, Claim, End, Engine, Place, Renewed, Settings};
use crate::tests::Batches as _;
use crate::types::add::{Added, ParkedAdd, ReaddPolicy};
use crate::types::inspect::{State, StateCounts};
use crate::types::key::Key;

/// Returns an engine with a schema in a new database, and the address of the database.
async fn engine(server: &Server, whole: Duration) -> (Postgres, String) {
    let url = server.database();
    let engine = at(&url, whole);
    engine.migrate_schema().await.expect("the schema is created");
    (engine, url)
}

/// Returns an engine with separate connections, as another process would have it.
fn at(url: &str, whole: Duration) -> Postgres {
    let address = Address::parse(url).expect("the address is valid");
    Postgres::new(address, whole).expect("the engine is created")
}

fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("the address is valid").1
}

/// Replaces the clock by a table that [`set_time`] changes.
const CLOCK: &str = "create table clock (now bigint not null); \
     insert into clock values (0); \
     create or replace function requeue.now() returns bigint language sql volatile \
     return (select now from public.clock)";

async fn stop_time(engine: &Postgres) {
    let session = engine.sessions.open_session().await.expect("the server is reachable");
    sessions::run_batch(session.client(), CLOCK).await.expect("the clock is created");
    session.put_back();
}

async fn set_time(engine: &Postgres, now: i64) {
    let set = "update public.clock set now = $1 returning 1";
    engine.sessions.query_row(set, &[&now]).await.expect("the time is set");
}

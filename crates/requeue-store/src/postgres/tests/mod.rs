//! On a real server.

mod changing;
mod conforming;
mod connecting;
mod sql;
mod waking;

use requeue_servers::Postgres as Server;

use super::*;

/// An engine in a new database, with its schema.
async fn engine(server: &Server, whole: Duration) -> (Postgres, String) {
    let url = server.database();
    let address = Address::parse(&url).expect("it is an address");
    let engine = Postgres::new(address, whole).expect("it needs no certificates");
    engine.migrate().await.expect("the schema is made");
    (engine, url)
}

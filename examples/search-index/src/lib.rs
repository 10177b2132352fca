//! A search index that follows a table in PostgreSQL.
//!
//! Triggers add the id of each changed row to a queue, in the transaction of the change: see `schema.sql`. The worker
//! reads the current row, and writes it to the [`Index`], or removes it.

mod index;

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use requeue::workers::{Action, Context, Error, Workers};
use requeue_store::{Key, Queue, Store};
use tokio_postgres::NoTls;

pub use crate::index::{Article, Index};

/// The queue, and connections for the rows.
#[derive(Debug)]
pub struct Indexer {
    /// The queue of the ids of changed articles.
    pub queue: Queue,
    pool: Pool,
}

impl Indexer {
    /// Connects to the database, and creates the queue, the table and the triggers, if they do not exist.
    ///
    /// After a crash of a worker, its articles run again when the time `lease` is over.
    ///
    /// # Errors
    ///
    /// The database cannot be reached, or refuses the schema.
    pub async fn set_up(
        url: &str,
        lease: Duration,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let store = Store::connect(url).await?;
        store.migrate().await?;
        let queue = store.queue("articles").lease(lease).max_failures(10).open().await?;
        // Broken connections are replaced.
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(4).build()?;
        pool.get().await?.batch_execute(include_str!("schema.sql")).await?;
        Ok(Self { queue, pool })
    }

    /// Indexes changed articles until `stopped`, and then completes the runs in flight.
    pub async fn work(self, index: Index, stopped: impl Future<Output = ()>) {
        let Self { queue, pool } = self;
        let handler =
            move |key: Key, context: Context| update(key, context, pool.clone(), index.clone());
        Workers::new(queue, handler)
            .concurrency(4)
            .timeout(Duration::from_secs(30))
            .drain_timeout(Duration::from_secs(15))
            .grace(Duration::from_secs(5))
            .run_until(stopped)
            .await;
    }
}

/// Makes the index match the current row. Repeating it is harmless.
async fn update(key: Key, context: Context, pool: Pool, index: Index) -> Result<Action, Error> {
    let id = key.as_str().and_then(|key| key.parse::<i64>().ok());
    let id = id.ok_or_else(|| Error::terminal(format!("{key} is not the id of an article")))?;
    let read = "select title, body from articles where id = $1";
    let row = pool.get().await?.query_opt(read, &[&id]).await?;
    let article = row.map(|row| Article { title: row.get(0), body: row.get(1) });
    let effect = if article.is_some() { "indexed" } else { "removed" };
    let token = i64::try_from(context.fencing_token())?;
    let is_newest = tokio::task::spawn_blocking(move || index.write(id, token, article)).await??;
    let effect = if is_newest { effect } else { "already written by a later run" };
    tracing::info!(id, changes = context.adds(), "{effect}");
    Ok(Action::succeed())
}

//! Drops beside transactions of others.

use tokio_postgres::NoTls;

use super::sql::store;
use super::*;
use crate::types::error::chain;

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it is there");
    tokio::spawn(connection);
    client
}

/// Until somebody waits for a lock that others have, or it is over.
async fn waiting(client: &tokio_postgres::Client, is_over: impl Fn() -> bool) {
    let sql = "select count(*) from pg_locks where not granted and locktype = 'advisory' \
               and database = (select oid from pg_database where datname = current_database())";
    while client.query_one(sql, &[]).await.expect("asked").get::<_, i64>(0) == 0 {
        assert!(!is_over(), "it waits");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_drop_waits_for_transactions_that_have_added_keys() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let (adding, watching) = (client(&url).await, client(&url).await);
    for commits in [true, false] {
        let queue = store.queue("q").open().await.expect("it opens");
        adding.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
        let dropping = tokio::spawn({
            let store = store.clone();
            async move { store.drop_queue("q").await }
        });
        waiting(&watching, || dropping.is_finished()).await;
        adding.batch_execute(if commits { "commit" } else { "rollback" }).await.expect("ended");
        let dropped = dropping.await.expect("no panic");
        if commits {
            let error = dropped.expect_err("it has a key");
            assert_eq!(error.counts().map(|counts| counts.ready), Some(1));
            store.force_drop_queue("q").await.expect("dropped");
        } else {
            dropped.expect("nothing was added");
        }
        assert!(queue.add("b").await.expect_err("it is gone").is_dropped());
        let left =
            "select (select count(*) from requeue.keys) + (select count(*) from requeue.queues)";
        let left = watching.query_one(left, &[]).await.expect("counted");
        assert_eq!(left.get::<_, i64>(0), 0);
    }
}

#[tokio::test]
async fn a_transaction_that_stays_open_is_named() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    store.queue("q").open().await.expect("it opens");
    let adding = client(&url).await;
    adding.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
    let error = store.drop_queue("q").await.expect_err("it is open");
    assert!(error.is_temporary() && error.counts().is_none(), "{error:?}");
    let said = "queue \"q\" was not dropped: a transaction that has added keys to it is still open";
    assert_eq!(chain(&error), said);
}

/// Its snapshot still has the queue.
#[tokio::test]
async fn an_add_in_a_snapshot_from_before_the_drop_fails() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let (adding, watching) = (client(&url).await, client(&url).await);
    for level in ["repeatable read", "serializable"] {
        store.queue("q").open().await.expect("it opens");
        let begin = format!("begin isolation level {level}; select * from requeue.queues");
        adding.batch_execute(&begin).await.expect("begun");
        store.drop_queue("q").await.expect("dropped");
        let error = adding.batch_execute("select requeue.add('q', 'a')").await;
        let error = error.expect_err("it is gone");
        assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{level}: {error:?}");
        adding.batch_execute("rollback").await.expect("ended");
        let left = watching.query_one("select count(*) from requeue.keys", &[]).await;
        assert_eq!(left.expect("counted").get::<_, i64>(0), 0, "{level}");
        // While there is the queue, these add as any.
        store.queue("q").open().await.expect("it opens");
        let add = format!("begin isolation level {level}; select requeue.add('q', 'a'); commit");
        adding.batch_execute(&add).await.expect("added");
        assert_eq!(store.force_drop_queue("q").await.expect("dropped").ready, 1);
    }
}

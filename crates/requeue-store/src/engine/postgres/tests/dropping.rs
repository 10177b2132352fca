//! Tests drops that run concurrently with other transactions.

use tokio_postgres::NoTls;

use super::sql::store;
use super::*;
use crate::types::error::{ErrorKind, chain};

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.expect("the server is reachable");
    tokio::spawn(connection);
    client
}

/// Waits until a transaction waits for the lock of another transaction, or until `is_over` returns true.
pub(super) async fn waiting(client: &tokio_postgres::Client, is_over: impl Fn() -> bool) {
    let sql = "select count(*) from pg_locks where not granted and locktype = 'advisory' \
               and database = (select oid from pg_database where datname = current_database())";
    while client.query_one(sql, &[]).await.expect("the query succeeds").get::<_, i64>(0) == 0 {
        assert!(!is_over(), "the call has completed without waiting");
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
        let queue = store.queue("q").open().await.expect("the queue opens");
        adding.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
        let dropping = tokio::spawn({
            let store = store.clone();
            async move { store.drop_queue("q").await }
        });
        waiting(&watching, || dropping.is_finished()).await;
        adding.batch_execute(if commits { "commit" } else { "rollback" }).await.expect("ended");
        let dropped = dropping.await.expect("the task does not panic");
        if commits {
            let error = dropped.expect_err("the queue has a key");
            assert!(error.to_string().contains("(1 ready, "), "{error}");
            store.force_drop_queue("q").await.expect("dropped");
        } else {
            dropped.expect("nothing was added");
        }
        assert_eq!(
            queue.add("b").await.expect_err("the queue was dropped").kind(),
            ErrorKind::Dropped
        );
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
    store.queue("q").open().await.expect("the queue opens");
    let adding = client(&url).await;
    adding.batch_execute("begin; select requeue.add('q', 'a')").await.expect("added");
    let error = store.drop_queue("q").await.expect_err("the transaction is open");
    assert!(error.kind().is_temporary(), "{error:?}");
    let said = "queue \"q\" was not dropped: a transaction that has added keys to it is \
         still open; commit it or roll it back";
    assert_eq!(chain(&error), said);
}

/// The snapshot of the transaction is older than the drop, and still contains the queue.
#[tokio::test]
async fn an_add_in_a_snapshot_from_before_the_drop_fails() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let (adding, watching) = (client(&url).await, client(&url).await);
    for level in ["repeatable read", "serializable"] {
        store.queue("q").open().await.expect("the queue opens");
        let begin = format!("begin isolation level {level}; select * from requeue.queues");
        adding.batch_execute(&begin).await.expect("begun");
        store.drop_queue("q").await.expect("dropped");
        let error = adding.batch_execute("select requeue.add('q', 'a')").await;
        let error = error.expect_err("the queue was dropped");
        assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{level}: {error:?}");
        adding.batch_execute("rollback").await.expect("ended");
        let left = watching.query_one("select count(*) from requeue.keys", &[]).await;
        assert_eq!(left.expect("counted").get::<_, i64>(0), 0, "{level}");
        // While the queue exists, a transaction with this isolation level can add keys to it.
        store.queue("q").open().await.expect("the queue opens");
        let add = format!("begin isolation level {level}; select requeue.add('q', 'a'); commit");
        adding.batch_execute(&add).await.expect("added");
        assert_eq!(store.force_drop_queue("q").await.expect("dropped").ready, 1);
    }
}

/// Returns the statement of each operation, for a queue that has a key in each state. `add` inserts a row. The other
/// operations change or delete a row.
fn operations(queue: i32, epoch: i64) -> Vec<(&'static str, String)> {
    let held = format!("array['held'::bytea], array[{epoch}::bigint]");
    let ends = "array[0::smallint], null, null, null, null, null, null, null, null, null, null, null, null";
    vec![
        ("add", "select requeue.add('q', 'new')".into()),
        ("add again", "select requeue.add('q', 'ready')".into()),
        ("add dirty", "select requeue.add_many('q', array['held', 'other'])".into()),
        (
            "claim",
            format!(
                "select requeue.claim({queue}, false, 9, 1, 60000000, 1, 1, 1, null, '{{0,0,0,0}}')"
            ),
        ),
        (
            "finish",
            format!("select requeue.finish({queue}, false, row({held}, {ends})::requeue.ends)"),
        ),
        ("renew", format!("select requeue.renew({queue}, {held}, 60000000)")),
        ("cancel", format!("select requeue.cancel({queue}, array['ready'::bytea], null)")),
        ("revive", format!("select requeue.revive({queue}, array['parked'::bytea], 3)")),
    ]
}

/// Two sessions, and a third one that observes them, on a database that nothing else uses.
struct Overlap {
    store: crate::Store,
    first: tokio_postgres::Client,
    second: std::sync::Arc<tokio_postgres::Client>,
    watching: tokio_postgres::Client,
}

impl Overlap {
    async fn new(server: &Server) -> Self {
        let url = server.database();
        let store = store(&url).await;
        let (first, second) = (client(&url).await, std::sync::Arc::new(client(&url).await));
        Self { store, first, second, watching: client(&url).await }
    }

    /// Creates the queue with a key in each state, and returns the statements of the operations.
    async fn operations(&self) -> Vec<(&'static str, String)> {
        let id = self.first.query_one("select id from requeue.open('q')", &[]).await;
        let id: i32 = id.expect("the queue opens").get(0);
        let claim = format!(
            "select k.key, k.epoch \
             from requeue.claim({id}, false, 2, 0, 3600000000, 1, 1, 1, null, '{{0,0,0,0}}') c, \
             unnest(c.keys, c.epochs) k (key, epoch)"
        );
        self.first
            .batch_execute("select requeue.add_many('q', array['held', 'parked'])")
            .await
            .expect("added");
        let claimed = self.first.query(&claim, &[]).await.expect("claimed");
        let epoch = |key: &[u8]| {
            let row = claimed.iter().find(|row| row.get::<_, Option<&[u8]>>(0) == Some(key));
            row.expect("the key was claimed").get::<_, i64>(1)
        };
        let park = format!(
            "select requeue.finish({id}, false, row(array['parked'::bytea], array[{}::bigint], \
             array[4::smallint], array[0::bigint], array[0::smallint], array[1], array[0], \
             array['no'], array[0::bigint], array[0::bigint], array[0::float8], array[null::integer], \
             null, null, null)::requeue.ends)",
            epoch(b"parked")
        );
        self.first.batch_execute(&park).await.expect("parked");
        self.first.batch_execute("select requeue.add('q', 'ready')").await.expect("added");
        operations(id, epoch(b"held"))
    }

    /// Runs a statement while the transaction of the first session is open.
    fn beside(
        &self,
        sql: &str,
    ) -> tokio::task::JoinHandle<
        Result<Vec<tokio_postgres::SimpleQueryMessage>, tokio_postgres::Error>,
    > {
        let (second, sql) = (std::sync::Arc::clone(&self.second), sql.to_owned());
        tokio::spawn(async move { second.simple_query(&sql).await })
    }

    /// Waits until the statement has completed, or waits for a lock. Returns true if it waits.
    async fn waits<T>(&self, beside: &tokio::task::JoinHandle<T>) -> bool {
        let sql = "select count(*) from pg_stat_activity \
                   where wait_event_type = 'Lock' and datname = current_database()";
        while self.watching.query_one(sql, &[]).await.expect("the query succeeds").get::<_, i64>(0)
            == 0
        {
            if beside.is_finished() {
                return false;
            }
            tokio::task::yield_now().await;
        }
        true
    }

    /// Returns the number of keys and the number of queues.
    async fn left(&self) -> (i64, i64) {
        let sql =
            "select (select count(*) from requeue.keys), (select count(*) from requeue.queues)";
        let left = self.watching.query_one(sql, &[]).await.expect("counted");
        (left.get(0), left.get(1))
    }
}

/// The operation's transaction is open while another session drops the queue.
#[tokio::test]
async fn a_drop_beside_the_open_transaction_of_any_operation_leaves_all_or_nothing() {
    let Some(server) = Server::shared() else { return };
    let overlap = Overlap::new(server).await;
    for n in 0..overlap.operations().await.len() {
        for (ending, forces) in
            [("commit", true), ("rollback", true), ("commit", false), ("rollback", false)]
        {
            // Each iteration creates the queue again.
            overlap.store.force_drop_queue("q").await.expect("dropped");
            let (operation, sql) = overlap.operations().await.swap_remove(n);
            let how = format!("{operation}, {ending}, {forces}");
            overlap.first.batch_execute(&format!("begin; {sql}")).await.expect(&how);
            let drop = format!("select dropped from requeue.drop_queue('q', {forces})");
            let dropping = overlap.beside(&drop);
            // Without `force`, the drop finds the keys immediately, and makes no transaction wait.
            assert_eq!(overlap.waits(&dropping).await, forces, "{how}");
            overlap.first.batch_execute(ending).await.expect(&how);
            let dropped = dropping.await.expect("the task does not panic").expect(&how);
            let dropped = dropped.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            assert_eq!(dropped.as_deref(), Some(if forces { "t" } else { "f" }), "{how}");
            let (keys, queues) = overlap.left().await;
            assert_eq!((keys > 0, queues), (!forces, i64::from(!forces)), "{how}");
            if forces {
                overlap.first.query("select id from requeue.open('q')", &[]).await.expect(&how);
            }
        }
    }
}

/// The drop's transaction is open while another session runs an operation.
#[tokio::test]
async fn an_operation_beside_the_open_transaction_of_a_drop_waits_or_changes_nothing() {
    let Some(server) = Server::shared() else { return };
    let overlap = Overlap::new(server).await;
    for n in 0..overlap.operations().await.len() {
        for ending in ["commit", "rollback"] {
            overlap.store.force_drop_queue("q").await.expect("dropped");
            let (operation, sql) = overlap.operations().await.swap_remove(n);
            let how = format!("{operation}, {ending}");
            let keys = overlap.left().await.0;
            let drop = "begin; select requeue.drop_queue('q', true)";
            overlap.first.batch_execute(drop).await.expect(&how);
            let beside = overlap.beside(&sql);
            // A claim or a renewal does not wait, because it skips keys that other transactions have locked.
            let waits = !matches!(operation, "claim" | "renew");
            assert_eq!(overlap.waits(&beside).await, waits, "{how}");
            overlap.first.batch_execute(ending).await.expect(&how);
            let done = beside.await.expect("the task does not panic");
            if ending == "rollback" || !waits {
                done.expect(&how);
            } else {
                let error = done.expect_err(&how);
                let code = error.code().map(|code| code.code().to_owned());
                // A function that receives the name of the queue reports a missing queue. A function that receives the
                // id reports a dropped queue.
                let expected =
                    if operation.starts_with("add") { ["RQ001", "42704"] } else { ["RQ001"; 2] };
                assert!(expected.contains(&code.as_deref().unwrap_or("")), "{how}: {error:?}");
            }
            let (left, queues) = overlap.left().await;
            if ending == "commit" {
                assert_eq!((left, queues), (0, 0), "{how}");
                let again = overlap.second.batch_execute(&sql).await.expect_err(&how);
                let code = again.code().map(|code| code.code());
                let expected = if operation.starts_with("add") { "42704" } else { "RQ001" };
                assert_eq!(code, Some(expected), "{how}: {again:?}");
                overlap.first.query("select id from requeue.open('q')", &[]).await.expect(&how);
            } else {
                let change = match operation {
                    "add" | "add dirty" => 1,
                    "finish" | "cancel" => -1,
                    _ => 0,
                };
                assert_eq!((left, queues), (keys + change, 1), "{how}");
            }
        }
    }
}

/// One transaction adds two keys. Another transaction drops the queue between the two adds.
#[tokio::test]
async fn a_drop_between_two_adds_of_a_transaction_is_no_deadlock() {
    let Some(server) = Server::shared() else { return };
    let overlap = Overlap::new(server).await;
    overlap.operations().await;
    overlap.first.batch_execute("begin; select requeue.add('q', 'z')").await.expect("added");
    let dropping = overlap.beside("select dropped from requeue.drop_queue('q', true)");
    assert!(overlap.waits(&dropping).await);
    overlap.first.batch_execute("select requeue.add('q', 'a'); commit").await.expect("added");
    dropping.await.expect("the task does not panic").expect("dropped");
    assert_eq!(overlap.left().await, (0, 0));
}

#[tokio::test]
async fn of_two_drops_at_once_one_finds_no_queue() {
    let Some(server) = Server::shared() else { return };
    let overlap = Overlap::new(server).await;
    for ending in ["commit", "rollback"] {
        overlap.operations().await;
        let drop = "select dropped is null from requeue.drop_queue('q', true)";
        overlap.first.batch_execute(&format!("begin; {drop}")).await.expect("dropped");
        let beside = overlap.beside(drop);
        assert!(overlap.waits(&beside).await);
        overlap.first.batch_execute(ending).await.expect("ended");
        let messages = beside.await.expect("the task does not panic").expect("answered");
        let is_missing = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(|value| value == "t"),
            _ => None,
        });
        assert_eq!(is_missing, Some(ending == "commit"));
        assert_eq!(overlap.left().await, (0, 0));
    }
}

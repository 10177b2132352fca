//! Tests the privileges of the documented roles.

use super::sql::store;
use super::*;
use crate::api::store::Store;
use crate::tests::get;
use crate::types::error::{ErrorKind, chain};
use crate::{ActionRecord, Add, Merge, Priority};

pub(super) const ROLES: &str = include_str!("../roles.sql");

/// Roles belong to the server, not to a database. Because of the lock, only one test at a time creates roles.
pub(super) async fn with_roles<T>(
    server: &Server,
    url: &str,
    roles: &str,
    what: impl AsyncFnOnce() -> T,
) -> T {
    static CREATED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _created = CREATED.lock().await;
    server.psql(name(url), roles);
    let done = what().await;
    server.psql(name(url), "drop owned by worker, producer; drop role worker, producer");
    done
}

async fn connect(server: &Server, role: &str, url: &str) -> Store {
    Store::connect(&server.url(role, name(url))).await.expect("the role may connect")
}

/// Asserts that the server refuses each of these statements, because the role lacks a privilege.
async fn is_refused<const N: usize>(server: &Server, role: &str, url: &str, statements: [&str; N]) {
    let engine = at(&server.url(role, name(url)), WHOLE);
    for sql in statements {
        let fault = engine.sessions.query_rows(sql, &[]).await.expect_err(sql);
        assert!(fault.source.to_string().contains("[42501]"), "{role}: {sql}: {}", fault.source);
    }
}

#[tokio::test]
async fn a_worker_works_and_changes_nothing_past_the_functions() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    store(&url).await;
    with_roles(server, &url, ROLES, async || {
        let worker = connect(server, "worker", &url).await;
        worker.migrate().await.expect("there is nothing to do");
        let queue = worker.queue("q").max_failures(1).open().await.expect("the queue opens");
        queue.add_all(["a", "b"]).await.expect("added");
        get(&queue).await.retry("no").await.expect("the lease is valid");
        assert!(queue.revive("a").await.expect("revived"));
        assert!(queue.cancel("a").await.expect("cancelled"));
        queue.record_action(ActionRecord::new("cancel", "me")).await.expect("recorded");
        assert_eq!(queue.last_actions(9).await.expect("read").len(), 1);
        assert_eq!(queue.counts().await.expect("counted").ready, 1);
        get(&queue).await.succeed().await.expect("the lease is valid");
        let statements = [
            "delete from requeue.keys",
            "insert into requeue.queues (name, hold) values ('r', false)",
            "create table requeue.more ()",
            "drop schema requeue cascade",
            "select requeue.drop_queue('q', true)",
            "select setval('requeue.epochs', 1)",
        ];
        is_refused(server, "worker", &url, statements).await;
    })
    .await;
}

#[tokio::test]
async fn a_producer_adds_in_every_way_and_does_nothing_else() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    queue.add("parked").await.expect("added");
    get(&queue).await.give_up("no").await.expect("the lease is valid");
    with_roles(server, &url, ROLES, async || {
        let producer = connect(server, "producer", &url).await;
        let adds = producer.queue("q").open().await.expect("the queue exists");
        assert_eq!(adds.add("now").await.expect("added"), Added::New);
        let later = Duration::from_secs(3600);
        assert_eq!(adds.add_after("later", later).await.expect("added"), Added::New);
        adds.add_all(["one", "two"]).await.expect("added");
        let all = Add::after(later).merge(Merge::Exactly).priority(Priority::High).flags(3);
        assert_eq!(adds.add_with("all", all.revive()).await.expect("added"), Added::New);
        let revived = adds.add_with("parked", Add::now().revive()).await.expect("added");
        assert_ne!(revived, Added::Parked);
        // If other transactions have locked keys for some time, another SQL function adds these keys.
        let adder = super::changing::other(&url).await;
        let locking = "begin; select requeue.add('q', 'locked')";
        adder.batch_execute(locking).await.expect("added");
        let engine = at(&server.url("producer", name(&url)), WHOLE);
        let place =
            engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue exists");
        let asks = super::changing::asks(["free", "locked"]);
        let added = engine.add_free(&place, asks).await.expect("added");
        assert_eq!(added, [Some(Added::New), None]);
        adder.batch_execute("commit").await.expect("committed");
        let sql = [
            "select requeue.add('q', 'sql'), requeue.add('q', '\\x00'::bytea, '1 s')",
            "select requeue.add_many('q', array['b'], '1 min', 'latest', 'low', 1, true)",
            "select requeue.add_many('q', array['c']::bytea[])",
        ];
        for sql in sql {
            engine.sessions.query_rows(sql, &[]).await.expect(sql);
        }
        let client = super::changing::other(&server.url("producer", name(&url))).await;
        add_in(&client, "q", [("in", Add::now())]).await.expect("added");

        let error =
            chain(&producer.queue("r").open().await.expect_err("the role may not create a queue"));
        assert!(error.contains("this role may not create it"), "{error}");
        let missing =
            producer.queue("r").must_exist().open().await.expect_err("the queue does not exist");
        assert_eq!(missing.kind(), ErrorKind::Missing, "{missing}");
        let statements = [
            "select * from requeue.keys",
            "select * from requeue.queues",
            "select * from requeue.renewals",
            "insert into requeue.keys (queue, state, priority, since, adds, flags, said, key) \
             values (1, 0, 0, 0, 1, 0, 0, 'x')",
            "update requeue.version set version = 2",
            "select requeue.open('r')",
            "select requeue.claim(1, false, 1, 0, 1, 1, 1, 0, null, '{0,0,0,0}')",
            "select requeue.passed_over(1, '{0,0,0,0}', '{1,1,1,1}')",
            "select requeue.finish(1, false, null)",
            "select requeue.finish_soon(1, false, null)",
            "select requeue.finish_free(1, false, null)",
            "select requeue.renew(1, '{}', '{}', 1)",
            "select requeue.cancel(1, '{now}', null)",
            "select requeue.revive(1, '{parked}', 3)",
            "select requeue.wait(1, 1)",
            "select requeue.wake(1)",
            "select requeue.record_action(1, 'pause', 'me', '', '')",
            "select requeue.is_idle(1)",
            "select nextval('requeue.epochs')",
        ];
        is_refused(server, "producer", &url, statements).await;
        let error = chain(&adds.cancel("now").await.expect_err("the role may not cancel"));
        assert!(error.contains("[42501]"), "{error}");
    })
    .await;
    // The table refuses a priority for which no claim searches.
    let odd = "select requeue.add_all_soon(1, '{x}', '{0}', '{0}', '{2}', '{0}', '{1}', null)";
    let fault =
        at(&url, WHOLE).sessions.query_rows(odd, &[]).await.expect_err("the server refuses it");
    assert!(fault.source.to_string().contains("[23514]"), "{}", fault.source);
}

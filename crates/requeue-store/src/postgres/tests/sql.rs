//! What the schema offers to everybody: `requeue.add`, triggers, roles.

use super::*;
use crate::store::Store;

/// What is ready, by key.
async fn ready(queue: &crate::Queue) -> Vec<String> {
    let page = queue.snapshot(Some(State::Ready), None, 100).await.expect("a page");
    page.iter().map(|entry| entry.key.to_string()).collect()
}

async fn store(url: &str) -> Store {
    let store = Store::connect(url).await.expect("it is there");
    store.migrate().await.expect("the schema is made");
    store
}

fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("it is an address").1
}

#[tokio::test]
async fn anybody_adds_by_sql() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let sql = |sql: &str| server.psql(name(&url), sql);
    assert_eq!(sql("select holds from requeue.open('q', true)"), "t");
    let error = store.queue("r").existing().open().await.expect_err("there is none");
    assert!(error.is_missing(), "{error}");
    store.queue("mail").open().await.expect("it opens");
    let error = store.queue("mial").existing().open().await.expect_err("it is called mail");
    assert_eq!(error.to_string(), "no such queue: \"mial\" (did you mean \"mail\"?)");
    let queue = store.queue("q").existing().open().await.expect("it is there");
    assert_eq!(queue.early_add(), EarlyAdd::Hold);
    assert_eq!(sql("select requeue.add('q', 'a'), requeue.add('q', 'a')"), "new|coalesced");
    assert_eq!(sql("select requeue.add('q', '\\xff00'::bytea)"), "new");
    assert_eq!(sql("select requeue.add('q', 'later', '1 hour')"), "new");
    let all = "select requeue.add('q', 'all', after => '1 min', merge => 'exactly', \
               priority => 'high', reasons => 5, revive => true)";
    assert_eq!(sql(all), "new");
    assert_eq!(sql("select requeue.add_many('q', array['b', 'a', 'b', 'ü'])"), "2");
    assert_eq!(sql("select requeue.add_many('q', '{}')"), "0");
    assert_eq!(ready(&queue).await, ["a", "b", "ü", "\\xff\\0"]);
    let all = queue.look_up("all").await.expect("looked up").expect("it is there");
    assert_eq!((all.priority, all.reasons), (crate::Priority::High, 5));
    assert!(all.due.is_some_and(|due| due > Duration::from_secs(30)));

    let item = queue.get().await.expect("it is open");
    assert_eq!(sql("select requeue.add('q', 'a')"), "dirty");
    item.park("no").await.expect("it is ours");
    let item = queue.get_many(9).await.into_iter().find(|item| item.as_str() == Some("a"));
    item.expect("it was added meanwhile").park("no").await.expect("it is ours");
    assert_eq!(sql("select requeue.add('q', 'a'), requeue.add('q', 'a')"), "revived|coalesced");
    let entry = queue.look_up("a").await.expect("looked up").expect("it is there");
    assert_eq!((entry.state, entry.failures), (State::Ready, 0));
    let item = queue.get_many(9).await.into_iter().find(|item| item.as_str() == Some("a"));
    item.expect("it is ready").park("no").await.expect("it is ours");
    assert_eq!(sql("select requeue.add('q', 'a', '1 hour')"), "revived");
    let entry = queue.look_up("a").await.expect("looked up").expect("it is there");
    assert_eq!(entry.state, State::Waiting);

    // A queue may keep parked keys.
    assert_eq!(sql("select holds, revives from requeue.open('keeps', revive => false)"), "f|f");
    assert_eq!(sql("select holds, revives from requeue.open('keeps')"), "f|f");
    let queue = store.queue("keeps").open().await.expect("it opens");
    assert_eq!(queue.parked_add(), ParkedAdd::Keep);
    let error = store.queue("keeps").parked_add(ParkedAdd::Revive).open().await;
    let error = error.expect_err("it keeps them").to_string();
    assert_eq!(error, "the queue \"keeps\": its parked adds are Keep, not Revive");
    queue.add("a").await.expect("added");
    queue.get().await.expect("it is open").park("no").await.expect("it is ours");
    assert_eq!(sql("select requeue.add('keeps', 'a')"), "parked");
    assert_eq!(sql("select requeue.add('keeps', 'a', revive => true)"), "revived");
}

#[tokio::test]
async fn what_sql_can_not_mean_is_refused() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    store(&url).await.queue("q").open().await.expect("it opens");
    let engine = Postgres::new(Address::parse(&url).expect("an address"), WHOLE).expect("plain");
    let cases = [
        ("requeue.add('r', 'a')", "there is no queue 'r'"),
        ("requeue.add(null, 'a')", "there is no queue NULL"),
        ("requeue.add('q', null::text)", "a key is null"),
        ("requeue.add('q', repeat('a', 2049))", "a key of 2049 bytes; 2048 are the most"),
        ("requeue.add_many('q', array['a', null])", "a key is null"),
        (
            "requeue.add('q', 'a', merge => 'x')",
            "merge is earliest, latest or exactly, and not 'x'",
        ),
        (
            "requeue.add('q', 'a', priority => null)",
            "priority is low, normal or high, and not NULL",
        ),
    ];
    for (call, said) in cases {
        let fault = engine.sessions.row(&format!("select {call}"), &[]).await.expect_err(call);
        assert_eq!(fault.kind, crate::error::Kind::Refused, "{call}");
        assert!(fault.source.to_string().starts_with(said), "{call}: {}", fault.source);
    }
}

#[tokio::test]
async fn a_trigger_feeds_a_queue() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("orders").open().await.expect("it opens");
    let sql = |sql: &str| server.psql(name(&url), sql);
    sql("create table orders (id integer primary key, what text)");
    sql(include_str!("../trigger.sql"));

    // Somebody waits before anything is there.
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    sql("begin; insert into orders values (1, 'tea'), (2, 'jam'); rollback");
    assert_eq!(queue.counts().await.expect("counted"), Counts::default());
    sql("insert into orders values (3, 'tea')");
    let item = getting.await.expect("it goes well").expect("it is open");
    assert_eq!(item.as_str(), Some("3"));
    sql("insert into orders select n, 'jam' from generate_series(4, 6) n");
    sql("update orders set what = 'bun' where id = 3");
    sql("delete from orders where id = 4");
    assert_eq!(ready(&queue).await, ["4", "5", "6"]);
    item.succeed().await.expect("it is ours");
    assert_eq!(ready(&queue).await, ["3", "4", "5", "6"]);
}

#[tokio::test]
async fn a_role_needs_no_more_than_this() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    store(&url).await;
    let sql = |sql: &str| server.psql(name(&url), sql);
    let roles = include_str!("../roles.sql");
    sql(roles);

    let worker = Store::connect(&server.url("worker", name(&url))).await.expect("it may come in");
    worker.migrate().await.expect("there is nothing to do");
    let queue = worker.queue("q").max_failures(1).open().await.expect("it opens");
    queue.add_all(["a", "b"]).await.expect("added");
    queue.get().await.expect("it is open").retry("no").await.expect("it is ours");
    assert!(queue.revive("a").await.expect("revived"));
    assert!(queue.cancel("a").await.expect("cancelled").ready);
    assert_eq!(queue.counts().await.expect("counted").ready, 1);
    queue.get().await.expect("it is open").succeed().await.expect("it is ours");

    let as_role = |role: &str, sql: &str| {
        let address = Address::parse(&server.url(role, name(&url))).expect("an address");
        let engine = Postgres::new(address, WHOLE).expect("it needs no certificates");
        let sql = sql.to_owned();
        async move { engine.sessions.rows(&sql, &[]).await.map(|rows| rows.len()) }
    };
    assert_eq!(as_role("producer", "select requeue.add('q', 'c')").await.expect("added"), 1);
    for (role, refused) in [
        ("worker", "delete from requeue.keys"),
        ("worker", "insert into requeue.queues (name, hold) values ('r', false)"),
        ("worker", "create table requeue.more ()"),
        ("worker", "drop schema requeue cascade"),
        ("worker", "select setval('requeue.epochs', 1)"),
        ("producer", "select * from requeue.keys"),
        ("producer", "select requeue.cancel(1, '{c}', null)"),
        ("producer", "select requeue.open('r')"),
    ] {
        let fault = as_role(role, refused).await.expect_err(refused);
        assert!(fault.source.to_string().contains("[42501]"), "{refused}: {}", fault.source);
    }
    sql("drop owned by worker, producer; drop role worker, producer");
}

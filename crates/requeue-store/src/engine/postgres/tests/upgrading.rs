//! Tests of upgrades of a schema that an earlier version has created.

use super::*;
use crate::tests::upgrade;
use crate::types::error::chain;

/// Schemas of earlier versions, from version 1 on.
const STORED: [&str; 2] = [
    include_str!("../../../tests/stored/postgres-1.sql"),
    include_str!("../../../tests/stored/postgres-2.sql"),
];

/// Creates a database with such a schema, and returns its address.
fn create(server: &Server, stored: &str) -> String {
    let url = server.database();
    server.psql(name(&url), stored);
    url
}

/// Creates a database with a schema of version 1, and returns its address.
fn stored(server: &Server) -> String {
    create(server, STORED[0])
}

fn version(server: &Server, url: &str) -> String {
    server.psql(name(url), "select version from requeue.version")
}

#[tokio::test]
async fn a_schema_of_an_earlier_version_is_upgraded_when_it_is_opened() {
    let Some(server) = Server::shared() else { return };
    for stored in STORED {
        let url = create(server, stored);
        upgrade::open(&url).await;
        assert_eq!(version(server, &url), "3");
        upgrade::check_upgraded(&at(&url, Duration::ZERO)).await;
    }
}

/// The functions and tables are the same whether the schema was upgraded or created.
#[tokio::test]
async fn an_upgraded_schema_equals_a_new_one() {
    let Some(server) = Server::shared() else { return };
    let (_, new) = engine(server, Duration::ZERO).await;
    let upgraded = STORED.map(|stored| create(server, stored));
    for url in &upgraded {
        at(url, Duration::ZERO).migrate().await.expect("the schema is upgraded");
    }
    let functions = "select p.oid::regprocedure::text, pg_get_function_result(p.oid), \
                     pg_get_functiondef(p.oid), p.proacl \
                     from pg_proc p where p.pronamespace = 'requeue'::regnamespace order by 1";
    let columns = "select table_name, column_name, data_type, is_nullable, column_default \
                   from information_schema.columns where table_schema = 'requeue' order by 1, 2";
    let constraints = "select conname, replace(pg_get_constraintdef(oid), ' NOT VALID', '') \
                       from pg_constraint where connamespace = 'requeue'::regnamespace order by 1";
    let types =
        "select typname from pg_type where typnamespace = 'requeue'::regnamespace order by 1";
    for sql in [functions, columns, constraints, types] {
        let new = server.psql(name(&new), sql);
        for url in &upgraded {
            let upgraded = server.psql(name(url), sql);
            assert!(new == upgraded, "{sql}\n{upgraded}\ninstead of\n{new}");
        }
    }
}

#[tokio::test]
async fn two_openers_upgrade_a_schema_once() {
    let Some(server) = Server::shared() else { return };
    let url = stored(server);
    let (one, other) = (at(&url, Duration::ZERO), at(&url, Duration::ZERO));
    // A second upgrade would fail: its columns would exist.
    let (first, second) = tokio::join!(one.find("mail"), other.find("mail"));
    first.expect("answered").expect("the queue exists");
    second.expect("answered").expect("the queue exists");
    upgrade::check_upgraded(&other).await;
}

/// Kills the upgrade at its last statement, which waits for a lock.
#[tokio::test]
async fn an_upgrade_that_is_killed_halfway_leaves_a_usable_schema() {
    let Some(server) = Server::shared() else { return };
    let url = stored(server);
    let engine = at(&url, Duration::ZERO);
    let session = engine.sessions.session().await.expect("the server is reachable");
    sessions::run(session.client(), "begin; lock table requeue.version in share mode")
        .await
        .expect("locked");
    let upgrading = tokio::spawn({
        let url = url.clone();
        async move { at(&url, Duration::ZERO).migrate().await }
    });
    let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'relation'";
    while server.psql(name(&url), kill) == "0" {
        tokio::task::yield_now().await;
    }
    let killed = upgrading.await.expect("the task completes");
    assert!(!killed.expect_err("the session was killed").kind.is_final());
    assert_eq!(version(server, &url), "1");
    // An old process works as before.
    let added = server.psql(name(&url), "select requeue.add('tasks', 'another')");
    assert_eq!(added, "new");
    server.psql(name(&url), "delete from requeue.keys where key = 'another'");
    sessions::run(session.client(), "rollback").await.expect("rolled back");
    session.end();
    upgrade::check_upgraded(&engine).await;
}

/// The statements of version 1, as a worker of that version has prepared them.
const OLD: [&str; 5] = [
    "select requeue.add_all_soon($1, $2, $3, $4, $5, $6, $7)",
    "select key, epoch, priority, adds, reasons, failures, queued, lows, snapshot, damage \
     from requeue.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    "select renewed, busy, rest from requeue.renew($1, $2, $3, $4)",
    "select requeue.finish_soon($1, $2, row($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
     $14)::requeue.ends)",
    "select locked, cancelled, took from requeue.cancel($1, $2, $3)",
];

#[tokio::test]
async fn a_connected_worker_of_an_earlier_version_keeps_working() {
    let Some(server) = Server::shared() else { return };
    for (role, stored) in ["old_worker_1", "old_worker_2"].into_iter().zip(STORED) {
        check_old_worker(server, &create(server, stored), role).await;
    }
}

async fn check_old_worker(server: &Server, url: &str, role: &str) {
    // It runs as a role with grants on the functions of version 1.
    server.psql(
        name(url),
        &format!(
            "create role {role} login; grant usage on schema requeue to {role}; \
             grant select on all tables in schema requeue to {role}; \
             grant execute on all functions in schema requeue to {role}"
        ),
    );
    let old = at(&server.url(role, name(url)), Duration::ZERO);
    let session = old.sessions.session().await.expect("the server is reachable");
    let client = session.client();
    let (hows, none) = (vec![0i16], Vec::<i64>::new());
    for round in ["before", "after"] {
        if round == "after" {
            at(url, Duration::ZERO).migrate().await.expect("the schema is upgraded");
            assert_eq!(version(server, url), "3");
        }
        // Prepared statements of the first round are used again.
        let mut statements = Vec::new();
        for sql in OLD {
            statements.push(client.prepare_cached(sql).await.expect(sql));
        }
        let key = vec![format!("of-{round}").into_bytes()];
        let row = client
            .query_one(
                &statements[0],
                &[&2, &key, &vec![0i64], &hows, &vec![0i16], &vec![0], &vec![1]],
            )
            .await
            .expect("added");
        assert_eq!(row.get::<_, Vec<i16>>(0), [0]);
        let lows = vec![i64::MIN; 4];
        let (hour, share) = (3_600_000_000_i64, 1.0f64);
        let claim = async || {
            client
                .query(
                    &statements[1],
                    &[
                        &2,
                        &false,
                        &10,
                        &0,
                        &hour,
                        &1i64,
                        &1i64,
                        &share,
                        &None::<i32>,
                        &lows,
                        &false,
                        &"old",
                    ],
                )
                .await
                .expect("claimed")
        };
        if round == "after" {
            let new = at(url, Duration::ZERO);
            let place = new.find("tasks").await.expect("answered").expect("the queue exists");
            assert_eq!(place.id, 2);
            new.set_paused(&place, true).await.expect("paused");
            // The last row is not a key.
            let rows = claim().await;
            let keys: Vec<Option<Vec<u8>>> = rows.iter().map(|row| row.get(0)).collect();
            assert_eq!(keys, [None], "a pause applies to old workers");
            new.set_paused(&place, false).await.expect("resumed");
        }
        let rows = claim().await;
        let epochs: Vec<i64> = rows.iter().filter_map(|row| row.get(1)).collect();
        let keys: Vec<Vec<u8>> = rows
            .iter()
            .filter(|row| row.get::<_, Option<i64>>(1).is_some())
            .map(|row| row.get(0))
            .collect();
        assert!(keys.contains(&key[0]), "{keys:?}");
        let row =
            client.query_one(&statements[2], &[&2, &keys, &epochs, &hour]).await.expect("renewed");
        assert_eq!(row.get::<_, Vec<i32>>(0).len(), keys.len());
        let hows = vec![0i16; keys.len()];
        let (small, text) = (Vec::<i16>::new(), Vec::<String>::new());
        let (int, shares) = (Vec::<i32>::new(), Vec::<f64>::new());
        let row = client
            .query_one(
                &statements[3],
                &[
                    &2, &false, &keys, &epochs, &hows, &none, &small, &int, &int, &text, &none,
                    &none, &shares, &int,
                ],
            )
            .await
            .expect("finished");
        assert_eq!(row.get::<_, Vec<i32>>(0).len(), keys.len());
        let row =
            client.query_one(&statements[4], &[&2, &keys, &None::<i32>]).await.expect("cancelled");
        assert_eq!(row.get::<_, Vec<i32>>(1), [0; 0]);
    }
    session.end();
}

#[tokio::test]
async fn a_role_that_may_not_upgrade_is_told_who_may() {
    let Some(server) = Server::shared() else { return };
    let url = stored(server);
    server.psql(
        name(&url),
        "create role reader login; grant usage on schema requeue to reader; \
         grant select on all tables in schema requeue to reader",
    );
    let error = at(&server.url("reader", name(&url)), Duration::ZERO).find("mail").await;
    let said = error.expect_err("the schema is older").source.to_string();
    let expected = "the schema has version 1, and this program needs 3; to upgrade it, \
                    run `requeue store init`, or call `Store::migrate`, as the role that owns";
    assert!(said.contains(expected), "{said}");
    assert_eq!(version(server, &url), "1");
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused_with_both_versions() {
    let Some(server) = Server::shared() else { return };
    let url = stored(server);
    server.psql(name(&url), "update requeue.version set version = 4");
    let store = crate::Store::connect(&url).await.expect("the store connects");
    let opened = store.queue("mail").open().await.map(drop);
    for said in [
        chain(&opened.expect_err("the version is newer")),
        chain(&store.migrate().await.expect_err("the version is newer")),
    ] {
        let expected = "the schema has version 4, and this program needs 3; update requeue";
        assert!(said.contains(expected), "{said}");
    }
}

/// An open transaction with adds delays an upgrade, and then the upgrade takes place.
#[tokio::test]
async fn an_upgrade_waits_for_open_transactions() {
    let Some(server) = Server::shared() else { return };
    let url = stored(server);
    let other = at(&url, Duration::ZERO);
    let session = other.sessions.session().await.expect("the server is reachable");
    sessions::run(session.client(), "begin; select requeue.add('tasks', 'new')")
        .await
        .expect("added");
    let upgrading = tokio::spawn({
        let url = url.clone();
        async move { at(&url, Duration::ZERO).migrate().await }
    });
    let waits = "select count(*) from pg_stat_activity \
                 where datname = current_database() and wait_event_type = 'Lock'";
    while server.psql(name(&url), waits) == "0" {
        tokio::task::yield_now().await;
    }
    sessions::run(session.client(), "commit").await.expect("committed");
    session.end();
    upgrading.await.expect("the task completes").expect("the schema is upgraded");
    assert_eq!(version(server, &url), "3");
}

/// Functions run with the rights of their owner: an upgrade by a superuser must not make them its own.
#[tokio::test]
async fn an_upgrade_keeps_the_owner() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let database = name(&url);
    let sql = format!(
        "create role keeper; grant create on database {database} to keeper; set role keeper; {}",
        STORED[0]
    );
    server.psql(database, &sql);
    at(&url, Duration::ZERO).migrate().await.expect("the schema is upgraded");
    assert_eq!(version(server, &url), "3");
    let of_others = "select string_agg(name, ', ') from ( \
         select oid::regprocedure::text as name, proowner as owner from pg_proc \
         where pronamespace = 'requeue'::regnamespace \
         union all \
         select oid::regclass::text, relowner from pg_class \
         where relnamespace = 'requeue'::regnamespace) x \
         where owner <> 'keeper'::regrole";
    assert_eq!(server.psql(database, of_others), "");
}

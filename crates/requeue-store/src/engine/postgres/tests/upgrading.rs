//! Tests upgrades of a schema from version 1.

use super::roles::{ROLES, with_roles};
use super::schema::{STEPS, TABLES, VERSION};
use super::*;
use crate::tests::damage::claim;
use crate::tests::upgrade;
use crate::types::error::{Answer, chain};

/// Functions whose parameters differ from this version, and keys in several states. One function depends on another.
const REST: &str = r"
    create function requeue.add(text, bytea) returns integer language sql return 0;
    create function requeue.add(text, text) returns integer language sql return requeue.add($1, $2::bytea);
    create function requeue.cancel(text, text) returns integer language sql return 0;
    create function requeue.renew(integer) returns integer language sql return 1;
    revoke execute on function requeue.renew from public;
    insert into requeue.version values (1);
    select setval('requeue.epochs', 7);
    insert into requeue.queues (name, hold, revive) values ('mail', true, false);
    insert into requeue.keys (queue, state, priority, at, since, adds, flags, said, key)
    select 1, 0, 0, at, 1, 1, 0, 8, key from (values (1, 'ready'::bytea), (8e15, 'waiting')) k (at, key);
    insert into requeue.keys (queue, state, priority, since, adds, flags, said, key, error)
    values (1, 2, 0, 1, 1, 0, 8, 'parked', 'no');
    insert into requeue.keys (queue, state, priority, since, adds, flags, said, key, epoch, lease_until, run_since,
        run_adds, run_flags, run_priority)
    values (1, 1, 0, 1, 0, 0, 8, 'in-flight', 7, 8e15, 1, 1, 0, 0)";

/// Creates a database with a schema of version 1 that has keys. Returns the address of the database.
async fn older_schema(server: &Server) -> String {
    let url = server.database();
    create_older(&url).await;
    url
}

async fn create_older(url: &str) {
    run(&at(url, Duration::ZERO), &format!("{TABLES};{REST}")).await;
}

async fn run(engine: &Postgres, sql: &str) {
    let session = engine.sessions.open_session().await.expect("the server is reachable");
    sessions::run_batch(session.client(), sql).await.expect(sql);
    session.put_back();
}

/// Upgrades the schema, as the opening of a queue does.
async fn open(url: &str) -> Answer<()> {
    schema::check_version(&at(url, Duration::ZERO).sessions, STEPS).await
}

/// Returns a text with the version of the schema, its functions with their privileges, its columns, and its
/// constraints.
fn contents(server: &Server, url: &str) -> String {
    let sql = "select version::text from requeue.version \
         union all \
         select p.oid::regprocedure || pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '') \
         from pg_proc p where p.pronamespace = 'requeue'::regnamespace \
         union all \
         select concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default) \
         from information_schema.columns where table_schema = 'requeue' \
         union all \
         select conname || pg_get_constraintdef(oid) \
         from pg_constraint where connamespace = 'requeue'::regnamespace \
         union all \
         select indexdef from pg_indexes where schemaname = 'requeue' \
         order by 1";
    server.psql(name(url), sql)
}

#[tokio::test]
async fn a_schema_of_an_older_version_is_upgraded_when_a_queue_is_opened() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    open(&url).await.expect("the schema is upgraded");
    let (engine, new) = engine(server, Duration::ZERO).await;
    let (upgraded, created) = (contents(server, &url), contents(server, &new));
    assert!(upgraded == created, "{upgraded}\ninstead of\n{created}");
    drop(engine);
    upgrade::check(&at(&url, Duration::ZERO)).await;
}

#[tokio::test]
async fn a_failed_upgrade_leaves_the_schema_as_it_was() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    let before = contents(server, &url);
    let step =
        "alter table requeue.queues add column other boolean; select missing from requeue.keys";
    let failed = schema::check_version(&at(&url, Duration::ZERO).sessions, &[step]).await;
    let said = failed.expect_err("the step fails").source.to_string();
    assert!(said.contains("missing"), "{said}");
    assert_eq!(contents(server, &url), before);
    open(&url).await.expect("the schema is upgraded");
    upgrade::check(&at(&url, Duration::ZERO)).await;
}

/// If an object of the user depends on an old function, the function cannot be removed, and calls with the old
/// parameters would use it.
#[tokio::test]
async fn an_upgrade_names_the_objects_that_need_a_function() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    server.psql(
        name(&url),
        "create view answers as select requeue.add('mail', 'a'::text) as answer; \
         create table jobs (id text, answer integer default requeue.cancel('mail', 'a'))",
    );
    let before = contents(server, &url);
    let said = open(&url).await.expect_err("two objects need functions").source.to_string();
    for expected in [
        "view answers depends on function requeue.add(text,text)",
        "column answer of table jobs depends on function requeue.cancel(text,text)",
        "(Drop these objects, upgrade the schema",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(contents(server, &url), before);
    server.psql(name(&url), "drop view answers; drop table jobs");
    open(&url).await.expect("the schema is upgraded");
}

#[tokio::test]
async fn two_openers_upgrade_a_schema_once() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    // If both upgrades ran, the second one would fail, because its columns would already exist.
    let (first, second) = tokio::join!(open(&url), open(&url));
    first.expect("the schema is upgraded");
    second.expect("the schema is upgraded");
    upgrade::check(&at(&url, Duration::ZERO)).await;
}

/// An open transaction with adds delays an upgrade. When it has ended, the upgrade takes place.
#[tokio::test]
async fn an_upgrade_waits_for_open_transactions() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    let other = at(&url, Duration::ZERO);
    let session = other.sessions.open_session().await.expect("the server is reachable");
    sessions::run_batch(session.client(), "begin; lock table requeue.keys in row exclusive mode")
        .await
        .expect("locked");
    let upgrading = tokio::spawn({
        let url = url.clone();
        async move { open(&url).await }
    });
    let waits = "select count(*) from pg_stat_activity \
                 where datname = current_database() and wait_event_type = 'Lock'";
    while server.psql(name(&url), waits) == "0" {
        tokio::task::yield_now().await;
    }
    sessions::run_batch(session.client(), "commit").await.expect("committed");
    session.put_back();
    upgrading.await.expect("the task completes").expect("the schema is upgraded");
}

/// Functions run with the rights of their owner. Therefore, an upgrade by a superuser must not change the owner. A role
/// keeps its grants, even on a function that the upgrade drops and creates again.
#[tokio::test]
async fn an_upgrade_keeps_the_owner_and_the_grants() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let database = name(&url);
    let roles = "create role keeper login; create role granted";
    server.psql(database, &format!("{roles}; grant create on database {database} to keeper"));
    create_older(&server.url("keeper", database)).await;
    let grant = "grant execute on function requeue.renew, requeue.cancel to granted";
    server.psql(database, grant);
    open(&url).await.expect("the schema is upgraded");
    let others = "select count(*) from pg_proc where pronamespace = 'requeue'::regnamespace \
         and proowner <> 'keeper'::regrole";
    assert_eq!(server.psql(database, others), "0");
    let granted = "select string_agg(p.proname, ' ' order by p.proname) \
         from pg_proc p, aclexplode(p.proacl) a \
         where p.pronamespace = 'requeue'::regnamespace and a.grantee = 'granted'::regrole";
    assert_eq!(server.psql(database, granted), "cancel renew");
}

/// Claims also read tables that version 1 does not have.
#[tokio::test]
async fn a_worker_of_version_1_claims_after_an_upgrade() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    for function in ["claim", "drop_queue", "find", "now", "passed_over"] {
        let sql = format!("create function requeue.{function}() returns int language sql return 0");
        server.psql(name(&url), &sql);
    }
    let (worker, _) = ROLES.split_once("\n\n").expect("the worker comes first");
    // This role has no right to read the keys.
    let producer = "create role producer; grant select on requeue.version to producer";
    with_roles(server, &url, &format!("{worker}; {producer}"), async || {
        open(&url).await.expect("the schema is upgraded");
        let engine = at(&server.url("worker", name(&url)), Duration::ZERO);
        let place = engine.find_queue("mail").await.expect("answered").expect("the queue exists");
        let claimed = engine.claim_keys(&place, claim(9, Duration::from_secs(3600))).await;
        assert_eq!(claimed.expect("claimed").items.len(), 1);
        for (role, expected) in [("worker", "0"), ("producer", "9")] {
            let sql = format!(
                "select count(*) from pg_class where relnamespace = 'requeue'::regnamespace \
                 and relkind = 'r' and not has_table_privilege('{role}', oid, 'select')"
            );
            assert_eq!(server.psql(name(&url), &sql), expected, "{role}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_role_that_may_not_upgrade_is_told_who_may() {
    let Some(server) = Server::shared() else { return };
    let url = older_schema(server).await;
    server.psql(
        name(&url),
        "create role reader login; grant usage on schema requeue to reader; \
         grant select on all tables in schema requeue to reader",
    );
    let before = contents(server, &url);
    let error = open(&server.url("reader", name(&url))).await;
    let said = error.expect_err("the schema is older").source.to_string();
    let expected = format!(
        "the schema has version 1, and this program needs {VERSION}; to upgrade it, \
         run `requeue store init`, or call `Store::migrate`, as the role that owns"
    );
    assert!(said.contains(&expected), "{said}");
    assert_eq!(contents(server, &url), before);
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused_with_both_versions() {
    let Some(server) = Server::shared() else { return };
    let (_, url) = engine(server, Duration::ZERO).await;
    server.psql(name(&url), "update requeue.version set version = version + 1");
    let store = crate::Store::connect(&url).await.expect("the store connects");
    let opened = store.queue("mail").open().await.map(drop);
    for said in [
        chain(&opened.expect_err("the version is newer")),
        chain(&store.migrate().await.expect_err("the version is newer")),
    ] {
        let newer = VERSION + 1;
        let versions = format!("the schema has version {newer}, and this program needs {VERSION}");
        assert!(said.contains(&format!("{versions}; update requeue")), "{said}");
    }
}

//! Tests upgrades of a file from version 1.

use rusqlite::Connection;

use super::schema::{OURS, STEPS, Steps, TABLES, VERSION};
use super::*;
use crate::tests::upgrade;

/// Keys in several states.
const KEYS: &str = "
    update epochs set last = 7;
    insert into queues (name, readd_policy, parked_add) values ('mail', 1, 1);
    insert into keys (queue, key, state, at, priority, adds, flags, failures, steps, until, not_before, since, error,
        epoch, lease_until, run_since, run_priority, run_adds, run_flags)
    values (1, cast('ready' as blob), 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, null, null, null, null, null, null, null),
        (1, cast('waiting' as blob), 0, 8e15, 0, 1, 0, 0, 0, 0, 0, 1, null, null, null, null, null, null, null),
        (1, cast('parked' as blob), 2, null, 0, 1, 0, 0, 0, 0, 0, 1, 'no', null, null, null, null, null, null),
        (1, cast('in-flight' as blob), 1, null, 0, 0, 0, 0, 0, 0, 0, 1, null, 7, 8e15, 1, 0, 1, 0)";

/// Creates a file of version 1 that has keys. Returns its path.
fn older_schema(dir: &TempDir) -> std::path::PathBuf {
    let path = at(dir);
    let raw = Connection::open(&path).expect("the file opens");
    raw.pragma_update(None, "journal_mode", "wal").expect("the mode is changed");
    raw.execute_batch(TABLES).expect("the tables are created");
    raw.execute_batch(KEYS).expect("the keys are added");
    raw.pragma_update(None, "application_id", OURS).expect("the file is marked");
    raw.pragma_update(None, "user_version", 1).expect("the version is written");
    path
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Synchronous::Normal).expect("the file opens")
}

/// Returns the version of the file, and its tables.
fn schema(path: &Path) -> (i32, String) {
    let raw = Connection::open(path).expect("the file opens");
    let version = raw.pragma_query_value(None, "user_version", |row| row.get(0));
    let tables = "select group_concat(sql, ';') from sqlite_schema";
    let tables = raw.query_row(tables, [], |row| row.get(0));
    (version.expect("the version is read"), tables.expect("the tables are read"))
}

#[tokio::test]
async fn a_file_of_an_older_version_is_upgraded_when_a_queue_is_opened() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = older_schema(&dir);
    let engine = open(&path);
    engine.thread.check(STEPS).await.expect("the file is upgraded");
    assert_eq!(schema(&path).0, VERSION);
    upgrade::check(&engine).await;
}

#[tokio::test]
async fn a_failed_upgrade_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = older_schema(&dir);
    let before = schema(&path);
    let cases: [(Steps, &str); 2] = [
        (&["alter table queues add column other text; update queues set missing = 1"], "missing"),
        // All statements succeed, but the resulting tables are not those of this version.
        (&["alter table queues add column other text"], "needs the column queues.group_by"),
    ];
    for (steps, expected) in cases {
        let engine = open(&path);
        for failed in [engine.thread.check(steps).await, engine.thread.migrate(steps).await] {
            let said = failed.expect_err("the step fails").source.to_string();
            assert!(
                said.contains(expected) && said.starts_with(path.to_str().unwrap_or("?")),
                "{said}"
            );
            assert_eq!(schema(&path), before);
        }
    }
    let engine = open(&path);
    engine.thread.migrate(STEPS).await.expect("the file is upgraded");
    upgrade::check(&engine).await;
}

#[tokio::test]
async fn two_openers_upgrade_a_file_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = older_schema(&dir);
    let (one, other) = (open(&path), open(&path));
    // If both upgrades ran, the second one would fail, because its columns would already exist.
    let (first, second) = tokio::join!(one.thread.check(STEPS), other.thread.check(STEPS));
    first.expect("the file is upgraded");
    second.expect("the file is upgraded");
    upgrade::check(&other).await;
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_with_both_versions() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = at(&dir);
    drop(store(&path).await);
    let raw = Connection::open(&path).expect("the file opens");
    raw.pragma_update(None, "user_version", VERSION + 1).expect("the version is written");
    let before = schema(&path);
    let engine = open(&path);
    for refused in [engine.find_queue("mail").await.map(drop), engine.migrate_schema().await] {
        let said = refused.expect_err("the version is newer").source.to_string();
        let (newer, expected) = (VERSION + 1, "update requeue");
        let versions = format!("the schema has version {newer}, and this program needs {VERSION}");
        assert!(said.contains(&versions) && said.contains(expected), "{said}");
    }
    assert_eq!(schema(&path), before);
}

/// The version of a file implies its columns, but another program may have changed the tables.
#[tokio::test]
async fn a_file_without_a_column_of_its_version_is_refused_with_the_column() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = at(&dir);
    drop(store(&path).await);
    Connection::open(&path)
        .and_then(|raw| raw.execute_batch("alter table queues rename column paused to stopped"))
        .expect("the column is renamed");
    let engine = open(&path);
    for refused in [engine.find_queue("mail").await.map(drop), engine.migrate_schema().await] {
        let said = refused.expect_err("a column is missing").source.to_string();
        assert!(said.contains("needs the column queues.paused, which is missing"), "{said}");
    }
}

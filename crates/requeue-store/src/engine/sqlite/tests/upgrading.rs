//! Tests of upgrades of a file that an earlier version has made.

use rusqlite::{Connection, params};

use super::*;
use crate::tests::upgrade;

/// The files of earlier versions, from version 1 on.
const STORED: [&str; 2] = [
    include_str!("../../../tests/stored/sqlite-1.sql"),
    include_str!("../../../tests/stored/sqlite-2.sql"),
];

fn create(dir: &TempDir, stored: &str) -> std::path::PathBuf {
    let path = at(dir);
    Connection::open(&path).and_then(|raw| raw.execute_batch(stored)).expect("the file is created");
    path
}

/// Creates the file of version 1.
fn stored(dir: &TempDir) -> std::path::PathBuf {
    create(dir, STORED[0])
}

fn version(raw: &Connection) -> i32 {
    raw.pragma_query_value(None, "user_version", |row| row.get(0)).expect("the version is read")
}

#[tokio::test]
async fn a_file_of_an_earlier_version_is_upgraded_when_it_is_opened() {
    for stored in STORED {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = create(&dir, stored);
        upgrade::open(&format!("sqlite:{}", path.display())).await;
        assert_eq!(version(&Connection::open(&path).expect("the file opens")), 3);
        let engine = Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
        upgrade::check_upgraded(&engine).await;
    }
}

#[tokio::test]
async fn two_openers_upgrade_a_file_once() {
    for stored in STORED {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = create(&dir, stored);
        let open = || Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
        let (one, other) = (open(), open());
        // A second upgrade would fail: its columns would exist.
        let (first, second) = tokio::join!(one.find("mail"), other.find("mail"));
        first.expect("answered").expect("the queue exists");
        second.expect("answered").expect("the queue exists");
        upgrade::check_upgraded(&other).await;
    }
}

/// A process that is killed leaves the files as they are at that moment.
#[tokio::test]
async fn an_upgrade_that_is_killed_halfway_leaves_a_usable_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = stored(&dir);
    let raw = Connection::open(&path).expect("the file opens");
    raw.execute_batch(
        "pragma journal_mode = wal; pragma cache_size = 1; begin immediate;
         alter table keys add column bound integer;
         update keys set bound = 1;",
    )
    .expect("the upgrade begins");
    let left = tempfile::tempdir().expect("a temporary directory");
    for suffix in ["", "-wal"] {
        let name = |dir: &TempDir| format!("{}{suffix}", at(dir).display());
        std::fs::copy(name(&dir), name(&left)).expect("the file is copied");
    }
    drop(raw);
    let engine = Sqlite::open(&at(&left), Synchronous::Normal).expect("the file opens");
    upgrade::check_upgraded(&engine).await;
}

/// A process of version 1 runs its prepared statements on the upgraded file.
#[tokio::test]
async fn a_process_of_the_previous_version_keeps_working() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = stored(&dir);
    let old = Connection::open(&path).expect("the file opens");
    let columns = "state, at, epoch, lease_until, run_since, run_priority, run_adds, run_reasons, \
         priority, adds, reasons, failures, steps, until, not_before, since, error, worker, key";
    let mut read = old
        .prepare(&format!("select {columns} from keys where queue = ?1 and key = ?2"))
        .expect("the statement is prepared");
    let mut write = old
        .prepare(&format!(
            "insert or replace into keys ({columns}, queue) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
             ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
        ))
        .expect("the statement is prepared");
    let engine = Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
    let place = engine.find("mail").await.expect("answered").expect("the queue exists");

    // It releases the key in flight.
    let key = b"in-flight".as_slice();
    let since: i64 =
        read.query_row(params![place.id, key], |row| row.get(15)).expect("the row is read");
    let (none, zero) = (None::<i64>, 0);
    write
        .execute(params![
            0,
            since,
            none,
            none,
            none,
            none,
            none,
            none,
            zero,
            1,
            zero,
            zero,
            zero,
            zero,
            zero,
            since,
            None::<&str>,
            None::<&str>,
            key,
            place.id
        ])
        .expect("the row is written");
    let entry = engine.look_up(&place, &key.into()).await.expect("answered");
    assert_eq!(entry.expect("the key has a state").state, crate::State::Ready);
}

/// A process of version 1 writes whole rows, without the columns that it does not know.
#[tokio::test]
async fn a_write_of_a_process_of_version_1_erases_the_cancellation_of_a_run() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = stored(&dir);
    let engine = Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
    let place = engine.find("mail").await.expect("answered").expect("the queue exists");
    let key = crate::Key::from("in-flight");
    let cancelled = engine.cancel_running(&place, &key).await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    let reason = async || {
        engine.look_up(&place, &key).await.expect("answered").expect("in flight").cancelled
    };
    assert_eq!(reason().await, Some(requeue::CancelReason::Cancelled));
    let columns = "state, at, epoch, lease_until, run_since, run_priority, run_adds, run_reasons, \
         priority, adds, reasons, failures, steps, until, not_before, since, error, worker, key, queue";
    let sql = format!(
        "insert or replace into keys ({columns}) select {columns} from keys where key = x'{}'",
        key.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    );
    let old = Connection::open(&path).expect("the file opens");
    assert_eq!(old.execute(&sql, []).expect("the row is written"), 1);
    assert_eq!(reason().await, None, "see docs/stores/upgrades.md");
}

/// A process of version 2 knows no pauses: see docs/stores/upgrades.md.
#[tokio::test]
async fn a_process_of_version_2_ignores_a_pause_and_does_not_end_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = create(&dir, STORED[1]);
    let old = Connection::open(&path).expect("the file opens");
    let sql =
        "insert into queues (name, re_add, parked_add) values (?1, 1, 0) on conflict do nothing";
    let mut open = old.prepare(sql).expect("the statement is prepared");
    let columns = "state, epoch, lease_until, run_since, run_priority, run_adds, run_reasons, priority, \
         adds, reasons, failures, steps, until, not_before, since, worker, key, queue";
    let mut deliver = old
        .prepare(&format!(
            "insert or replace into keys ({columns}) select 1, ?2, ?2 + 1000000, since, priority, adds, \
             reasons, 0, 0, 0, failures, steps, until, not_before, since, 'old', key, queue \
             from keys where key = ?1 and state = 0"
        ))
        .expect("the statement is prepared");
    let engine = Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
    let place = engine.find("mail").await.expect("answered").expect("the queue exists");
    engine.set_paused(&place, true).await.expect("paused");
    let claim = async || {
        let all = crate::tests::damage::claim(10, Duration::from_secs(3600));
        engine.claim(&place, all).await.expect("claimed").items.len()
    };
    assert_eq!(claim().await, 0);

    let epoch = 5_000_000_000_000_000_i64;
    let key = b"ready".as_slice();
    assert_eq!(deliver.execute(params![key, epoch]).expect("the row is written"), 1);
    let entry = engine.look_up(&place, &key.into()).await.expect("answered");
    assert_eq!(entry.expect("the key has a state").state, crate::State::Processing);
    for (queue, is_new) in [("mail", 0), ("later", 1)] {
        assert_eq!(open.execute([queue]).expect("the row is written"), is_new, "{queue}");
    }
    assert!(engine.is_paused(&place).await.expect("answered"));
    let later = engine.find("later").await.expect("answered").expect("the queue exists");
    assert!(!engine.is_paused(&later).await.expect("answered"));
    engine.set_paused(&place, false).await.expect("resumed");
    assert_eq!(claim().await, 1, "the other key that is ready");
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_with_both_versions() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = stored(&dir);
    let raw = Connection::open(&path).expect("the file opens");
    raw.pragma_update(None, "user_version", 4).expect("the version is written");
    let engine = Sqlite::open(&path, Synchronous::Normal).expect("the file opens");
    for refused in [engine.find("mail").await.map(drop), engine.migrate().await] {
        let said = refused.expect_err("the version is newer").source.to_string();
        let expected = "the schema has version 4, and this program needs 3; update requeue";
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(version(&raw), 4);
}

//! Tests that the constraints of the file refuse each row that requeue cannot read.

use fastrand::Rng;
use rusqlite::{Connection, params_from_iter};

use super::super::rows::{COLUMNS, keep_row, load_row};
use super::*;
use crate::engine::columns::{ColumnType, Columns};
use crate::tests::damage::number;

/// Returns the names of all columns that contain numbers.
fn names() -> impl Iterator<Item = &'static str> {
    let numbers = Columns::ALL.iter().filter(|column| column.column_type == ColumnType::Number);
    numbers.map(|column| column.name)
}

/// Returns true if requeue can read a row with these numbers. They are in the order of the columns.
fn is_readable(numbers: &[Option<i64>]) -> bool {
    let row: std::collections::HashMap<&str, Option<i64>> =
        names().zip(numbers.iter().copied()).collect();
    let state = row["state"];
    let is_valid = |(name, value): (&&str, &Option<i64>)| {
        let is_of_run = Columns::RUN.contains(name);
        let may_be_null = match *name {
            "at" => state != Some(0),
            "bound" | "failed_at" | "cancel_epoch" => true,
            _ => is_of_run && state != Some(1),
        };
        value.map_or(may_be_null, |value| match *name {
            "state" => (0..=2).contains(&value),
            "at" => value >= 0 && state != Some(2),
            "epoch" => value > 0 && state == Some(1),
            "cancel_epoch" => value > 0,
            name if name.ends_with("priority") => (-1..=1).contains(&value),
            "until" | "not_before" | "since" | "run_since" | "lease_until" | "bound"
            | "failed_at" => value >= 0,
            _ => (0..1 << 32).contains(&value),
        })
    };
    row.iter().all(is_valid)
}

#[test]
fn a_row_is_refused_unless_requeue_can_read_it() {
    let raw = Connection::open_in_memory().expect("the database opens");
    super::super::schema::migrate(&raw, &[]).expect("the schema is created");
    let columns: Vec<_> = names().collect();
    let values = vec!["?"; columns.len()].join(", ");
    let insert = format!(
        "insert into keys (queue, key, {}) values (1, x'61', {values})",
        columns.join(", ")
    );
    let (mut rng, mut accepted, mut refused) = (Rng::with_seed(5), 0, 0);
    for n in 0..20_000 {
        let state = rng.i64(0..3);
        let valid = |column: &&str| match (*column, state) {
            ("state", _) => Some(state),
            ("bound" | "failed_at" | "cancel_epoch", _) | ("at", 2) => None,
            (column, 0 | 2) if Columns::RUN.contains(&column) => None,
            _ => Some(1),
        };
        let mut row: Vec<Option<i64>> = columns.iter().map(valid).collect();
        // Up to two values of each row may be invalid.
        for _ in 0..rng.usize(..3) {
            let column = rng.usize(..row.len());
            row[column] = match rng.u8(..4) {
                0 => None,
                1 => Some(number(&mut rng)),
                _ => Some(rng.i64(-2..3)),
            };
        }
        raw.execute("delete from keys", []).expect("the table is emptied");
        let is_accepted = raw.execute(&insert, params_from_iter(&row)).is_ok();
        assert_eq!(is_accepted, is_readable(&row), "{n}: {columns:?}: {row:?}");
        if is_accepted {
            accepted += 1;
            let key = Key::from("a");
            let found = load_row(&raw, 1, &key).expect("the row is read");
            keep_row(&raw, 1, &key, found.as_ref(), 0).expect("the row is written");
            assert_eq!(load_row(&raw, 1, &key).expect("the row is read"), found, "{n}: {row:?}");
        } else {
            refused += 1;
        }
    }
    assert!(accepted > 5_000 && refused > 5_000, "{accepted} accepted, {refused} refused");
}

#[tokio::test]
async fn a_file_takes_no_malformed_row() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all(["bad", "b"]).await.expect("added");
    let raw = Connection::open(at(&dir)).expect("the file opens");
    for change in [
        "failures = -1",
        "adds = 4294967296",
        "state = 7",
        "state = 1",
        "at = null",
        "at = -1",
        "at = 0.5",
        "priority = 2",
        "since = 'text'",
        "since = x'00'",
        "since = null",
        "epoch = 5",
        "bound = -1",
        "failed_at = -1",
        "cancel_epoch = 0",
        "queue = 'text'",
        "key = 'text'",
        "key = zeroblob(2049)",
        "worker = char(10)",
        "worker = char(155)",
        "worker = 'a' || char(0)",
        "worker = hex(zeroblob(51))",
    ] {
        let refused = raw.execute(&format!("update keys set {change} where key = x'62'"), []);
        refused.expect_err(change);
    }
    for change in ["key = zeroblob(2048)", "worker = 'größe:7'", "worker = hex(zeroblob(50))"] {
        let accepted = raw.execute(&format!("update keys set {change} where key <> x'626164'"), []);
        assert_eq!(accepted.expect(change), 1);
    }
}

/// SQLite accepts any bytes as text.
#[tokio::test]
async fn an_error_that_is_not_utf_8_stops_no_claim() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all(["bad", "b"]).await.expect("added");
    let raw = Connection::open(at(&dir)).expect("the file opens");
    let changed = raw.execute("update keys set error = cast(x'ff41' as text)", []);
    assert_eq!(changed.expect("the rows are changed"), 2);
    let found = queue.look_up("bad").await.expect("looked up").expect("it is ready");
    assert_eq!(found.error.as_deref(), Some("\u{fffd}A"));
    assert_eq!(queue.get_many(2).await.len(), 2);
}

#[test]
fn the_table_has_the_columns_that_rows_are_read_from() {
    let raw = Connection::open_in_memory().expect("the database opens");
    super::super::schema::migrate(&raw, &[]).expect("the schema is created");
    let mut statement =
        raw.prepare("select name from pragma_table_info('keys')").expect("prepared");
    let names = statement.query_map([], |row| row.get::<_, String>(0)).expect("read");
    let mut names: Vec<String> = names.collect::<Result<_, _>>().expect("read");
    let mut expected: Vec<&str> = COLUMNS.split(", ").chain(["queue", "is_due"]).collect();
    names.sort();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

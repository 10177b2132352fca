//! Tests malformed rows, which are written directly, without the constraints of the file.

use fastrand::Rng;

use super::*;
use crate::tests::damage::{BAD, Kind, Scene, number};

/// The columns, and whether each may be null.
const COLUMNS: [(&str, bool); 20] = [
    ("state", false),
    ("at", true),
    ("epoch", true),
    ("lease_until", true),
    ("run_since", true),
    ("run_priority", true),
    ("run_adds", true),
    ("run_reasons", true),
    ("priority", false),
    ("adds", false),
    ("reasons", false),
    ("failures", false),
    ("steps", false),
    ("until", false),
    ("not_before", false),
    ("since", false),
    ("bound", true),
    ("cancel_epoch", true),
    ("error", true),
    ("worker", true),
];

/// The way in which a raw writer bypasses the constraints of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    /// Disables checks for its connection.
    Unchecked,
    /// Removes the column types from the schema, and restores them afterwards.
    Untyped,
}

fn malformed(rng: &mut Rng, writer: Writer) -> String {
    let one = |rng: &mut Rng| {
        let (column, may_be_null) = COLUMNS[rng.usize(..COLUMNS.len())];
        let is_untyped = writer == Writer::Untyped;
        let value = match rng.u8(..8) {
            0 if may_be_null => "null".to_owned(),
            1 if is_untyped => "'text'".to_owned(),
            2 if is_untyped => "x'00ff'".to_owned(),
            3 if is_untyped => "1.5".to_owned(),
            4 if is_untyped => "9e99".to_owned(),
            5 if is_untyped => "cast(x'ff' as text)".to_owned(),
            _ if column == "error" => "cast(x'ff41' as text)".to_owned(),
            _ if column == "worker" => {
                ["''", "'ü'", "cast(x'ff41' as text)", "char(155)", "hex(zeroblob(51))"]
                    [rng.usize(..5)]
                .to_owned()
            }
            // Format the number as SQL accepts it.
            _ => format!("{}", number(rng))
                .replace("-9223372036854775808", "(-9223372036854775807 - 1)"),
        };
        format!("{column} = {value}")
    };
    let changes: Vec<_> = (0..rng.usize(1..4)).map(|_| one(rng)).collect();
    changes.join(", ")
}

fn write(path: &std::path::Path, writer: Writer, change: &str) {
    let open = || {
        let raw = rusqlite::Connection::open(path).expect("the file opens");
        raw.pragma_update(None, "ignore_check_constraints", true).expect("the setting is changed");
        raw
    };
    let typed = |from: &str, to: &str| {
        let raw = open();
        raw.pragma_update(None, "writable_schema", true).expect("the setting is changed");
        let sql = "update sqlite_schema set sql = replace(sql, ?1, ?2) where name = 'keys'";
        assert_eq!(raw.execute(sql, [from, to]).expect("the schema is changed"), 1);
    };
    if writer == Writer::Untyped {
        typed(") strict, without rowid", ") without rowid");
    }
    let changed =
        open().execute(&format!("update keys set {change} where key = ?1"), [BAD.as_bytes()]);
    assert_eq!(changed.unwrap_or_else(|error| panic!("{change}: {error}")), 1);
    if writer == Writer::Untyped {
        typed(") without rowid", ") strict, without rowid");
    }
}

#[tokio::test]
async fn a_malformed_row_harms_no_other_key() {
    let (mut damaged, mut named) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let writer = if rng.bool() { Writer::Unchecked } else { Writer::Untyped };
        let kind = rng.choice(Kind::ALL).expect("the list is not empty");
        let change = malformed(&mut rng, writer);
        let how = format!("seed {seed}, {kind:?}, {writer:?}: {change}");

        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = Sqlite::open(&at(&dir), Synchronous::Normal).expect("the file opens");
        engine.migrate().await.expect("the schema is created");
        let engine: Arc<dyn Engine> = Arc::new(engine);
        let place = engine.open("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
        let scene = Scene::new(engine, place, kind).await;
        write(&at(&dir), writer, &change);
        let is_early = rng.u8(..3) == 0;
        if !is_early {
            let (is_damaged, reported) = scene.check(&how).await;
            damaged += u32::from(is_damaged);
            named += u32::from(!reported.is_empty());
        }
        scene.check_end(&mut rng, &how).await;
    }
    assert!(damaged > 100 && named > 30, "{damaged} were damaged, {named} reported");
}

/// Compares three implementations of the rules: the SQL expression for counts and idleness, the decoder of
/// the operations, and the constraint in the schema, which also applies to other programs.
#[test]
fn queries_and_the_check_accept_the_rows_that_can_be_read() {
    use super::super::rows::{CHECK, COLUMNS as ALL, READABLE, define_readable, read};

    let raw = rusqlite::Connection::open_in_memory().expect("the database opens");
    define_readable(&raw).expect("the function is defined");
    let names: Vec<&str> = ALL.split(", ").collect();
    raw.execute_batch(&format!("create table keys ({})", names.join(", ")))
        .expect("the table is created");
    let (mut rng, mut accepted, mut damaged) = (Rng::with_seed(5), 0, 0);
    let good = |state: u8, column: &str| match (state, column) {
        (1, "epoch" | "lease_until" | "run_since" | "run_adds") => "7",
        (1, "run_priority" | "run_reasons") => "1",
        (2, "at") | (_, "epoch" | "lease_until" | "run_since" | "run_adds") => "null",
        (_, "run_priority" | "run_reasons" | "error" | "worker") => "null",
        (_, "bound" | "cancel_epoch") => "null",
        (_, "key") => "x'61'",
        (_, _) => "1",
    };
    for n in 0..20_000 {
        let state = rng.u8(..3);
        let mut values: Vec<String> =
            names.iter().map(|column| good(state, column).to_owned()).collect();
        values[0] = state.to_string();
        // Each row has up to two values that may be invalid.
        let mut has_odd_worker = false;
        for _ in 0..rng.usize(..3) {
            let column = rng.usize(..names.len());
            let odd_worker = ["cast(x'ff41' as text)", "char(155)", "char(10)", "'a' || char(0)"];
            values[column] = match (names[column], rng.u8(..12)) {
                (_, 0) => "null".to_owned(),
                (_, 1) => "'text'".to_owned(),
                (_, 2) => "'1'".to_owned(),
                (_, 3) => "x'00ff'".to_owned(),
                (_, 4) => "0.5".to_owned(),
                (_, 5) => "1.0".to_owned(),
                (_, 6) => "9e99".to_owned(),
                ("worker", kind @ 7..=9) => {
                    has_odd_worker |= kind == 7;
                    if kind == 7 { odd_worker[rng.usize(..4)].to_owned() } else { "'web-1'".into() }
                }
                ("worker", 10) => format!("printf('%.*c', {}, 'a')", rng.usize(99..103)),
                (_, kind) if kind % 2 == 0 => rng.i64(-2..3).to_string(),
                _ => number(&mut rng).to_string().replace("-9223372036854775808", "(-1)"),
            };
        }
        let values = values.join(", ");
        raw.execute("delete from keys", []).expect("the table is emptied");
        raw.execute(&format!("insert into keys values ({values})"), []).expect(&values);
        let sql = format!("select {ALL}, {READABLE}, {CHECK} from keys");
        let (read, queried, checked) = raw
            .query_row(&sql, [], |row| {
                Ok((read(row)?.row, row.get::<_, bool>(21)?, row.get::<_, bool>(22)?))
            })
            .expect(&values);
        assert_eq!(read.is_ok(), queried, "{n}: {values}: {read:?}");
        if !has_odd_worker {
            assert_eq!(read.is_ok(), checked, "{n}: {values}: {read:?}");
        }
        if read.is_ok() {
            assert!(checked, "{n}: {values}");
            accepted += 1;
        } else {
            damaged += 1;
        }
    }
    assert!(accepted > 5_000 && damaged > 5_000, "{accepted} accepted, {damaged} not");
}

#[tokio::test]
async fn a_file_takes_no_malformed_row() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all(["bad", "b"]).await.expect("added");
    let raw = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    for change in [
        "failures = -1",
        "adds = 4294967296",
        "state = 7",
        "state = 1",
        "at = null",
        "at = -1",
        "priority = 2",
        "since = 'text'",
        "since = null",
        "epoch = 5",
        "bound = -1",
        "cancel_epoch = 0",
    ] {
        let refused = raw.execute(&format!("update keys set {change}"), []);
        refused.expect_err(change);
    }
}

#[tokio::test]
async fn a_damaged_key_is_reported_once_with_the_next_step() {
    use crate::tests::parking::Events;

    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all([BAD, "good"]).await.expect("added");
    write(&at(&dir), Writer::Unchecked, "failures = -1");
    let events = Events::default();
    let guard = tracing::subscriber::set_default(events.clone());
    let item = queue.get().await.expect("the queue is not shut down");
    assert_eq!(item.as_str(), Some("good"));
    let expected = " message=the key's row is damaged: it was set aside; add the key again to run it, or \
                    cancel it queue=\"q\" key=bad damage=\"failures is -1\"";
    assert_eq!(events.take(), [expected]);
    let counts = queue.counts().await.expect("counted");
    assert_eq!((counts.damaged, counts.processing, counts.ready), (1, 1, 0));
    let entry = queue.look_up(BAD).await.expect("looked up").expect("the row is kept");
    assert_eq!(entry.state, State::Damaged);
    let error = entry.error.as_deref().unwrap_or_default();
    assert!(error.starts_with("failures is -1; the row was state=0 at="), "{error}");
    assert!(error.contains(" failures=-1 "), "{error}");
    let explained = queue.explain(BAD).await.expect("explained");
    assert!(explained.starts_with("bad: its row is damaged: failures is -1"), "{explained}");
    queue.add(BAD).await.expect("added");
    assert_eq!(queue.get().await.expect("the queue is not shut down").as_str(), Some(BAD));
    assert_eq!(queue.counts().await.expect("counted").damaged, 0);
    drop(guard);
    assert_eq!(events.take(), [""; 0]);
}

/// Rows that belong to no queue are removed like those of a dropped queue.
#[tokio::test]
async fn a_row_whose_queue_is_no_number_keeps_nobody_from_opening_the_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all([BAD, "good"]).await.expect("added");
    for number in ["'text'", "x'00'", "1.5", "-1"] {
        write(&at(&dir), Writer::Untyped, &format!("queue = {number}"));
        store.migrate().await.expect("there is nothing else to do");
        queue.add(BAD).await.expect("added");
        let counts = queue.counts().await.expect("counted");
        assert_eq!((counts.ready, counts.damaged), (2, 0), "{number}");
    }
    let raw = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    let left = raw.query_row("select count(*) from keys", [], |row| row.get::<_, i64>(0));
    assert_eq!(left.expect("counted"), 2);
}

/// A key that is not a blob does not equal the key that operations search for.
#[tokio::test]
async fn a_key_of_another_type_is_set_aside_under_its_text() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store(&at(&dir)).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_all([BAD, "good"]).await.expect("added");
    write(&at(&dir), Writer::Untyped, "key = 'bad'");
    let item = queue.get().await.expect("the queue is not shut down");
    assert_eq!(item.as_str(), Some("good"));
    let entry = queue.look_up(BAD).await.expect("looked up").expect("the row is kept");
    assert_eq!(entry.state, State::Damaged);
    assert!(
        entry.error.is_some_and(|error| error.starts_with("the key is not a blob; the row was "))
    );
    queue.cancel(BAD).await.expect("cancelled");
    assert_eq!(queue.counts().await.expect("counted").damaged, 0);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_not_written_or_else_set_aside() {
    let fixture = Fixture::new().await;
    let place = fixture.engine.open("q", Settings::default()).await.expect("the queue opens");
    let ask = Ask { key: "short".into(), add: crate::Add::now(), adds: 1 };
    fixture.engine.add(&place, vec![ask]).await.expect("added");
    let raw = rusqlite::Connection::open(fixture._dir.path().join("q")).expect("the file opens");
    let copied: Vec<_> = COLUMNS.iter().map(|(column, _)| *column).collect();
    let copied = copied.join(", ");
    let insert = format!(
        "insert into keys (queue, key, {copied}) \
         select queue, zeroblob(?1), {copied} from keys where key = cast('short' as blob)"
    );
    for length in [2049, 3000, 100_000] {
        let error = raw.execute(&insert, [length]).expect_err("the key is too long");
        assert!(error.to_string().contains("readable"), "{error}");
        raw.pragma_update(None, "ignore_check_constraints", true).expect("changed");
        raw.execute(&insert, [length]).expect("inserted");
        raw.pragma_update(None, "ignore_check_constraints", false).expect("changed");
    }
    assert_eq!(raw.execute(&insert, [2048]).expect("inserted"), 1);
    assert_eq!(fixture.engine.counts(&place).await.expect("counted").damaged, 3);
    let failing = crate::engine::Failing {
        backoff: crate::engine::Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 },
        max_failures: None,
    };
    let lease = Duration::from_secs(30);
    let claim = Claim { max: 9, oldest: 0, lease, expired: failing, poll: lease };
    let claimed = fixture.engine.claim(&place, claim).await.expect("claimed");
    assert_eq!(claimed.items.len(), 2, "{claimed:?}");
    let mut said: Vec<_> = claimed.damaged.iter().map(|aside| &*aside.damage.said).collect();
    said.sort_unstable();
    let expected = ["the key has 100000 bytes", "the key has 2049 bytes", "the key has 3000 bytes"];
    assert_eq!(said, expected);
}

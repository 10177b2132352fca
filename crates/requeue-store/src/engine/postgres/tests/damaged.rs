//! Tests that the constraints of the table refuse each row that requeue cannot read. All other rows must cause no
//! error.

use std::sync::Arc;

use fastrand::Rng;

use super::*;
use crate::engine::Engine as _;
use crate::tests::damage::{BAD, Kind, Scene};

const COLUMNS: [(&str, &str); 20] = [
    ("state", "smallint"),
    ("priority", "smallint"),
    ("run_priority", "smallint"),
    ("at", "bigint"),
    ("since", "bigint"),
    ("until", "bigint"),
    ("not_before", "bigint"),
    ("bound", "bigint"),
    ("failed_at", "bigint"),
    ("cancel_epoch", "bigint"),
    ("epoch", "bigint"),
    ("lease_until", "bigint"),
    ("run_since", "bigint"),
    ("adds", "integer"),
    ("flags", "integer"),
    ("failures", "integer"),
    ("steps", "integer"),
    ("run_adds", "integer"),
    ("run_flags", "integer"),
    ("worker", "text"),
];

async fn run(engine: &Postgres, sql: &str) {
    let session = engine.sessions.open_session().await.expect("the server is reachable");
    sessions::run_batch(session.client(), sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {}", error.source));
    session.put_back();
}

/// The maximum number of characters of an error that a read returns.
const SHOWN: usize = 4096;

/// Returns changes of each column of `keys`, to values at the limits of its type and of its valid range.
fn extremes() -> Vec<String> {
    let mut changes = Vec::new();
    for (column, kind) in COLUMNS {
        let (least, most) = match kind {
            "smallint" => (i16::MIN.into(), i16::MAX.into()),
            "integer" => (i32::MIN.into(), i32::MAX.into()),
            "bigint" => (i64::MIN, i64::MAX),
            _ => continue,
        };
        let values = [least, -1, most].map(|value| format!("'{value}'"));
        let values = values.iter().map(String::as_str).chain(["null"]);
        changes.extend(values.map(|value| format!("{column} = {value}")));
    }
    let others = [
        // Times are numbers, so these infinite values are invalid.
        "at = 'infinity'",
        "lease_until = '-infinity'",
        "state = 3",
        "state = 4",
        "said = -32768",
        "said = 32767",
        "key = ''",
        "key = decode(repeat('61', 100000), 'hex')",
        "error = null",
        "error = repeat('\u{1f980}\"', 1000000)",
        "worker = ''",
        "worker = repeat('\u{1f980}', 25)",
        "worker = repeat('\u{1f980}', 1000000)",
        // The keys are random, so that rows of several scenes stay distinct when they are moved to this queue.
        "queue = -2147483648, key = decode(md5(random()::text), 'hex')",
        "queue = 2147483647, key = decode(md5(random()::text), 'hex')",
        // Counters and times change together, because sums of them overflow first.
        "until = 9223372036854775807, not_before = 9223372036854775807, steps = 2147483647, \
         failures = 2147483647, adds = 2147483647, flags = -1",
        "lease_until = 0, run_since = 9223372036854775807, epoch = 9223372036854775807, \
         run_adds = 2147483647, run_flags = -1, at = 9223372036854775807",
    ];
    changes.extend(others.map(str::to_owned));
    changes
}

#[tokio::test]
async fn an_extreme_value_is_refused_or_harms_no_other_key() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let engine = Arc::new(engine);
    let (mut refused, mut taken, mut number) = (0, 0, 0);
    for kind in [Kind::Ready, Kind::Expired, Kind::Parked] {
        let mut scene = None;
        for change in extremes() {
            let (scene_of, place) = match scene.take() {
                Some(scene) => scene,
                None => {
                    number += 1;
                    let name = format!("q{number}");
                    let place = engine.open_queue(&name, Settings::default()).await;
                    let place = place.expect("the queue opens");
                    (Scene::new(Arc::clone(&engine) as _, place.clone(), kind).await, place)
                }
            };
            let how = format!("{kind:?}: {change}");
            let sql = format!(
                "update requeue.keys set {change} where queue = {} and key = '{BAD}'",
                place.id
            );
            let session = engine.sessions.open_session().await.expect("the server is reachable");
            match sessions::run_batch(session.client(), &sql).await {
                Ok(()) => {
                    session.put_back();
                    taken += 1;
                    let (is_damaged, _) = scene_of.check(&how).await;
                    assert!(!is_damaged, "{how}");
                    scene_of.check_end(&mut Rng::with_seed(taken), &how).await;
                }
                Err(fault) => {
                    refused += 1;
                    let fault = fault.source.to_string();
                    let reasons =
                        ["check constraint", "null value", "invalid input syntax", "index row"];
                    let is_known = reasons.iter().any(|reason| fault.contains(reason));
                    assert!(is_known, "{how}: {fault}");
                    scene = Some((scene_of, place));
                }
            }
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} were refused, {taken} were taken");
}

#[tokio::test]
async fn a_reader_gets_the_start_of_a_long_error() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let engine = Arc::new(engine);
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let scene = Scene::new(Arc::clone(&engine) as _, place.clone(), Kind::Parked).await;
    let sql = format!("update requeue.keys set error = repeat('x', 1000000) where key = '{BAD}'");
    run(&engine, &sql).await;
    let found = engine.look_up(&place, &BAD.into()).await.expect("looked up").expect("parked");
    assert_eq!(found.error.map(|error| error.len()), Some(SHOWN));
    scene.check("a long error").await;
}

#[tokio::test]
async fn the_time_of_a_waiting_process_is_not_negative() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let ask = |key: &str| vec![Ask::new(key, crate::Add::now())];
    for (number, value) in [i64::MIN, -1, 0, i64::MAX].into_iter().enumerate() {
        let session = engine.sessions.open_session().await.expect("the server is reachable");
        let sql = format!("update requeue.queues set waited_until = '{value}'");
        let taken = sessions::run_batch(session.client(), &sql).await;
        assert_eq!(taken.is_ok(), value >= 0, "{value}");
        let added = engine.add_keys(&place, ask(&number.to_string())).await;
        added.unwrap_or_else(|error| panic!("{value}: {}", error.source));
    }
}

#[tokio::test]
async fn a_table_takes_no_malformed_row() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let asks = vec![Ask::new(BAD, crate::Add::now())];
    engine.add_keys(&place, asks).await.expect("added");
    for change in [
        "failures = -1",
        "adds = -1",
        "state = 7",
        "state = 1",
        "state = 1, epoch = 5, run_since = 1, run_adds = 1, run_flags = 1, run_priority = 0",
        "at = null",
        "at = -1",
        "priority = 2",
        "since = null",
        "epoch = 5",
    ] {
        let session = engine.sessions.open_session().await.expect("the server is reachable");
        let sql = format!("update requeue.keys set {change}");
        let refused = sessions::run_batch(session.client(), &sql).await.expect_err(change);
        let refused = refused.source.to_string();
        assert!(
            refused.contains("check constraint") || refused.contains("null value"),
            "{change}: {refused}"
        );
    }
}

#[tokio::test]
async fn a_key_that_is_too_long_is_not_written() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    let ask = crate::engine::Ask::new("short", crate::Add::now());
    engine.add_keys(&queue, vec![ask]).await.expect("added");
    // The server compresses repetitive text, so the index accepts a long key.
    let key = |bytes: u32| format!("convert_to(repeat('k', {bytes}), 'UTF8')");
    let added = async |function: &str, bytes: u32| {
        let sql = format!(
            "select requeue.{function}($1, array[{}], array[0::bigint], array[0::smallint], \
             array[0::smallint], array[0], array[1], null)",
            key(bytes)
        );
        let id = i32::try_from(queue.id).expect("the number is small");
        engine.sessions.query_row(&sql, &[&id]).await
    };
    for bytes in [2049, 3000, 100_000] {
        for function in ["add_all", "add_all_soon", "add_free"] {
            let fault = added(function, bytes).await.expect_err(function);
            let said = fault.source.to_string();
            let expected = format!("the key has {bytes} bytes; at most 2048 are allowed [54000]");
            assert_eq!((fault.kind, said), (crate::types::error::Kind::Refused, expected));
        }
        // This statement stands for a client that writes into the table directly.
        let insert = format!(
            "insert into requeue.keys (queue, state, priority, at, since, adds, flags, said, key) \
             select queue, state, priority, at, since, adds, flags, said, {} \
             from requeue.keys where key = 'short'",
            key(bytes)
        );
        let session = engine.sessions.open_session().await.expect("the server is reachable");
        let fault =
            sessions::run_batch(session.client(), &insert).await.expect_err("it is too long");
        assert!(fault.source.to_string().contains("\"keys_key_check\""), "{}", fault.source);
    }
    added("add_free", 2048).await.expect("added");
    let claimed =
        engine.claim_keys(&queue, super::changing::claim(9, Duration::from_secs(60))).await;
    assert_eq!(claimed.expect("claimed").items.len(), 2);
}

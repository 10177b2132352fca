//! Tests malformed rows, which are written directly into a table without constraints.

use std::sync::Arc;

use fastrand::Rng;

use super::*;
use crate::engine::{Dropped, Engine as _};
use crate::tests::damage::{BAD, Kind, Scene, number};

const COLUMNS: [(&str, &str); 17] = [
    ("state", "smallint"),
    ("priority", "smallint"),
    ("run_priority", "smallint"),
    ("at", "bigint"),
    ("since", "bigint"),
    ("until", "bigint"),
    ("not_before", "bigint"),
    ("epoch", "bigint"),
    ("lease_until", "bigint"),
    ("run_since", "bigint"),
    ("adds", "integer"),
    ("reasons", "integer"),
    ("failures", "integer"),
    ("steps", "integer"),
    ("run_adds", "integer"),
    ("run_reasons", "integer"),
    ("worker", "text"),
];

fn malformed(rng: &mut Rng) -> String {
    let one = |rng: &mut Rng| {
        let (column, kind) = COLUMNS[rng.usize(..COLUMNS.len())];
        if kind == "text" {
            let names = ["''", "'ü'", "U&'\\009B'", "E'a\\n'", "repeat('ü', 51)", "null"];
            return (column, names[rng.usize(..names.len())].to_owned());
        }
        let number = match kind {
            "smallint" => number(rng).clamp(i16::MIN.into(), i16::MAX.into()),
            "integer" => number(rng).clamp(i32::MIN.into(), i32::MAX.into()),
            _ => number(rng),
        };
        let value =
            if rng.u8(..5) == 0 { "null".to_owned() } else { format!("'{number}'::{kind}") };
        (column, value)
    };
    let changes: std::collections::BTreeMap<_, _> =
        (0..rng.usize(1..4)).map(|_| one(rng)).collect();
    let changes: Vec<_> =
        changes.into_iter().map(|(column, value)| format!("{column} = {value}")).collect();
    changes.join(", ")
}

async fn run(engine: &Postgres, sql: &str) {
    let session = engine.sessions.session().await.expect("the server is reachable");
    sessions::run(session.client(), sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {}", error.source));
    session.end();
}

#[tokio::test]
async fn a_malformed_row_harms_no_other_key() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let engine = Arc::new(engine);
    let definition =
        "select pg_get_constraintdef(oid) from pg_constraint where conname = 'readable'";
    let definition: String =
        engine.sessions.row(definition, &[]).await.expect("the row is read").get(0);
    let nullable: Vec<_> =
        COLUMNS.iter().map(|(column, _)| format!("alter {column} drop not null")).collect();
    run(&engine, &format!("alter table requeue.keys {}", nullable.join(", "))).await;
    let (mut damaged, mut named) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::with_seed(seed);
        let kind = rng.choice(Kind::ALL).expect("the list is not empty");
        let change = malformed(&mut rng);
        // The constraint is not validated: existing rows may violate it.
        let is_checked = rng.bool();
        let how = format!("seed {seed}, {kind:?}, checked: {is_checked}: {change}");

        let place =
            engine.open(&format!("q{seed}"), Settings::default()).await.expect("the queue opens");
        let scene = Scene::new(Arc::clone(&engine) as _, place.clone(), kind).await;
        let add = if is_checked {
            format!("alter table requeue.keys add constraint readable {definition} not valid")
        } else {
            String::new()
        };
        run(
            &engine,
            &format!(
                "alter table requeue.keys drop constraint if exists readable; \
                 update requeue.keys set {change} where queue = {} and key = '{BAD}'; {add}",
                place.id
            ),
        )
        .await;
        if rng.u8(..3) > 0 {
            let (is_damaged, reported) = scene.check(&how).await;
            assert!(is_damaged || reported.is_empty(), "{how}: {reported:?}");
            damaged += u32::from(is_damaged);
            named += u32::from(!reported.is_empty());
        }
        scene.check_end(&mut rng, &how).await;
    }
    assert!(damaged > 50 && named > 10, "{damaged} were damaged, {named} reported");
}

#[tokio::test]
async fn a_queue_whose_only_key_is_damaged_is_dropped_by_force_alone() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let place = engine.open("q", Settings::default()).await.expect("the queue opens");
    let asks = vec![Ask { key: BAD.into(), add: crate::Add::now(), adds: 1 }];
    engine.add(&place, asks).await.expect("added");
    let sql =
        "alter table requeue.keys drop constraint readable; update requeue.keys set failures = -1";
    run(&engine, sql).await;
    let counts = Counts { damaged: 1, ..Counts::default() };
    let dropped = engine.drop_queue("q", false).await.expect("answered");
    assert_eq!(dropped, Dropped::HasKeys(counts));
    let dropped = engine.drop_queue("q", true).await.expect("answered");
    assert_eq!(dropped, Dropped::Yes(counts));
}

#[tokio::test]
async fn a_table_takes_no_malformed_row() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let place = engine.open("q", Settings::default()).await.expect("the queue opens");
    let asks = vec![Ask { key: BAD.into(), add: crate::Add::now(), adds: 1 }];
    engine.add(&place, asks).await.expect("added");
    for change in [
        "failures = -1",
        "adds = -1",
        "state = 7",
        "state = 1",
        "state = 1, epoch = 5, run_since = 1, run_adds = 1, run_reasons = 1, run_priority = 0",
        "at = null",
        "at = -1",
        "priority = 2",
        "since = null",
        "epoch = 5",
    ] {
        let session = engine.sessions.session().await.expect("the server is reachable");
        let sql = format!("update requeue.keys set {change}");
        let refused = sessions::run(session.client(), &sql).await.expect_err(change);
        let refused = refused.source.to_string();
        assert!(
            refused.contains("readable") || refused.contains("null value"),
            "{change}: {refused}"
        );
    }
}

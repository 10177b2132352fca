//! Tests of upgrades: a store gets keys in several states, the tables of a made-up older version, and a step
//! that upgrades them.

use std::time::Duration;

use crate::engine::{Ask, Asked, End, Engine, Failure, Finish, Settings};
use crate::tests::Batches as _;
use crate::tests::damage::claim;
use crate::types::add::{Add, ParkedAdd, ReaddPolicy};
use crate::types::inspect::State;

const HOUR: Duration = Duration::from_secs(3600);

/// Adds keys in several states. Returns the fencing token of the key in flight.
pub(crate) async fn fill(engine: &dyn Engine) -> i64 {
    engine.migrate_schema().await.expect("the schema is created");
    let settings = Settings {
        readd_policy: ReaddPolicy::Hold,
        parked_add: ParkedAdd::Keep,
        ..Settings::default()
    };
    let place = engine.open_queue("mail", settings).await.expect("the queue opens");
    let ask = |key: &str, add| Ask::new(key, add);
    let first = vec![ask("in-flight", Add::now()), ask("parked", Add::now())];
    engine.add_keys(&place, first).await.expect("added");
    let claimed = engine.claim_keys(&place, claim(2, HOUR)).await.expect("claimed");
    let epoch = |key: &str| {
        let mut items = claimed.items.iter();
        items.find(|out| *out.key == *key.as_bytes()).expect("the key was claimed").epoch
    };
    let how = Finish::GiveUp(Failure { asked: Asked::default(), error: "no".to_owned() });
    let end = End { key: "parked".into(), epoch: epoch("parked"), how };
    assert_eq!(engine.finish_deliveries(&place, vec![end]).await.expect("finished"), [true]);
    let rest = vec![ask("ready", Add::now()), ask("waiting", Add::after(HOUR))];
    engine.add_keys(&place, rest).await.expect("added");
    epoch("in-flight")
}

/// Checks that the keys of [`fill`] are as before, and that workers can process them.
pub(crate) async fn check(engine: &dyn Engine, in_flight: i64) {
    let place = engine.find_queue("mail").await.expect("answered").expect("the queue exists");
    assert_eq!((place.readd_policy, place.parked_add), (ReaddPolicy::Hold, ParkedAdd::Keep));
    let found = engine.read_page(&place, None, None, 100).await.expect("a page");
    let states: Vec<(&[u8], State)> =
        found.iter().map(|entry| (&*entry.key, entry.state)).collect();
    let expected: [(&[u8], State); 4] = [
        (b"in-flight", State::InFlight),
        (b"parked", State::Parked),
        (b"ready", State::Ready),
        (b"waiting", State::Waiting),
    ];
    assert_eq!(states, expected);
    assert_eq!(found[1].error.as_deref(), Some("no"));

    let finish = async |key, epoch| {
        let end = End { key, epoch, how: Finish::Succeed };
        assert_eq!(engine.finish_deliveries(&place, vec![end]).await.expect("finished"), [true]);
    };
    finish("in-flight".into(), in_flight).await;
    assert_eq!(
        engine.make_ready(&place, vec!["parked".into()], State::Parked).await.expect("revived"),
        [Some(true)]
    );
    let claimed = engine.claim_keys(&place, claim(9, HOUR)).await.expect("claimed");
    let mut keys: Vec<_> = claimed.items.iter().map(|out| out.key.clone()).collect();
    keys.sort();
    assert_eq!(keys, [crate::Key::from("parked"), "ready".into()]);
    for out in claimed.items {
        assert!(out.epoch > in_flight, "tokens increase");
        finish(out.key, out.epoch).await;
    }
    assert!(!engine.is_paused(&place).await.expect("answered"));
}

//! Tests of upgrades: a stored database of an earlier version, with keys in all states, is opened, and works.
//!
//! `stored` has a database per engine. The last programs of version 1 made them, except for two edits: leases
//! last until 2126, and one key is damaged.

use std::time::Duration;

use crate::api::store::Store;
use crate::engine::{Claim, End, Engine, Finish};
use crate::tests::damage::claim;
use crate::types::add::{Added, ParkedAdd, Priority, ReAdd};
use crate::types::inspect::{Entry, State};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Opens the queues of a stored database by `engine`, and checks all keys. Then works on them.
pub(crate) async fn check_upgraded(engine: &dyn Engine) {
    let place = engine.find("mail").await.expect("answered").expect("the queue exists");
    assert_eq!((place.re_add, place.parked_add), (ReAdd::Hold, ParkedAdd::Revive));
    let found = engine.page(&place, None, None, 100).await.expect("a page");
    let states: Vec<(&[u8], State, u32)> =
        found.iter().map(|entry| (&*entry.key, entry.state, entry.failures)).collect();
    let expected: [(&[u8], State, u32); 8] = [
        (b"backing-off", State::Waiting, 1),
        (b"damaged", State::Damaged, 0),
        (b"dirty", State::Processing, 0),
        (b"in-flight", State::Processing, 0),
        (b"low", State::Ready, 0),
        (b"parked", State::Parked, 1),
        (b"ready", State::Ready, 0),
        (b"waiting", State::Waiting, 0),
    ];
    assert_eq!(states, expected);
    let of = |key: &str| found.iter().find(|entry| *entry.key == *key.as_bytes()).expect("found");
    let is_late = |time: Option<Duration>| time.is_some_and(|time| time > YEAR);
    assert!(is_late(of("waiting").due) && is_late(of("backing-off").due), "{found:?}");
    assert!(is_late(of("in-flight").lease) && of("in-flight").worker.is_some());
    assert_eq!((of("dirty").dirty, of("in-flight").dirty), (true, false));
    let Entry { priority, adds, .. } = of("low");
    assert_eq!((*priority, *adds), (Priority::Low, 1));
    assert_eq!((of("waiting").priority, of("ready").adds), (Priority::High, 2));
    assert_eq!(of("parked").error.as_deref(), Some("exit status: 3"));

    // The holders of the keys complete them with the tokens of before.
    for key in ["in-flight", "dirty"] {
        let epoch = of(key).epoch.expect("the key is in flight").cast_signed();
        let end = End { key: key.into(), epoch, how: Finish::Succeed };
        assert_eq!(engine.finish(&place, vec![end]).await.expect("finished"), [true], "{key}");
    }
    assert_eq!(engine.revive(&place, vec!["parked".into()]).await.expect("revived"), [Some(true)]);
    let all = Claim { max: 10, ..claim(10, YEAR) };
    let mut claimed: Vec<_> =
        engine.claim(&place, all).await.expect("claimed").items.into_iter().collect();
    claimed.sort_by(|one, other| one.key.cmp(&other.key));
    let keys: Vec<&[u8]> = claimed.iter().map(|out| &*out.key).collect();
    assert_eq!(keys, [&b"dirty"[..], b"low", b"parked", b"ready"]);
    let newest = ["dirty", "in-flight"].map(|key| of(key).epoch.expect("it was in flight"));
    for out in claimed {
        assert!(out.epoch.unsigned_abs() > newest[0].max(newest[1]), "tokens increase");
        let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
        assert_eq!(engine.finish(&place, vec![end]).await.expect("finished"), [true]);
    }

    let place = engine.find("tasks").await.expect("answered").expect("the queue exists");
    assert_eq!((place.re_add, place.parked_add), (ReAdd::Replace, ParkedAdd::Keep));
    let counts = engine.counts(&place).await.expect("counted");
    assert_eq!((counts.ready, counts.waiting, counts.processing, counts.parked), (1, 0, 0, 0));
}

/// Opens the queue `tasks` of a stored database by the public API, which upgrades it.
pub(crate) async fn open(url: &str) {
    let store = Store::connect(url).await.expect("the store connects");
    let queue = store.queue("tasks").existing().open().await.expect("the queue opens");
    assert_eq!(queue.add("other").await.expect("added"), Added::Coalesced);
    store.close().await;
}

//! Tests upgrades. A store of version 1 that has keys in several states becomes a store of this version.

use std::time::Duration;

use crate::engine::{End, Engine, Finish};
use crate::tests::Batches as _;
use crate::tests::damage::claim;
use crate::types::add::{ParkedAdd, ReaddPolicy};
use crate::types::inspect::State;

const HOUR: Duration = Duration::from_secs(3600);
/// The fencing token of the key in flight.
const IN_FLIGHT: i64 = 7;

/// Checks that the queue `mail` still has the keys of version 1, and that workers can process them.
pub(crate) async fn check(engine: &dyn Engine) {
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
    finish("in-flight".into(), IN_FLIGHT).await;
    assert_eq!(
        engine.make_ready(&place, vec!["parked".into()], State::Parked).await.expect("revived"),
        [Some(true)]
    );
    let claimed = engine.claim_keys(&place, claim(9, HOUR)).await.expect("claimed");
    let mut keys: Vec<_> = claimed.items.iter().map(|out| out.key.clone()).collect();
    keys.sort();
    assert_eq!(keys, [crate::Key::from("parked"), "ready".into()]);
    for out in claimed.items {
        assert!(out.epoch > IN_FLIGHT, "tokens increase");
        finish(out.key, out.epoch).await;
    }
    assert!(!engine.is_paused(&place).await.expect("answered"));
}

//! Checks the turns of the groups of an engine.

use super::{BEGIN, LEASE, Rig, failing};
use crate::engine::{Ask, Claim, Delivery, End, Finish, GroupChange, Settings};
use crate::tests::Batches as _;
use crate::types::add::Add;
use crate::types::key::Key;

/// Checks that groups get their weights in keys, one claim for each key.
pub(crate) async fn check_turns(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let weights = [("a", 1), ("b", 2), ("c", 3)];
    for (group, weight) in weights {
        engine.change_group(&place, group, GroupChange::Weight(weight)).await.expect("changed");
        let asks = (0..40).map(|n| {
            let key = Key::from(format!("{group}{n}"));
            Ask { group: Some(group.into()), ..Ask::new(key, Add::now()) }
        });
        engine.add_keys(&place, asks.collect()).await.expect("added");
    }
    for (max, oldest) in [(1, 0), (4, 0), (6, 0), (1, 1), (4, 1), (6, 3)] {
        let mut got: Vec<String> = Vec::new();
        while got.len() < 36 {
            let claim = Claim { max, oldest, lease: LEASE, expired: failing(), poll: LEASE };
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            assert!(!claimed.items.is_empty());
            got.extend(
                claimed.items.iter().map(|out| out.group.as_deref().expect("a group").to_owned()),
            );
            let end = |out: Delivery| End {
                key: out.key,
                epoch: out.epoch,
                how: Finish::Release(out.asked),
            };
            let ends = claimed.items.into_iter().map(end).collect();
            engine.finish_deliveries(&place, ends).await.expect("finished");
        }
        for (group, weight) in weights {
            let count = got.iter().filter(|name| *name == group).count() as u32;
            assert!(
                count.abs_diff(weight * 6) <= weight,
                "{group} got {count} of {got:?} with claims of {max}, {oldest} by age"
            );
        }
    }
}

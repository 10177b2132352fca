//! Compares the operators' actions that an engine stores with a plain list, while the clock is set.

use std::time::Duration;

use proptest::prelude::*;

use super::{BEGIN, Rig};
use crate::engine::Settings;
use crate::engine::time::{Micros, until};
use crate::types::action::{ActionRecord, KEPT};
use crate::types::error::Kind;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Records this number of actions.
    Record(usize),
    /// Advances the time. A negative value sets the clock back.
    Pass(Micros),
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1..4usize).prop_map(Step::Record),
        1 => (KEPT - 2..KEPT + 3).prop_map(Step::Record),
        3 => (-5..50_000_000i64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..most)
}

fn action(n: usize) -> ActionRecord {
    let by = if n.is_multiple_of(3) { "ann" } else { "€ '\"\\{0} ünal" };
    let note = ["", "$1 %s :note", "the provider is down"][n % 3];
    ActionRecord::new(["pause", "resume"][n % 2], by).target(n.to_string()).note(note)
}

/// Applies `steps` to a new queue of the engine.
pub(crate) async fn check(rig: &dyn Rig, queue: &str, steps: &[Step]) {
    let engine = rig.engine();
    let place = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    let other = format!("{queue}-other");
    let other = engine.open_queue(&other, Settings::default()).await.expect("the queue opens");
    let (mut now, mut recorded) = (BEGIN, Vec::new());
    rig.set_time(now).await;
    for step in steps {
        match *step {
            Step::Record(count) => {
                for _ in 0..count {
                    let action = action(recorded.len());
                    engine.record_action(&place, action.clone()).await.expect("recorded");
                    recorded.push((now, action));
                }
            }
            Step::Pass(time) if time > 0 || rig.goes_back() => {
                now += time;
                rig.set_time(now).await;
            }
            Step::Pass(_) => {}
        }
        let last = recorded.iter().rev().take(KEPT);
        let expected: Vec<_> = last
            .map(|(at, action)| ActionRecord { ago: until(*at, now), ..action.clone() })
            .collect();
        assert_eq!(engine.last_actions(&place).await.expect("read"), expected);
    }
    assert_eq!(engine.last_actions(&other).await.expect("read"), []);

    engine.record_action(&other, action(1)).await.expect("recorded");
    engine.drop_queue(queue, true).await.expect("dropped");
    let late = engine.record_action(&place, action(1)).await;
    assert_eq!(late.expect_err("the queue was dropped").kind, Kind::Dropped);
    let again = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    assert_eq!(engine.last_actions(&again).await.expect("read"), []);
    let late = engine.last_actions(&place).await;
    assert_eq!(late.expect_err("the queue was dropped").kind, Kind::Dropped);
    let kept = engine.last_actions(&other).await.expect("read");
    assert_eq!(kept, [ActionRecord { ago: Duration::ZERO, ..action(1) }]);
}

//! Random operations on the state machine and on the model. All visible state must be the same
//! after every step.

mod common;

use std::time::Duration;

use common::{config, ops};
use proptest::prelude::*;
use requeue_core::InFlightPolicy;
use requeue_core::Pace;
use requeue_core::ReaddPolicy::{Hold, KeepBoth, Replace};
use requeue_sim::model::Ranking::{Fifo, Priority, Stack};
use requeue_sim::model::{Ranking, Rules};
use requeue_sim::{Lockstep, Mode, Op, Setup};

fn run(setup: Setup, ops: &[Op]) {
    let mut lockstep = Lockstep::new(setup);
    for op in ops {
        lockstep.step(op);
    }
    lockstep.replay();
}

/// Returns values for all settings that are independent of policy and order.
fn setups(rules: Rules) -> impl Strategy<Value = Setup> {
    let hashes = prop_oneof![3 => Just(None), 1 => (1u64..4).prop_map(Some)];
    let mode = prop_oneof![3 => Just(Mode::Plain), 1 => Just(Mode::Thrifty), 1 => Just(Mode::Lazy)];
    (1u32..24, 1u32..5, any::<bool>(), hashes, any::<bool>(), mode).prop_map(
        move |(keys, teams, groups, hashes, track, mode)| Setup {
            keys,
            teams,
            groups,
            hashes,
            track,
            mode,
            ..Setup::new(rules)
        },
    )
}

fn orders() -> impl Strategy<Value = (Ranking, bool, Option<u32>)> {
    let ranking = prop_oneof![
        Just(Fifo),
        (0u32..6).prop_map(|oldest_every| Priority { oldest_every }),
        Just(Priority { oldest_every: u32::MAX }),
        prop_oneof![Just(0), 2u32..6].prop_map(|lossy| Stack { lossy }),
    ];
    let limit = prop_oneof![2 => Just(None), 3 => (0u32..4).prop_map(Some)];
    (ranking, any::<bool>(), limit)
}

fn reruns() -> impl Strategy<Value = InFlightPolicy> {
    prop_oneof![
        3 => Just(InFlightPolicy::After),
        2 => (0u64..30).prop_map(Duration::from_nanos).prop_map(|at_most| InFlightPolicy::Restart { at_most }),
        1 => Just(InFlightPolicy::Restart { at_most: Duration::MAX }),
    ]
}

fn paces() -> impl Strategy<Value = Option<Pace>> {
    let per = prop_oneof![
        8 => (1u64..30).prop_map(Duration::from_nanos),
        1 => Just(Duration::MAX),
    ];
    (1u32..4, per).prop_map(|(runs, per)| Some(Pace::new(runs, per)))
}

macro_rules! holds {
    ($($name:ident: $policy:expr, $orders:expr, $pace:expr;)*) => {
        proptest! {
            #![proptest_config(config(300))]
            $(
                #[test]
                fn $name(
                    setup in ($orders, reruns(), $pace).prop_flat_map(|((ranking, fair, limit), rerun, pace)| {
                        setups(Rules { re_add: $policy, rerun, ranking, fair, limit, pace })
                    }),
                    ops in ops(300),
                ) {
                    run(setup, &ops);
                }
            )*
        }
    };
}

holds! {
    keep_first_in_first_out: KeepBoth, Just((Fifo, false, None)), Just(None);
    keep_in_any_order: KeepBoth, orders(), Just(None);
    keep_with_a_pace: KeepBoth, orders(), paces();
    replace_first_in_first_out: Replace, Just((Fifo, false, None)), Just(None);
    replace_in_any_order: Replace, orders(), Just(None);
    replace_with_a_pace: Replace, orders(), paces();
    hold_first_in_first_out: Hold, Just((Fifo, false, None)), Just(None);
    hold_in_any_order: Hold, orders(), Just(None);
    hold_with_a_pace: Hold, orders(), paces();
}

//! Strategies for random operations.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use requeue_core::{Ending, Merge, Time, When};
use requeue_sim::model::{AddRequest, Why};
use requeue_sim::{How, Op};

/// Returns a configuration with `cases` cases, which are the same each time. `PROPTEST_RNG_SEED`
/// chooses other cases, and `PROPTEST_CASES` another number of cases.
pub(crate) fn config(cases: u32) -> Config {
    let config = Config::default();
    let rng_seed = match config.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        chosen => chosen,
    };
    let chosen = std::env::var_os("PROPTEST_CASES").map(|_| config.cases);
    Config {
        cases: chosen.unwrap_or(cases),
        rng_seed,
        failure_persistence: None,
        max_shrink_iters: config.max_shrink_iters.min(20_000),
        ..config
    }
}

/// Returns durations that are short in most cases, so that deadlines coincide.
fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => Just(Duration::ZERO),
        10 => (1u64..12).prop_map(Duration::from_nanos),
        3 => (1u64..1_000_000_000_000).prop_map(Duration::from_nanos),
        1 => Just(Duration::MAX),
        // The number of nanoseconds exceeds 64 bits.
        1 => (1u64..12).prop_map(|n| Duration::from_nanos(u64::MAX) + Duration::from_nanos(n)),
    ]
}

fn jumps() -> impl Strategy<Value = Duration> {
    prop_oneof![
        10 => (0u64..12).prop_map(Duration::from_nanos),
        2 => (1u64..1_000_000_000_000).prop_map(Duration::from_nanos),
    ]
}

fn requests() -> impl Strategy<Value = AddRequest> {
    let when = prop_oneof![
        4 => Just(When::Now),
        6 => durations().prop_map(When::After),
        1 => (0u64..200).prop_map(|at| When::At(Time::from_nanos(at))),
    ];
    let merge = prop_oneof![
        6 => Just(Merge::Earliest),
        2 => Just(Merge::Latest),
        1 => Just(Merge::Exactly),
    ];
    let priority = prop_oneof![3 => Just(0), 2 => -2..4, 1 => any::<i32>()];
    let flags = prop_oneof![Just(0u32), (0u32..5).prop_map(|bit| 1 << bit)];
    let failed = prop::bool::weighted(0.15);
    let debounce = prop::option::weighted(0.4, durations());
    // A run can have more than eight reasons.
    let cause = prop::option::of(any::<u8>());
    let why = prop::option::of((1..12u16, cause).prop_map(|(reason, cause)| Why { reason, cause }));
    (when, merge, priority, flags, why, failed, debounce).prop_map(
        |(when, merge, priority, flags, why, failed, debounce)| AddRequest {
            when,
            merge,
            priority,
            flags,
            why,
            failed,
            debounce,
        },
    )
}

fn hows() -> impl Strategy<Value = How> {
    prop_oneof![
        2 => Just(How::Done),
        3 => Just(How::Succeed),
        1 => Just(How::GiveUp),
        2 => durations().prop_map(How::RequeueAfter),
        4 => durations().prop_map(How::RetryAfter),
        1 => Just(How::Release),
        1 => durations().prop_map(How::ReleaseAfter),
        3 => Just(How::Cancelled),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u32..24;
    let which = 0usize..8;
    prop_oneof![
        24 => (key.clone(), requests()).prop_map(|(key, request)| Op::Add(key, request)),
        16 => Just(Op::Get),
        14 => (which.clone(), hows()).prop_map(|(which, how)| Op::Finish(which, how)),
        1 => (which.clone(), hows()).prop_map(|(which, how)| Op::FinishStale(which, how)),
        2 => which.clone().prop_map(Op::Detach),
        1 => which.clone().prop_map(Op::Seal),
        2 => (which, any::<bool>()).prop_map(|(which, counts)| Op::CountStart(which, counts)),
        3 => key.clone().prop_map(Op::Done),
        3 => key.clone().prop_map(Op::Cancel),
        3 => key.clone().prop_map(Op::CancelRunning),
        2 => key.clone().prop_map(Op::Forget),
        3 => (key.clone(), prop::bool::weighted(0.5)).prop_map(|(team, on)| Op::PauseTeam(team, on)),
        1 => key.clone().prop_map(Op::CancelTeam),
        1 => key.prop_map(Op::CancelRunningTeam),
        2 => Just(Op::FlushDebounced),
        1 => (0usize..4).prop_map(Op::Promote),
        10 => jumps().prop_map(Op::Advance),
        2 => jumps().prop_map(Op::GoBack),
        2 => prop::bool::weighted(0.3).prop_map(Op::Pause),
        4 => (0usize..6).prop_map(Op::Page),
        4 => (0u32..3).prop_map(Op::Break),
        1 => prop_oneof![Just(Ending::Closed), Just(Ending::ShutDown)].prop_map(Op::End),
    ]
}

/// Returns sequences of operations. A few sequences end the queue early. Most sequences end it late
/// or not at all.
pub(crate) fn ops(max: usize) -> impl Strategy<Value = Vec<Op>> {
    let open = op().prop_map(|op| if matches!(op, Op::End(_)) { Op::Get } else { op });
    (prop::collection::vec(open, 1..max), prop::collection::vec(op(), 0..80)).prop_map(
        |(mut ops, end)| {
            ops.extend(end);
            ops
        },
    )
}

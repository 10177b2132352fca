//! Fuzzes sequences of operations, on the state machine and on the model in lockstep.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use requeue_core::{Ending, InFlightPolicy, Merge, Pace, ReaddPolicy, Time, When};
use requeue_sim::model::{AddRequest, Ranking, Rules, Why};
use requeue_sim::{How, Lockstep, Mode, Op, Setup};

/// The maximum number of operations. The model is slow, and faults appear after fewer operations.
const MOST: usize = 150;

/// Oracle: after every step, the observable states of state machine and model are equal. The replay of the recording
/// also ends in this state.
pub fn operations(data: &[u8]) {
    let mut from = Unstructured::new(data);
    let Ok(setup) = setup(&mut from) else { return };
    let mut lockstep = Lockstep::new(setup);
    for _ in 0..MOST {
        let Ok(op) = op(&mut from) else { break };
        lockstep.step(&op);
    }
    lockstep.replay();
}

fn setup(from: &mut Unstructured<'_>) -> Result<Setup> {
    let rules = Rules {
        re_add: *from.choose(&[ReaddPolicy::KeepBoth, ReaddPolicy::Replace, ReaddPolicy::Hold])?,
        rerun: InFlightPolicy::After,
        ranking: match from.int_in_range(0..=3)? {
            0 => Ranking::Fifo,
            1 => Ranking::Priority { oldest_every: from.int_in_range(0..=5)? },
            2 => Ranking::Priority { oldest_every: u32::MAX },
            // A stack of 1 would lose every key.
            _ => Ranking::Stack { lossy: *from.choose(&[0, 2, 3, 4, 5])? },
        },
        fair: from.ratio(1, 2)?,
        limit: if from.ratio(1, 2)? { Some(from.int_in_range(0..=3)?) } else { None },
        pace: match from.int_in_range(0..=5)? {
            0 | 4.. => None,
            runs => Some(Pace::new(runs, Duration::from_nanos(from.int_in_range(1..=30)?))),
        },
    };
    Ok(Setup {
        keys: from.int_in_range(1..=24)?,
        teams: from.int_in_range(1..=4)?,
        hashes: if from.ratio(1, 4)? { Some(from.int_in_range(1..=3)?) } else { None },
        track: from.ratio(1, 2)?,
        mode: *from.choose(&[Mode::Plain, Mode::Thrifty, Mode::Lazy])?,
        ..Setup::new(rules)
    })
}

fn op(from: &mut Unstructured<'_>) -> Result<Op> {
    if from.is_empty() {
        return Err(arbitrary::Error::NotEnoughData);
    }
    // Frequent operations have more than one number, so that the queue makes progress.
    Ok(match from.int_in_range(0..=31)? {
        0..8 => Op::Add(key(from)?, request(from)?),
        8..14 => Op::Get,
        14..19 => Op::Finish(from.int_in_range(0..=7)?, how(from)?),
        19 => Op::FinishStale(from.int_in_range(0..=7)?, how(from)?),
        20 => Op::Detach(from.int_in_range(0..=7)?),
        21 => Op::Done(key(from)?),
        22 => Op::Cancel(key(from)?),
        23 => Op::Forget(key(from)?),
        24 => match from.int_in_range(0..=7)? {
            most @ 0..3 => Op::Promote(most),
            3 => Op::FlushDebounced,
            after => Op::Break(after as u32 - 4),
        },
        25..28 => Op::Advance(jump(from)?),
        28 => Op::GoBack(jump(from)?),
        29 => Op::Pause(from.ratio(1, 3)?),
        30 => Op::Page(from.int_in_range(0..=5)?),
        _ => Op::End(*from.choose(&[Ending::Closed, Ending::ShutDown])?),
    })
}

fn key(from: &mut Unstructured<'_>) -> Result<u32> {
    from.int_in_range(0..=23)
}

fn request(from: &mut Unstructured<'_>) -> Result<AddRequest> {
    Ok(AddRequest {
        when: match from.int_in_range(0..=7)? {
            0..4 => When::Now,
            4..7 => When::After(duration(from)?),
            _ => When::At(Time::ZERO + duration(from)?),
        },
        merge: *from.choose(&[Merge::Earliest, Merge::Latest, Merge::Exactly])?,
        priority: match from.int_in_range(0..=3)? {
            0 => from.arbitrary()?,
            _ => from.int_in_range(-2..=3)?,
        },
        flags: 1 << from.int_in_range(0..=4)?,
        why: match from.int_in_range(0..=11)? {
            0 => None,
            reason => Some(Why { reason, cause: from.arbitrary()? }),
        },
        failed: from.ratio(1, 6)?,
        debounce: if from.ratio(1, 4)? { Some(duration(from)?) } else { None },
    })
}

fn how(from: &mut Unstructured<'_>) -> Result<How> {
    Ok(match from.int_in_range(0..=11)? {
        0..2 => How::Done,
        2..5 => How::Succeed,
        5..7 => How::RequeueAfter(duration(from)?),
        7..11 => How::RetryAfter(duration(from)?),
        _ => How::Release,
    })
}

/// Returns a time step. It is so short that the sum of all running times does not overflow in the
/// core, because the model has no such limit.
fn jump(from: &mut Unstructured<'_>) -> Result<Duration> {
    Ok(duration(from)?.min(Duration::from_nanos(1 << 50)))
}

/// Returns a duration. Most durations are short, so that due times coincide. Some are extreme.
fn duration(from: &mut Unstructured<'_>) -> Result<Duration> {
    Ok(match from.int_in_range(0..=15)? {
        0..12 => Duration::from_nanos(from.int_in_range(0..=11)?),
        12..14 => Duration::from_nanos(u64::from(from.arbitrary::<u32>()?) << 10),
        14 => {
            // Half of these durations exceed 64 bits of nanoseconds.
            let nanos = from.arbitrary::<u64>()?;
            let base = if nanos.is_multiple_of(2) { 0 } else { u64::MAX };
            Duration::from_nanos(base) + Duration::from_nanos(nanos)
        }
        _ => Duration::MAX,
    })
}

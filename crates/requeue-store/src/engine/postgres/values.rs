//! Values of the verbs, as the server has them.

use std::borrow::Cow;

use tokio_postgres::Row as SqlRow;

use crate::add::{Add, EarlyAdd, Merge, ParkedAdd, Priority};
use crate::engine::{Asked, Backoff, Delay, Failing, How, Place, Settings};
use crate::inspect::{Entry, State};
use crate::row::{Row, Run};
use crate::time::micros;

/// What [`seen`] takes.
pub(super) const COLUMNS: &str = "k.key, k.state, k.at, k.epoch, \
     greatest(k.lease_until, \
         (select r.lease_until from requeue.renewals r where r.epoch = k.epoch)), k.run_since, k.run_priority, \
     k.run_adds, k.run_reasons, k.priority, k.adds, k.reasons, k.failures, k.steps, k.until, \
     k.not_before, k.since, k.error";

/// What there is to say of an end besides how.
#[derive(Default)]
pub(super) struct Rest<'a> {
    pub(super) delays: Vec<Option<i64>>,
    pub(super) priorities: Vec<i16>,
    pub(super) adds: Vec<i32>,
    pub(super) reasons: Vec<i32>,
    pub(super) errors: Vec<Option<Cow<'a, str>>>,
    pub(super) bases: Vec<Option<i64>>,
    pub(super) caps: Vec<Option<i64>>,
    pub(super) shares: Vec<Option<f64>>,
    pub(super) mosts: Vec<Option<i32>>,
}

impl<'a> Rest<'a> {
    pub(super) fn push(&mut self, how: &'a How) {
        let none = (None, None, None, None);
        let (delay, asked, error, (base, cap, share, most)) = match how {
            How::Succeed => (None, Asked::default(), None, none),
            How::Later(delay, priority) => {
                let asked = Asked { priority: *priority, ..Asked::default() };
                (Some(micros(*delay)), asked, None, none)
            }
            How::PutBack(asked) => (None, *asked, None, none),
            How::Release(asked, queued) => (Some(micros(*queued)), *asked, None, none),
            How::Fail { delay, asked, error } => {
                let (delay, failing) = match delay {
                    Delay::Backoff(how) => {
                        let (base, cap, share, most) = failing(how);
                        (None, (Some(base), Some(cap), Some(share), most))
                    }
                    Delay::Exactly(delay, most) => {
                        (Some(micros(*delay)), (None, None, None, most.map(count)))
                    }
                    Delay::Park => (None, none),
                };
                (delay, *asked, Some(error), failing)
            }
        };
        self.delays.push(delay);
        self.priorities.push(asked.priority.number().into());
        self.adds.push(count(asked.adds));
        self.reasons.push(asked.reasons.cast_signed());
        self.errors.push(error.map(|error| text(error)));
        self.bases.push(base);
        self.caps.push(cap);
        self.shares.push(share);
        self.mosts.push(most);
    }
}

/// A queue's number, whether its adds are held back, and whether they revive parked keys.
pub(super) fn place(name: &str, row: &SqlRow) -> Place {
    let early_add = if row.get(1) { EarlyAdd::Hold } else { EarlyAdd::Replace };
    let parked_add = if row.get(2) { ParkedAdd::Revive } else { ParkedAdd::Keep };
    Place::new(row.get::<_, i32>(0).into(), name, Settings { early_add, parked_add })
}

/// As `requeue.cancel` has states.
pub(super) const fn number_of(state: State) -> i32 {
    match state {
        State::Ready => 0,
        State::Waiting => 1,
        State::Processing => 2,
        State::Parked => 3,
    }
}

pub(super) const fn is_hold(early_add: EarlyAdd) -> bool {
    matches!(early_add, EarlyAdd::Hold)
}

pub(super) fn number(queue: &Place) -> i32 {
    // It came from one.
    queue.id.try_into().unwrap_or(0)
}

pub(super) fn how_to_add(add: Add) -> i16 {
    let merge = match add.merge {
        Merge::Earliest => 0,
        Merge::Latest => 1,
        Merge::Exactly => 2,
    };
    if add.revives { merge + 4 } else { merge }
}

pub(super) const fn how_to_end(how: &How) -> i16 {
    match how {
        How::Succeed => 0,
        How::Later(..) => 1,
        How::Fail { delay: Delay::Backoff(_), .. } => 2,
        How::Fail { delay: Delay::Exactly(..), .. } => 3,
        How::Fail { delay: Delay::Park, .. } => 4,
        How::PutBack(_) => 5,
        How::Release(..) => 6,
    }
}

pub(super) fn failing(failing: &Failing) -> (i64, i64, f64, Option<i32>) {
    let Backoff { base, cap, share } = failing.backoff;
    (micros(base), micros(cap), share.clamp(0.0, 1.0), failing.max_failures.map(count))
}

/// As the server counts: to 2³¹ - 1, and there it stays.
pub(super) fn count(number: u32) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

pub(super) fn unsigned(count: i32) -> u32 {
    count.try_into().unwrap_or(0)
}

/// No text of the server's has a NUL in it.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Numbers in the batch, which the server counts from 1.
pub(super) fn numbers(row: &SqlRow, column: usize) -> Vec<usize> {
    let numbers: Vec<i32> = row.get(column);
    numbers.into_iter().filter_map(|n| usize::try_from(n).ok()?.checked_sub(1)).collect()
}

/// Priority, adds and reasons, from this column on.
pub(super) fn asked(row: &SqlRow, first: usize) -> Asked {
    Asked {
        priority: Priority::of(row.get::<_, i16>(first).into()),
        adds: unsigned(row.get(first + 1)),
        reasons: row.get::<_, i32>(first + 2).cast_unsigned(),
    }
}

/// What a row of [`COLUMNS`] and the time says of its key.
pub(super) fn seen(row: &SqlRow) -> Entry {
    let state: i16 = row.get(1);
    // A row has all of it, or nothing.
    let run = row.get::<_, Option<i64>>(3).map(|epoch| Run {
        epoch,
        lease_until: row.get(4),
        since: row.get(5),
        asked: asked(row, 6),
    });
    let kept = Row {
        at: row.get(2),
        run,
        parked: state == 2,
        asked: asked(row, 9),
        failures: unsigned(row.get(12)),
        steps: unsigned(row.get(13)),
        until: row.get(14),
        not_before: row.get(15),
        since: row.get(16),
        error: row.get(17),
    };
    kept.seen(row.get::<_, &[u8]>(0).into(), row.get(18))
}

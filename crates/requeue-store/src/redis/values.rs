//! What scripts are given, and what they answer.

use std::time::Duration;

use redis::{Cmd, Value};

use super::faults::garbled;
use crate::add::{Add, Added, Cancelled, Merge, Priority};
use crate::engine::{Ask, Asked, Claimed, Delay, End, Failing, HandOut, How};
use crate::error::Fault;
use crate::inspect::Counts;
use crate::key::Key;
use crate::row::{Row, Run};
use crate::time::{Micros, micros};

/// Of `most`, when nothing parks a key by itself.
const NEVER_PARKED: u64 = 1 << 33;

pub(super) fn ask(to: &mut Cmd, ask: &Ask) {
    let Add { after, merge, priority, reasons, revives } = ask.add;
    let merge = match merge {
        Merge::Earliest => "earliest",
        Merge::Latest => "latest",
        Merge::Exactly => "exactly",
    };
    let (delay, priority, revives) = (micros(after), priority.number(), u8::from(revives));
    let said = format!("{delay} {merge} {} {reasons} {priority} {revives}", ask.adds);
    to.arg(&*ask.key).arg(said);
}

/// `epoch` is the shard's.
pub(super) fn end(to: &mut Cmd, end: &End, epoch: i64) {
    let (said, error) = match &end.how {
        How::Succeed => ("succeed".to_owned(), ""),
        How::Later(delay, priority) => {
            let (delay, priority) = (micros(*delay), priority.number());
            (format!("later 1 0 {priority} 0 {delay}"), "")
        }
        How::PutBack(asked) => (format!("put_back {}", self::asked(asked)), ""),
        How::Fail { delay, asked, error } => (failure(delay, asked), &**error),
    };
    to.arg(&*end.key).arg(epoch).arg(said).arg(error);
}

fn asked(Asked { adds, reasons, priority }: &Asked) -> String {
    format!("{adds} {reasons} {}", priority.number())
}

fn failure(delay: &Delay, asked: &Asked) -> String {
    let asked = self::asked(asked);
    match delay {
        Delay::Backoff(failing) => backoff(failing, &asked),
        Delay::Exactly(delay, most) => {
            let most = most.map_or(NEVER_PARKED, u64::from);
            format!("exactly {asked} {most} {}", micros(*delay))
        }
        Delay::Park => format!("park {asked}"),
    }
}

fn backoff(Failing { backoff, max_failures }: &Failing, asked: &str) -> String {
    let most = max_failures.map_or(NEVER_PARKED, u64::from);
    let (base, cap) = (micros(backoff.base), micros(backoff.cap));
    format!("backoff {asked} {most} {base} {cap} {}", backoff.share.clamp(0.0, 1.0))
}

/// How keys fail whose leases have run out; what they were asked with, the script knows.
pub(super) fn expired(failing: &Failing) -> String {
    backoff(failing, "0 0 0")
}

/// An array, from its front.
pub(super) struct Values(std::vec::IntoIter<Value>);

impl Values {
    pub(super) fn of(value: Value) -> Result<Self, Fault> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(garbled()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn value(&mut self) -> Result<Value, Fault> {
        self.0.next().ok_or_else(garbled)
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Fault> {
        bytes(self.value()?)
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, Fault> {
        number(self.value()?).and_then(|number| number.try_into().map_err(|_| garbled()))
    }

    /// A number that need not be there.
    fn rest<T: TryFrom<i64> + Default>(&mut self) -> Result<T, Fault> {
        if self.is_empty() { Ok(T::default()) } else { self.number() }
    }

    /// How long it is, or less than nothing for never.
    pub(super) fn until(&mut self) -> Result<Option<Duration>, Fault> {
        Ok(u64::try_from(self.number::<i64>()?).ok().map(Duration::from_micros))
    }

    fn priority(&mut self) -> Result<Priority, Fault> {
        self.rest().map(Priority::of)
    }
}

fn bytes(value: Value) -> Result<Vec<u8>, Fault> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(garbled()),
    }
}

pub(super) fn number(value: Value) -> Result<i64, Fault> {
    match value {
        Value::Int(number) => Ok(number),
        Value::BulkString(bytes) => {
            let text = std::str::from_utf8(&bytes).ok();
            text.and_then(|text| text.parse().ok()).ok_or_else(garbled)
        }
        _ => Err(garbled()),
    }
}

/// A digit for each.
pub(super) fn digits(value: Value, count: usize) -> Result<Vec<u8>, Fault> {
    let digits = bytes(value)?;
    if digits.len() == count { Ok(digits) } else { Err(garbled()) }
}

pub(super) fn added(digit: u8) -> Result<Added, Fault> {
    Ok(match digit {
        b'0' => Added::New,
        b'1' => Added::Coalesced,
        b'2' => Added::Dirty,
        b'3' => Added::Held,
        b'4' => Added::Parked,
        _ => return Err(garbled()),
    })
}

pub(super) fn cancelled(value: Value) -> Result<Cancelled, Fault> {
    let digits = digits(value, 4)?;
    let took = |at: usize| digits[at] == b'1';
    Ok(Cancelled { ready: took(0), dirty: took(1), waiting: took(2), parked: took(3) })
}

/// Epochs are the shard's.
pub(super) fn claimed(value: Value) -> Result<Claimed, Fault> {
    let mut values = Values::of(value)?;
    let next = values.until()?;
    let mut items = Vec::with_capacity(values.0.len() / 7);
    while !values.is_empty() {
        items.push(HandOut {
            key: values.bytes()?.into(),
            epoch: values.number()?,
            asked: Asked {
                adds: values.number()?,
                reasons: values.number()?,
                priority: values.priority()?,
            },
            failures: values.number()?,
            queued: Duration::from_micros(values.number()?),
        });
    }
    Ok(Claimed { items, next })
}

/// A key's, in the order in which the scripts keep it; what is nothing at the end is left out.
/// `epoch` makes the queue's of the shard's.
pub(super) fn row(value: Value, epoch: impl Fn(i64) -> i64) -> Result<Row, Fault> {
    let mut values = Values::of(value)?;
    let [at, since]: [Micros; 2] = [values.number()?, values.number()?];
    let asked =
        Asked { adds: values.rest()?, reasons: values.rest()?, priority: values.priority()? };
    let [number, lease_until, run_since]: [i64; 3] =
        [values.rest()?, values.rest()?, values.rest()?];
    let run_asked =
        Asked { adds: values.rest()?, reasons: values.rest()?, priority: values.priority()? };
    let run = Run { epoch: epoch(number), lease_until, since: run_since, asked: run_asked };
    let (failures, steps) = (values.rest()?, values.rest()?);
    let (until, not_before) = (values.rest()?, values.rest()?);
    let parked = values.rest::<i64>()? == 1;
    let error = if values.is_empty() { Vec::new() } else { values.bytes()? };
    let error = String::from_utf8_lossy(&error).into_owned();
    Ok(Row {
        at: (at > 0).then_some(at),
        run: (number > 0).then_some(run),
        parked,
        failures,
        steps,
        until,
        not_before,
        asked,
        since,
        error: (failures > 0).then_some(error),
    })
}

pub(super) fn counts(value: Value) -> Result<Counts, Fault> {
    let mut values = Values::of(value)?;
    Ok(Counts {
        ready: values.number()?,
        waiting: values.number()?,
        processing: values.number()?,
        dirty: values.number()?,
        parked: values.number()?,
        oldest_ready: Duration::from_micros(values.number()?),
    })
}

/// A key and its row, of an answer that has many.
pub(super) fn entry(values: &mut Values, epoch: impl Fn(i64) -> i64) -> Result<(Key, Row), Fault> {
    let key = values.bytes()?.into();
    Ok((key, row(values.value()?, epoch)?))
}

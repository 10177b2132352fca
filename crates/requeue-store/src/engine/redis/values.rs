//! What scripts are given, and what they answer.

use std::time::Duration;

use redis::{Cmd, Value};

use super::faults::garbled;
use crate::add::{Add, Added, Cancelled, Merge, Priority};
use crate::engine::{Ask, Asked, Claimed, Delay, End, Failing, HandOut, How, Place};
use crate::error::Fault;
use crate::inspect::{Counts, State};
use crate::row::{Row, Run};
use crate::time::micros;

/// Of `most`, when nothing parks a key by itself.
const NEVER_PARKED: u64 = 1 << 33;

pub(super) fn ask(to: &mut Cmd, ask: &Ask, queue: &Place) {
    let Add { after, merge, priority, reasons, .. } = ask.add;
    let merge = match merge {
        Merge::Earliest => "earliest",
        Merge::Latest => "latest",
        Merge::Exactly => "exactly",
    };
    let (delay, priority) = (micros(after), priority.number());
    let revives = u8::from(queue.revives(&ask.add));
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
        How::Release(asked, queued) => {
            (format!("release {} 0 {}", self::asked(asked), micros(*queued)), "")
        }
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

    /// How long it is until the next key, -1 for never, and less if the shard is damaged; then it is
    /// not known.
    pub(super) fn next_or_damage(&mut self) -> Result<(Option<Duration>, Health), Fault> {
        let number = self.number::<i64>()?;
        let dropped = u64::try_from(-2 - number);
        let next = u64::try_from(number).ok().map(Duration::from_micros);
        Ok((next, dropped.map_or(Health::Good, Health::Damaged)))
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
        b'6' => Added::Revived,
        _ => return Err(garbled()),
    })
}

/// Four digits for each.
pub(super) fn cancelled(value: Value, count: usize) -> Result<Vec<Option<Cancelled>>, Fault> {
    let digits = digits(value, 4 * count)?;
    let cancelled = |digits: &[u8]| {
        let took = |at: usize| digits[at] == b'1';
        Cancelled { ready: took(0), dirty: took(1), waiting: took(2), parked: took(3) }
    };
    Ok(digits.chunks_exact(4).map(|digits| Some(cancelled(digits))).collect())
}

/// As cancel.lua has states.
pub(super) const fn name_of(state: Option<State>) -> &'static str {
    match state {
        None => "any",
        Some(State::Ready) => "ready",
        Some(State::Waiting) => "waiting",
        Some(State::Processing) => "processing",
        Some(State::Parked) => "parked",
    }
}

/// What claim.lua answers. Epochs are the shard's.
pub(super) fn claimed(value: Value) -> Result<(Claimed, Health), Fault> {
    let mut values = Values::of(value)?;
    let (next, health) = values.next_or_damage()?;
    let mut items = Vec::with_capacity(values.0.len() / 2);
    while !values.is_empty() {
        let (key, said) = (values.bytes()?.into(), values.bytes()?);
        let mut fields = Fields(&said);
        items.push(HandOut {
            key,
            epoch: fields.number()?,
            asked: fields.asked()?,
            failures: fields.small()?,
            queued: Duration::from_micros(fields.number()?.try_into().map_err(|_| garbled())?),
        });
    }
    Ok((Claimed { items, next }, health))
}

/// Whether a shard has all of its keys, as far as its own counts say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Good,
    /// With how many places of keys that have no row, which were dropped.
    Damaged(u64),
}

/// What rows.lua has packed: a part for what is pending; and perhaps one for the hand-out, and one for
/// failures, with the error. `epoch` makes the queue's of the shard's.
pub(super) fn row(packed: &[u8], epoch: impl Fn(i64) -> i64) -> Result<Row, Fault> {
    let mut fields = Fields(packed);
    let mut row = Row { at: some(fields.number()?), since: fields.number()?, ..Row::default() };
    row.asked = fields.asked()?;
    if fields.0.is_empty() {
        return Ok(row);
    }
    let (number, lease_until, since) = (fields.number()?, fields.number()?, fields.number()?);
    let asked = fields.asked()?;
    row.run = some(number).map(|number| Run { epoch: epoch(number), lease_until, since, asked });
    if fields.0.is_empty() {
        return Ok(row);
    }
    (row.failures, row.steps) = (fields.small()?, fields.small()?);
    (row.until, row.not_before) = (fields.number()?, fields.number()?);
    row.parked = fields.bytes()? == [1];
    row.error = (row.failures > 0).then(|| String::from_utf8_lossy(fields.0).into_owned());
    Ok(row)
}

/// Nothing is 0 there.
fn some(number: i64) -> Option<i64> {
    Some(number).filter(|&number| number > 0)
}

/// What is left of a row.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// A whole one, for all that Lua has.
    fn number(&mut self) -> Result<i64, Fault> {
        Ok(f64::from_be_bytes(self.bytes()?) as i64)
    }

    fn small(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn asked(&mut self) -> Result<Asked, Fault> {
        let (adds, reasons) = (self.small()?, self.small()?);
        let priority = Priority::of(i8::from_be_bytes(self.bytes()?).into());
        Ok(Asked { adds, reasons, priority })
    }
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

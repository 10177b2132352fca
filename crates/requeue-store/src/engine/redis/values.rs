//! Encodes the arguments of scripts, and decodes their answers.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::faults::unknown_format;
use crate::engine::attempts::Failed;
use crate::engine::damage::Damaged;
use crate::engine::row::{Row, Run};
use crate::engine::time::{Micros, micros, until};
use crate::engine::turns::{Bands, Round, Turn, Visited};
use crate::engine::{Answers, Ask, Asked, Claimed, Delivery, End, Failing, Failure, Finish, Place};
use crate::types::add::{Add, Added, Merge, Priority};
use crate::types::error::Answer;
use crate::types::inspect::{Entry, ParkedKey, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::Rate;
use crate::types::worker::invalid_worker;

/// The value of `most` that stands for no limit of failures.
const NEVER_PARKED: u64 = 1 << 33;

pub(super) fn push_add(to: &mut Cmd, ask: &Ask, queue: &Place) {
    let Add { after, merge, priority, flags, .. } = ask.add;
    let merge = match merge {
        Merge::Earliest => "earliest",
        Merge::Latest => "latest",
        Merge::Exactly => "exactly",
    };
    let (delay, priority) = (micros(after), priority.number());
    let revives = u8::from(queue.revives(&ask.add));
    let mut said = format!("{delay} {merge} {} {flags} {priority} {revives}", ask.adds);
    if let Some(most) = ask.add.longest_wait() {
        // Writing to a string cannot fail.
        let _ = write!(said, " {}", micros(most));
    }
    if let Some(trace) = &ask.trace {
        let _ = write!(said, "\n{trace}");
    }
    to.arg(&*ask.key).arg(said);
    if queue.group_by.is_some() {
        to.arg(ask.group.as_deref().unwrap_or_default());
    }
}

/// Encodes a limit of keys in flight.
pub(super) fn limit_word(limit: Option<u32>) -> String {
    limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string())
}

/// Encodes a rate without the time of its next start.
pub(super) fn rate_word(rate: Option<Rate>) -> String {
    rate.map(Rate::to_stored).unwrap_or_default()
}

/// Appends the arguments of a completion. `epoch` is the fencing token of the shard.
pub(super) fn push_completion(to: &mut Cmd, end: &End, epoch: i64) {
    let said = match &end.how {
        Finish::Succeed => "succeed".to_owned(),
        Finish::RequeueAfter(delay, priority) => {
            let (delay, priority) = (micros(*delay), priority.number());
            format!("requeue_after 1 0 {priority} 0 {delay}")
        }
        Finish::Retry(failing, failure) => retry_words(failing, &asked_words(&failure.asked)),
        Finish::RetryAfter(delay, most, failure) => {
            let most = most.map_or(NEVER_PARKED, u64::from);
            format!("retry_after {} {most} {}", asked_words(&failure.asked), micros(*delay))
        }
        Finish::GiveUp(failure) => format!("give_up {}", asked_words(&failure.asked)),
        Finish::Cancelled => "cancelled".to_owned(),
        Finish::Release(given) => format!("release {}", asked_words(given)),
        Finish::Unclaim(given, queued) => {
            format!("unclaim {} 0 {}", asked_words(given), micros(*queued))
        }
    };
    let failure = end.how.failure().map(failure_words).unwrap_or_default();
    to.arg(&*end.key).arg(epoch).arg(said).arg(failure);
}

/// Encodes a failure: see `fail` in rows.lua.
fn failure_words(failure: &Failure) -> String {
    let Failure { took, exit_status, error, output, .. } = failure;
    let took = took.map_or_else(|| "-".to_owned(), |took| micros(took).to_string());
    let status = exit_status.map_or_else(|| "-".to_owned(), |status| status.to_string());
    format!("{took} {status} {} {error}{output}", error.len())
}

/// Decodes a failed run that `fail` in rows.lua has encoded. Returns `None` if another program has written the value.
pub(super) fn read_failed(value: &[u8]) -> Option<Failed> {
    let mut parts = value.splitn(7, |&byte| byte == b' ');
    let mut word = || std::str::from_utf8(parts.next()?).ok();
    let (at, number, took) = (word()?.parse().ok()?, word()?.parse().ok()?, word()?.parse().ok()?);
    let exit_status = word()?.parse().ok();
    let (name, error): (usize, usize) = (word()?.parse().ok()?, word()?.parse().ok()?);
    let (worker, rest) = parts.next()?.split_at_checked(name)?;
    let (error, output) = rest.split_at_checked(error)?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let worker = decode_worker(worker).ok()?;
    Some(Failed { number, at, took, worker, exit_status, error: text(error), output: text(output) })
}

fn asked_words(Asked { adds, flags, priority }: &Asked) -> String {
    format!("{adds} {flags} {}", priority.number())
}

fn retry_words(Failing { backoff, max_failures }: &Failing, asked: &str) -> String {
    let most = max_failures.map_or(NEVER_PARKED, u64::from);
    let (base, cap) = (micros(backoff.base), micros(backoff.cap));
    format!("retry {asked} {most} {base} {cap} {}", backoff.share.clamp(0.0, 1.0))
}

/// Encodes the rules for keys whose leases have expired. The script itself knows the parameters of their runs.
pub(super) fn expired_words(failing: &Failing) -> String {
    retry_words(failing, "0 0 0")
}

/// The values of an array that are not read yet. They are read from the front.
pub(super) struct Values(std::vec::IntoIter<Value>);

impl Values {
    pub(super) fn from_array(value: Value) -> Answer<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(unknown_format()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn next_value(&mut self) -> Answer<Value> {
        self.0.next().ok_or_else(unknown_format)
    }

    pub(super) fn bytes(&mut self) -> Answer<Vec<u8>> {
        bytes(self.next_value()?)
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Answer<T> {
        number(self.next_value()?)
            .and_then(|number| number.try_into().map_err(|_| unknown_format()))
    }

    /// Reads a time. Returns `None` if the script answers that there is no time.
    pub(super) fn time_if_any(&mut self) -> Answer<Option<Duration>> {
        match self.next_value()? {
            Value::Nil => Ok(None),
            value => {
                let micros = number(value)?.try_into().map_err(|_| unknown_format())?;
                Ok(Some(Duration::from_micros(micros)))
            }
        }
    }

    pub(super) fn text(&mut self) -> Answer<Arc<str>> {
        Ok(self.text_if_any()?.ok_or_else(unknown_format)?.into())
    }

    pub(super) fn text_if_any(&mut self) -> Answer<Option<String>> {
        match self.next_value()? {
            Value::Nil => Ok(None),
            value => to_text(value).map(Some),
        }
    }

    pub(super) fn number_if_any<T: TryFrom<i64>>(&mut self) -> Answer<Option<T>> {
        match self.next_value()? {
            Value::Nil => Ok(None),
            value => number(value)?.try_into().map(Some).map_err(|_| unknown_format()),
        }
    }

    pub(super) fn is_true(&mut self) -> Answer<bool> {
        Ok(self.number::<u8>()? == 1)
    }
}

fn bytes(value: Value) -> Answer<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(unknown_format()),
    }
}

pub(super) fn to_text(value: Value) -> Answer<String> {
    String::from_utf8(bytes(value)?).map_err(|_| unknown_format())
}

pub(super) fn number(value: Value) -> Answer<i64> {
    match value {
        Value::Int(number) => Ok(number),
        Value::BulkString(bytes) => {
            let text = std::str::from_utf8(&bytes).ok();
            text.and_then(|text| text.parse().ok()).ok_or_else(unknown_format)
        }
        _ => Err(unknown_format()),
    }
}

/// Returns the digits of an answer. Returns an error if there are not exactly `count` digits.
pub(super) fn to_digits(value: Value, count: usize) -> Answer<Vec<u8>> {
    let digits = bytes(value)?;
    if digits.len() == count { Ok(digits) } else { Err(unknown_format()) }
}

/// Returns the answer for each of `count` keys: true if the key was changed. No answer is `None`, because Redis has no
/// locked keys.
pub(super) fn to_changed(value: Value, count: usize) -> Answers<bool> {
    let digits = to_digits(value, count)?;
    Ok(digits.into_iter().map(|digit| Some(digit == b'1')).collect())
}

/// The answer to an add that has replaced an unreadable row that was not set aside. The key is new.
pub(super) const REPLACED: u8 = b'7';

pub(super) fn to_added(digit: u8) -> Answer<Added> {
    Ok(match digit {
        b'0' | REPLACED => Added::New,
        b'1' => Added::Coalesced,
        b'2' => Added::Dirty,
        b'3' => Added::BackingOff,
        b'4' => Added::Parked,
        b'6' => Added::Revived,
        _ => return Err(unknown_format()),
    })
}

/// Returns the name of a state in the arguments of cancel.lua.
pub(super) const fn name_of(state: Option<State>) -> &'static str {
    match state {
        None => "any",
        Some(State::Ready) => "ready",
        Some(State::Waiting) => "waiting",
        Some(State::InFlight) => "in_flight",
        Some(State::Parked) => "parked",
        Some(State::Damaged) => "damaged",
    }
}

/// The answer of claim.lua. Its fencing tokens are tokens of the shard.
pub(super) struct ShardClaim {
    pub(super) claimed: Claimed,
    /// The time of the claim, by the server's clock.
    pub(super) at: Micros,
    pub(super) health: Health,
    /// True if groups have changed that no wake has named.
    pub(super) needs_search: bool,
    /// The groups that the claim has visited, or `None` if it has visited none.
    pub(super) visited: Option<Bands<Visited>>,
}

/// Decodes the answer of claim.lua.
pub(super) fn read_claimed(value: Value, has_groups: bool) -> Answer<ShardClaim> {
    let mut values = Values::from_array(value)?;
    let (at, next) = (values.number()?, values.time_if_any()?);
    let (is_damaged, dropped) = (values.is_true()?, values.number()?);
    let flags: u8 = values.number()?;
    let claimed = Claimed {
        next,
        is_paused: flags & 1 > 0,
        is_rated: flags & 2 > 0,
        schedule_in: values.time_if_any()?,
        damaged: set_aside(values.next_value()?)?,
        parked: read_parked(values.next_value()?)?,
        items: read_delivered(values.next_value()?, has_groups)?,
    };
    let health = if is_damaged { Health::Damaged(dropped) } else { Health::Good };
    let visited = if values.is_empty() { None } else { Some(read_visited(values.next_value()?)?) };
    Ok(ShardClaim { claimed, at, health, needs_search: flags & 4 > 0, visited })
}

/// Decodes the visited groups of each priority.
fn read_visited(value: Value) -> Answer<Bands<Visited>> {
    let mut bands = Values::from_array(value)?;
    let mut all: Bands<Visited> = Bands::default();
    for visited in &mut all {
        let mut band = Values::from_array(bands.next_value()?)?;
        let mut next = Values::from_array(band.next_value()?)?;
        while !next.is_empty() {
            visited.next.push(Turn { group: next.text()?, used: next.number()? });
        }
        let mut last = Values::from_array(band.next_value()?)?;
        while !last.is_empty() {
            visited.last.push(last.text()?);
        }
        visited.cursor = band.text_if_any()?.map(Arc::from);
        visited.is_complete = band.is_true()?;
    }
    Ok(all)
}

/// Appends the groups that the claim visits: see turns.lua.
pub(super) fn push_rounds(to: &mut Cmd, rounds: &Bands<Round>) {
    for Round { first, after, more } in rounds {
        to.arg(after.as_deref().map(|after| format!(".{after}")).unwrap_or_default());
        to.arg(more).arg(first.len());
        for Turn { group, used } in first {
            to.arg(&**group).arg(used);
        }
    }
}

/// Decodes the keys that a claim has delivered, with the parameters of their runs.
fn read_delivered(value: Value, has_groups: bool) -> Answer<Vec<Delivery>> {
    let mut values = Values::from_array(value)?;
    let mut items = Vec::with_capacity(values.0.len() / 2);
    while !values.is_empty() {
        let (key, packed) = (values.bytes()?.into(), values.bytes()?);
        let group = if has_groups { Some(values.text()?) } else { None };
        let mut fields = Fields(&packed);
        let read = || -> Result<Delivery, String> {
            Ok(Delivery {
                key,
                epoch: fields.take_time("epoch")?,
                asked: fields.asked("priority")?,
                failures: fields.take_u32()?,
                queued: until(0, fields.take_time("queued")?),
                group,
                // If the key has never failed, its data ends before this value.
                failed: match fields.0 {
                    [] => None,
                    _ => none_if_zero(fields.take_time("failed")?).map(|time| until(1, time)),
                },
                trace: Some(String::from_utf8_lossy(fields.0))
                    .filter(|trace| !trace.is_empty())
                    .map(Arc::from),
            })
        };
        items.push(read().map_err(|_: String| unknown_format())?);
    }
    Ok(items)
}

/// Decodes the keys that were set aside, with the reasons.
pub(super) fn set_aside(value: Value) -> Answer<Vec<Damaged>> {
    let mut values = Values::from_array(value)?;
    let mut aside = Vec::new();
    while !values.is_empty() {
        let key = values.bytes()?.into();
        let why = String::from_utf8_lossy(&values.bytes()?).into_owned();
        aside.push(Damaged { key, why });
    }
    Ok(aside)
}

/// Decodes the keys that a claim has parked, with the numbers of their failures.
fn read_parked(value: Value) -> Answer<Vec<ParkedKey>> {
    let mut values = Values::from_array(value)?;
    let mut parked = Vec::new();
    while !values.is_empty() {
        parked.push(ParkedKey::from_expired_lease(values.bytes()?.into(), values.number()?));
    }
    Ok(parked)
}

/// The state of a shard, according to its own counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Good,
    /// Parts of the shard are missing. The value is the number of places that were dropped because they had no row.
    Damaged(u64),
}

/// The stored state of a key.
pub(super) struct Stored {
    /// The row that rows.lua has packed.
    packed: Vec<u8>,
    /// The fencing token of the key's cancelled run. It is `None` if no run was cancelled. The token may belong to an
    /// earlier run.
    cancelled: Option<i64>,
    /// The group of the key. It is `None` if the queue has no groups, or another client has written the row without a
    /// group.
    group: Option<String>,
}

impl Stored {
    /// Returns the state of a key that has no run in flight. If the queue has groups, the group and a zero byte precede
    /// the row.
    pub(super) fn without_run(mut packed: Vec<u8>, has_groups: bool) -> Self {
        let middle = packed.iter().position(|&byte| byte == 0).filter(|_| has_groups);
        let group = middle.and_then(|middle| {
            let rest = packed.split_off(middle + 1);
            let mut group = std::mem::replace(&mut packed, rest);
            group.pop();
            String::from_utf8(group).ok()
        });
        Self { packed, cancelled: None, group }
    }

    /// Reads a row and the token that follows. Returns an error if there is no row.
    pub(super) fn next(values: &mut Values, has_groups: bool) -> Answer<Self> {
        let stored = Self::without_run(values.bytes()?, has_groups);
        Ok(Self { cancelled: number(values.next_value()?).ok(), ..stored })
    }

    /// Returns the number of consecutive failures, or 0 if the row cannot be read.
    pub(super) fn failures(&self) -> u32 {
        read_row(&self.packed).map_or(0, |row| row.failures)
    }

    /// Returns the entry of the key. `epoch` converts a fencing token of the shard to one of the queue.
    pub(super) fn to_entry(&self, key: Key, epoch: impl Fn(i64) -> i64, now: Micros) -> Entry {
        let entry = match decode_row(&self.packed, &epoch) {
            Ok(mut row) => {
                let cancelled = self.cancelled.map(&epoch);
                row.run.iter_mut().for_each(|run| run.is_cancelled = cancelled == Some(run.epoch));
                row.to_entry(key, now)
            }
            Err(why) => Damaged { key, why }.into_entry(),
        };
        Entry { group: self.group.clone(), ..entry }
    }
}

/// The size, in bytes, of the row of a pending key.
const PENDING: usize = 25;
/// The size, in bytes, of the row of a key in flight, without the name of its worker.
const RUNNING: usize = PENDING + 34;
/// The additional size, in bytes, of a row with failures or a bound, without the error.
const EXTRA: usize = 33;

/// Decodes a row that rows.lua has packed. The row begins with a part for the pending run. A part for the delivery can
/// follow, and then a part for failures, the bound and the error. `epoch` converts a fencing token of the shard to one
/// of the queue. rows.lua implements the same rules.
pub(super) fn decode_row(packed: &[u8], epoch: impl Fn(i64) -> i64) -> Result<Row, String> {
    let size = packed.len();
    // The byte before the name of the worker is the length of the name.
    let running = RUNNING + usize::from(packed.get(RUNNING - 1).copied().unwrap_or(0));
    if size != PENDING && size != running && size < running + EXTRA {
        return Err(format!("the row has {size} bytes"));
    }
    let mut fields = Fields(packed);
    let mut row = Row {
        at: none_if_zero(fields.take_time("at")?),
        since: fields.take_time("since")?,
        ..Row::default()
    };
    row.asked = fields.asked("priority")?;
    if size > PENDING {
        let number = fields.take_time("epoch")?;
        let (lease_until, since) =
            (fields.take_time("lease_until")?, fields.take_time("run_since")?);
        let asked = fields.asked("run_priority")?;
        row.run = none_if_zero(number).map(|number| Run {
            epoch: epoch(number),
            lease_until,
            since,
            is_cancelled: false,
            asked,
        });
        row.worker = decode_worker(fields.take_name()?)?;
        if row.worker.is_some() && row.run.is_none() {
            return Err(bad_worker());
        }
    }
    if size > running {
        (row.failures, row.steps) = (fields.take_u32()?, fields.take_u32()?);
        (row.until, row.not_before) =
            (fields.take_time("backing_off")?, fields.take_time("not_before")?);
        let [flag] = fields.bytes()?;
        if flag > 7 {
            return Err(format!("parked is {}", flag.cast_signed()));
        }
        row.parked = flag & 1 > 0;
        row.bound = none_if_zero(fields.take_time("bound")?).filter(|_| row.at.is_some());
        // Data of version 1 does not contain this time.
        let failed_at = if flag & 2 > 0 { fields.take_time("failed_at")? } else { 0 };
        row.failed_at = none_if_zero(failed_at).filter(|_| row.failures > 0);
        if flag & 4 > 0 {
            row.trace = fields.take_trace()?;
            row.run_trace = fields.take_trace()?.filter(|_| row.run.is_some());
            row.past = Some(fields.take_text()?.into()).filter(|past: &Arc<[u8]>| !past.is_empty());
        }
        row.error = (row.failures > 0).then(|| String::from_utf8_lossy(fields.0).into_owned());
    }
    let has_run = row.at.is_some() || row.run.is_some();
    match (row.parked, has_run) {
        (true, true) => Err("the row is parked and has a run".to_owned()),
        (false, false) => Err("the row has no state".to_owned()),
        _ => Ok(row),
    }
}

/// Decodes a row. Its fencing token is that of the shard.
pub(crate) fn read_row(packed: &[u8]) -> Result<Row, String> {
    decode_row(packed, |epoch| epoch)
}

/// Returns `None` for 0, which stands for a missing value.
fn none_if_zero(number: i64) -> Option<i64> {
    Some(number).filter(|&number| number > 0)
}

/// Decodes the name of a worker. Returns `None` if the name is empty.
fn decode_worker(name: &[u8]) -> Result<Option<Arc<str>>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    let name = std::str::from_utf8(name).ok().filter(|name| invalid_worker(name).is_none());
    name.map(|name| Some(name.into())).ok_or_else(bad_worker)
}

fn bad_worker() -> String {
    "worker is not valid".to_owned()
}

fn too_short() -> String {
    "the row is too short".to_owned()
}

/// The bytes of a row or of an answer that are not read yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// Reads a whole number of microseconds, or a fencing token. The number is at most the largest integer up to which
    /// a double is exact.
    fn take_time(&mut self, name: &str) -> Result<i64, String> {
        let time = f64::from_be_bytes(self.bytes()?);
        // Numbers in Lua are doubles, but scripts write only exact integers.
        if (0.0..=LATEST).contains(&time) && time.fract() == 0.0 {
            // The value is a whole number, and fits an `i64`.
            Ok(time as i64)
        } else {
            Err(format!("{name} is {time:?}"))
        }
    }

    /// Reads the length and the name of a worker.
    fn take_name(&mut self) -> Result<&[u8], String> {
        let [length] = self.bytes()?;
        let (name, rest) = self.0.split_at_checked(length.into()).ok_or_else(too_short)?;
        self.0 = rest;
        Ok(name)
    }

    /// Reads the length of trace contexts or of a past, and then the bytes.
    fn take_text(&mut self) -> Result<&[u8], String> {
        let length = u16::from_be_bytes(self.bytes()?);
        let (text, rest) = self.0.split_at_checked(length.into()).ok_or_else(too_short)?;
        self.0 = rest;
        Ok(text)
    }

    fn take_trace(&mut self) -> Result<Option<Arc<str>>, String> {
        let trace = self.take_text()?;
        Ok((!trace.is_empty()).then(|| String::from_utf8_lossy(trace).into()))
    }

    fn take_u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn asked(&mut self, name: &str) -> Result<Asked, String> {
        let (adds, flags) = (self.take_u32()?, self.take_u32()?);
        let number = i8::from_be_bytes(self.bytes()?);
        let priority = Priority::ALL.into_iter().find(|priority| priority.number() == number);
        let priority = priority.ok_or_else(|| format!("{name} is {number}"))?;
        Ok(Asked { adds, flags, priority })
    }
}

/// The value of `NEVER` in shard.lua.
const LATEST: f64 = 9_007_199_254_740_991.0;

/// Decodes the number of keys in each state.
pub(super) fn read_counts(values: &mut Values) -> Answer<StateCounts> {
    Ok(StateCounts {
        ready: values.number()?,
        waiting: values.number()?,
        in_flight: values.number()?,
        dirty: values.number()?,
        parked: values.number()?,
        damaged: values.number()?,
        oldest_ready: Duration::from_micros(values.number()?),
    })
}

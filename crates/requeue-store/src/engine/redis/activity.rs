//! Stores the activity of a queue in each minute. The activity concerns the whole queue, so it is not part of a shard.

use std::fmt::Write;

use redis::Value;

use super::Redis;
use super::names;
use super::scripts::{Call, Script};
use super::values::{self, Values};
use crate::engine::Place;
use crate::engine::activity::{
    Merging, Part, Parts, Record, Recorded, Which, decode_times, encode_times,
};
use crate::types::activity::Tally;
use crate::types::error::{Answer, EngineError, Kind};

impl Redis {
    pub(super) async fn store_activity(&self, queue: &Place, record: Record) -> Answer<Recorded> {
        let Record { minute, instance, worker, tally } = record;
        let (mut command, slot) = activity_call(&self.nodes.scripts.record_activity, queue);
        command.arg(minute.map(|minute| minute.to_string()).unwrap_or_default());
        command.arg(&*instance).arg(encode_part(&worker, &tally));
        let mut answer = Values::from_array(self.run_on_record(queue, slot, &command).await?)?;
        let minute = answer.number()?;
        let mut flag = || answer.number::<u8>().map(|flag| flag > 0);
        Ok(Recorded { minute, is_written: flag()?, has_old: flag()? })
    }

    pub(super) async fn read_parts(&self, queue: &Place, which: Which) -> Answer<Parts> {
        let (mut command, slot) = activity_call(&self.nodes.scripts.read_activity, queue);
        command.arg(match which {
            Which::Since(time) => time.to_string(),
            Which::Old => String::new(),
            // The period begins so far in the future that the script finds no rows, even if the clock was set back.
            Which::Nothing => i64::MIN.to_string(),
        });
        let mut answer = Values::from_array(self.run_on_record(queue, slot, &command).await?)?;
        let text = |bytes: Vec<u8>| -> String { String::from_utf8_lossy(&bytes).into_owned() };
        let now = text(answer.bytes()?).parse().unwrap_or_default();
        let mut parts = Vec::new();
        while !answer.is_empty() {
            let (minute, instance) = (text(answer.bytes()?), text(answer.bytes()?));
            // Rows that another program has damaged are skipped.
            if let (Ok(minute), Some(part)) = (minute.parse(), decode_part(&answer.bytes()?)) {
                parts.push(Part { minute, instance, ..part });
            }
        }
        Ok(Parts { now, parts })
    }

    pub(super) async fn merge_parts(&self, queue: &Place, merging: Merging) -> Answer<bool> {
        let (mut command, slot) = activity_call(&self.nodes.scripts.merge_activity, queue);
        let is_empty = merging.is_empty();
        let row = if is_empty { Vec::new() } else { encode_part("", &merging.tally) };
        command.arg(merging.minute).arg(row);
        for (instance, at) in merging.parts {
            command.arg(instance).arg(at);
        }
        Ok(values::number(self.run_on_record(queue, slot, &command).await?)? == 1)
    }

    pub(super) async fn run_on_record(
        &self,
        queue: &Place,
        slot: u16,
        call: &Call<'_>,
    ) -> Answer<Value> {
        self.nodes.run_script(slot, call).await.map_err(|fault| match fault.kind {
            Kind::Dropped => EngineError::dropped(&queue.name),
            _ => fault,
        })
    }
}

/// Returns a call of a script, and the slot of the Redis keys that the script uses.
pub(super) fn activity_call<'s>(script: &'s Script, queue: &Place) -> (Call<'s>, u16) {
    let (record, slot) = names::queue(&queue.name);
    let mut call = script.with(&names::with_activity(record));
    call.arg(queue.generation);
    (call, slot)
}

/// Encodes a row without its time. The first line has the counts, and the second line has the worker. The histograms
/// follow.
fn encode_part(worker: &str, tally: &Tally) -> Vec<u8> {
    let mut text = String::new();
    for count in tally.counts() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{count} ");
    }
    let mut part = format!("{text}\n{worker}\n").into_bytes();
    part.extend(encode_times(tally));
    part
}

/// Decodes a row without its minute and its instance. Returns `None` if the row is invalid.
fn decode_part(row: &[u8]) -> Option<Part> {
    let mut lines = row.splitn(3, |&byte| byte == b'\n');
    let mut line = || std::str::from_utf8(lines.next()?).ok();
    let (words, worker) = (line()?, line()?.to_owned());
    let mut words = words.split_ascii_whitespace();
    let at = words.next()?.parse().ok()?;
    let mut counts = [0; Tally::COUNTS.len()];
    for count in &mut counts {
        *count = words.next()?.parse().ok()?;
    }
    let tally = Tally::new(counts, decode_times(lines.next()?));
    Some(Part { minute: 0, instance: String::new(), worker, at, tally })
}

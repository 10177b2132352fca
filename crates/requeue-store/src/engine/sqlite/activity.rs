//! Stores the activity of a queue in each minute.

use rusqlite::{OptionalExtension, Result, Row, params};

use super::thread::Work;
use crate::engine::Place;
use crate::engine::activity::{
    KEPT, MERGED, Merging, Part, Parts, Record, Recorded, Which, decode_times, encode_times,
    first_kept_apart, is_writable, minute_of, stored_count,
};
use crate::engine::time::Micros;
use crate::types::activity::Tally;

/// The columns that [`read_part`] reads.
const COLUMNS: &str =
    "minute, instance, worker, at, adds, coalesced, starts, successes, failures, given_up, times";

impl Work<'_> {
    pub(super) fn record_activity(&self, queue: &Place, record: &Record) -> Result<Recorded> {
        let Record { minute: wanted, instance, worker, tally } = record;
        let minute = minute_of(self.now);
        let wanted = wanted.unwrap_or(minute);
        let is_written = is_writable(wanted, minute);
        if is_written {
            let last = "select at from activity where queue = ?1 and minute = ?2 and instance = ?3";
            let last: Option<Micros> = self
                .connection
                .prepare_cached(last)?
                .query_row(params![queue.id, wanted, &**instance], |row| row.get(0))
                .optional()?;
            let at = last.map_or(self.now, |last| self.now.max(last + 1));
            let (instance, worker) = (instance.to_string(), worker.to_string());
            let tally = tally.clone();
            self.keep_part(queue, &Part { minute: wanted, instance, worker, at, tally })?;
        }
        let old = "select exists (select 1 from activity indexed by activity_parts \
                   where queue = ?1 and minute < ?2 and instance <> '')";
        let mut old = self.connection.prepare_cached(old)?;
        let has_old =
            old.query_row(params![queue.id, first_kept_apart(minute)], |row| row.get(0))?;
        Ok(Recorded { minute, is_written, has_old })
    }

    pub(super) fn read_activity(&self, queue: &Place, which: Which) -> Result<Parts> {
        let (sql, from) = match which {
            Which::Since(time) => (
                format!("select {COLUMNS} from activity where queue = ?1 and minute >= ?2"),
                minute_of(self.now.saturating_sub(time)),
            ),
            Which::Old => (
                format!(
                    "with parts as ( \
                         select {COLUMNS} from activity indexed by activity_parts \
                         where queue = ?1 and minute < ?2 and instance <> '' \
                         order by minute limit {MERGED} \
                     ) select {COLUMNS} from parts union all \
                     select {COLUMNS} from activity where queue = ?1 and instance = '' \
                         and minute in (select minute from parts)"
                ),
                first_kept_apart(minute_of(self.now)),
            ),
            Which::Nothing => return Ok(Parts { now: self.now, parts: Vec::new() }),
        };
        let mut statement = self.connection.prepare_cached(&sql)?;
        let parts = statement.query_map(params![queue.id, from], read_part)?;
        Ok(Parts { now: self.now, parts: parts.collect::<Result<_>>()? })
    }

    pub(super) fn merge_activity(&self, queue: &Place, merging: &Merging) -> Result<bool> {
        let is_there =
            "select 1 from activity where queue = ?1 and minute = ?2 and instance = ?3 and at = ?4";
        let is_gone = "select 1 from activity where queue = ?1 and minute = ?2 and instance = ''";
        let minute = merging.minute;
        let mut last = self.now;
        for (instance, at) in &merging.parts {
            let found = params![queue.id, minute, instance, at];
            if !self.connection.prepare_cached(is_there)?.exists(found)? {
                return Ok(false);
            }
            last = last.max(at + 1);
        }
        if !merging.has_merged_row()
            && self.connection.prepare_cached(is_gone)?.exists(params![queue.id, minute])?
        {
            return Ok(false);
        }
        let remove = "delete from activity where queue = ?1 and minute = ?2 and instance = ?3";
        for (instance, _) in &merging.parts {
            self.connection.prepare_cached(remove)?.execute(params![queue.id, minute, instance])?;
        }
        if !merging.is_empty() {
            let (instance, worker) = Default::default();
            let tally = merging.tally.clone();
            self.keep_part(queue, &Part { minute, instance, worker, at: last, tally })?;
        }
        let remove = "delete from activity where queue = ?1 and minute < ?2";
        let first = minute_of(self.now) - KEPT;
        self.connection.prepare_cached(remove)?.execute(params![queue.id, first])?;
        Ok(true)
    }

    fn keep_part(&self, queue: &Place, part: &Part) -> Result<()> {
        let sql = format!(
            "insert or replace into activity (queue, {COLUMNS}) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        );
        let Part { minute, instance, worker, at, tally } = part;
        let [adds, coalesced, starts, successes, failures, given_up] =
            tally.counts().map(stored_count);
        let times = encode_times(tally);
        self.connection
            .prepare_cached(&sql)?
            .execute(params![
                queue.id, minute, instance, worker, at, adds, coalesced, starts, successes,
                failures, given_up, times
            ])
            .map(drop)
    }
}

/// Reads a row that has the columns [`COLUMNS`].
fn read_part(row: &Row<'_>) -> Result<Part> {
    let mut counts = [0; Tally::COUNTS.len()];
    for (n, count) in counts.iter_mut().enumerate() {
        *count = row.get::<_, i64>(4 + n)?.try_into().unwrap_or(0);
    }
    Ok(Part {
        minute: row.get(0)?,
        instance: row.get(1)?,
        worker: row.get(2)?,
        at: row.get(3)?,
        tally: Tally::new(counts, decode_times(row.get_ref(10)?.as_blob()?)),
    })
}

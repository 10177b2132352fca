//! Stores the failed runs of keys.

use std::sync::Arc;

use rusqlite::{Result, Row as SqlRow, params};

use super::rows::keep_row;
use super::thread::Work;
use crate::engine::attempts::{Failed, MOST, SLOTS, last_attempts};
use crate::engine::columns::Source as _;
use crate::engine::row::Row;
use crate::engine::{Finish, Place};
use crate::types::inspect::Attempt;
use crate::types::key::Key;

/// Old failures are removed when a key fails whose fencing token is a multiple of this number.
const BETWEEN_TRIMS: i64 = 128;
/// The maximum number of failures that one removal deletes.
const TRIMMED: i64 = 1024;

impl Work<'_> {
    /// Completes the delivery of a key in flight. Returns the record that remains, or `None` if it was deleted.
    pub(super) fn finish_row(
        &self,
        queue: &Place,
        key: &Key,
        row: Row,
        how: Finish,
    ) -> Result<Option<Row>> {
        let was_failing = row.failures > 0;
        let epoch = row.run.map_or(0, |run| run.epoch);
        let failed = how.failure().map(|failure| Failed::of_run(&row, failure, self.now));
        let row = row.finish(how, queue, self.now);
        keep_row(self.connection, queue.id, key, row.as_ref(), self.now)?;
        // If the key was added during a run that was given up, the failures were reset, and the attempt is not kept.
        match failed.filter(|failed| row.as_ref().is_some_and(|row| row.failures == failed.number))
        {
            Some(failed) => {
                self.keep_attempt(queue, key, &failed)?;
                if epoch % BETWEEN_TRIMS == 0 {
                    self.trim_attempts(queue)?;
                }
            }
            None => self.forget_attempts(queue, key, was_failing, row.as_ref())?,
        }
        Ok(row)
    }

    fn keep_attempt(&self, queue: &Place, key: &Key, failed: &Failed) -> Result<()> {
        let sql = "insert or replace into attempts \
                   (queue, key, slot, number, at, took, worker, exit_status, error, output) \
                   values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let Failed { number, at, took, worker, exit_status, error, output } = failed;
        let slot = failed.slot();
        let values =
            params![queue.id, &**key, slot, number, at, took, worker, exit_status, error, output];
        self.connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Removes the failed runs of a key whose failures were reset, or that no longer has a record. `was_failing` is
    /// true if the key had failures before.
    pub(super) fn forget_attempts(
        &self,
        queue: &Place,
        key: &Key,
        was_failing: bool,
        row: Option<&Row>,
    ) -> Result<()> {
        if was_failing && row.is_none_or(|row| row.failures == 0) {
            let sql = "delete from attempts where queue = ?1 and key = ?2";
            self.connection.prepare_cached(sql)?.execute(params![queue.id, &**key])?;
        }
        Ok(())
    }

    /// Removes the oldest failed runs of the queue if it has too many.
    fn trim_attempts(&self, queue: &Place) -> Result<()> {
        let sql = "delete from attempts where (queue, key, slot) in ( \
                       select queue, key, slot from attempts indexed by attempts_at \
                       where queue = ?1 and at <= ( \
                           select at from attempts indexed by attempts_at \
                           where queue = ?1 order by at desc limit 1 offset ?3 \
                       ) order by at limit ?2 \
                   )";
        self.connection.prepare_cached(sql)?.execute(params![queue.id, TRIMMED, MOST]).map(drop)
    }

    pub(super) fn read_attempts(&self, queue: &Place, key: &Key) -> Result<Vec<Attempt>> {
        let failures = "select failures from keys where queue = ?1 and key = ?2";
        let mut failures = self.connection.prepare_cached(failures)?;
        let mut failures = failures.query(params![queue.id, &**key])?;
        let Some(found) = failures.next()? else { return Ok(Vec::new()) };
        let failures: u32 = found.get(0)?;
        let sql = "select number, at, took, worker, exit_status, error, output from attempts \
                   where queue = ?1 and key = ?2 order by number desc limit ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let kept = statement.query_map(params![queue.id, &**key, SLOTS], read_failed)?;
        Ok(last_attempts(kept.collect::<Result<_>>()?, failures, self.now))
    }
}

fn read_failed(row: &SqlRow<'_>) -> Result<Failed> {
    // Another program may have written text that is not UTF-8.
    let text = |position| row.read_text(position);
    Ok(Failed {
        number: row.get(0)?,
        at: row.get(1)?,
        took: row.get(2)?,
        worker: text(3)?.as_deref().map(Arc::from),
        exit_status: row.get(4)?,
        error: text(5)?.unwrap_or_default().into_owned(),
        output: text(6)?.unwrap_or_default().into_owned(),
    })
}

//! Stores the schedules of a queue. Each change also writes the earliest due time into the row of the queue, which
//! claims read in any case.

use rusqlite::{OptionalExtension, Result, Row, named_params, params};

use super::thread::Work;
use crate::engine::Place;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::types::key::Key;

/// The columns that [`read_schedule`] reads.
const COLUMNS: &str = "key, spec, zone, priority, grp, next_at, is_new, paused, error";

impl Work<'_> {
    pub(super) fn put_schedule(&self, queue: &Place, schedule: &Scheduled) -> Result<Agenda> {
        let found = self.look_up_schedule(queue, &schedule.key)?;
        let new = Scheduled { next_at: self.now, ..schedule.clone() };
        let put = match found {
            Some(was) => new.replace(was),
            None => new,
        };
        self.keep_schedule(queue, &put)?;
        Ok(Agenda { now: self.now, schedules: vec![put] })
    }

    pub(super) fn remove_schedule(&self, queue: &Place, key: &Key) -> Result<bool> {
        let sql = "delete from schedules where queue = ?1 and key = ?2";
        let count = self.connection.execute(sql, params![queue.id, &**key])?;
        self.note_next(queue)?;
        Ok(count > 0)
    }

    pub(super) fn pause_schedule(&self, queue: &Place, key: &Key, paused: bool) -> Result<bool> {
        let Some(was) = self.look_up_schedule(queue, key)? else { return Ok(false) };
        self.keep_schedule(queue, &was.set_paused(paused))?;
        Ok(true)
    }

    pub(super) fn list_schedules(
        &self,
        queue: &Place,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Agenda> {
        let sql = format!(
            "select {COLUMNS} from schedules where queue = ?1 and (?2 is null or key > ?2) \
             order by key limit ?3"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = statement
            .query_map(params![queue.id, after.map(|key| &**key), limit], read_schedule)?;
        Ok(Agenda { now: self.now, schedules: found.collect::<Result<_>>()? })
    }

    pub(super) fn next_schedules(&self, queue: &Place, limit: usize) -> Result<Agenda> {
        let sql = format!(
            "select {COLUMNS} from schedules indexed by schedules_due \
             where queue = ?1 and due_at is not null order by due_at limit ?2"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = statement.query_map(params![queue.id, limit], read_schedule)?;
        Ok(Agenda { now: self.now, schedules: found.collect::<Result<_>>()? })
    }

    pub(super) fn fire_schedule(
        &self,
        queue: &Place,
        was: &Scheduled,
        firing: Firing,
    ) -> Result<bool> {
        if self.look_up_schedule(queue, &was.key)?.as_ref() != Some(was) {
            return Ok(false);
        }
        if firing.adds(was) {
            self.add_keys(queue, &[was.to_ask()])?;
        }
        self.keep_schedule(queue, &firing.apply(was))?;
        Ok(true)
    }

    pub(super) fn count_schedules(&self, queue: &Place) -> Result<u64> {
        let sql = "select count(*) from schedules where queue = ?1";
        let count: i64 = self.connection.query_row(sql, [queue.id], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    pub(super) fn look_up_schedule(&self, queue: &Place, key: &Key) -> Result<Option<Scheduled>> {
        let sql = format!("select {COLUMNS} from schedules where queue = ?1 and key = ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.query_row(params![queue.id, &**key], read_schedule).optional()
    }

    fn keep_schedule(&self, queue: &Place, schedule: &Scheduled) -> Result<()> {
        let sql = format!(
            "insert or replace into schedules (queue, {COLUMNS}) \
             values (:queue, :key, :spec, :zone, :priority, :grp, :next_at, :is_new, :paused, :error)"
        );
        let Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error } =
            schedule;
        self.connection.prepare_cached(&sql)?.execute(named_params! {
            ":queue": queue.id,
            ":key": &**key,
            ":spec": spec,
            ":zone": zone,
            ":priority": priority.number(),
            ":grp": group,
            ":next_at": next_at,
            ":is_new": is_new,
            ":paused": is_paused,
            ":error": error,
        })?;
        self.note_next(queue)
    }

    /// Writes the earliest due time of the schedules into the row of the queue.
    fn note_next(&self, queue: &Place) -> Result<()> {
        let sql = "update queues set schedule_at = ( \
                       select min(due_at) from schedules indexed by schedules_due \
                       where queue = ?1 and due_at is not null) \
                   where id = ?1";
        self.connection.prepare_cached(sql)?.execute([queue.id]).map(drop)
    }
}

/// Reads a row that has the columns [`COLUMNS`].
fn read_schedule(row: &Row<'_>) -> Result<Scheduled> {
    Ok(Scheduled {
        key: Key::from(row.get_ref(0)?.as_bytes()?),
        spec: row.get(1)?,
        zone: row.get(2)?,
        priority: row.get::<_, i32>(3)?.into(),
        group: row.get(4)?,
        next_at: row.get(5)?,
        is_new: row.get(6)?,
        is_paused: row.get(7)?,
        error: row.get(8)?,
    })
}

//! Stores the schedules of a queue.

use tokio_postgres::Row as SqlRow;

use super::Postgres;
use super::params::Param;
use super::values::number;
use crate::engine::Place;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::types::error::Answer;
use crate::types::key::Key;

impl Postgres {
    pub(super) async fn store_schedule(
        &self,
        queue: &Place,
        schedule: Scheduled,
    ) -> Answer<Agenda> {
        let sql = "select next_at, is_new, paused, error, requeue.now() \
                   from requeue.put_schedule($1, $2, $3, $4, $5, $6)";
        let Scheduled { key, spec, zone, priority, group, .. } = &schedule;
        let (id, key, priority) = (number(queue), &**key, i16::from(priority.number()));
        let (spec, zone) = (&**spec, &**zone);
        let group = group.as_deref();
        let params: [&dyn Param; 6] = [&id, &key, &spec, &zone, &priority, &group];
        let row = self.query_row(queue, sql, &params).await?;
        let (next_at, is_new) = (row.get(0), row.get(1));
        let (is_paused, error) = (row.get(2), row.get(3));
        let schedules = vec![Scheduled { next_at, is_new, is_paused, error, ..schedule }];
        Ok(Agenda { now: row.get(4), schedules })
    }

    /// Returns schedules in the given order.
    pub(super) async fn read_schedules(
        &self,
        queue: &Place,
        order: Order<'_>,
        limit: usize,
    ) -> Answer<Agenda> {
        let (which, after) = match order {
            Order::Due => ("due_at is not null and $3::bytea is null order by due_at", None),
            Order::Key(None) => ("$3::bytea is null order by key", None),
            Order::Only(key) => ("key = $3 order by key", Some(&**key)),
            Order::Key(Some(after)) => ("key > $3 order by key", Some(&**after)),
        };
        let sql = format!(
            "select n.t, s.key, s.spec, s.zone, s.priority, s.grp, s.next_at, s.is_new, s.paused, s.error \
             from (select requeue.now() as t) n left join ( \
                 select * from requeue.schedules where queue = $1 and {which} limit $2 \
             ) s on true order by {}",
            if matches!(order, Order::Due) { "s.due_at" } else { "s.key" }
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [&dyn Param; 3] = [&number(queue), &limit, &after];
        let rows = self.query_rows(queue, &sql, &params).await?;
        let schedules: Vec<_> = rows.iter().filter_map(read_schedule).collect();
        if schedules.is_empty() {
            self.check_queue(queue).await?;
        }
        let now = rows.first().map(|row| row.get(0)).unwrap_or_default();
        Ok(Agenda { now, schedules })
    }

    pub(super) async fn fire_stored(
        &self,
        queue: &Place,
        was: &Scheduled,
        firing: Firing,
    ) -> Answer<bool> {
        let sql = "select requeue.fire_schedule($1, $2, $3, $4, $5, $6, $7, $8)";
        let (next_at, error) = match firing {
            Firing::Next(next_at) => (Some(next_at), None),
            Firing::Refused(why) => (None, Some(why)),
        };
        let Scheduled { key, spec, zone, next_at: was_next_at, is_new, .. } = was;
        let (id, key, spec, zone) = (number(queue), &**key, &**spec, &**zone);
        let error = error.as_deref();
        let params: [&dyn Param; 8] =
            [&id, &key, &spec, &zone, was_next_at, is_new, &next_at, &error];
        Ok(self.query_row(queue, sql, &params).await?.get(0))
    }
}

/// Selects schedules and their order.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    Due,
    /// Selects only the schedule of this key.
    Only(&'a Key),
    /// Selects the schedules after this key, sorted by key.
    Key(Option<&'a Key>),
}

/// Reads a row of [`Postgres::read_schedules`]. Returns `None` if the row contains only the server's time.
fn read_schedule(row: &SqlRow) -> Option<Scheduled> {
    let key: &[u8] = row.get::<_, Option<_>>(1)?;
    Some(Scheduled {
        key: Key::from(key),
        spec: row.get(2),
        zone: row.get(3),
        priority: i32::from(row.get::<_, i16>(4)).into(),
        group: row.get::<_, Option<&str>>(5).map(Into::into),
        next_at: row.get(6),
        is_new: row.get(7),
        is_paused: row.get(8),
        error: row.get(9),
    })
}

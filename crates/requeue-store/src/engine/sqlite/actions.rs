//! Stores the actions of operators on a queue.

use rusqlite::{Result, Row, params};

use super::thread::Work;
use crate::engine::Place;
use crate::engine::time::{Micros, until};
use crate::types::action::{ActionRecord, KEPT};

impl Work<'_> {
    pub(super) fn record_action(&self, queue: &Place, action: &ActionRecord) -> Result<()> {
        let sql = "insert into actions (queue, number, at, action, who, target, note) \
                   select ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5, ?6 from actions \
                   where queue = ?1 returning number";
        let ActionRecord { ago: _, action, by, target, note } = action;
        let record = params![queue.id, self.now, action, by, target, note];
        let number: i64 = self.connection.query_row(sql, record, |row| row.get(0))?;
        let sql = "delete from actions where queue = ?1 and number <= ?2";
        self.connection.execute(sql, params![queue.id, number - KEPT as i64]).map(drop)
    }

    pub(super) fn last_actions(&self, queue: &Place) -> Result<Vec<ActionRecord>> {
        let sql = "select at, action, who, target, note from actions where queue = ?1 \
                   order by number desc";
        let read = |row: &Row<'_>| {
            let at: Micros = row.get(0)?;
            let (action, by) = (row.get(1)?, row.get(2)?);
            let (target, note) = (row.get(3)?, row.get(4)?);
            Ok(ActionRecord { ago: until(at, self.now), action, by, target, note })
        };
        self.connection.prepare_cached(sql)?.query_map([queue.id], read)?.collect()
    }
}

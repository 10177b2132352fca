//! Stores the actions of operators on a queue.

use tokio_postgres::Row as SqlRow;

use super::Postgres;
use super::params::Param;
use super::values::number;
use crate::engine::Place;
use crate::engine::time::until;
use crate::types::action::ActionRecord;
use crate::types::error::Answer;

impl Postgres {
    pub(super) async fn store_action(&self, queue: &Place, action: ActionRecord) -> Answer<()> {
        let sql = "select requeue.record_action($1, $2, $3, $4, $5)";
        let ActionRecord { ago: _, action, by, target, note } = &action;
        let (action, by, target, note) = (&**action, &**by, &**target, &**note);
        let params: [&dyn Param; 5] = [&number(queue), &action, &by, &target, &note];
        self.query_row(queue, sql, &params).await.map(drop)
    }

    pub(super) async fn read_actions(&self, queue: &Place) -> Answer<Vec<ActionRecord>> {
        let sql = "select requeue.now(), at, action, who, target, note from requeue.actions \
                   where queue = $1 order by number desc";
        let rows = self.query_rows(queue, sql, &[&number(queue)]).await?;
        if rows.is_empty() {
            self.check_queue(queue).await?;
        }
        let action = |row: &SqlRow| ActionRecord {
            ago: until(row.get(1), row.get(0)),
            action: row.get(2),
            by: row.get(3),
            target: row.get(4),
            note: row.get(5),
        };
        Ok(rows.iter().map(action).collect())
    }
}

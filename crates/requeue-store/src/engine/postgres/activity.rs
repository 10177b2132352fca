//! Stores the activity of a queue in each minute.

use tokio_postgres::Row as SqlRow;

use super::Postgres;
use super::params::Param;
use super::values::number;
use crate::engine::Place;
use crate::engine::activity::{
    MERGED, MINUTE, Merging, Part, Parts, Record, Recorded, Which, decode_times, encode_times,
    first_kept_apart, stored_count, unzip_parts,
};
use crate::types::activity::Tally;
use crate::types::error::Answer;

/// The columns that [`read_part`] reads.
const COLUMNS: &str =
    "minute, instance, worker, at, adds, coalesced, starts, successes, failures, given_up, times";

impl Postgres {
    pub(super) async fn store_activity(&self, queue: &Place, record: Record) -> Answer<Recorded> {
        let sql = "select current_minute, is_written, has_old \
                   from requeue.record_activity($1, $2, $3, $4, $5, $6)";
        let Record { minute, instance, worker, tally } = record;
        let (instance, worker) = (&*instance, &*worker);
        let counts = tally.counts().map(stored_count).to_vec();
        let times = encode_times(&tally);
        let params: [&dyn Param; 6] =
            [&number(queue), &minute, &instance, &worker, &counts, &&*times];
        let row = self.query_row(queue, sql, &params).await?;
        Ok(Recorded { minute: row.get(0), is_written: row.get(1), has_old: row.get(2) })
    }

    pub(super) async fn read_parts(&self, queue: &Place, which: Which) -> Answer<Parts> {
        let (rows, value) = match which {
            Which::Since(time) => (
                format!(
                    "select {COLUMNS} from requeue.activity \
                     where queue = $1 and minute >= (requeue.now() - $2) / {MINUTE}"
                ),
                time,
            ),
            Which::Old => (
                format!(
                    "with parts as ( \
                         select {COLUMNS} from requeue.activity \
                         where queue = $1 and minute < requeue.now() / {MINUTE} + $2 \
                             and instance <> '' order by minute limit {MERGED} \
                     ) select {COLUMNS} from parts union all \
                     select {COLUMNS} from requeue.activity where queue = $1 and instance = '' \
                         and minute in (select minute from parts)"
                ),
                first_kept_apart(0),
            ),
            Which::Nothing => {
                let now = self.query_row(queue, "select requeue.now()", &[]).await?.get(0);
                return Ok(Parts { now, parts: Vec::new() });
            }
        };
        let sql = format!(
            "select n.t, a.* from (select requeue.now() as t) n left join ({rows}) a on true"
        );
        let rows = self.query_rows(queue, &sql, &[&number(queue), &value]).await?;
        let parts: Vec<_> = rows.iter().filter_map(read_part).collect();
        if parts.is_empty() {
            self.check_queue(queue).await?;
        }
        Ok(Parts { now: rows.first().map(|row| row.get(0)).unwrap_or_default(), parts })
    }

    pub(super) async fn merge_parts(&self, queue: &Place, merging: Merging) -> Answer<bool> {
        let sql = "select requeue.merge_activity($1, $2, $3, $4, $5, $6)";
        let (instances, ats) = unzip_parts(&merging.parts);
        let counts = merging.tally.counts().map(stored_count).to_vec();
        let times = (!merging.is_empty()).then(|| encode_times(&merging.tally));
        let params: [&dyn Param; 6] =
            [&number(queue), &merging.minute, &instances, &ats, &counts, &times.as_deref()];
        Ok(self.query_row(queue, sql, &params).await?.get(0))
    }
}

/// Reads a row of [`Postgres::read_parts`]. Returns `None` if the row contains only the server's time.
fn read_part(row: &SqlRow) -> Option<Part> {
    let minute = row.get::<_, Option<_>>(1)?;
    let mut counts = [0; Tally::COUNTS.len()];
    for (n, count) in counts.iter_mut().enumerate() {
        *count = row.get::<_, i64>(5 + n).try_into().unwrap_or(0);
    }
    Some(Part {
        minute,
        instance: row.get(2),
        worker: row.get(3),
        at: row.get(4),
        tally: Tally::new(counts, decode_times(row.get(11))),
    })
}

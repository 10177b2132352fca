//! Walks through the keys of a queue, a bounded number of them at a time.

use requeue::{Cursor, Filter};

use crate::rows::Row;
use crate::source::{Part, Source};

/// How many keys are looked at under one hold of the queue's lock.
const SLICE: usize = 256;
/// How many keys are looked at for one request.
const LOOKS: usize = 100_000;

/// What is asked for.
pub(crate) struct Walk {
    pub(crate) filter: Filter,
    pub(crate) part: Option<Part>,
    pub(crate) limit: usize,
    /// Where to go on.
    pub(crate) cursor: u32,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Walked {
    pub(crate) rows: Vec<Row>,
    pub(crate) next: Option<u32>,
    /// About how many keys were looked at.
    pub(crate) looked_at: usize,
}

impl Walk {
    pub(crate) async fn of(&self, source: &dyn Source) -> Walked {
        if self.filter == Filter::Running
            && let Some(walked) = self.longest_first(source).await
        {
            return walked;
        }
        let mut walked = Walked { next: Some(self.cursor), ..Walked::default() };
        while let Some(at) = walked.next
            && walked.rows.len() < self.limit
            && walked.looked_at < LOOKS
        {
            let left = self.limit - walked.rows.len();
            let look =
                |size| source.slice(self.filter, self.part.as_ref(), Cursor::from_bits(at), size);
            let mut size = SLICE;
            let mut slice = look(size);
            if slice.rows.len() > left {
                // A walk goes on between slices, not within one.
                size = left;
                slice = look(size);
            }
            walked.looked_at += size;
            walked.rows.extend(slice.rows);
            walked.next = slice.next.map(Cursor::to_bits);
            tokio::task::yield_now().await;
        }
        walked
    }

    async fn longest_first(&self, source: &dyn Source) -> Option<Walked> {
        let mut walked = Walked { next: Some(self.cursor), ..Walked::default() };
        while let Some(at) = walked.next
            && walked.rows.len() < self.limit
            && walked.looked_at < LOOKS
        {
            let size = SLICE.min(self.limit - walked.rows.len());
            let running = source.running(self.part.as_ref(), at as usize, size)?;
            walked.looked_at += running.looked_at;
            walked.rows.extend(running.rows);
            // No more keys run than there are numbers of slots.
            walked.next = (running.looked_at == size).then(|| at.saturating_add(size as u32));
            tokio::task::yield_now().await;
        }
        Some(walked)
    }
}

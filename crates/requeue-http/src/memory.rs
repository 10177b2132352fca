//! A queue in memory as a source. It is read in slices, so that no request holds its lock for long.

use std::future::ready;
use std::hash::BuildHasher;

use requeue::{Cursor, Entry, Filter, Key, Phase, Queue};

use crate::cursors::{Cursors, Order};
use crate::keys::escaped;
use crate::params::Problem;
use crate::rows::Row;
use crate::source::{
    Answer, DetailOf, Found, Gauges, LOOKS, Part, Read, Show, Source, Status, Walk, Walked, Which,
    detail_of,
};

/// The number of keys that are read under one hold of the queue's lock.
const SLICE: usize = 256;

/// A queue, and the functions that show its keys.
pub(crate) struct Shown<K: Key, S> {
    pub(crate) queue: Queue<K, S>,
    pub(crate) show: Show<K>,
    pub(crate) read: Read<K>,
    pub(crate) detail: DetailOf<K>,
    pub(crate) cursors: Cursors,
}

impl<K: Key, S: BuildHasher + Send + Sync> Shown<K, S> {
    fn row(&self, entry: &Entry<K>, bytes: &[u8]) -> Row {
        Row::new(entry, bytes, self.queue.now(), detail_of(&self.detail, &entry.key))
    }

    fn rows(&self, entries: Vec<Entry<K>>, part: Option<&Part>) -> Vec<Row> {
        let row = |entry: Entry<K>| {
            let bytes = (self.show)(&entry.key);
            let shown = part.is_none_or(|part| part.is_in(&escaped(&bytes)));
            shown.then(|| self.row(&entry, &bytes))
        };
        entries.into_iter().filter_map(row).collect()
    }

    async fn pages(&self, walk: &Walk) -> Result<Walked, Problem> {
        let filter = match walk.which {
            Which::All => Filter::All,
            Which::Ready => Filter::Phase(Phase::Ready),
            Which::Waiting => Filter::Waiting,
            Which::Running => Filter::Running,
            Which::Failing => Filter::Failing,
            // States of queues in a store only.
            Which::Parked | Which::Damaged => return Ok(Walked::default()),
        };
        let keeps_times = self.queue.running(0, 0).is_some();
        let order = match filter {
            Filter::Running if keeps_times => Order::LongestFirst,
            _ => Order::ByHash,
        };
        let cursor = match &walk.cursor {
            None => 0,
            Some(cursor) => self.cursors.decrypt(order, cursor).ok_or_else(Walk::bad_cursor)?,
        };
        if let Order::LongestFirst = order
            && let Some(walked) = self.longest_first(walk, cursor).await
        {
            return Ok(walked);
        }
        let mut walked = Walked::default();
        let mut next = Some(Cursor::from_bits(cursor));
        while let Some(at) = next
            && walked.rows.len() < walk.limit
            && walked.looked_at < LOOKS
        {
            let left = walk.limit - walked.rows.len();
            let look = |size| {
                let page = self.queue.snapshot(filter, at, size);
                (self.rows(page.entries, walk.part.as_ref()), page.next)
            };
            let mut size = SLICE;
            let (mut rows, mut end) = look(size);
            if rows.len() > left {
                // A cursor cannot point into a slice, so that the slice is read again with the right size.
                size = left;
                (rows, end) = look(size);
            }
            walked.looked_at += size;
            walked.rows.extend(rows);
            next = end;
            tokio::task::yield_now().await;
        }
        walked.next = next.map(|cursor| self.cursors.encrypt(Order::ByHash, cursor.to_bits()));
        Ok(walked)
    }

    /// Returns the running keys, the one that has run the longest first; `None` if the queue does not keep times.
    async fn longest_first(&self, walk: &Walk, cursor: u32) -> Option<Walked> {
        let mut walked = Walked::default();
        let mut next = Some(cursor);
        while let Some(at) = next
            && walked.rows.len() < walk.limit
            && walked.looked_at < LOOKS
        {
            let size = SLICE.min(walk.limit - walked.rows.len());
            let running = self.queue.running(at as usize, size)?;
            walked.looked_at += running.len();
            // Fewer than 2^32 keys can run, because each has a slot.
            next = (running.len() == size).then(|| at.saturating_add(size as u32));
            walked.rows.extend(self.rows(running, walk.part.as_ref()));
            tokio::task::yield_now().await;
        }
        walked.next = next.map(|cursor| self.cursors.encrypt(Order::LongestFirst, cursor));
        Some(walked)
    }
}

impl<K: Key, S: BuildHasher + Send + Sync> Source for Shown<K, S> {
    fn name(&self) -> Option<&str> {
        self.queue.name()
    }

    fn status(&self) -> Status {
        match () {
            () if self.queue.shutting_down() => Status::ShutDown,
            () if self.queue.is_paused() => Status::Paused,
            () if self.queue.is_closed() => Status::Closed,
            () => Status::Open,
        }
    }

    fn gauges(&self) -> Gauges {
        let queue = &self.queue;
        Gauges {
            keys: queue.known(),
            ready: queue.len(),
            waiting: queue.waiting(),
            running: queue.processing(),
            failing: Some(queue.failing()),
            parked: None,
            counts: queue.counts(),
            given_up: queue.given_up(),
            panics: queue.panics(),
            times: queue.running(0, 0).map(|_| queue.histograms()),
            oldest_ready: queue.oldest_ready(),
            longest_running: queue.longest_running(),
        }
    }

    fn longest(&self, limit: usize) -> Vec<Row> {
        self.rows(self.queue.running(0, limit).unwrap_or_default(), None)
    }

    fn walk<'a>(&'a self, walk: &'a Walk) -> Answer<'a, Walked> {
        Box::pin(self.pages(walk))
    }

    fn find<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Found> {
        let found = match (self.read)(key).map(|key| self.queue.look_up(&key)) {
            None => Found::NoKey,
            Some(None) => Found::Nothing,
            Some(Some(entry)) => Found::Row(Box::new(self.row(&entry, &(self.show)(&entry.key)))),
        };
        Box::pin(ready(Ok(found)))
    }
}

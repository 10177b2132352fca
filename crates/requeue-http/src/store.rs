//! A queue in a store. What can't be had without asking is asked for by a task, each second.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use requeue_store::{Counts, Entry, Key, LookError, Queue, State};
use tokio::time::{Instant, timeout};

use crate::keys::{escaped, from_base64, to_base64};
use crate::params::Problem;
use crate::rows::Row;
use crate::source::{
    Answer, DetailOf, Found, Gauges, LOOKS, Source, Status, Walk, Walked, Which, detail_of,
};

const EVERY: Duration = Duration::from_secs(1);
/// Of how much time one part may be spent on looking for what runs longest.
const SHARE: u32 = 50;
/// How many keys are looked at by one statement, at first. Where a page takes as long as all keys, many
/// would take many times as long.
const PAGE: usize = 256;
const GROWTH: usize = 16;
/// How long the store has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Stored {
    queue: Queue,
    detail: Arc<DetailOf<Key>>,
    seen: Arc<Mutex<Seen>>,
}

/// As of the last second in which the store could be reached.
struct Seen {
    is_away: bool,
    gauges: Gauges,
    /// The first by key, with the longest running first.
    longest: Vec<Entry>,
}

impl Seen {
    fn take(&mut self, counts: Option<Counts>, longest: Option<Vec<Entry>>, queue: &Queue) {
        if let Some(mut longest) = longest {
            longest.sort_by_key(|entry| Reverse(entry.since));
            self.longest = longest;
        }
        self.is_away = counts.is_none();
        let (Some(counts), Some(sample)) = (counts, queue.sample()) else { return };
        let number = |keys: u64| usize::try_from(keys).unwrap_or(usize::MAX);
        let Counts { ready, waiting, processing, parked, .. } = counts;
        self.gauges = Gauges {
            keys: number(ready + waiting + processing + parked),
            ready: number(ready),
            waiting: number(waiting),
            running: number(processing),
            failing: None,
            parked: Some(number(parked)),
            counts: sample.counts,
            given_up: sample.given_up,
            panics: sample.panics,
            times: Some(sample.times),
            oldest_ready: sample.oldest_ready,
            longest_running: self.longest.first().and_then(|key| key.since).unwrap_or_default(),
        };
    }
}

impl Stored {
    pub(crate) fn new(queue: Queue, detail: DetailOf<Key>) -> Self {
        let gauges = Gauges { parked: Some(0), ..Gauges::default() };
        let seen = Seen { is_away: false, gauges, longest: Vec::new() };
        let (seen, detail) = (Arc::new(Mutex::new(seen)), Arc::new(detail));
        tokio::spawn(keep_looking(queue.clone(), Arc::downgrade(&seen)));
        Self { queue, detail, seen }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    fn row(&self, entry: &Entry) -> Row {
        Row::stored(entry, detail_of(&self.detail, &entry.key))
    }

    async fn pages(&self, walk: &Walk) -> Result<Walked, Problem> {
        let state = match walk.which {
            Which::All => None,
            Which::Ready => Some(State::Ready),
            Which::Waiting | Which::Failing => Some(State::Waiting),
            Which::Running => Some(State::Processing),
            Which::Parked => Some(State::Parked),
        };
        let mut after = match &walk.cursor {
            None => None,
            Some(cursor) => {
                let key = from_base64(cursor.as_bytes()).ok_or_else(Walk::bad_cursor)?;
                Some(Key::from(key))
            }
        };
        let (mut walked, mut size) = (Walked::default(), PAGE);
        loop {
            let page = answer(self.queue.snapshot(state, after.as_ref(), size)).await?;
            let is_last = page.len() < size;
            size = (size * GROWTH).min(LOOKS);
            for entry in &page {
                walked.looked_at += 1;
                let fits = walk.which != Which::Failing || entry.failures > 0;
                let has_part = |part: &crate::source::Part| part.is_in(&escaped(&entry.key));
                if fits && walk.part.as_ref().is_none_or(has_part) {
                    walked.rows.push(self.row(entry));
                }
                after = Some(entry.key.clone());
                if walked.rows.len() == walk.limit || walked.looked_at >= LOOKS {
                    walked.next = after.map(|key| to_base64(&key));
                    return Ok(walked);
                }
            }
            if is_last {
                return Ok(walked);
            }
        }
    }

    async fn look_up(&self, key: &[u8]) -> Result<Found, Problem> {
        if key.len() > Key::LONGEST {
            return Ok(Found::NoKey);
        }
        let found = answer(self.queue.look_up(Key::from(key))).await?;
        Ok(found.map_or(Found::Nothing, |entry| Found::Row(Box::new(self.row(&entry)))))
    }
}

impl Source for Stored {
    fn name(&self) -> Option<&str> {
        Some(self.queue.name())
    }

    fn status(&self) -> Status {
        match () {
            () if self.queue.is_shut_down() => Status::ShutDown,
            () if self.seen().is_away => Status::Unreachable,
            () => Status::Open,
        }
    }

    fn gauges(&self) -> Gauges {
        self.seen().gauges
    }

    fn longest(&self, limit: usize) -> Vec<Row> {
        let longest: Vec<Entry> = self.seen().longest.iter().take(limit).cloned().collect();
        longest.iter().map(|entry| self.row(entry)).collect()
    }

    fn walk<'a>(&'a self, walk: &'a Walk) -> Answer<'a, Walked> {
        Box::pin(self.pages(walk))
    }

    fn find<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Found> {
        Box::pin(self.look_up(key))
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer<T>(looked: impl Future<Output = Result<T, LookError>>) -> Result<T, Problem> {
    let away = |error: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error);
    match timeout(PATIENCE, looked).await {
        Ok(answer) => answer.map_err(|error| away(error.to_string())),
        Err(_) => Err(away("the store has not answered in time".to_owned())),
    }
}

/// Until nobody shows it any more.
async fn keep_looking(queue: Queue, seen: Weak<Mutex<Seen>>) {
    let mut next_look = Instant::now();
    while seen.strong_count() > 0 {
        let counted = answer(queue.recent_counts()).await;
        let begin = Instant::now();
        let longest = match &counted {
            Ok(counts) if counts.processing > 0 && begin >= next_look => {
                let running = answer(queue.snapshot(Some(State::Processing), None, PAGE)).await;
                next_look = begin + SHARE * begin.elapsed();
                running.ok()
            }
            Ok(counts) if counts.processing == 0 => Some(Vec::new()),
            _ => None,
        };
        match seen.upgrade() {
            None => return,
            Some(seen) => lock(&seen).take(counted.ok(), longest, &queue),
        }
        tokio::time::sleep(EVERY).await;
    }
}

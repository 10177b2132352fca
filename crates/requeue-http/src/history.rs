//! The history of runs: the last runs of keys that have failed, and the keys that were given up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::api::{Outcome, PastRun};
use crate::time::{seconds, unix_time};

/// The maximum number of parked keys in the history. Also the maximum number of keys that are not
/// parked.
const KEYS: usize = 1_000;
/// The maximum number of runs of each key in the history.
const RUNS: usize = 10;
/// The maximum length of an error in the history, in bytes.
const ERROR: usize = 512;
/// The maximum length of an output in the history, in bytes. Only the output of a key's last run
/// is kept.
const OUTPUT: usize = 4 << 10;

/// A history of the last runs of keys that have failed. The dashboard shows it: see
/// [`Builder::history`](crate::Builder::history).
///
/// Clones are handles to the same history. The history contains at most 1,000 keys that were given
/// up, and 1,000 other keys. If there are more, it drops the oldest key. It contains at most 10
/// runs of each key, and only those since the first failure of the key.
///
/// If a queue in memory gives up a key, the key is *parked* in the history. The dashboard shows
/// the key with its last error, until the key is added again. A store keeps its own parked keys.
/// The history then contains only the runs in this process.
///
/// The history identifies a key by the bytes that the dashboard shows: see
/// [`ByteKey`](crate::ByteKey).
///
/// # Examples
///
/// ```
/// use requeue::{Completion, Queue};
/// use requeue_http::{History, Run, Site};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let queue: Queue<String> = Queue::new();
/// let history = History::new();
/// let site = Site::builder(queue.clone()).history(&history).build();
///
/// queue.add("mail".to_owned());
/// let item = queue.get().await.expect("the queue is open");
/// let (key, run) = (item.key().clone(), Run::new(item.attempt()).error("no such address"));
/// item.complete(Completion::GiveUp);
/// // After the completion: a key in flight is not parked.
/// history.gave_up(key, run);
/// # });
/// ```
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

/// A completed run, which the program records in a [`History`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Run {
    attempt: u32,
    took: Option<Duration>,
    error: String,
    output: String,
}

impl Run {
    /// Creates a run. `attempt` is its number, beginning with 1.
    pub const fn new(attempt: u32) -> Self {
        Self { attempt, took: None, error: String::new(), output: String::new() }
    }

    /// Sets the duration of the run.
    pub const fn took(mut self, took: Duration) -> Self {
        self.took = Some(took);
        self
    }

    /// Sets the error of a failed run. The history stores at most the first 512 bytes.
    pub fn error(mut self, error: impl fmt::Display) -> Self {
        self.error = error.to_string();
        self
    }

    /// Sets the output of a failed run. The history stores at most the last 4 KiB, and only for
    /// the last failed run of a key.
    pub fn output(mut self, output: impl Into<String>) -> Self {
        self.output = output.into();
        self
    }
}

/// The recorded runs of a key.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// The last runs of the key, the newest first.
    pub(crate) runs: VecDeque<PastRun>,
    /// The place of the key in the order in which runs were recorded. A greater place is a later
    /// one.
    place: u32,
    /// The time at which the key was parked, or `None` if it is not parked.
    parked: Option<Instant>,
}

impl Past {
    /// Returns the last failed run, or `None` if no failed run is recorded.
    pub(crate) fn last_failed(&self) -> Option<&PastRun> {
        self.runs.iter().find(|run| run.error.is_some())
    }

    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_failed()?.error.as_deref()
    }

    /// Returns the time for which the key has been parked, or `None` if it is not parked.
    pub(crate) fn parked_for(&self) -> Option<Duration> {
        self.parked.map(|since| since.elapsed())
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.runs.front().map_or(0, |run| run.attempt)
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        self.runs.front().is_some_and(|run| run.outcome == Outcome::Succeeded)
    }
}

#[derive(Default)]
struct Inner {
    keys: HashMap<Arc<[u8]>, Past>,
    parked: BTreeMap<u32, Arc<[u8]>>,
    others: BTreeMap<u32, Arc<[u8]>>,
    /// The greatest place of a key. At 1,000 runs per second, the number does not overflow within
    /// 49 days. If it overflows, the history is cleared.
    last: u32,
}

impl Inner {
    fn record_run(&mut self, key: &[u8], run: Run, outcome: Outcome) {
        if outcome == Outcome::Succeeded && !self.keys.contains_key(key) {
            return;
        }
        if self.last == u32::MAX {
            *self = Self::default();
        }
        self.last += 1;
        // The key is removed, and inserted again at the last place.
        let mut past = self.remove_key(key).unwrap_or_else(|| Past {
            runs: VecDeque::new(),
            place: 0,
            parked: None,
        });
        let Run { attempt, took, error, output } = run;
        let has_failed = outcome != Outcome::Succeeded;
        let error = has_failed.then(|| first_part(error, ERROR));
        let output = Some(output).filter(|output| has_failed && !output.is_empty());
        // The list is truncated before the new run is inserted, so that its allocation does not
        // grow.
        past.runs.truncate(RUNS - 1);
        if has_failed {
            past.runs.iter_mut().for_each(|run| run.output = None);
        }
        past.runs.push_front(PastRun {
            at: unix_time(),
            outcome,
            attempt,
            took: took.map(seconds),
            worker: None,
            exit_status: None,
            error,
            output: output.map(|output| last_part(output, OUTPUT)),
        });
        past.parked = (outcome == Outcome::GivenUp).then(Instant::now);
        self.insert_last(key.into(), past);
    }

    /// Inserts a key at the last place. If there are too many keys of its kind, removes the oldest
    /// of them.
    fn insert_last(&mut self, key: Arc<[u8]>, mut past: Past) {
        past.place = self.last;
        let order = if past.parked.is_some() { &mut self.parked } else { &mut self.others };
        order.insert(past.place, Arc::clone(&key));
        // The number of keys is limited, so that the history needs a limited amount of memory
        // however many keys fail.
        if order.len() > KEYS
            && let Some((_, oldest)) = order.pop_first()
        {
            self.keys.remove(&oldest);
        }
        self.keys.insert(key, past);
    }

    fn remove_key(&mut self, key: &[u8]) -> Option<Past> {
        let past = self.keys.remove(key)?;
        let order = if past.parked.is_some() { &mut self.parked } else { &mut self.others };
        order.remove(&past.place);
        Some(past)
    }
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a run that succeeded. The call has no effect if the history does not contain the
    /// key, because only keys that have failed are recorded.
    pub fn succeeded(&self, key: impl AsRef<[u8]>, run: Run) {
        self.0.lock().record_run(key.as_ref(), run, Outcome::Succeeded);
    }

    /// Records a run that failed, and after which the key is retried.
    pub fn failed(&self, key: impl AsRef<[u8]>, run: Run) {
        self.0.lock().record_run(key.as_ref(), run, Outcome::Failed);
    }

    /// Records a run after which its key was given up, and parks the key. Call this method after
    /// the delivery is completed.
    pub fn gave_up(&self, key: impl AsRef<[u8]>, run: Run) {
        self.0.lock().record_run(key.as_ref(), run, Outcome::GivenUp);
    }

    /// Removes a key and its runs. If the key was parked, the dashboard no longer shows it.
    pub fn forget(&self, key: impl AsRef<[u8]>) {
        self.0.lock().remove_key(key.as_ref());
    }

    pub(crate) fn past_of(&self, key: &[u8]) -> Option<Past> {
        self.0.lock().keys.get(key).cloned()
    }

    pub(crate) fn last_failed(&self, key: &[u8]) -> Option<PastRun> {
        self.0.lock().keys.get(key)?.last_failed().cloned()
    }

    pub(crate) fn last_error(&self, key: &[u8]) -> Option<String> {
        self.0.lock().keys.get(key)?.last_error().map(str::to_owned)
    }

    pub(crate) fn parked_count(&self) -> usize {
        self.0.lock().parked.len()
    }

    pub(crate) fn is_parked(&self, key: &[u8]) -> bool {
        self.0.lock().keys.get(key).is_some_and(|past| past.parked.is_some())
    }

    /// Returns the keys whose runs are recorded: first the parked keys, then the other keys.
    pub(crate) fn keys(&self) -> Vec<Arc<[u8]>> {
        let inner = self.0.lock();
        inner.parked.values().chain(inner.others.values()).cloned().collect()
    }

    /// Returns the parked keys.
    pub(crate) fn parked_keys(&self) -> Vec<Arc<[u8]>> {
        self.0.lock().parked.values().cloned().collect()
    }

    /// Changes a parked key to a key that is not parked. The runs of the key are kept. Returns
    /// true if the key was parked.
    pub(crate) fn unpark(&self, key: &[u8]) -> bool {
        let mut inner = self.0.lock();
        match inner.keys.get(key) {
            Some(past) if past.parked.is_some() => {}
            _ => return false,
        }
        inner.last = inner.last.saturating_add(1);
        if let Some(past) = inner.remove_key(key) {
            inner.insert_last(key.into(), Past { parked: None, ..past });
        }
        true
    }

    /// Returns the parked keys whose place is less than `place`, the newest first. Each key has
    /// its place and its runs.
    pub(crate) fn parked_below(&self, place: u32) -> Vec<(u32, Arc<[u8]>, Past)> {
        let inner = self.0.lock();
        let parked = inner.parked.range(..place).rev();
        parked
            .filter_map(|(&place, key)| {
                Some((place, Arc::clone(key), inner.keys.get(key)?.clone()))
            })
            .collect()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

/// Returns a text that is cut to at most `most` bytes. If the text was longer, an ellipsis is
/// appended.
pub(crate) fn first_part(mut text: String, most: usize) -> String {
    if text.len() > most {
        // This is the standard library's `str::floor_char_boundary`, which needs Rust 1.91.
        let cut = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    // Truncation alone does not free the memory of the long text.
    text.shrink_to_fit();
    text
}

fn last_part(mut text: String, most: usize) -> String {
    match text.len().checked_sub(most) {
        None | Some(0) => {
            text.shrink_to_fit();
            text
        }
        Some(from) => {
            let cut = (from..text.len()).find(|&at| text.is_char_boundary(at));
            format!("…{}", &text[cut.unwrap_or(text.len())..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u32) -> Run {
        Run::new(n).error(format!("error {n}")).output("x".repeat(9000))
    }

    #[test]
    fn the_newest_keys_of_each_kind_and_their_last_runs_are_kept() {
        let history = History::new();
        for n in 0..3 * KEYS {
            history.failed(n.to_string(), run(1));
            history.gave_up(format!("parked {n}"), run(1));
        }
        assert_eq!((history.parked_count(), history.0.lock().keys.len()), (KEYS, 2 * KEYS));
        assert!(history.past_of(b"0").is_none() && history.past_of(b"2999").is_some());
        let first = history.parked_below(u32::MAX).remove(0);
        assert_eq!(&*first.1, b"parked 2999");
        for n in 2..20 {
            history.failed("2999", run(n));
        }
        let past = history.past_of(b"2999").unwrap();
        assert_eq!(
            (past.runs.len(), past.last_failed().and_then(|run| run.error.as_deref())),
            (RUNS, Some("error 19"))
        );
        let outputs: Vec<_> = past.runs.iter().filter_map(|run| run.output.as_ref()).collect();
        assert_eq!((outputs.len(), outputs[0].len()), (1, OUTPUT + '…'.len_utf8()));
        assert!(past.runs[0].output.is_some());
    }

    #[test]
    fn only_keys_that_have_failed_are_kept() {
        let history = History::new();
        history.succeeded("a", Run::new(1));
        assert!(history.past_of(b"a").is_none());
        history.failed("a", run(1));
        history.succeeded("a", Run::new(2));
        let past = history.past_of(b"a").unwrap();
        assert_eq!(
            (
                past.runs.len(),
                past.last_failed().and_then(|run| run.error.as_deref()),
                past.attempts()
            ),
            (2, Some("error 1"), 2)
        );
        assert!(past.has_succeeded() && !history.unpark(b"a"));
    }

    #[test]
    fn a_parked_key_is_parked_until_it_runs_again() {
        let history = History::new();
        history.gave_up("a", run(3));
        assert_eq!(history.parked_count(), 1);
        assert!(history.unpark(b"a") && !history.unpark(b"a"));
        assert_eq!(
            (
                history.parked_count(),
                history.last_failed(b"a").and_then(|run| run.error).as_deref()
            ),
            (0, Some("error 3"))
        );
        history.gave_up("a", run(1));
        history.forget("a");
        assert_eq!((history.parked_count(), history.last_failed(b"a").is_none()), (0, true));
    }
}

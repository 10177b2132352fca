//! The windows that gather the adds of a key (`--delay`, `--debounce`). A key starts at the end of its window. The least
//! interval between two starts (`--min-interval`) is the pace of the queue.
//!
//! A key waits in the queue as a delayed add, where re-adds are coalesced. This module keeps only the state that the
//! queue does not have.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use requeue::{Add, Added, Completion, Cursor, Filter, Item, Merge, Phase, ReAdd, Time};

use crate::args::pacing::Times;
use crate::input::AddOptions;
use crate::key::{Key, KeyQueue};
use crate::runner::pace::record::{Paced, Records, Window};

#[derive(Debug, Default)]
struct State {
    /// A record is removed when its key starts.
    keys: Records,
    /// The input has ended.
    windows_are_over: bool,
}

/// The pace of all keys.
#[derive(Debug)]
pub(crate) struct Pace {
    times: Times,
    re_add: ReAdd,
    queue: KeyQueue,
    hasher: RandomState,
    state: Mutex<State>,
}

impl Pace {
    pub(crate) fn new(times: Times, re_add: ReAdd, queue: KeyQueue) -> Self {
        Self { times, re_add, queue, hasher: RandomState::new(), state: Mutex::default() }
    }

    /// Adds a key that was read.
    pub(crate) fn add(&self, key: &[u8], options: AddOptions) -> Added {
        if !self.times.has_windows() {
            let when = options.after.map_or(Add::now(), Add::after);
            return self.queue_add(key, when.merge(options.merge).priority(options.priority));
        }
        let mut state = self.lock();
        let (now, hash) = (self.queue.now(), self.hash(key));
        let named = options.after.map_or(Time::ZERO, |after| now + after);
        let mut paced = state.keys.get(hash);
        if options.merge == Merge::Exactly {
            // This add has the same effect as after a cancel of the key.
            (paced.window, paced.correction) = (None, 0);
        }
        let entry = self.queue.look_up(key);
        let is_ready = entry.as_ref().is_some_and(|entry| entry.phase.is_dirty());
        let window = match paced.window {
            // The add is a part of a run that is already due.
            Some(window) if is_ready && options.merge != Merge::Exactly => window,
            None if is_ready && options.merge != Merge::Exactly => {
                return self.queue_add(key, Add::now().priority(options.priority));
            }
            Some(window) => {
                let first = if window.until > now { window.first } else { now };
                let named = match options.merge {
                    Merge::Latest => window.named.max(named),
                    _ => window.named.min(named),
                };
                Window { first, until: self.times.window_end(first, now), named }
            }
            None => Window { first: now, until: self.times.window_end(now, now), named },
        };
        paced.window = Some(window);
        state.keys.put(hash, paced);
        let start = window.until.max(window.named);
        let merge = match entry.and_then(|entry| entry.due) {
            _ if options.merge == Merge::Exactly => Merge::Exactly,
            Some(due) if start < due => Merge::Earliest,
            _ => Merge::Latest,
        };
        self.queue_add(key, at(start, now, merge, options.priority))
    }

    /// Cancels the pending run of a key. Returns true if there was one.
    pub(crate) fn cancel(&self, key: &[u8]) -> bool {
        let mut state = self.lock();
        state.keys.remove(self.hash(key));
        self.queue.cancel(key).any()
    }

    /// Makes the pending run of a key ready: ends its window and its backoff, but not its least interval.
    #[cfg(feature = "dashboard")]
    pub(crate) fn run_now(&self, key: &[u8], priority: i32) -> Added {
        let mut state = self.lock();
        state.keys.remove(self.hash(key));
        self.queue_add(key, Add::now().merge(Merge::Exactly).priority(priority))
    }

    /// Checks a delivered key. Returns `None` if it must not start yet and is back in the queue: the key was added at
    /// the moment at which its last run started.
    pub(crate) fn start(&self, item: Item<'static, Key>) -> Option<Item<'static, Key>> {
        if self.times.min_interval.is_some() {
            // The command has not started, and perhaps none is needed.
            item.uncount_start();
        }
        if !self.times.has_windows() {
            return Some(item);
        }
        let mut state = self.lock();
        let (now, hash) = (self.queue.now(), self.hash(&item));
        let windows_count = self.times.has_windows() && !state.windows_are_over;
        let mut paced = state.keys.get(hash);
        let start = paced.window.filter(|_| windows_count).map_or(Time::ZERO, |it| it.until);
        if start > now {
            // `retry_after` would count a failure, and `put_back` would forget the due time.
            paced.correction += i64::from(item.adds()) - 1;
            state.keys.put(hash, paced);
            let add = at(start, now, Merge::Latest, item.priority());
            let (key, ticket) = item.into_parts();
            self.queue.add_with(key, add);
            self.queue.done_ticket(ticket);
            return None;
        }
        let added_since = windows_count && item.is_dirty();
        paced.window = added_since.then(|| Window {
            first: now,
            until: self.times.window_end(now, now),
            named: Time::ZERO,
        });
        state.keys.put(hash, paced);
        Some(item)
    }

    /// Records that a key's command starts. Not called for a delivery that needs no command.
    pub(crate) fn started(&self, item: &Item<'static, Key>) {
        if self.times.min_interval.is_some() {
            item.count_start();
        }
    }

    /// Returns the number of adds that a run serves.
    pub(crate) fn adds(&self, item: &Item<'_, Key>) -> u32 {
        let adds = item.adds();
        if !self.times.has_windows() {
            return adds;
        }
        let state = self.lock();
        let correction = state.keys.get(self.hash(item)).correction;
        u32::try_from(i64::from(adds) + correction).unwrap_or(adds).max(1)
    }

    /// Completes a run. The key runs again only if it was re-added.
    pub(crate) fn succeed(&self, item: Item<'static, Key>) {
        self.finish(item, Item::succeed);
    }

    /// Completes a run after its last failure. The key runs again only if it was re-added.
    pub(crate) fn give_up(&self, item: Item<'static, Key>) {
        self.finish(item, Item::give_up);
    }

    /// Completes a run that was cancelled. If its key was added again, the next run also serves its adds.
    pub(crate) fn end_cancelled(&self, item: Item<'static, Key>) {
        if !self.times.has_windows() {
            return item.complete(Completion::Cancelled);
        }
        let mut state = self.lock();
        let (hash, key) = (self.hash(&item), item.key().clone());
        item.complete(Completion::Cancelled);
        self.end_window(&mut state, hash, key);
    }

    fn finish(&self, item: Item<'static, Key>, finish: fn(Item<'static, Key>)) {
        if !self.times.has_windows() {
            return finish(item);
        }
        let mut state = self.lock();
        let hash = self.hash(&item);
        let paced = state.keys.get(hash);
        state.keys.put(hash, Paced { correction: 0, ..paced });
        let key = item.key().clone();
        finish(item);
        self.end_window(&mut state, hash, key);
    }

    /// Retries a run at `due`.
    pub(crate) fn retry(&self, item: Item<'static, Key>, due: Time) {
        let now = self.queue.now();
        if !self.times.has_windows() {
            return item.retry_after(due.since(now));
        }
        let mut state = self.lock();
        let hash = self.hash(&item);
        let mut paced = state.keys.get(hash);
        let key = item.key().clone();
        item.retry_after(due.since(now));
        if state.windows_are_over {
            return self.end_window(&mut state, hash, key);
        }
        // The later of two times counts: the end of the backoff, or the end of the window of the re-adds.
        if let Some(window) = paced.window
            && let start = window.until.max(window.named)
            && start > due
        {
            self.queue.add_with(key, at(start, now, Merge::Latest, i32::MIN));
            paced.correction -= 1;
            state.keys.put(hash, paced);
        }
    }

    /// Ends all windows. Called at the end of the input.
    pub(crate) fn end_windows(&self) {
        if !self.times.has_windows() {
            return;
        }
        self.lock().windows_are_over = true;
        let mut next = Some(Cursor::default());
        while let Some(cursor) = next {
            let page = self.queue.snapshot(Filter::Waiting, cursor, 256);
            let mut state = self.lock();
            for entry in page.entries {
                // The window of a key in flight ends with the run.
                if entry.phase == Phase::Idle {
                    let hash = self.hash(&entry.key);
                    self.end_window(&mut state, hash, entry.key);
                }
            }
            next = page.next;
        }
    }

    /// After the end of the input, makes a key ready if it waits for the end of its window.
    fn end_window(&self, state: &mut State, hash: u64, key: Key) {
        let (now, are_over) = (self.queue.now(), state.windows_are_over);
        let mut paced = state.keys.get(hash);
        if let Some(window) = paced.window.take_if(|_| are_over) {
            let start = window.named;
            let add = match self.re_add {
                // Another merge would add a second run.
                ReAdd::KeepBoth => {
                    let (adds, priority) = self
                        .queue
                        .look_up(&key)
                        .map_or((0, 0), |entry| (entry.adds, entry.priority));
                    paced.correction += i64::from(adds);
                    at(start, now, Merge::Exactly, priority)
                }
                _ => at(start, now, Merge::Earliest, i32::MIN),
            };
            paced.correction -= 1;
            self.queue.add_with(key, add);
        }
        state.keys.put(hash, paced);
    }

    fn queue_add(&self, key: &[u8], add: Add) -> Added {
        self.queue.add_ref_with(key, add, |key| key.into())
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at(start: Time, now: Time, merge: Merge, priority: i32) -> Add {
    let add = if start > now { Add::at(start) } else { Add::now() };
    add.merge(merge).priority(priority)
}

mod record;
#[cfg(test)]
mod tests;

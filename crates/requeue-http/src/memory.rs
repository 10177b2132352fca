//! The source of a queue in memory. It reads the queue in slices, so that no request
//! holds the queue's lock for long.

mod claims;

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use requeue::history::Recording;
use requeue::{Added, Cursor, Entry, Key, Phase, Queue};

pub(crate) use self::claims::Claims;
use crate::api::{
    Action, AddResult, ClaimOutcome, ClaimResult, ClaimedKey, KeyPage, PastAction, PastRun, Row,
    Sample, State, Status, Timeline, WaitCause,
};
use crate::control::{Control, FailedRun};
use crate::cursors::{Cursors, Order};
use crate::failures::{Failing, Failures, group_of};
use crate::history::{History, Past};
use crate::keys::escape_key;
use crate::operators::ActionLog;
use crate::params::{Problem, no_key};
use crate::rows::{next_due, shown_key};
use crate::source::{
    Begin, Claim, Claimed, Column, DetailOf, Ending, First, Found, Gauges, LOOKS, NewKey, Rank,
    Read, Selection, Show, Sort, Source, Ticket, Walk, Walked, count_of, detail_of,
};
use crate::time::unix_time;
use crate::timeline::{KnownRun, Present};

/// The maximum number of keys that are read under one lock of the queue.
const SLICE: usize = 256;

/// The explanation of a key that the queue does not have, although its last run failed.
const CUT_SHORT: &str = "not in the queue: its pending run was cancelled";
/// The note of a timeline whose events were not recorded.
const NOT_RECORDED: &str = "this process records no events (Builder::record_events, --record-events): only the last \
                            runs of keys that have failed are known";

/// The error for a request for the recording, if the queue records no events.
const NO_RECORDING: &str = "this process records no events; start it with --record-events 4M, or build its queue with \
                            Builder::record_events";

/// A queue, the functions that convert its keys, and the state that the site keeps for
/// it.
pub(crate) struct Shown<K: Key, S> {
    pub(crate) queue: Queue<K, S>,
    /// True if the queue keeps times. The value is constant.
    pub(crate) keeps_times: bool,
    pub(crate) show: Show<K>,
    pub(crate) read: Read<K>,
    pub(crate) detail: DetailOf<K>,
    pub(crate) history: Option<History>,
    pub(crate) control: Arc<dyn Control<K>>,
    pub(crate) claims: Arc<Claims<K>>,
    pub(crate) cursors: Cursors,
    pub(crate) actions: ActionLog,
}

/// A key of a list: a key in the queue, or a parked key of the history.
enum Listed<K> {
    Known(Entry<K>),
    Parked(Arc<[u8]>, Past),
}

/// Returns true if the list of keys in this state includes keys of the queue. Parked
/// keys are in the history. Only keys in a store can be damaged.
const fn is_of_queue(state: Option<State>) -> bool {
    !matches!(state, Some(State::Parked | State::Damaged | State::Idle))
}

impl<K: Key, S: BuildHasher + Send + Sync> Shown<K, S> {
    fn row(&self, entry: &Entry<K>, bytes: &[u8]) -> Row {
        let mut row = Row::new(entry, bytes, self.queue.now(), detail_of(&self.detail, &entry.key));
        if row.failures > 0 || row.attempt > 1 {
            let last = self.history.as_ref().and_then(|history| history.last_failed(bytes));
            row.note_failed(last.as_ref());
        }
        row
    }

    fn rows(&self, entries: Vec<Entry<K>>, selection: &Selection) -> Vec<Row> {
        let row = |entry: Entry<K>| {
            self.is_selected(selection, &entry).then(|| self.row(&entry, &(self.show)(&entry.key)))
        };
        entries.into_iter().filter_map(row).collect()
    }

    fn is_selected(&self, selection: &Selection, entry: &Entry<K>) -> bool {
        let text = || escape_key(&(self.show)(&entry.key)).into_owned().into();
        selection.selects(State::of_entry(entry), entry.failures, text, || {
            let history = self.history.as_ref()?;
            history.last_error(&(self.show)(&entry.key)).map(Cow::Owned)
        })
    }

    /// Returns the selected parked keys whose place is less than `below`, the newest
    /// first.
    fn parked_below(&self, selection: &Selection, below: u32) -> Vec<(u32, Arc<[u8]>, Past)> {
        let Some(history) = &self.history else { return Vec::new() };
        let mut parked = history.parked_below(below);
        parked.retain(|(_, key, past)| {
            let error = || past.last_error().map(Cow::Borrowed);
            selection.selects(State::Parked, past.attempts(), || escape_key(key), error)
                && !self.is_queued(key)
        });
        parked
    }

    /// Returns true if the key is ready, waiting or in flight.
    fn is_queued(&self, bytes: &[u8]) -> bool {
        // A parked key may have been added again. The history does not know this, so
        // the queue is asked.
        let entry = (self.read)(bytes).and_then(|key| self.queue.look_up(&key));
        entry.is_some_and(|entry| State::of_entry(&entry) != State::Idle)
    }

    fn parked_row(&self, key: &[u8], past: &Past) -> Row {
        // The history stores bytes, and the queue may reject them as a key.
        let detail = (self.read)(key).map(|key| detail_of(&self.detail, &key));
        Row::of_past(key, past, detail.unwrap_or_default(), CUT_SHORT)
    }

    async fn walk_queue(&self, walk: &Walk, cursor: Option<&str>) -> Result<Walked, Problem> {
        // If the queue does not keep times, it cannot sort the running keys by age.
        let order = match walk.selection.state {
            Some(State::Running) if self.keeps_times => Order::LongestFirst,
            _ => Order::ByHash,
        };
        let cursor = match cursor {
            None => 0,
            Some(cursor) => self.cursors.decrypt(order, cursor).ok_or_else(Walk::bad_cursor)?,
        };
        let slice = |at: u32, size: usize| match order {
            Order::LongestFirst => {
                let running = self.queue.entries_in_flight(at as usize, size).unwrap_or_default();
                // The cast is lossless: each running key occupies a slot of the queue,
                // and a queue has fewer than 2^32 slots.
                let next = (running.len() == size).then(|| at.saturating_add(size as u32));
                let looked_at = running.len();
                (self.rows(running, &walk.selection), next, looked_at)
            }
            _ => {
                let page = self.queue.snapshot(Cursor(at), size);
                (self.rows(page.entries, &walk.selection), page.next.map(|next| next.0), size)
            }
        };
        let mut walked = Walked::default();
        let mut next = Some(cursor);
        while let Some(at) = next
            && walked.rows.len() < walk.limit
            && walked.looked_at < LOOKS
        {
            let left = walk.limit - walked.rows.len();
            let (mut rows, mut end, mut looked_at) = slice(at, SLICE);
            if rows.len() > left {
                // The slice has more rows than the page can take. A cursor cannot point
                // into a slice, so a slice of the right size is read instead.
                (rows, end, looked_at) = slice(at, left);
            }
            walked.looked_at += looked_at;
            walked.rows.extend(rows);
            next = end;
            // The lock is not held here, so that other tasks can use the queue between
            // two slices.
            tokio::task::yield_now().await;
        }
        walked.next = next.map(|cursor| self.cursors.encrypt(order, cursor));
        Ok(walked)
    }

    /// Calls `visit` for up to `most` keys, until `visit` returns false. Returns the
    /// number of keys that were read, and true if some keys were not read.
    async fn visit_keys(
        &self,
        selection: &Selection,
        most: usize,
        mut visit: impl FnMut(Entry<K>) -> bool + Send,
    ) -> (usize, bool) {
        if !is_of_queue(selection.state) {
            return (0, false);
        }
        let (mut next, mut looked_at) = (Some(Cursor::default()), 0);
        while let Some(at) = next
            && looked_at < most
        {
            let page = self.queue.snapshot(at, SLICE);
            for entry in page.entries {
                if self.is_selected(selection, &entry) && !visit(entry) {
                    return (looked_at, true);
                }
            }
            (next, looked_at) = (page.next, looked_at + SLICE);
            tokio::task::yield_now().await;
        }
        (looked_at, next.is_some())
    }

    async fn sorted_page(&self, selection: &Selection, limit: usize, sort: Sort) -> Walked {
        let mut first = First::new(sort, limit);
        let now = self.queue.now();
        let rank = |entry: &Entry<K>| match sort.by {
            Column::Key => Rank::Key((self.show)(&entry.key).into_owned()),
            Column::State => Rank::State(State::of_entry(entry)),
            Column::Age => Rank::of_time(entry.since.map(|since| now.since(since))),
            Column::Attempt => Rank::Number(u128::from(entry.failures) + 1),
            Column::DueIn => Rank::of_time(next_due(entry, now).map(|due| due.since(now))),
        };
        let visited = self.visit_keys(selection, LOOKS, |entry| {
            first.push(rank(&entry), Listed::Known(entry));
            true
        });
        let (mut looked_at, unread) = visited.await;
        for (_, key, past) in self.parked_below(selection, u32::MAX) {
            looked_at += 1;
            let rank = match sort.by {
                Column::Key => Rank::Key(key.to_vec()),
                Column::State => Rank::State(State::Parked),
                Column::Age => Rank::of_time(past.parked_for()),
                Column::Attempt => Rank::Number(past.attempts().into()),
                Column::DueIn => Rank::Unknown,
            };
            first.push(rank, Listed::Parked(key, past));
        }
        let (listed, more) = first.into_first();
        let row = |listed| match listed {
            Listed::Known(entry) => self.row(&entry, &(self.show)(&entry.key)),
            Listed::Parked(key, past) => self.parked_row(&key, &past),
        };
        let rows = listed.into_iter().map(row).collect();
        Walked { rows, next: None, looked_at, more: more || unread }
    }

    /// Changes a key, if its current state permits the action. The state may have
    /// changed since the client listed the key. Returns true if the key was changed.
    fn change_key(&self, action: Action, key: K, bytes: &[u8]) -> Result<bool, Problem> {
        let entry = self.queue.look_up(&key).filter(|entry| State::of_entry(entry) != State::Idle);
        let Some(entry) = entry else {
            let Some(history) = &self.history else { return Ok(false) };
            let is_parked = history.is_parked(bytes);
            return match action {
                Action::Cancel if is_parked => {
                    history.forget(bytes);
                    Ok(true)
                }
                Action::Revive if is_parked => {
                    let added = self.control.add(key, None, 0);
                    let added = added.map_err(|error| Problem::parameter("keys", &error))?;
                    // The key is added before it is unparked, so that it stays parked
                    // if the queue refuses the add.
                    Ok(added.is_accepted() && history.unpark(bytes))
                }
                _ => Ok(false),
            };
        };
        if !action.applies(State::of_entry(&entry), runs_again(&entry)) {
            return Ok(false);
        }
        Ok(match action {
            Action::Cancel => self.control.cancel(&key),
            Action::CancelRun => self.control.cancel_running(&key),
            Action::RunNow => self.control.run_now(&key, entry.priority),
            // A key in the queue is not parked, so there is nothing to revive.
            Action::Revive => false,
        })
    }

    fn read_key(&self, bytes: &[u8]) -> Result<K, Problem> {
        let wrong = || Problem::parameter("keys", "not a valid key of this queue");
        (self.read)(bytes).ok_or_else(wrong)
    }

    fn add_one(&self, key: K, new: &NewKey) -> Result<AddResult, Problem> {
        if new.group.is_some() {
            let error = "group: an add to a queue in memory names no group; omit it";
            return Err(Problem::parameter("keys", error));
        }
        let added = self.control.add(key, new.delay, new.priority);
        let added = added.map_err(|error| Problem::parameter("keys", &error))?;
        let was_parked = added.is_accepted()
            && self.history.as_ref().is_some_and(|history| history.unpark(&new.key));
        Ok(match added {
            _ if was_parked => AddResult::Revived,
            Added::New => AddResult::New,
            Added::Dirty => AddResult::Dirty,
            Added::BackingOff => AddResult::BackingOff,
            _ if !added.is_accepted() => AddResult::Refused,
            _ => AddResult::Coalesced,
        })
    }
}

/// Adds a failing key to `failures`. `past` contains the times of its failures, which
/// the queue does not know. Returns false if `failures` is full.
fn push_past(
    failures: &mut Failures,
    key: &[u8],
    state: State,
    failed: u32,
    past: Option<&Past>,
) -> bool {
    let error = past.and_then(Past::last_error);
    let text = escape_key(key);
    let group = group_of(error, &text);
    let mut times = past.into_iter().flat_map(|past| &past.runs).take_while(|run| {
        run.error.as_deref().is_some_and(|error| group_of(Some(error), &text) == group)
    });
    let ago = |run: &PastRun| (unix_time() - run.at).max(0.0);
    let last = times.next().map(ago);
    let first = times.last().map(ago).or(last);
    failures.push(&Failing { key, state, failures: failed, error, first, last })
}

/// Returns true if a running key also has a pending run.
fn runs_again<K>(entry: &Entry<K>) -> bool {
    entry.phase == Phase::InFlightDirty || entry.due.is_some()
}

#[async_trait]
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

    fn read_gauges(&self) -> Gauges {
        let parked = self.history.as_ref().map(|history| {
            // A parked key that was added again is not parked, but the history learns
            // this only now.
            for key in history.parked_keys() {
                if self.is_queued(&key) {
                    history.unpark(&key);
                }
            }
            history.parked_count()
        });
        let states = self.queue.states();
        Gauges {
            counts: Sample {
                ready: states.ready,
                waiting: states.waiting,
                backing_off: Some(states.backing_off),
                running: states.in_flight,
                dirty: states.dirty,
                parked,
                counts_age: Some(0.0),
                ..Sample::default()
            },
            process: self.queue.sample(),
            keeps_times: self.keeps_times,
        }
    }

    fn longest_running(&self, limit: usize) -> Vec<Row> {
        self.rows(self.queue.entries_in_flight(0, limit).unwrap_or_default(), &Selection::default())
    }

    async fn read_page(&self, walk: &Walk) -> Result<Walked, Problem> {
        let Walk { selection, limit, begin } = walk;
        let cursor = match begin {
            Begin::Start => None,
            Begin::Cursor(cursor) => Some(&**cursor),
            Begin::Sorted(sort) => return Ok(self.sorted_page(selection, *limit, *sort).await),
        };
        let lists_parked = matches!(selection.state, None | Some(State::Parked));
        let decrypt = |order| cursor.and_then(|cursor| self.cursors.decrypt(order, cursor));
        let mut walked = Walked::default();
        // A walk returns the keys of the queue first, and then the parked keys. If the
        // cursor is that of a parked key, the queue is skipped.
        let mut below = decrypt(Order::Parked).filter(|_| lists_parked);
        if below.is_none() {
            if is_of_queue(selection.state) {
                walked = self.walk_queue(walk, cursor).await?;
            } else if cursor.is_some() {
                return Err(Walk::bad_cursor());
            }
            below = (lists_parked && walked.next.is_none()).then_some(u32::MAX);
        }
        for (place, key, past) in below.map_or_else(Vec::new, |it| self.parked_below(selection, it))
        {
            if walked.rows.len() == *limit {
                // The next page begins with this key. `parked_below` excludes its
                // bound, so the cursor contains the next higher place.
                let next = self.cursors.encrypt(Order::Parked, place.saturating_add(1));
                walked.next = Some(next);
                break;
            }
            walked.looked_at += 1;
            walked.rows.push(self.parked_row(&key, &past));
        }
        walked.more = walked.next.is_some();
        Ok(walked)
    }

    async fn find_key(&self, bytes: &[u8]) -> Result<Found, Problem> {
        let Some(key) = (self.read)(bytes) else { return Ok(Found::NoKey) };
        let past = self.history.as_ref().and_then(|history| history.past_of(bytes));
        let entry = self.queue.look_up(&key);
        let row = match (entry, &past) {
            (Some(entry), past) if past.is_none() || State::of_entry(&entry) != State::Idle => {
                let mut row = self.row(&entry, bytes);
                row.note_reasons(&self.queue.reasons(&key));
                row
            }
            (_, Some(past)) => self.parked_row(bytes, past),
            (_, None) => return Ok(Found::Nothing),
        };
        Ok(Found::Page(Box::new(KeyPage::new(row, past))))
    }

    async fn read_timeline(&self, bytes: &[u8]) -> Result<Option<Timeline>, Problem> {
        let Some(key) = (self.read)(bytes) else { return Ok(None) };
        let past = self.history.as_ref().and_then(|history| history.past_of(bytes));
        let runs: Vec<_> = past.into_iter().flat_map(|past| past.runs).collect();
        // The entry is read before the events, so that the events include all changes
        // after it.
        let entry = self.queue.look_up(&key);
        let now = self.queue.now();
        let timeline = match self.queue.recorded_history(&key) {
            Some((events, begin)) => {
                let present = entry.map(|entry| Present::of_entry(&entry, now)).unwrap_or_default();
                Timeline::of_events((&events, begin), present, now, &runs).await
            }
            None => {
                let cause = entry.map_or(WaitCause::Ready, |it| WaitCause::of_entry(&it, now));
                let row = match self.find_key(bytes).await? {
                    Found::Page(page) => Some(page.row),
                    _ => None,
                };
                {
                    let runs = KnownRun::of_runs(&runs);
                    Timeline::of_runs(row.as_ref().map(|row| (row, cause)), &runs, NOT_RECORDED)
                }
            }
        };
        Ok(Some(timeline.with_actions(&shown_key(bytes).0, None, &self.actions.all())))
    }

    fn may_record(&self) -> bool {
        true
    }

    fn read_recording(
        &self,
        key: Option<(&'static str, &[u8])>,
        hash_keys: bool,
    ) -> Result<Recording, Problem> {
        let key = key.map(|(name, bytes)| (self.read)(bytes).ok_or_else(|| no_key(name)));
        let key = key.transpose()?;
        let recording = if hash_keys {
            let subject = key.map(|key| self.queue.subject_of(&key));
            self.queue.recording().map(|recording| recording.anonymized(subject))
        } else {
            let failed = self.history.iter().flat_map(History::keys);
            let others = failed.filter_map(|bytes| (self.read)(&bytes)).chain(key);
            let name = |key: &K| shown_key(&(self.show)(key)).0;
            self.queue.recording_with_names_of(others, name)
        };
        recording.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, NO_RECORDING))
    }

    async fn read_failures(&self, failures: &mut Failures) -> Result<(), Problem> {
        let failing = Selection { failed: true, ..Selection::default() };
        for (_, key, past) in self.parked_below(&failing, u32::MAX) {
            failures.looked_at += 1;
            push_past(failures, &key, State::Parked, past.attempts(), Some(&past));
        }
        let visited = self.visit_keys(&failing, LOOKS, |entry| {
            let key = (self.show)(&entry.key);
            let past = self.history.as_ref().and_then(|history| history.past_of(&key));
            push_past(failures, &key, State::of_entry(&entry), entry.failures, past.as_ref())
        });
        let (looked_at, unread) = visited.await;
        failures.looked_at += looked_at;
        failures.cut |= unread;
        Ok(())
    }

    async fn matching_keys(
        &self,
        action: Action,
        selection: &Selection,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Problem> {
        let mut keys = Vec::new();
        let visited = self.visit_keys(selection, usize::MAX, |entry| {
            if action.applies(State::of_entry(&entry), runs_again(&entry)) {
                keys.push((self.show)(&entry.key).into_owned());
            }
            keys.len() < most
        });
        visited.await;
        if action.applies(State::Parked, false)
            && matches!(selection.state, None | Some(State::Parked))
        {
            let parked = self.parked_below(selection, u32::MAX);
            keys.extend(parked.into_iter().map(|(_, key, _)| key.to_vec()));
            keys.truncate(most);
        }
        Ok(keys)
    }

    async fn change_keys(&self, action: Action, all: Vec<Vec<u8>>) -> Result<Vec<bool>, Problem> {
        // All keys are parsed first, so that no key is changed if one of them is
        // invalid. The loop stops at the first refused change.
        let keys = all.iter().map(|bytes| self.read_key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut results = Vec::with_capacity(keys.len());
        for (key, bytes) in keys.into_iter().zip(&all) {
            let changed = self.change_key(action, key, bytes);
            results.push(changed.map_err(|problem| problem.with_changed(count_of(&results)))?);
        }
        Ok(results)
    }

    async fn add_keys(&self, new: Vec<NewKey>) -> Result<Vec<AddResult>, Problem> {
        // All keys are parsed first, so that no key is added if one of them is invalid.
        // The loop stops at the first refused add.
        let read = new.iter().map(|new| self.read_key(&new.key));
        let keys = read.collect::<Result<Vec<_>, _>>()?;
        let mut results = Vec::with_capacity(keys.len());
        for (key, one) in keys.into_iter().zip(&new) {
            match self.add_one(key, one) {
                Ok(result) => results.push(result),
                Err(problem) => {
                    let mut results: Vec<_> = results.into_iter().map(Some).collect();
                    results.resize(new.len(), None);
                    return Err(problem.with_results(results));
                }
            }
        }
        Ok(results)
    }

    async fn claim_keys(&self, claim: &Claim) -> Result<Claimed, Problem> {
        let taken = self.claims.take_keys(claim).await?;
        let keys = taken.items().map(|(token, item, attempt)| ClaimedKey {
            attempt,
            adds: item.adds(),
            flags: item.flags(),
            priority: item.priority(),
            ..ClaimedKey::new(&(self.show)(item), token)
        });
        Ok(Claimed { keys: keys.collect(), held: Box::new(taken) })
    }

    async fn is_empty(&self) -> Result<bool, Problem> {
        Ok(self.queue.states().total() == 0)
    }

    async fn renew_claims(
        &self,
        claims: Vec<Ticket>,
        lease: Duration,
    ) -> Result<Vec<ClaimResult>, Problem> {
        let renew = |claim: &Ticket| {
            let key = (self.read)(&claim.key);
            match key.map_or(ClaimOutcome::Lost, |key| self.claims.renew(claim.token, &key, lease))
            {
                ClaimOutcome::Lost => ClaimResult::lost(claim),
                outcome => ClaimResult::new(outcome),
            }
        };
        Ok(claims.iter().map(renew).collect())
    }

    async fn end_claim(&self, claim: Ticket, ending: Ending) -> ClaimResult {
        let key = (self.read)(&claim.key);
        let item = key.and_then(|key| self.claims.take_live(claim.token, &key));
        let Some(item) = item else { return ClaimResult::lost(&claim) };
        let gives_up = matches!(&ending, Ending::Fail(FailedRun { gives_up: true, .. }));
        let outcome = self.claims.end(item, ending).await;
        // A key that was added again during its last run is in the queue, and therefore
        // not parked.
        let parks = outcome == ClaimOutcome::Failed
            && (gives_up || self.history.as_ref().is_some_and(|it| it.is_parked(&claim.key)))
            && !self.is_queued(&claim.key);
        ClaimResult::new(if parks { ClaimOutcome::Parked } else { outcome })
    }

    async fn record_action(&self, action: PastAction) -> Result<(), Problem> {
        self.actions.push(action);
        Ok(())
    }

    async fn last_actions(&self) -> Result<Vec<PastAction>, Problem> {
        Ok(self.actions.all())
    }

    fn last_pause(&self) -> Option<PastAction> {
        PastAction::last_pause(&self.actions.all()).cloned()
    }

    async fn set_paused(&self, paused: bool) -> Result<(), Problem> {
        let error = "this process is stopping, or does not pause its queue";
        let refusal = || Problem::new(StatusCode::CONFLICT, error);
        self.control.set_paused(paused).then_some(()).ok_or_else(refusal)
    }
}

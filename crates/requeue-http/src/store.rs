//! The source of a queue in a store. Three tasks read the state of the queue, its numbers of keys,
//! and the work of all processes.

mod answers;
mod walk;

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use requeue::metrics::Fleet;
use requeue_store::{
    ActionRecord, Add, Added, Attempt, CancelledRun, Claims, CompleteError, Completed, Completion,
    Entry, GroupInfo, Item, Key, LiveWorker, Part, Priority, Queue, Rate, ReadError, Renewal,
    Resumed, Schedule, ScheduleInfo, State, StateCounts,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use self::answers::{
    PATIENCE, PATIENCE_FOR_STATE, answer_soon, await_answer, store_failure, stored_state,
    update_failure,
};
use self::walk::{ALL, LIST, PATIENCE_FOR_PAGES, Reach, visit_keys};
use crate::api::{
    self, Action, Activity, AddResult, ClaimOutcome, ClaimResult, ClaimedKey, Group, GroupAction,
    GroupChange, KeyPage, LastMinute, Minute, PastAction, PastRun, Row, Sample, ScheduleAction,
    ScheduleChange, StartRate, State as RowState, Status, Tally, Timeline, WaitCause, Worker,
};
use crate::control::FailedRun;
use crate::failures::{Failing, Failures, group_of};
use crate::history::History;
use crate::keys::{escape_key, from_base64, to_base64};
use crate::operators::KEPT;
use crate::params::{Problem, with_source};
use crate::rows::{Detail, shown_key};
use crate::source::{
    Begin, Claim, Claimed, Column, DetailOf, Ending, First, Found, Gauges, HandOver, LOOKS, NewKey,
    Rank, Selection, Sort, Source, Ticket, Walk, Walked, count_of, detail_of, no_groups,
};
use crate::time::{seconds, since_1970};
use crate::timeline::KnownRun;

const EVERY: Duration = Duration::from_secs(1);
/// The time between two reads of the work of all processes.
const EVERY_ACTIVITY: Duration = Duration::from_secs(5);

pub(crate) struct Stored {
    queue: Queue,
    detail: Arc<DetailOf<Key>>,
    history: Option<History>,
    seen: Arc<Mutex<Seen>>,
    /// Limits explanations for which the store reads all keys of a group to one at a time.
    explaining: Semaphore,
}

/// The results of the last reads from the store.
#[derive(Default)]
struct Seen {
    is_away: bool,
    state: QueueState,
    /// The number of changes of the state that this site has made. If this number changes during a
    /// read of the state, the read may be outdated.
    changes: u64,
    /// The last numbers of keys and the time to which they apply, or `None` before the first count.
    counts: Option<(StateCounts, Instant)>,
    /// The keys that have run the longest, the longest running key first, and the time of the read.
    longest: Option<(Vec<Entry>, Instant)>,
    /// The work of all processes in the last hour, or `None` if the last read failed.
    activity: Option<Activity>,
    runs: Smooth,
}

/// The numbers of adds, coalesced adds, runs and failures of all processes. Processes write them
/// only every few seconds. Between two reads, the shown numbers therefore increase linearly from
/// the old to the new values.
#[derive(Clone, Copy)]
struct Smooth {
    from: [u64; 4],
    to: [u64; 4],
    at: Instant,
}

impl Default for Smooth {
    fn default() -> Self {
        Self { from: [0; 4], to: [0; 4], at: Instant::now() }
    }
}

impl Smooth {
    fn take(&mut self, to: [u64; 4]) {
        *self = Self { from: self.now(), to, at: Instant::now() };
    }

    fn now(&self) -> [u64; 4] {
        let share = self.at.elapsed().div_duration_f64(2 * EVERY_ACTIVITY).min(1.0);
        std::array::from_fn(|n| {
            let (from, to) = (self.from[n], self.to[n]);
            from + (to.saturating_sub(from) as f64 * share) as u64
        })
    }
}

/// The state of the queue that affects all of its deliveries.
#[derive(Clone, Default)]
struct QueueState {
    is_paused: bool,
    rate: Option<Rate>,
    /// True if the rate permitted no start at the time of the read.
    is_at_rate: bool,
    /// The recorded action that paused the queue, and the time of the read.
    pause: Option<(PastAction, Instant)>,
}

impl QueueState {
    async fn read(queue: &Queue) -> Result<Self, ReadError> {
        let is_paused = queue.is_paused().await?;
        let throttle = queue.rate_and_next_start().await?;
        let (rate, is_at_rate) = (throttle.map(|(rate, _)| rate), is_at_rate(throttle));
        // The error is ignored, because an older role in PostgreSQL has no right to read the
        // actions. The store is reachable nevertheless.
        let actions = match is_paused {
            true => queue.last_actions(KEPT).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let actions: Vec<_> = actions.into_iter().map(PastAction::from).collect();
        let pause = PastAction::last_pause(&actions).map(|pause| (pause.clone(), Instant::now()));
        Ok(Self { is_paused, rate, is_at_rate, pause })
    }
}

/// Returns true if the rate permits no start now. `throttle` contains the rate, and the time until
/// it permits the next start.
fn is_at_rate(throttle: Option<(Rate, Duration)>) -> bool {
    throttle.is_some_and(|(_, next_start)| !next_start.is_zero())
}

impl From<ActionRecord> for PastAction {
    fn from(record: ActionRecord) -> Self {
        let ActionRecord { ago, action, by, target, note, .. } = record;
        let [target, note] = [target, note].map(|text| Some(text).filter(|text| !text.is_empty()));
        Self { ago: seconds(ago), action, by, target, note }
    }
}

/// The explanation of a key that the queue does not have, although its last run in this process
/// failed.
const CUT_SHORT: &str =
    "not in the queue: it was cancelled, or another process has completed its last run";

impl Timeline {
    /// Returns the past of a key in a store. The caller has read the entry and the last runs of the
    /// key. `why` explains the state of the entry.
    ///
    /// If the actions of operators cannot be read, the past is returned without them. An older role
    /// in PostgreSQL has no right to read them.
    // The method is hidden, because only the program and the site need it.
    #[doc(hidden)]
    pub async fn of_stored(
        queue: &Queue,
        key: &[u8],
        entry: Option<&Entry>,
        why: Option<String>,
        runs: &[PastRun],
    ) -> Self {
        let actions = answer_soon(queue.last_actions(KEPT)).await.unwrap_or_default();
        let actions: Vec<_> = actions.into_iter().map(PastAction::from).collect();
        let ready = entry.filter(|entry| entry.state == State::Ready && !entry.paused);
        let group = match ready.and_then(|entry| entry.group.as_deref()) {
            Some(group) => answer_soon(queue.group(group).info()).await.flatten(),
            None => None,
        };
        let at_rate = match ready {
            Some(_) => answer_soon(queue.rate_and_next_start()).await.is_some_and(is_at_rate),
            None => false,
        };
        let row = entry.map(|entry| Row::of_stored(entry, why, Detail::new()));
        let cause = |entry| WaitCause::of_stored(entry, group.as_ref(), at_rate);
        let cause = entry.map_or(WaitCause::Ready, cause);
        let runs = match entry {
            Some(entry) => KnownRun::of_entry(entry, runs),
            None => KnownRun::of_runs(runs),
        };
        let note = "the store keeps no adds, and only the last runs of a key";
        let group = entry
            .and_then(|entry| entry.group.as_deref())
            .map(|group| escape_key(group.as_bytes()));
        Self::of_runs(row.as_ref().map(|row| (row, cause)), &runs, note).with_actions(
            &shown_key(key).0,
            group.as_deref(),
            &actions,
        )
    }
}

impl Seen {
    /// Stores the state that was read. `None` means that the store answered with an error, or not
    /// in time. The numbers of keys are read separately, because a store may need a long time to
    /// count the keys of a large queue.
    fn take_state(&mut self, state: Option<QueueState>, changes: u64) {
        // A store that answers with an error counts as unreachable, like a store that does not
        // answer. Workers cannot use either of them.
        self.is_away = state.is_none();
        // If this site has changed the state since the read began, the read may be outdated, and is
        // ignored.
        if let Some(state) = state.filter(|_| self.changes == changes) {
            self.state = state;
        }
    }

    fn take_activity(&mut self, activity: Option<Activity>, fleet: Option<Fleet>) {
        self.activity = activity;
        if let Some(fleet) = fleet {
            self.runs.take([fleet.adds, fleet.coalesced, fleet.starts, fleet.failures]);
        }
    }

    fn take_counts(&mut self, counts: StateCounts, age: Duration) {
        if counts.in_flight == 0 {
            self.longest = None;
        }
        let now = Instant::now();
        self.counts = Some((counts, now.checked_sub(age).unwrap_or(now)));
    }

    /// Returns the keys that have run the longest. Their ages are those at the present time, and
    /// not at the time of the read.
    fn longest_now(&self) -> impl Iterator<Item = Entry> + '_ {
        let (longest, ago) = match &self.longest {
            Some((longest, at)) => (longest.as_slice(), at.elapsed()),
            None => (&[][..], Duration::ZERO),
        };
        longest.iter().cloned().map(move |mut entry| {
            entry.since = entry.since.map(|since| since + ago);
            entry.lease = entry.lease.map(|lease| lease.saturating_sub(ago));
            entry.due = entry.due.map(|due| due.saturating_sub(ago));
            entry
        })
    }
}

/// The note of a response that lacks the failures of a key.
const NO_FAILURES: &str = "the store did not return the last failures, so they are missing here";

impl Stored {
    pub(crate) fn new(queue: Queue, detail: Arc<DetailOf<Key>>, history: Option<History>) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        tokio::spawn(keep_asking(queue.clone(), Arc::downgrade(&seen)));
        tokio::spawn(keep_counting(queue.clone(), Arc::downgrade(&seen)));
        tokio::spawn(keep_reading(queue.clone(), Arc::downgrade(&seen)));
        Self { queue, detail, history, seen, explaining: Semaphore::new(1) }
    }

    fn row(&self, entry: &Entry) -> Row {
        Row::of_stored(entry, None, detail_of(&self.detail, &entry.key))
    }

    /// Returns the row of one key. If the key is ready, the row explains why it waits. An example
    /// is that the keys in flight of its group have reached the limit.
    async fn explained_row(&self, entry: &Entry) -> Row {
        let why = match entry.state {
            State::Ready => self.explain_ready(entry).await,
            _ => None,
        };
        Row::of_stored(entry, why, detail_of(&self.detail, &entry.key))
    }

    /// Returns the last consecutive failures of a key. Returns `None` if the store returns an error
    /// or does not answer soon.
    async fn attempts(&self, entry: &Entry) -> Option<Vec<PastRun>> {
        if entry.failures == 0 {
            return Some(Vec::new());
        }
        let attempts = answer_soon(self.queue.attempts(&entry.key)).await?;
        Some(PastRun::of_attempts(entry, attempts))
    }

    /// Returns the explanation of a ready key, with the settings of its queue and its group.
    /// Returns `None` if the store does not answer soon. The caller then uses the shorter
    /// explanation of the entry.
    async fn explain_ready(&self, entry: &Entry) -> Option<String> {
        // The error is a separate property of the row, so the explanation must not contain it.
        let mut entry = entry.clone();
        entry.error = None;
        let explain = async {
            // `acquire` fails only if the semaphore is closed, and it is never closed.
            let _turn = self.explaining.acquire().await.ok()?;
            self.queue.explain_entry(&entry).await.ok()
        };
        timeout(PATIENCE_FOR_STATE, explain).await.ok().flatten()
    }

    async fn sorted_page(
        &self,
        selection: &Selection,
        limit: usize,
        sort: Sort,
    ) -> Result<Walked, Problem> {
        let mut first = First::new(sort, limit);
        let visited = visit_keys(&self.queue, selection, None, LIST, |entry| {
            let rank = match sort.by {
                Column::Key => Rank::Key(entry.key.to_vec()),
                Column::State => Rank::State(RowState::stored(entry.state)),
                Column::Age => Rank::of_time(entry.since),
                Column::Attempt => Rank::Number(u128::from(entry.failures) + 1),
                Column::DueIn => Rank::of_time(entry.due),
            };
            first.push(rank, entry.clone());
            true
        });
        let (looked_at, next) = visited.await?;
        let (entries, more) = first.into_first();
        let rows = entries.iter().map(|entry| self.row(entry)).collect();
        Ok(Walked { rows, next: None, looked_at, more: more || next.is_some() })
    }
}

#[async_trait]
impl Source for Stored {
    fn name(&self) -> Option<&str> {
        Some(self.queue.name())
    }

    fn status(&self) -> Status {
        match () {
            () if self.queue.shutting_down() => Status::ShutDown,
            () if self.seen.lock().is_away => Status::Unreachable,
            () if self.seen.lock().state.is_paused => Status::Paused,
            () => Status::Open,
        }
    }

    fn read_gauges(&self) -> Gauges {
        let seen = self.seen.lock();
        let (counts, at) = seen.counts.unzip();
        let StateCounts { ready, waiting, in_flight, dirty, parked, damaged, .. } =
            counts.unwrap_or_default();
        let number = |keys: u64| usize::try_from(keys).unwrap_or(usize::MAX);
        let mut process = self.queue.sample().unwrap_or_default();
        let longest = seen.longest_now().next().and_then(|key| key.since);
        process.times.longest_running = longest.unwrap_or_default();
        if let Some(fleet) = process.fleet {
            // The numbers from the store may be older than the last work of this process. The
            // greater of both numbers is therefore used.
            let [adds, coalesced, runs, failures] = seen.runs.now();
            let totals = &mut process.totals;
            totals.adds = totals.adds.max(adds);
            totals.coalesced = totals.coalesced.max(coalesced);
            totals.deliveries = totals.deliveries.max(runs);
            totals.failures = totals.failures.max(failures);
            process.given_up = process.given_up.max(fleet.given_up);
            (process.times.queued, process.times.worked) = (fleet.queued, fleet.worked);
        }
        Gauges {
            counts: Sample {
                ready: number(ready),
                waiting: number(waiting),
                running: number(in_flight),
                dirty: number(dirty),
                parked: Some(number(parked)),
                damaged: Some(number(damaged)),
                counts_age: at.map(|at| seconds(at.elapsed())),
                ..Sample::default()
            },
            process,
            keeps_times: true,
        }
    }

    fn longest_running(&self, limit: usize) -> Vec<Row> {
        let longest: Vec<Entry> = self.seen.lock().longest_now().take(limit).collect();
        longest.iter().map(|entry| self.row(entry)).collect()
    }

    fn recent_activity(&self) -> Option<(Tally, Vec<Worker>)> {
        let seen = self.seen.lock();
        seen.activity.as_ref().map(|activity| (activity.total, activity.workers.clone()))
    }

    async fn read_page(&self, walk: &Walk) -> Result<Walked, Problem> {
        let Walk { selection, limit, begin } = walk;
        let after = match begin {
            Begin::Start => None,
            Begin::Cursor(cursor) => {
                let position = from_base64(cursor.as_bytes());
                let position = position.filter(|position| Part::is_position(position));
                Some(position.ok_or_else(Walk::bad_cursor)?)
            }
            Begin::Sorted(sort) => return self.sorted_page(selection, *limit, *sort).await,
        };
        let mut rows = Vec::new();
        let visited = visit_keys(&self.queue, selection, after, LIST, |entry| {
            rows.push(self.row(entry));
            rows.len() < *limit
        });
        let (looked_at, next) = visited.await?;
        let next = next.map(|position| to_base64(&position));
        Ok(Walked { rows, more: next.is_some(), next, looked_at })
    }

    async fn find_key(&self, key: &[u8]) -> Result<Found, Problem> {
        if key.len() > Key::MAX_LENGTH {
            return Ok(Found::NoKey);
        }
        let found = await_answer(PATIENCE, self.queue.look_up(Key::from(key))).await?;
        let past = self.history.as_ref().and_then(|history| history.past_of(key));
        let schedule = await_answer(PATIENCE, self.queue.look_up_schedule(Key::from(key))).await?;
        let mut attempts = Some(Vec::new());
        let mut row = match (found, &past) {
            (Some(entry), _) => {
                attempts = self.attempts(&entry).await;
                self.explained_row(&entry).await
            }
            // The history may call a key parked that is no longer in the store. Only the store
            // knows whether a key is parked.
            (None, Some(past)) if past.parked_for().is_none() => {
                Row::of_past(key, past, detail_of(&self.detail, &Key::from(key)), CUT_SHORT)
            }
            (None, _) if schedule.is_some() => Row::of_missing(key),
            (None, _) => return Ok(Found::Nothing),
        };
        if let Some(schedule) = schedule {
            row.note_schedule(&schedule);
        }
        let mut page = KeyPage::new(row, past);
        match attempts {
            // The failures are those of the store, because the history contains only the runs of
            // this process.
            Some(attempts) if !attempts.is_empty() => page.runs = attempts,
            Some(_) => {}
            None => page.missing = Some(NO_FAILURES.to_owned()),
        }
        Ok(Found::Page(Box::new(page)))
    }

    async fn read_timeline(&self, key: &[u8]) -> Result<Option<Timeline>, Problem> {
        if key.len() > Key::MAX_LENGTH {
            return Ok(None);
        }
        let entry = await_answer(PATIENCE, self.queue.look_up(Key::from(key))).await?;
        let attempts = match &entry {
            Some(entry) => self.attempts(entry).await,
            None => Some(Vec::new()),
        };
        let is_missing = attempts.is_none();
        let mut runs = attempts.unwrap_or_default();
        let past = self.history.as_ref().and_then(|history| history.past_of(key));
        // The history may call a key parked that is no longer in the store. Only the store knows
        // whether a key is parked.
        let past = past.filter(|past| entry.is_some() || past.parked_for().is_none());
        // The runs of the history are used only if the store has returned no attempts. If the read
        // failed, they may belong to an earlier sequence of failures.
        if let Some(past) = past.filter(|_| runs.is_empty() && !is_missing) {
            runs = past.runs.into();
        }
        // The explanation is omitted, because it may take long, and the page of the key already
        // contains it.
        let read = Timeline::of_stored(&self.queue, key, entry.as_ref(), None, &runs);
        let mut timeline = read.await;
        if is_missing {
            timeline.note = format!("{NO_FAILURES}; {}", timeline.note);
        }
        Ok(Some(timeline))
    }

    async fn read_failures(&self, failures: &mut Failures) -> Result<(), Problem> {
        for state in [RowState::Parked, RowState::Waiting, RowState::Running, RowState::Ready] {
            let failing = Selection { state: Some(state), failed: true, ..Selection::default() };
            let Some(left) = LOOKS.checked_sub(failures.looked_at).filter(|&left| left > 0) else {
                failures.cut = true;
                break;
            };
            let visited =
                visit_keys(&self.queue, &failing, None, Reach { keys: left, ..LIST }, |entry| {
                    let last = entry.failed.map(seconds);
                    failures.push(&Failing {
                        key: &entry.key,
                        state,
                        failures: entry.failures,
                        error: entry.error.as_deref(),
                        // The entry contains only the time of the last failure. It is also the
                        // first failure if there was only one.
                        first: last.filter(|_| entry.failures <= 1),
                        last,
                    })
                });
            let (looked_at, next) = visited.await?;
            failures.looked_at += looked_at;
            failures.cut |= next.is_some();
        }
        let read = failures.keys_to_read().into_iter().map(async |(group, key)| {
            let attempts = answer_soon(self.queue.attempts(&*key)).await?;
            Some((oldest_of_attempts(&attempts, &group, &key)?, group))
        });
        // If the store has not returned the attempts of a key, the first failure of its group
        // remains unknown.
        for ((oldest, is_first), group) in join_all(read).await.into_iter().flatten() {
            failures.note_oldest(&group, seconds(oldest));
            if is_first {
                failures.note_first(&group);
            }
        }
        Ok(())
    }

    async fn matching_keys(
        &self,
        action: Action,
        selection: &Selection,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Problem> {
        let mut keys = Vec::new();
        let visited = visit_keys(&self.queue, selection, None, ALL, |entry| {
            if action.applies(RowState::stored(entry.state), runs_again(entry)) {
                keys.push(entry.key.to_vec());
            }
            keys.len() < most
        });
        visited.await?;
        Ok(keys)
    }

    async fn change_keys(&self, action: Action, keys: Vec<Vec<u8>>) -> Result<Vec<bool>, Problem> {
        let keys: Vec<Key> = keys.into_iter().map(key_from_bytes).collect::<Result<_, _>>()?;
        match action {
            Action::Cancel => self.queue.cancel_keys(keys).await.map_err(store_failure),
            Action::Revive => self.queue.revive_keys(keys).await.map_err(store_failure),
            Action::CancelRun => {
                // The requests are concurrent, because each of them may wait long for the store.
                let cancels = keys.into_iter().map(|key| self.queue.cancel_running(key));
                let (mut results, mut problem) = (Vec::new(), None);
                for run in join_all(cancels).await {
                    match run {
                        Ok(run) => results.push(run == CancelledRun::Cancelled),
                        Err(error) => problem = Some(store_failure(error)),
                    }
                }
                match problem {
                    Some(problem) => Err(problem.with_changed(count_of(&results))),
                    None => Ok(results),
                }
            }
            Action::RunNow => self.queue.run_now_keys(keys).await.map_err(store_failure),
        }
    }

    async fn add_keys(&self, keys: Vec<NewKey>) -> Result<Vec<AddResult>, Problem> {
        let adds = keys.into_iter().map(|new| {
            let add = Add::after(new.delay.unwrap_or_default());
            let add = add.priority(Priority::from(new.priority));
            let key = key_from_bytes(new.key)?;
            let is_valid = self.queue.check_add(key.clone(), new.group.as_deref());
            is_valid.map_err(|error| Problem::parameter("keys", &error.to_string()))?;
            Ok((key, new.group, if new.revive { add.revive() } else { add }))
        });
        let adds = adds.collect::<Result<Vec<_>, Problem>>()?;
        let adds = adds.into_iter().map(async |(key, group, add)| match group {
            Some(group) => self.queue.group(group).add_with(key, add).await,
            None => self.queue.add_with(key, add).await,
        });
        let (mut results, mut problem) = (Vec::new(), None);
        for added in join_all(adds).await {
            results.push(match added {
                Ok(Added::New) => Some(AddResult::New),
                Ok(Added::Dirty) => Some(AddResult::Dirty),
                Ok(Added::BackingOff) => Some(AddResult::BackingOff),
                Ok(Added::Revived) => Some(AddResult::Revived),
                Ok(Added::Parked) => Some(AddResult::Parked),
                Ok(_) => Some(AddResult::Coalesced),
                Err(error) => {
                    let result = error.may_have_happened().then_some(AddResult::Unknown);
                    problem = Some(store_failure(error));
                    result
                }
            });
        }
        match problem {
            Some(problem) => Err(problem.with_results(results)),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    async fn claim_keys(&self, claim: &Claim) -> Result<Claimed, Problem> {
        let Claim { worker, max, wait, lease } = claim;
        let claimed = self.queue.claim_for(worker, *lease, *max, *wait);
        let late = || Problem::busy("the store did not answer in time");
        let claims = timeout(*wait + PATIENCE, claimed).await.map_err(|_| late())?;
        let claims = claims.map_err(|error| Problem::parameter("worker", &error.to_string()))?;
        let keys = claims.items().map(|item| ClaimedKey {
            attempt: item.attempt(),
            adds: item.adds(),
            flags: item.flags(),
            priority: item.priority().into(),
            group: item.group().map(str::to_owned),
            ..ClaimedKey::new(item.key(), item.fencing_token())
        });
        Ok(Claimed { keys: keys.collect(), held: Box::new(claims) })
    }

    async fn is_empty(&self) -> Result<bool, Problem> {
        await_answer(PATIENCE, self.queue.is_idle()).await
    }

    async fn renew_claims(
        &self,
        claims: Vec<Ticket>,
        lease: Duration,
    ) -> Result<Vec<ClaimResult>, Problem> {
        let tickets: Vec<_> = claims.iter().cloned().map(stored_ticket).collect();
        let renewed = self.queue.renew_claims(&tickets, lease, PATIENCE).await;
        let result = |(claim, renewal): (&Ticket, Renewal)| match renewal {
            Renewal::Renewed => ClaimResult::new(ClaimOutcome::Renewed),
            Renewal::Cancelled => ClaimResult::new(ClaimOutcome::Cancelled),
            Renewal::Lost => ClaimResult::lost(claim),
            Renewal::Locked => ClaimResult::refused(
                ClaimOutcome::Locked,
                claim,
                "another transaction has locked the key",
            ),
            Renewal::Unknown(why) => ClaimResult::refused(ClaimOutcome::Unknown, claim, &why),
        };
        Ok(claims.iter().zip(renewed).map(result).collect())
    }

    async fn end_claim(&self, claim: Ticket, ending: Ending) -> ClaimResult {
        let refused = |outcome, why: &str| ClaimResult::refused(outcome, &claim, why);
        let resumed =
            timeout(PATIENCE, self.queue.resume_claim(stored_ticket(claim.clone()))).await;
        let item = match resumed {
            Ok(Ok(Resumed::Item(item))) => item,
            Ok(Ok(Resumed::Held)) => {
                return refused(
                    ClaimOutcome::Locked,
                    "another request or a worker of the server ends this claim",
                );
            }
            Ok(Ok(Resumed::Over(entry))) => return lost_claim(&claim, entry.as_deref()),
            Ok(Err(error)) => return refused(ClaimOutcome::Unknown, &with_source(error)),
            Err(_) => return refused(ClaimOutcome::Unknown, "the store did not answer in time"),
        };
        let (outcome, ended) = end_item(*item, ending);
        match timeout(PATIENCE, ended).await {
            Ok(Ok(done)) if done.parked => ClaimResult::new(ClaimOutcome::Parked),
            Ok(Ok(_)) => ClaimResult::new(outcome),
            Ok(Err(CompleteError::Lost)) => ClaimResult::lost(&claim),
            Ok(Err(error @ CompleteError::Dropped)) => {
                refused(ClaimOutcome::Lost, &error.to_string())
            }
            Ok(Err(error)) => refused(ClaimOutcome::Unknown, &with_source(error)),
            Err(_) => refused(ClaimOutcome::Unknown, "the store did not answer in time"),
        }
    }

    async fn set_paused(&self, paused: bool) -> Result<(), Problem> {
        let set =
            async { if paused { self.queue.pause().await } else { self.queue.resume().await } };
        await_answer(PATIENCE, set).await?;
        let mut seen = self.seen.lock();
        (seen.state.is_paused, seen.state.pause) = (paused, None);
        seen.changes += 1;
        Ok(())
    }

    async fn record_action(&self, action: PastAction) -> Result<(), Problem> {
        let mut record = ActionRecord::new(&*action.action, &*action.by);
        if let Some(target) = &action.target {
            record = record.target(target);
        }
        if let Some(note) = &action.note {
            record = record.note(note);
        }
        await_answer(PATIENCE, self.queue.record_action(record)).await?;
        let mut seen = self.seen.lock();
        if action.action == "pause" && seen.state.is_paused {
            seen.state.pause = Some((action, Instant::now()));
            seen.changes += 1;
        }
        Ok(())
    }

    async fn last_actions(&self) -> Result<Vec<PastAction>, Problem> {
        let actions = await_answer(PATIENCE, self.queue.last_actions(KEPT)).await?;
        Ok(actions.into_iter().map(PastAction::from).collect())
    }

    fn last_pause(&self) -> Option<PastAction> {
        let seen = self.seen.lock();
        let (pause, at) = seen.state.pause.as_ref()?;
        Some(pause.at_age(pause.ago + seconds(at.elapsed())))
    }

    fn has_rate(&self) -> bool {
        true
    }

    fn rate(&self) -> Option<(StartRate, bool)> {
        // A change of the rate between two locks would give a queue that is at no rate.
        let seen = self.seen.lock();
        seen.state.rate.map(|rate| (rate.into(), seen.state.is_at_rate))
    }

    async fn set_rate(&self, rate: Option<StartRate>) -> Result<(), Problem> {
        let rate = rate_of_request(rate)?;
        self.queue.set_rate(rate).await.map_err(update_failure)?;
        let mut seen = self.seen.lock();
        (seen.state.rate, seen.state.is_at_rate) = (rate, false);
        seen.changes += 1;
        Ok(())
    }

    fn has_groups(&self) -> bool {
        self.queue.has_groups()
    }

    async fn read_groups(&self, most: usize) -> Result<Vec<Group>, Problem> {
        if !self.queue.has_groups() {
            return Err(no_groups());
        }
        let groups = await_answer(PATIENCE_FOR_PAGES, self.queue.groups(None, most)).await?;
        Ok(groups.into_iter().map(Group::from).collect())
    }

    fn has_activity(&self) -> bool {
        true
    }

    async fn read_activity(&self, since: Duration, most: usize) -> Result<Activity, Problem> {
        let mut activity = await_answer(PATIENCE, self.queue.activity(since)).await?;
        let step = (since.as_secs() / 60).div_ceil(most as u64).max(1);
        activity.minutes = sum_minutes(activity.minutes, step.cast_signed());
        let step = step as f64 * 60.0;
        Ok(Activity { step, ..Activity::from(activity) })
    }

    async fn change_group(&self, action: GroupAction, change: GroupChange) -> Result<(), Problem> {
        let GroupChange { group: name, limit, weight, rate, .. } = change;
        let group = self.queue.group(name.clone().unwrap_or_default());
        let limit = limit.flatten();
        let changed = match (action, weight) {
            (GroupAction::Pause, _) => group.pause().await,
            (GroupAction::Resume, _) => group.resume().await,
            (GroupAction::Weight, Some(weight)) => group.set_weight(weight).await,
            // Neither case occurs: `check_change` has refused a request without a weight, and a
            // cancel does not change settings.
            (GroupAction::Weight, None) | (GroupAction::Cancel, _) => Ok(()),
            (GroupAction::Limit, _) if name.is_none() => self.queue.set_group_limit(limit).await,
            (GroupAction::Limit, _) => group.set_limit(limit).await,
            (GroupAction::Rate, _) => group.set_rate(rate_of_request(rate.flatten())?).await,
        };
        changed.map_err(update_failure)
    }

    async fn cancel_group(
        &self,
        group: String,
        state: Option<RowState>,
        changed: &mut usize,
    ) -> Result<(), Problem> {
        let state = state.map(stored_state).transpose()?;
        let mut cancelling = self.queue.group(group).cancel_all(state);
        loop {
            let step = cancelling.step().await;
            *changed = usize::try_from(cancelling.changed()).unwrap_or(usize::MAX);
            if !step.map_err(update_failure)? {
                return Ok(());
            }
            // The task yields, so that other requests can run between two steps.
            tokio::task::yield_now().await;
        }
    }

    fn has_schedules(&self) -> bool {
        true
    }

    async fn read_schedules(&self, most: usize) -> Result<Vec<api::Schedule>, Problem> {
        let schedules = await_answer(PATIENCE_FOR_PAGES, self.queue.schedules(None, most)).await?;
        Ok(schedules.into_iter().map(api::Schedule::from).collect())
    }

    async fn change_schedule(
        &self,
        action: ScheduleAction,
        key: Vec<u8>,
        change: ScheduleChange,
    ) -> Result<bool, Problem> {
        let key = key_from_bytes(key)?;
        let changed = match action {
            ScheduleAction::Add => {
                let ScheduleChange { spec, zone, priority, group, .. } = change;
                let schedule = Schedule::parse(&spec.unwrap_or_default(), zone.as_deref());
                let schedule = schedule.map_err(update_failure)?;
                let mut schedule = schedule.priority(priority.unwrap_or_default().into());
                if let Some(group) = group {
                    schedule = schedule.group(group);
                }
                self.queue.schedule(key, schedule).await.map(|()| true)
            }
            ScheduleAction::Remove => self.queue.unschedule(key).await,
            ScheduleAction::Pause => self.queue.pause_schedule(key).await,
            ScheduleAction::Resume => self.queue.resume_schedule(key).await,
        };
        changed.map_err(update_failure)
    }
}

impl HandOver for Claims {
    fn hand_over(self: Box<Self>) {
        Self::hand_over(*self);
    }
}

fn stored_ticket(Ticket { key, token }: Ticket) -> requeue_store::Ticket {
    requeue_store::Ticket { key: Key::from(key), fencing_token: token }
}

/// Begins to complete a claimed key. Returns the outcome for the client, and a future that
/// completes the key. The outcome is valid only if the future succeeds.
fn end_item(
    mut item: Item,
    ending: Ending,
) -> (ClaimOutcome, impl Future<Output = Result<Completed, CompleteError>>) {
    let is_cancelled = item.cancel_reason().is_some();
    let (outcome, completion) = match ending {
        Ending::Complete => (ClaimOutcome::Completed, Completion::Succeed),
        // If the run was cancelled, the result that the client reports is ignored: the run neither
        // fails nor runs again.
        _ if is_cancelled => (ClaimOutcome::Cancelled, Completion::Cancelled),
        Ending::Release => (ClaimOutcome::Released, Completion::Release),
        Ending::Fail(FailedRun { error, exit_status, output, after, gives_up }) => {
            if let Some(error) = error {
                item.set_error(error);
            }
            if let Some(status) = exit_status {
                item.set_exit_status(status);
            }
            item.set_output(output.unwrap_or_default());
            let completion = match after {
                _ if gives_up => Completion::GiveUp,
                Some(delay) => Completion::RetryAfter(delay),
                None => Completion::Retry,
            };
            (ClaimOutcome::Failed, completion)
        }
    };
    (outcome, item.complete(completion))
}

/// Returns the result for a claim that the queue no longer has. The entry of the key shows the
/// cause.
fn lost_claim(claim: &Ticket, entry: Option<&Entry>) -> ClaimResult {
    let why = match entry {
        None => "the key is not in the queue: the claim was ended before, or the key was cancelled",
        Some(entry) if entry.state == State::InFlight => "a later claim holds the key",
        Some(_) => return ClaimResult::lost(claim),
    };
    ClaimResult::refused(ClaimOutcome::Lost, claim, why)
}

impl From<ScheduleInfo> for api::Schedule {
    fn from(info: ScheduleInfo) -> Self {
        let (key, key_base64) = shown_key(&info.key);
        Self {
            key,
            key_base64,
            spec: info.spec,
            zone: info.zone,
            due_in: info.next.map(seconds),
            next_at: info.next_at.map(since_1970),
            paused: info.is_paused,
            error: info.error,
            priority: info.priority.into(),
            group: info.group,
        }
    }
}

/// Returns the time since the first of the last consecutive failures whose error belongs to
/// `group`. The second value is true if this failure is known to be the first one. It is false if
/// the store may have dropped an older failure with such an error.
fn oldest_of_attempts(attempts: &[Attempt], group: &str, key: &[u8]) -> Option<(Duration, bool)> {
    let key = escape_key(key);
    let of_group = attempts.iter().take_while(|run| group_of(Some(&run.error), &key) == group);
    let (count, first) = of_group.enumerate().last()?;
    Some((first.ended, first.number == 1 || count + 1 < attempts.len()))
}

/// Adds up the numbers of each period of `step` minutes. The limits of the periods do not depend on
/// the time of the request.
fn sum_minutes(minutes: Vec<requeue_store::Minute>, step: i64) -> Vec<requeue_store::Minute> {
    let mut parts: Vec<requeue_store::Minute> = Vec::new();
    for mut minute in minutes {
        let after = minute.number.rem_euclid(step);
        match parts.last_mut().filter(|part| part.number == minute.number - after) {
            Some(part) => part.tally.merge(&minute.tally),
            None => {
                minute.number -= after;
                minute.ago += Duration::from_secs(60 * after.unsigned_abs());
                parts.push(minute);
            }
        }
    }
    parts
}

impl From<requeue_store::Activity> for Activity {
    fn from(activity: requeue_store::Activity) -> Self {
        let worker = |worker: LiveWorker| Worker {
            name: worker.name,
            seen: seconds(worker.seen),
            running: worker
                .running
                .iter()
                .map(|entry| Row::of_stored(entry, None, Detail::new()))
                .collect(),
        };
        let minute = |minute: &requeue_store::Minute| Minute {
            ago: seconds(minute.ago),
            tally: Tally::from(&minute.tally),
        };
        Self {
            period: seconds(activity.period),
            step: 60.0,
            total: Tally::from(&activity.total()),
            minutes: activity.minutes.iter().map(minute).collect(),
            workers: activity.workers.into_iter().map(worker).collect(),
        }
    }
}

impl From<&requeue_store::Tally> for Tally {
    fn from(tally: &requeue_store::Tally) -> Self {
        Self {
            adds: tally.adds,
            coalesced: tally.coalesced,
            runs: tally.starts,
            successes: tally.successes,
            failures: tally.failures,
            given_up: tally.given_up,
            durations: LastMinute::from_histograms(&tally.queued, &tally.worked),
        }
    }
}

impl From<GroupInfo> for Group {
    fn from(info: GroupInfo) -> Self {
        let hold = WaitCause::of_group(&info);
        let StateCounts { ready, waiting, in_flight, dirty, parked, oldest_ready, .. } =
            info.counts;
        Self {
            name: info.name,
            ready,
            waiting,
            running: in_flight,
            dirty,
            parked,
            oldest: (ready > 0).then(|| seconds(oldest_ready)),
            limit: info.limit,
            rate: info.rate.map(StartRate::from),
            weight: info.weight,
            paused: info.is_paused,
            hold,
        }
    }
}

impl From<Rate> for StartRate {
    fn from(rate: Rate) -> Self {
        let burst = Some(rate.burst_size());
        Self { starts: rate.starts(), per: seconds(rate.per()), burst }
    }
}

impl TryFrom<StartRate> for Rate {
    type Error = String;

    fn try_from(rate: StartRate) -> Result<Self, String> {
        let StartRate { starts, per, burst } = rate;
        let per = Duration::try_from_secs_f64(per)
            .map_err(|_| format!("invalid time {per}: use a number of seconds above 0"))?;
        let rate = Self::new(starts, per);
        Ok(burst.map_or(rate, |burst| rate.burst(burst)))
    }
}

/// Converts the rate of a request. Returns an error if the rate is invalid.
fn rate_of_request(rate: Option<StartRate>) -> Result<Option<Rate>, Problem> {
    let rate = rate.map(Rate::try_from).transpose();
    rate.map_err(|why| Problem::parameter("rate", &why))
}

fn key_from_bytes(bytes: Vec<u8>) -> Result<Key, Problem> {
    match bytes.len() {
        0..=Key::MAX_LENGTH => Ok(Key::from(bytes)),
        _ => Err(Problem::parameter("keys", "a key of a store has 2,048 bytes at most")),
    }
}

/// Returns true if a running key also has a pending run.
const fn runs_again(entry: &Entry) -> bool {
    entry.dirty || entry.due.is_some()
}

/// Reads the state of the queue each second, until the source is dropped. Each read has a time
/// limit, so that `/readyz` and `status` report within seconds that the store is unreachable. The
/// number of these reads does not depend on the number of clients.
async fn keep_asking(queue: Queue, seen: Weak<Mutex<Seen>>) {
    while let Some(changes) = seen.upgrade().map(|seen| seen.lock().changes) {
        let state = timeout(PATIENCE_FOR_STATE, QueueState::read(&queue)).await;
        let state = state.ok().and_then(Result::ok);
        let Some(seen) = seen.upgrade() else { return };
        seen.lock().take_state(state, changes);
        drop(seen);
        sleep(EVERY).await;
    }
}

/// Reads the numbers of keys each second, until the source is dropped.
async fn keep_counting(queue: Queue, seen: Weak<Mutex<Seen>>) {
    while seen.strong_count() > 0 {
        if let Ok(Ok(counts)) = timeout(PATIENCE, queue.recent_counts()).await {
            // The sample contains the age of these counts, or of newer counts.
            let age = queue.sample().and_then(|sample| sample.counts_age);
            // The reference is upgraded after the read, so that the task stops if the source was
            // dropped during the read.
            let Some(source) = seen.upgrade() else { return };
            source.lock().take_counts(counts, age.unwrap_or_default());
            drop(source);
            if counts.in_flight > 0
                && let Ok(Ok(longest)) = timeout(PATIENCE, queue.recent_longest()).await
                && let Some(source) = seen.upgrade()
            {
                source.lock().longest = Some((longest, Instant::now()));
            }
            // This read finds the oldest ready key that need not wait for its group. If it fails,
            // the shown key may be one that must wait.
            if queue.has_groups() {
                let _ = timeout(PATIENCE, queue.recent_look()).await;
            }
        }
        sleep(EVERY).await;
    }
}

/// Reads the work of all processes every [`EVERY_ACTIVITY`], until the source is dropped.
async fn keep_reading(queue: Queue, seen: Weak<Mutex<Seen>>) {
    while seen.strong_count() > 0 {
        let read = timeout(PATIENCE, queue.recent_activity()).await;
        let Some(source) = seen.upgrade() else { return };
        // After a failure, the numbers are removed. Otherwise, the dashboard would show old numbers
        // as those of the last hour.
        let activity = read.ok().and_then(Result::ok).map(Activity::from);
        let fleet = queue.sample().and_then(|sample| sample.fleet);
        source.lock().take_activity(activity, fleet);
        drop(source);
        sleep(EVERY_ACTIVITY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn numbers_have_an_age_and_a_long_count_is_no_outage() {
        let mut seen = Seen::default();
        assert_eq!((seen.is_away, seen.counts), (false, None));
        let mut counts = StateCounts::default();
        (counts.ready, counts.in_flight) = (3, 1);
        seen.take_counts(counts, Duration::ZERO);
        tokio::time::advance(40 * EVERY).await;
        let age = seen.counts.map(|(_, at)| at.elapsed());
        assert_eq!((seen.is_away, age), (false, Some(40 * EVERY)));
        // A failed read marks the store as unreachable, but keeps the counts. A later read that
        // succeeds reverses this.
        seen.take_state(None, 0);
        assert!(seen.is_away && seen.counts.is_some());
        let paused = QueueState { is_paused: true, ..QueueState::default() };
        seen.take_state(Some(paused.clone()), 0);
        assert_eq!((seen.is_away, seen.state.is_paused), (false, true));
        // The site changed the state after this read began, so the result of the read is ignored.
        (seen.state, seen.changes) = (QueueState::default(), 1);
        seen.take_state(Some(paused.clone()), 0);
        assert_eq!((seen.is_away, seen.state.is_paused), (false, false));
        // The store had counted the keys some time before the read.
        seen.take_counts(counts, EVERY);
        assert_eq!(seen.counts.map(|(_, at)| at.elapsed()), Some(EVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_of_all_processes_grow_evenly_and_arrive() {
        let mut runs = Smooth::default();
        runs.take([10, 0, 100, 0]);
        assert_eq!(runs.now(), [0; 4]);
        tokio::time::advance(EVERY_ACTIVITY).await;
        assert_eq!(runs.now(), [5, 0, 50, 0]);
        runs.take([10, 0, 100, 0]);
        tokio::time::advance(4 * EVERY_ACTIVITY).await;
        assert_eq!(runs.now(), [10, 0, 100, 0]);
    }
}

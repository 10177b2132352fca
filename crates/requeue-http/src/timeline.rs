//! The past of a key as waits, runs and other events.

use std::time::Duration;

use requeue::history::{Ended, Event, Transition};
use requeue::{Added, Entry, Merge, Time};

use crate::api::{
    EventKind, Outcome, PastAction, PastEvent, PastRun, Row, State, Timeline, WaitCause,
};
use crate::rows::next_due;
#[cfg(feature = "store")]
use crate::rows::{Detail, shown_key};
use crate::time::{seconds, unix_time};

/// The largest number of events in a timeline.
const MOST: usize = 1_000; // `note` and `openapi.json` repeat it.
/// Shorter waits are left out: each run follows a moment in which its key was ready.
const SHORTEST: Duration = Duration::from_millis(1);
/// The difference between the clocks of the recording and of the history of runs, in seconds.
const CLOCKS: f64 = 0.005;

impl Timeline {
    /// Returns the past of a key whose events are recorded. `begin` is the time of the oldest event that is kept, if others
    /// were dropped.
    pub(crate) fn of_events<K>(
        (events, begin): (&[Event], Option<Time>),
        entry: Option<&Entry<K>>,
        now: Time,
        runs: &[PastRun],
    ) -> Self {
        let now = Now(now, unix_time());
        let mut reading = Reading::new(events, begin, entry, now);
        let mut events = events.iter().peekable();
        while let Some(event) = events.next() {
            reading.read_event(*event);
            // The wait that an add or a completion causes is recorded after it.
            let next = events.peek().map(|event| event.transition);
            if !matches!(next, Some(Transition::Held { .. } | Transition::Paced { .. })) {
                reading.settle(event.at);
            }
        }
        let mut events = reading.into_events(entry);
        note_errors(&mut events, runs);
        let begin = begin.map(|at| now.to_unix(at));
        let note = match begin {
            Some(_) => "older events were dropped",
            None => "all events of this key are known",
        };
        Self { now: now.1, recorded: true, begin, note: note.to_owned(), events }.sorted()
    }

    /// Returns the past of a key whose events are not recorded: its last runs, the waits between them, and its state.
    /// `note` says which runs are known.
    pub(crate) fn of_runs(row: Option<&Row>, runs: &[PastRun], note: &str) -> Self {
        let now = unix_time();
        let mut events = Vec::new();
        for run in runs.iter().rev() {
            let start = run.at - run.took.unwrap_or_default();
            push_backoff(&mut events, Some(start), run.attempt - run.attempt.min(1));
            events.push(PastEvent {
                until: Some(run.at),
                outcome: Some(run.outcome),
                text: text_of_run(run),
                ..PastEvent::new(EventKind::Run, start)
            });
        }
        if let Some(row) = row {
            push_present(&mut events, row, now);
        }
        Self { now, recorded: false, begin: None, note: note.to_owned(), events }.sorted()
    }

    /// Returns the past of a key in a store.
    #[cfg(feature = "store")]
    pub(crate) fn of_stored(
        key: &[u8],
        row: Option<&Row>,
        runs: &[PastRun],
        actions: &[PastAction],
    ) -> Self {
        let note = "the store keeps the last three failures in a row; other past runs are unknown";
        Self::of_runs(row, runs, note).with_actions(&shown_key(key).0, actions)
    }

    /// Returns the past of a key whose entry a client of the store has read. `why` explains the entry.
    #[cfg(feature = "store")]
    #[must_use]
    pub fn of_entry(
        key: &[u8],
        entry: Option<(&requeue_store::Entry, String)>,
        runs: &[PastRun],
        actions: &[PastAction],
    ) -> Self {
        let row = entry.map(|(entry, why)| Row::of_stored(entry, Some(why), Detail::new()));
        Self::of_stored(key, row.as_ref(), runs, actions)
    }

    /// Adds the operators' actions on the key, and the pauses of its queue since the first event.
    pub(crate) fn with_actions(mut self, key: &str, actions: &[PastAction]) -> Self {
        let first = self.events.first().map_or(f64::INFINITY, |event| event.at);
        for PastAction { ago, action, by, target, note } in actions {
            let at = self.now - ago;
            let is_pause = target.is_none() && ["pause", "resume"].contains(&&**action);
            if target.as_deref() != Some(key) && !(is_pause && at >= first) {
                continue;
            }
            let of = if is_pause { " of the queue" } else { "" };
            let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            let text = format!("{action}{of} by {by}{note}");
            self.events.push(PastEvent { text, ..PastEvent::new(EventKind::Other, at) });
        }
        self.sorted()
    }

    /// Removes the events that ended before the last `since`, and the oldest of too many.
    #[must_use]
    pub fn since(mut self, since: Option<Duration>) -> Self {
        if let Some(since) = since {
            let from = self.now - since.as_secs_f64();
            let is_open =
                |event: &PastEvent| matches!(event.kind, EventKind::Wait | EventKind::Run);
            let end = |event: &PastEvent| match event.until {
                None if is_open(event) => f64::INFINITY,
                until => until.unwrap_or(event.at),
            };
            self.events.retain(|event| end(event) >= from);
        }
        if let Some(more) = self.events.len().checked_sub(MOST).filter(|&more| more > 0) {
            self.events.drain(..more);
            self.begin = self.events.first().map(|event| event.at);
            self.note = "only the last 1,000 events are listed".to_owned();
        }
        self
    }

    fn sorted(mut self) -> Self {
        self.events.sort_by(|a, b| a.at.total_cmp(&b.at));
        self
    }
}

impl PastEvent {
    const fn new(kind: EventKind, at: f64) -> Self {
        Self { at, until: None, kind, cause: None, outcome: None, text: String::new() }
    }
}

/// The present time, by the clock of a queue and in seconds since 1970.
#[derive(Clone, Copy)]
struct Now(Time, f64);

impl Now {
    /// Converts a time of the queue, and rounds it to milliseconds.
    fn to_unix(self, at: Time) -> f64 {
        let Self(now, unix) = self;
        let time = unix - seconds(now.since(at)) + seconds(at.since(now));
        (time * 1e3).round() / 1e3
    }
}

// --- Recorded events -----------------------------------------------------------------------------

/// The state of a key while its events are read, the oldest first.
struct Reading {
    now: Now,
    events: Vec<PastEvent>,
    /// The place in `events` of the wait or run that has not ended, and its beginning.
    open: Option<(usize, Time)>,
    /// The time from which on the events are complete.
    begin: Option<Time>,
    is_running: bool,
    /// The number of adds that the run in flight serves.
    adds: u32,
    /// The key is ready, or runs once more.
    is_pending: bool,
    waits: Option<(WaitCause, Time)>,
    failures: u32,
    queue_paused: bool,
    group_paused: bool,
    group_filled: bool,
}

impl Reading {
    fn new<K>(events: &[Event], begin: Option<Time>, entry: Option<&Entry<K>>, now: Now) -> Self {
        let around = entry.map(|entry| entry.around);
        // A switch without an event was always in its present position. Otherwise the first event has changed it.
        let first = |is_on: bool, switch: fn(Transition) -> Option<bool>| {
            events.iter().find_map(|event| switch(event.transition)).map_or(is_on, |on| !on)
        };
        Self {
            now,
            events: Vec::new(),
            open: None,
            begin,
            is_running: false,
            adds: 1,
            is_pending: false,
            waits: None,
            failures: 0,
            queue_paused: first(around.is_some_and(|it| it.paused), queue_paused),
            group_paused: first(around.is_some_and(|it| it.group_paused), group_paused),
            group_filled: first(
                entry.is_some_and(|entry| entry.held_back && !entry.around.group_paused),
                group_filled,
            ),
        }
    }

    fn read_event(&mut self, event: Event) {
        let Event { at, transition, .. } = event;
        match transition {
            Transition::Held { until } => self.wait(WaitCause::Backoff, until),
            Transition::Paced { until } => self.wait(WaitCause::Pace, until),
            Transition::Added { added, due, merge, .. } => {
                if added == Added::Dirty {
                    self.ensure_run(at);
                }
                self.push_tick(EventKind::Add, event);
                // Such an add replaces the pending run.
                if merge == Merge::Exactly && !self.is_running && added != Added::Refused {
                    (self.is_pending, self.waits) = (false, None);
                    self.read_add(Added::New, due, at);
                } else {
                    self.read_add(added, due, at);
                }
            }
            Transition::Due => (self.is_pending, self.waits) = (true, None),
            Transition::Delivered { adds, .. } => {
                (self.is_running, self.is_pending, self.adds) = (true, false, adds);
            }
            Transition::Completed { how, failures, is_ready, due, .. } => {
                self.ensure_run(at);
                self.end_run(event, how);
                let is_retried = how == Ended::Retried;
                let cause = if is_retried { WaitCause::Backoff } else { WaitCause::Delay };
                (self.failures, self.is_pending) = (failures, is_ready);
                self.waits = due.map(|due| (cause, due));
            }
            Transition::Withdrawn | Transition::Dropped => {
                self.push_tick(EventKind::Other, event);
                (self.is_pending, self.waits) = (false, None);
            }
            Transition::Forgotten => {
                self.push_tick(EventKind::Other, event);
                self.failures = 0;
            }
            Transition::Closed | Transition::ShutDown if self.segment().is_none() => {}
            Transition::Cancelled { .. } | Transition::Closed | Transition::ShutDown => {
                self.push_tick(EventKind::Other, event);
            }
            other => {
                self.queue_paused = queue_paused(other).unwrap_or(self.queue_paused);
                self.group_paused = group_paused(other).unwrap_or(self.group_paused);
                self.group_filled = group_filled(other).unwrap_or(self.group_filled);
            }
        }
    }

    const fn wait(&mut self, cause: WaitCause, until: Time) {
        (self.is_pending, self.waits) = (false, Some((cause, until)));
    }

    fn read_add(&mut self, added: Added, due: Time, at: Time) {
        match (added, due > at) {
            (Added::New, true) => self.waits = Some((WaitCause::Delay, due)),
            (Added::BackingOff, _) if self.waits.is_none() => {
                self.waits = Some((WaitCause::Backoff, due));
            }
            (Added::New | Added::Dirty | Added::Coalesced, false) => {
                (self.is_pending, self.waits) = (true, None);
            }
            _ => {}
        }
    }

    /// Returns the wait or the run that the state of the key shows; `None` if the key is idle.
    fn segment(&self) -> Option<(EventKind, Option<WaitCause>)> {
        let cause = match self.waits {
            _ if self.is_running => return Some((EventKind::Run, None)),
            _ if self.is_pending && self.queue_paused => WaitCause::QueuePaused,
            _ if self.is_pending && self.group_paused => WaitCause::GroupPaused,
            _ if self.is_pending && self.group_filled => WaitCause::GroupLimit,
            _ if self.is_pending => WaitCause::Ready,
            Some((cause, _)) => cause,
            None => return None,
        };
        Some((EventKind::Wait, Some(cause)))
    }

    /// Ends the open wait or run if the state shows another wait or run, and begins the new one.
    fn settle(&mut self, at: Time) {
        let segment = self.segment();
        let open = self.open.and_then(|(place, _)| self.events.get(place));
        if open.map(|open| (open.kind, open.cause)) == segment && segment.is_some() {
            return;
        }
        self.close(at);
        let Some((kind, cause)) = segment else { return };
        let text =
            cause.map_or_else(|| "running".to_owned(), |cause| text_of_wait(cause, self.failures));
        let until = match (kind, self.waits) {
            (EventKind::Wait, Some((_, due))) if !self.is_pending && due != Time::NEVER => {
                Some(self.now.to_unix(due))
            }
            _ => None,
        };
        self.open = Some((self.events.len(), at));
        let begun = PastEvent::new(kind, self.now.to_unix(at));
        self.events.push(PastEvent { until, cause, text, ..begun });
    }

    /// Ends the open wait or run. A very short wait is removed.
    fn close(&mut self, at: Time) {
        let Some((place, since)) = self.open.take() else { return };
        let Some(open) = self.events.get_mut(place) else { return };
        open.until = Some(self.now.to_unix(at));
        if open.kind == EventKind::Wait && at.since(since) < SHORTEST {
            self.events.remove(place);
        }
    }

    fn push_tick(&mut self, kind: EventKind, event: Event) {
        let at = self.now.to_unix(event.at);
        self.events.push(PastEvent { text: text_of_event(event), ..PastEvent::new(kind, at) });
    }

    /// Begins the run in flight if its delivery was dropped from the recording.
    fn ensure_run(&mut self, at: Time) {
        if !self.is_running {
            self.is_running = true;
            self.settle(self.begin.unwrap_or(at));
        }
    }

    /// Ends the run in flight.
    fn end_run(&mut self, event: Event, how: Ended) {
        let outcome = match how {
            Ended::Done | Ended::Succeeded | Ended::Requeued => Outcome::Succeeded,
            Ended::Retried => Outcome::Failed,
            Ended::GivenUp | Ended::Parked => Outcome::GivenUp,
            _ => Outcome::Stopped,
        };
        let adds = match self.adds {
            1 => String::new(),
            adds => format!(", for {adds} adds"),
        };
        let text = format!("{}{adds}", text_of_event(event));
        if let Some(run) = self.open.and_then(|(place, _)| self.events.get_mut(place)) {
            (run.outcome, run.text) = (Some(outcome), text);
        }
        self.close(event.at);
        (self.is_running, self.adds) = (false, 1);
    }

    /// Returns the events. The entry has the due time of the present wait, which later adds may have changed.
    fn into_events<K>(mut self, entry: Option<&Entry<K>>) -> Vec<PastEvent> {
        let due = entry.and_then(|entry| next_due(entry, self.now.0));
        let due = due.filter(|&due| due != Time::NEVER).map(|due| self.now.to_unix(due));
        if let Some(open) = self.open.and_then(|(place, _)| self.events.get_mut(place))
            && open.until.is_some()
        {
            open.until = due;
        }
        self.events
    }
}

const fn queue_paused(transition: Transition) -> Option<bool> {
    match transition {
        Transition::Paused => Some(true),
        Transition::Resumed => Some(false),
        _ => None,
    }
}

const fn group_paused(transition: Transition) -> Option<bool> {
    match transition {
        Transition::GroupPaused(_) => Some(true),
        Transition::GroupResumed(_) => Some(false),
        _ => None,
    }
}

const fn group_filled(transition: Transition) -> Option<bool> {
    match transition {
        Transition::GroupFilled(_) => Some(true),
        Transition::GroupFreed(_) => Some(false),
        _ => None,
    }
}

/// Returns the words of an event, without its time and without the wait that follows it.
fn text_of_event(event: Event) -> String {
    let text = event.to_string();
    let words = text.split_once(' ').map_or(&*text, |(_, words)| words);
    words.split(';').next().unwrap_or_default().to_owned()
}

fn text_of_wait(cause: WaitCause, failures: u32) -> String {
    match (cause, failures) {
        (WaitCause::Delay, _) => "waiting for its due time".to_owned(),
        (WaitCause::Backoff, 0) => "backing off".to_owned(),
        (WaitCause::Backoff, 1) => "backing off after 1 failure".to_owned(),
        (WaitCause::Backoff, n) => format!("backing off after {n} failures"),
        (WaitCause::Pace, _) => "waiting for its pace".to_owned(),
        (WaitCause::Ready, _) => "ready, waiting for a worker".to_owned(),
        (WaitCause::GroupLimit, _) => "ready, but its group has reached its limit".to_owned(),
        (WaitCause::GroupPaused, _) => "ready, but its group is paused".to_owned(),
        (WaitCause::QueuePaused, _) => "ready, but the queue is paused".to_owned(),
    }
}

/// Adds the errors of failed runs to their events. The history of runs records a run after its completion.
fn note_errors(events: &mut [PastEvent], runs: &[PastRun]) {
    let mut next = f64::INFINITY;
    let outcomes = [Some(Outcome::Failed), Some(Outcome::GivenUp)];
    for event in events.iter_mut().rev().filter(|event| outcomes.contains(&event.outcome)) {
        let Some(until) = event.until else { continue };
        let until = until - CLOCKS;
        // The runs begin with the newest.
        let mut recorded = runs.iter().rev().filter(|run| run.error.is_some());
        if let Some(run) = recorded.find(|run| (until..next).contains(&run.at)) {
            event.text += &error_of(run);
        }
        next = until;
    }
}

// --- Runs without events -------------------------------------------------------------------------

fn error_of(run: &PastRun) -> String {
    let error = run.error.as_deref().filter(|error| !error.is_empty());
    error.map(|error| format!(": {error}")).unwrap_or_default()
}

fn text_of_run(run: &PastRun) -> String {
    let outcome = match run.outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed => "failed",
        Outcome::GivenUp => "failed for the last time",
        Outcome::Stopped => "stopped",
    };
    format!("attempt {} {outcome}{}", run.attempt, error_of(run))
}

/// Adds the wait from the end of the last run to `until`, if that run has failed.
fn push_backoff(events: &mut Vec<PastEvent>, until: Option<f64>, failures: u32) {
    let last = events.last().filter(|last| last.outcome == Some(Outcome::Failed));
    let Some(at) = last.and_then(|last| last.until) else { return };
    if until.is_some_and(|until| until - at < SHORTEST.as_secs_f64()) {
        return;
    }
    let cause = WaitCause::Backoff;
    let text = text_of_wait(cause, failures);
    let wait = PastEvent::new(EventKind::Wait, at);
    events.push(PastEvent { until, cause: Some(cause), text, ..wait });
}

/// Adds the state of the key.
fn push_present(events: &mut Vec<PastEvent>, row: &Row, now: f64) {
    let since = row.age.map(|age| now - age);
    match row.state {
        State::Waiting | State::BackingOff if row.failures > 0 => {
            push_backoff(events, row.due_in.map(|due| now + due), row.failures);
        }
        State::Waiting | State::BackingOff => {
            let (cause, text) = (WaitCause::Delay, text_of_wait(WaitCause::Delay, 0));
            let until = row.due_in.map(|due| now + due);
            let wait = PastEvent::new(EventKind::Wait, since.unwrap_or(now));
            events.push(PastEvent { until, cause: Some(cause), text, ..wait });
        }
        State::Ready => {
            push_backoff(events, since, row.failures);
            let cause = Some(WaitCause::Ready);
            let wait = PastEvent::new(EventKind::Wait, since.unwrap_or(now));
            events.push(PastEvent { cause, text: row.why.clone(), ..wait });
        }
        State::Running => {
            push_backoff(events, since, row.failures);
            let text = "running".to_owned();
            let at = since.unwrap_or(now);
            events.push(PastEvent { text, ..PastEvent::new(EventKind::Run, at) });
        }
        State::Parked => {
            let at = since.unwrap_or(now);
            let s = if row.failures == 1 { "" } else { "s" };
            let text = format!("parked after {} failure{s}", row.failures);
            events.push(PastEvent { text, ..PastEvent::new(EventKind::Other, at) });
        }
        State::Damaged | State::Idle => {}
    }
}

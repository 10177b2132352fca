//! Converts the past of a key to a timeline of waits, runs and other events.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, mem};

use requeue::history::{Ended, Event, Transition};
use requeue::{Added, Entry, Merge, Phase, Time, reason_text};

use crate::api::{
    EventKind, Outcome, PastAction, PastEvent, PastRun, Row, State, Timeline, WaitCause,
};
use crate::rows::next_due;
use crate::time::{seconds, unix_time};

/// The maximum number of events in a timeline.
const MOST: usize = 1_000; // `note` and `openapi.json` contain this number too.
/// A timeline with more events than this number also has a summary.
const FEW: usize = 20;
/// The maximum number of reasons that a summary contains.
const NAMED: usize = 3;
/// Waits that are shorter than this are omitted. Otherwise, each run would be preceded by the
/// moment in which its key was ready.
const SHORTEST: Duration = Duration::from_millis(1);
/// The number of events that are read before the task yields.
const SLICE: usize = 256;
/// The minimum length in bytes of a target that a store has cut. Such a target ends with an
/// ellipsis.
const CUT: usize = 190;
/// The maximum difference, in seconds, between the clock of the recording and that of the run
/// history.
const CLOCKS: f64 = 0.005;

impl Timeline {
    /// Returns the past of a key whose events are recorded. If older events were dropped, `begin`
    /// is the time of the oldest recorded event.
    pub(crate) async fn of_events(
        (events, begin): (&[Event], Option<Time>),
        present: Present,
        now: Time,
        runs: &[PastRun],
    ) -> Self {
        let now = Now(now, unix_time());
        let mut reading = Reading::new(events, begin, present, now);
        for (n, event) in events.iter().enumerate() {
            reading.read_event(*event);
            // An add or a completion can be followed by an event that contains the cause of the
            // key's next wait. The wait begins after this event.
            let next = events.get(n + 1).map(|event| event.transition);
            if !matches!(next, Some(Transition::Held { .. } | Transition::Paced { .. })) {
                reading.settle(event.at);
            }
            if n % SLICE == SLICE - 1 {
                reading.drop_oldest();
                tokio::task::yield_now().await;
            }
        }
        let totals = mem::take(&mut reading.totals);
        let mut events = reading.into_events(present);
        note_errors(&mut events, runs);
        let begin = begin.map(|at| now.to_unix(at));
        let known = match begin {
            Some(_) => "older events were dropped",
            None => "all events of this key are known",
        };
        let note = if events.len() > FEW { format!("{totals}; {known}") } else { known.to_owned() };
        Self { now: now.1, recorded: true, begin, note, last: None, events }.sorted().with_last()
    }

    /// Returns the past of a key whose events are not recorded. It consists of the last runs, the
    /// waits between them, and the present state. `note` says which runs are known. `row` contains
    /// the row of the key, and the cause of its wait.
    pub(crate) fn of_runs(row: Option<(&Row, WaitCause)>, runs: &[KnownRun], note: &str) -> Self {
        let now = unix_time();
        let mut events = Vec::new();
        let mut last: Option<&KnownRun> = None;
        for run in runs {
            if let Some(last) = last {
                last.push_wait_for(run.ready, run.start, &mut events);
            }
            if let Some(ready) = run.ready {
                // If the key was added during the last run, it was ready only after the end of that
                // run.
                let ready = last.map_or(ready, |last| ready.max(last.end));
                push_wait(&mut events, ready, run.start, WaitCause::Ready, 0);
            }
            let (until, outcome, text) = (Some(run.end), Some(run.outcome), run.text.clone());
            let event = PastEvent::new(EventKind::Run, run.start);
            events.push(PastEvent { until, outcome, text, ..event });
            last = Some(run);
        }
        if let Some((row, cause)) = row {
            push_present(&mut events, row, cause, last, now);
        }
        let note = note.to_owned();
        Self { now, recorded: false, begin: None, note, last: None, events }.sorted().with_last()
    }

    /// Adds the actions of operators on the key since the first event. Also adds the pauses of the
    /// key's queue and group, and the jumps of the store's clock. If a pause keeps the key waiting,
    /// it is added even if it began earlier.
    pub(crate) fn with_actions(
        mut self,
        key: &str,
        group: Option<&str>,
        actions: &[PastAction],
    ) -> Self {
        let first = self.events.first().map_or(f64::INFINITY, |event| event.at);
        let present = self.events.iter().find(|event| is_present(event, self.now));
        let holder = match present.and_then(|event| event.cause) {
            Some(WaitCause::QueuePaused) => Some(Paused::Queue),
            Some(WaitCause::GroupPaused) => Some(Paused::Group),
            _ => None,
        };
        let pauses =
            actions.iter().filter(|past| holder.is_some() && paused_by(past, group) == holder);
        let held_since = pauses.map(|past| self.now - past.ago).max_by(f64::total_cmp);
        for past in actions {
            let PastAction { ago, action, by, target, note } = past;
            let at = self.now - ago;
            let paused = paused_by(past, group);
            // These actions apply to groups or to the queue, so their targets are not keys.
            let is_of_keys = !action.starts_with("group-") && action != "rate";
            let is_of_key =
                is_of_keys && target.as_deref().is_some_and(|target| is_target(target, key));
            let is_known = at >= first || paused == holder && held_since == Some(at);
            // If the clock of the store jumps, the leases of any keys can expire.
            let is_jump = action == "clock-jump" && at >= first;
            if !(is_of_key || paused.is_some() && is_known || is_jump) {
                continue;
            }
            let note = note.as_ref().map(|note| format!(", note: {note}")).unwrap_or_default();
            let text = match target {
                Some(jump) if is_jump => {
                    format!("clock of the store jumped by {jump}, or {by} was suspended")
                }
                _ => format!("{} by {by}{note}", words_of_action(action)),
            };
            self.events.push(PastEvent { text, ..PastEvent::new(EventKind::Other, at) });
        }
        self.sorted()
    }

    /// Removes the events that ended earlier than `since` before now. Also removes the oldest
    /// events, if there are more than the maximum.
    // The method is hidden, because only the program and the site need it.
    #[doc(hidden)]
    #[must_use]
    pub fn since(mut self, since: Option<Duration>) -> Self {
        if let Some(since) = since {
            let from = self.now - since.as_secs_f64();
            let end = |event: &PastEvent| event.until.unwrap_or(event.at);
            self.events.retain(|event| is_present(event, self.now) || end(event) >= from);
        }
        if let Some(more) = self.events.len().checked_sub(MOST).filter(|&more| more > 0) {
            self.begin = self.events.get(more).map(|event| event.at);
            // A wait or a run that has not ended is kept, even if many adds followed its beginning.
            let old = &self.events[..more];
            if let Some(place) = old.iter().position(|event| is_present(event, self.now)) {
                self.events.swap(place, more);
            }
            self.events.drain(..more);
            self.note.push_str("; the last 1,000 events are listed");
        }
        self
    }

    fn sorted(mut self) -> Self {
        self.events.sort_by(|a, b| a.at.total_cmp(&b.at));
        self
    }

    fn with_last(mut self) -> Self {
        let end = |event: &PastEvent| event.until.unwrap_or(event.at);
        let last = self.events.iter().max_by(|a, b| end(a).total_cmp(&end(b)));
        self.last = last.map(|event| event.text.clone());
        self
    }
}

/// Returns true if the event is a wait or a run that has not ended.
fn is_present(event: &PastEvent, now: f64) -> bool {
    let is_long = matches!(event.kind, EventKind::Wait | EventKind::Run);
    is_long && event.until.is_none_or(|until| until > now)
}

/// Returns the words for an action, to which the name of the operator is appended. An example is
/// "queue paused by ann".
fn words_of_action(action: &str) -> String {
    match action {
        "pause" => "queue paused".to_owned(),
        "resume" => "queue resumed".to_owned(),
        "cancel" => "cancelled".to_owned(),
        "cancel-run" => "run cancelled".to_owned(),
        "revive" => "revived".to_owned(),
        "add" => "added".to_owned(),
        "run-now" => "made ready".to_owned(),
        "group-pause" => "group paused".to_owned(),
        "group-resume" => "group resumed".to_owned(),
        other => other.replace('-', " "),
    }
}

/// The object that is paused or resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Paused {
    Queue,
    Group,
}

/// Returns the object that an action pauses or resumes: the queue or `group`. Returns `None` for
/// other actions and other groups.
fn paused_by(action: &PastAction, group: Option<&str>) -> Option<Paused> {
    match (&*action.action, action.target.as_deref()) {
        ("pause" | "resume", None) => Some(Paused::Queue),
        ("group-pause" | "group-resume", Some(target)) => {
            group.is_some_and(|group| is_target(target, group)).then_some(Paused::Group)
        }
        _ => None,
    }
}

/// Returns true if `target`, which a store may have cut, is the target of an action on this key.
fn is_target(target: &str, key: &str) -> bool {
    let start = target.strip_suffix('…').filter(|_| target.len() >= CUT);
    target == key || start.is_some_and(|start| key.starts_with(start))
}

impl WaitCause {
    /// Returns the cause of a key's wait. If the key is in flight, returns the cause that the wait
    /// of its pending run would have.
    pub(crate) fn of_entry<K>(entry: &Entry<K>, now: Time) -> Self {
        match entry {
            Entry { phase: Phase::Ready, around, .. } if around.paused => Self::QueuePaused,
            Entry { phase: Phase::Ready, around, .. } if around.group_paused => Self::GroupPaused,
            Entry { phase: Phase::Ready, held_back: true, .. } => Self::GroupLimit,
            Entry { phase: Phase::Ready, .. } => Self::Ready,
            entry if entry.waits_for_pace(now).is_some() => Self::Pace,
            Entry { failures: 1.., .. } => Self::Backoff,
            _ => Self::Delay,
        }
    }

    /// Returns the cause of the wait of a key in a store. `group` is the group of a ready key.
    /// `at_rate` is true if the rate of the queue permits no start.
    #[cfg(feature = "store")]
    pub(crate) fn of_stored(
        entry: &requeue_store::Entry,
        group: Option<&requeue_store::GroupInfo>,
        at_rate: bool,
    ) -> Self {
        match entry.state {
            requeue_store::State::Ready => match group.and_then(Self::of_group) {
                _ if entry.paused => Self::QueuePaused,
                Some(cause) => cause,
                None if at_rate => Self::Rate,
                None => Self::Ready,
            },
            _ if entry.failures > 0 => Self::Backoff,
            _ => Self::Delay,
        }
    }

    /// Returns the reason why the ready keys of the group cannot be delivered, or `None` if they
    /// can.
    #[cfg(feature = "store")]
    pub(crate) fn of_group(group: &requeue_store::GroupInfo) -> Option<Self> {
        use requeue_store::Hold;
        group.hold().map(|hold| match hold {
            Hold::Paused => Self::GroupPaused,
            Hold::Limit => Self::GroupLimit,
            Hold::Rate => Self::Rate,
        })
    }
}

impl PastEvent {
    const fn new(kind: EventKind, at: f64) -> Self {
        Self { at, until: None, kind, cause: None, outcome: None, text: String::new() }
    }
}

/// The present time by two clocks: the clock of a queue, and the time in seconds since 1970.
#[derive(Clone, Copy)]
struct Now(Time, f64);

impl Now {
    /// Converts a time of the queue's clock to seconds since 1970, rounded to milliseconds.
    fn to_unix(self, at: Time) -> f64 {
        let Self(now, unix) = self;
        let time = unix - seconds(now.since(at)) + seconds(at.since(now));
        (time * 1e3).round() / 1e3
    }
}

// --- Recorded events -----------------------------------------------------------------------------

/// The properties of a key's entry that are needed to interpret its events.
#[derive(Clone, Copy, Default)]
pub(crate) struct Present {
    queue_paused: bool,
    group_paused: bool,
    group_filled: bool,
    due: Option<Time>,
}

impl Present {
    pub(crate) fn of_entry<K>(entry: &Entry<K>, now: Time) -> Self {
        Self {
            queue_paused: entry.around.paused,
            group_paused: entry.around.group_paused,
            group_filled: entry.held_back && !entry.around.group_paused,
            due: next_due(entry, now).filter(|&due| due != Time::NEVER),
        }
    }
}

/// The state of a key after each of its events. The events are read from the oldest to the newest.
struct Reading {
    now: Now,
    events: Vec<PastEvent>,
    /// The wait or the run that has not ended: its index in `events`, and its beginning.
    open: Option<(usize, Time)>,
    /// The time from which the events are complete, or `None` if all events are recorded.
    begin: Option<Time>,
    is_running: bool,
    /// The number of adds that the present run serves.
    adds: u32,
    /// True if the key is ready, or will run once more after its run.
    is_pending: bool,
    waits: Option<(WaitCause, Time)>,
    failures: u32,
    queue_paused: bool,
    group_paused: bool,
    group_filled: bool,
    totals: Totals,
}

/// The numbers of adds and runs of a key. Their text is the summary of a timeline with many events.
#[derive(Default)]
struct Totals {
    adds: u64,
    /// The number of adds with each reason.
    reasons: BTreeMap<&'static str, u64>,
    runs: u64,
    /// The number of runs that failed or were stopped.
    failed: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { adds, reasons, runs, failed } = self;
        write!(f, "all known events together: {adds} adds")?;
        let mut reasons: Vec<_> = reasons.iter().collect();
        reasons.sort_by_key(|(_, adds)| Reverse(**adds));
        for (n, (reason, adds)) in reasons.iter().take(NAMED).enumerate() {
            write!(f, "{}{adds} for \"{reason}\"", if n == 0 { " (" } else { ", " })?;
        }
        match reasons.len().checked_sub(NAMED) {
            _ if reasons.is_empty() => {}
            None | Some(0) => f.write_str(")")?,
            Some(more) => write!(f, " and {more} more reasons)")?,
        }
        write!(f, ", {runs} completed runs, {failed} of them failed or stopped")
    }
}

impl Reading {
    fn new(events: &[Event], begin: Option<Time>, present: Present, now: Now) -> Self {
        // If no event changes a switch, it always had its present value. Otherwise, its value
        // before the first such event was the opposite of the value that this event set.
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
            queue_paused: first(present.queue_paused, queue_paused),
            group_paused: first(present.group_paused, group_paused),
            group_filled: first(present.group_filled, group_filled),
            totals: Totals::default(),
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
                if added.is_accepted() {
                    self.totals.adds += 1;
                    if let Some(reason) = event.reason() {
                        *self.totals.reasons.entry(reason_text(reason)).or_default() += 1;
                    }
                }
                self.push_tick(EventKind::Add, event);
                // An add with this merge rule replaces the pending run of the key.
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
                self.end_run(event, how, failures);
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

    /// Returns the kind of segment that the present state of the key requires: a run, or a wait
    /// with a cause. Returns `None` if the key is idle.
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

    /// Compares the open segment with the one that the present state requires. If they differ, ends
    /// the open segment, and begins the other one.
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

    /// Ends the open wait or run. If a wait was shorter than [`SHORTEST`], removes it.
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

    /// Begins a run, if the recording no longer contains the delivery of the run in flight.
    fn ensure_run(&mut self, at: Time) {
        if !self.is_running {
            self.is_running = true;
            self.settle(self.begin.unwrap_or(at));
        }
    }

    /// Ends the run in flight. `failures` is the number of consecutive failures after it.
    fn end_run(&mut self, event: Event, how: Ended, failures: u32) {
        let outcome = match how {
            Ended::Done | Ended::Succeeded | Ended::Requeued => Outcome::Succeeded,
            Ended::Retried => Outcome::Failed,
            Ended::GivenUp | Ended::Parked => Outcome::GivenUp,
            _ => Outcome::Stopped,
        };
        self.totals.runs += 1;
        self.totals.failed += u64::from(outcome != Outcome::Succeeded);
        let adds = match self.adds {
            1 => String::new(),
            adds => format!(", for {adds} adds"),
        };
        let mut text = format!("{}{adds}", text_of_event(event));
        // The recording may lack older failures of the key. If the number of the attempt is
        // therefore unknown, the text does not contain it.
        let attempt = match how {
            Ended::Retried => failures,
            _ if outcome != Outcome::GivenUp => 0,
            _ if self.begin.is_none() || self.failures > 0 => self.failures + 1,
            _ => 0,
        };
        if let Some(rest) = text.strip_prefix("run ").filter(|_| attempt > 0) {
            text = format!("attempt {attempt} {rest}");
        }
        if let Some(run) = self.open.and_then(|(place, _)| self.events.get_mut(place)) {
            (run.outcome, run.text) = (Some(outcome), text);
        }
        self.close(event.at);
        (self.is_running, self.adds) = (false, 1);
    }

    /// If there are more than twice [`MOST`] events, removes the oldest until twice [`MOST`]
    /// remain. [`Timeline::since`] then notes that not all events are listed.
    fn drop_oldest(&mut self) {
        let Some(drops) = self.events.len().checked_sub(2 * MOST) else { return };
        if let Some((place, _)) = &mut self.open {
            // The wait or the run that has not ended must remain.
            let kept = (*place).max(drops);
            self.events.swap(*place, kept);
            *place = kept - drops;
        }
        self.events.drain(..drops);
    }

    /// Returns the events. The end of the present wait is the due time of the entry, because later
    /// adds may have changed the due time.
    fn into_events(mut self, present: Present) -> Vec<PastEvent> {
        let due = present.due.map(|due| self.now.to_unix(due));
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

/// Returns the text of an event, without the time of the event, and without the description of the
/// next wait.
fn text_of_event(event: Event) -> String {
    let text = event.with_reason_text(event.reason().map(reason_text)).to_string();
    let words = text.split_once(' ').map_or(&*text, |(_, words)| words);
    // In the text of a completion, the description of the next wait follows a semicolon. The text
    // of an add is not cut, because its reason can contain semicolons.
    let is_add = matches!(event.transition, Transition::Added { .. });
    let end = words.find(';').filter(|_| !is_add).unwrap_or(words.len());
    // The number of the delivery is omitted. It includes the deliveries of all keys, so it says
    // nothing about this key.
    match words[..end].strip_prefix("delivery ").and_then(|rest| rest.split_once(' ')) {
        Some((_, rest)) => format!("run {rest}"),
        None => words[..end].to_owned(),
    }
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
        (WaitCause::Rate, _) => "ready, but the rate permits no start yet".to_owned(),
        (WaitCause::Unknown, _) => "waiting".to_owned(),
    }
}

/// Appends the errors of failed runs to the texts of their events. The run history records a run
/// after its completion, so the time of its record is slightly later.
fn note_errors(events: &mut [PastEvent], runs: &[PastRun]) {
    let mut next = f64::INFINITY;
    let outcomes = [Some(Outcome::Failed), Some(Outcome::GivenUp)];
    for event in events.iter_mut().rev().filter(|event| outcomes.contains(&event.outcome)) {
        let Some(until) = event.until else { continue };
        let until = until - CLOCKS;
        // `runs` is sorted from the newest run to the oldest.
        let mut recorded = runs.iter().rev().filter(|run| run.error.is_some());
        if let Some(run) = recorded.find(|run| (until..next).contains(&run.at)) {
            event.text += &error_of(run);
        }
        next = until;
    }
}

// --- Runs without events -------------------------------------------------------------------------

/// A completed run of a key whose events are not recorded.
#[derive(Debug)]
pub(crate) struct KnownRun {
    /// The time at which the key became ready before the run, or `None` if it is unknown.
    ready: Option<f64>,
    start: f64,
    end: f64,
    outcome: Outcome,
    text: String,
    /// The cause of the key's wait after the run, and the number of consecutive failures. It is
    /// `None` if the cause is unknown.
    then: Option<(WaitCause, u32)>,
}

impl KnownRun {
    /// Returns the runs from the oldest to the newest. `runs` is sorted in the opposite order.
    pub(crate) fn of_runs(runs: &[PastRun]) -> Vec<Self> {
        let known = |(n, run): (usize, &PastRun)| {
            // If the attempt after this one does not have the next number, the key was cancelled
            // and added again between them.
            let next = n.checked_sub(1).map(|next| runs[next].attempt);
            let is_retried =
                next.map_or(run.outcome == Outcome::Failed, |next| next == run.attempt + 1);
            Self {
                ready: None,
                start: run.at - run.took.unwrap_or_default(),
                end: run.at,
                outcome: run.outcome,
                text: text_of_run(run),
                then: is_retried.then_some((WaitCause::Backoff, run.attempt)),
            }
        };
        runs.iter().enumerate().rev().map(known).collect()
    }

    /// Returns the runs of a key that a store has recorded, from the oldest to the newest. `failed`
    /// contains the last failures, the newest first. If the processes of the queue do not record
    /// past runs, only these failures are returned.
    #[cfg(feature = "store")]
    pub(crate) fn of_entry(entry: &requeue_store::Entry, failed: &[PastRun]) -> Vec<Self> {
        /// Both times come from the clock of the store, but one of them is rounded to milliseconds.
        const SAME: Duration = Duration::from_millis(2);
        let is_known = |last: &requeue_store::CompletedRun| {
            entry.failed.is_none_or(|failed| failed + SAME >= last.ended)
        };
        if !entry.past_runs.last().is_some_and(is_known) {
            return Self::of_runs(failed);
        }
        let now = unix_time();
        let mut failures = entry.failures;
        let mut known: Vec<_> = entry
            .past_runs
            .iter()
            .rev()
            .map(|run| Self::of_completed(run, &mut failures, failed, now))
            .collect();
        known.reverse();
        known
    }

    /// Converts a recorded run. `failures` is the number of consecutive failures after the run, or
    /// 0. The call replaces it with the number before the run.
    #[cfg(feature = "store")]
    fn of_completed(
        run: &requeue_store::CompletedRun,
        failures: &mut u32,
        failed: &[PastRun],
        now: f64,
    ) -> Self {
        use requeue_store::Ended;
        let (outcome, cause) = match run.how {
            Ended::Succeeded | Ended::Requeued => (Outcome::Succeeded, Some(WaitCause::Delay)),
            Ended::Retried => (Outcome::Failed, Some(WaitCause::Backoff)),
            Ended::Parked | Ended::GivenUp => (Outcome::GivenUp, None),
            _ => (Outcome::Stopped, None),
        };
        let then = cause.map(|cause| (cause, *failures));
        let number = match run.how {
            Ended::Retried | Ended::Parked => Some(*failures).filter(|&number| number > 0),
            _ => None,
        };
        *failures = match run.how {
            Ended::Released | Ended::Cancelled => *failures,
            // A success resets the number of failures, as does an add that starts over. The number
            // of failures before them is unknown.
            _ => number.map_or(0, |number| number - 1),
        };
        let attempt = failed.iter().find(|attempt| Some(attempt.attempt) == number);
        let words = number.map_or_else(|| "run".to_owned(), |number| format!("attempt {number}"));
        let adds = if run.adds > 1 { format!(", for {} adds", run.adds) } else { String::new() };
        let error = match attempt {
            Some(attempt) => error_of(attempt),
            None if run.lease_expired => ": the lease expired".to_owned(),
            None => String::new(),
        };
        let end = now - seconds(run.ended);
        let start = end - seconds(run.took);
        Self {
            ready: run.queued.map(|queued| start - seconds(queued)),
            start,
            end,
            outcome,
            text: format!("{words} {}{adds}{error}", outcome.words()),
            then,
        }
    }

    /// Adds the wait between this run and the next one, which began at `start`. If `ready` is
    /// `None`, a wait for a delay is omitted. Its end is unknown, because an add during the next
    /// run has replaced this time.
    fn push_wait_for(&self, ready: Option<f64>, start: f64, events: &mut Vec<PastEvent>) {
        match (ready, self.then) {
            (None, Some((WaitCause::Delay, _))) => {}
            _ => self.push_wait(events, ready.unwrap_or(start)),
        }
    }

    /// Adds the wait after this run, which ended at `until`, if its cause is known.
    fn push_wait(&self, events: &mut Vec<PastEvent>, until: f64) {
        if let Some((cause, failures)) = self.then {
            push_wait(events, self.end, until, cause, failures);
        }
    }
}

fn error_of(run: &PastRun) -> String {
    let error = run.error.as_deref().filter(|error| !error.is_empty());
    error.map(|error| format!(": {error}")).unwrap_or_default()
}

fn text_of_run(run: &PastRun) -> String {
    format!("attempt {} {}{}", run.attempt, run.outcome.words(), error_of(run))
}

/// Adds a wait, if it is long enough to be shown.
fn push_wait(events: &mut Vec<PastEvent>, at: f64, until: f64, cause: WaitCause, failures: u32) {
    // A key that was added during a run becomes ready at the end of the run. A store rounds both
    // times to milliseconds, so they can differ by up to 2 ms. This difference is not a delay.
    let shortest = if cause == WaitCause::Delay { 3 * SHORTEST } else { SHORTEST };
    // The difference is rounded, because `f64` cannot represent multiples of a millisecond exactly.
    if ((until - at) * 1e3).round() >= shortest.as_secs_f64() * 1e3 {
        let (until, cause, text) = (Some(until), Some(cause), text_of_wait(cause, failures));
        events.push(PastEvent { until, cause, text, ..PastEvent::new(EventKind::Wait, at) });
    }
}

/// Adds the wait that followed the last run, and the present state of the key.
fn push_present(
    events: &mut Vec<PastEvent>,
    row: &Row,
    cause: WaitCause,
    last: Option<&KnownRun>,
    now: f64,
) {
    let since = row.age.map(|age| now - age);
    let at = since.unwrap_or(now);
    let until = row.due_in.map(|due| now + due);
    if let Some(last) = last
        && matches!(row.state, State::Ready | State::Running)
        // If the failures were reset, an add or a revival has ended the backoff before its time.
        && (row.failures > 0 || last.then.is_none_or(|(then, _)| then != WaitCause::Backoff))
    {
        match row.state {
            State::Running => last.push_wait_for(None, at, events),
            _ => last.push_wait(events, at),
        }
    }
    // The present state began after the end of the last run. The times may contradict this, because
    // they can come from two answers of a store.
    let at = match (row.state, last) {
        (State::Ready | State::Running | State::Parked, Some(last)) => at.max(last.end),
        _ => at,
    };
    match row.state {
        State::Waiting | State::BackingOff | State::Ready => {
            let failed = row.last_failure.filter(|_| cause == WaitCause::Backoff);
            // If the last run caused the present wait, the wait began at the end of that run.
            let of_run = last.filter(|last| last.then.is_some_and(|(then, _)| then == cause));
            let begin = of_run.map(|last| last.end).or(failed.map(|ago| now - ago));
            let text = match cause {
                WaitCause::Ready => row.why.clone(),
                _ => text_of_wait(cause, row.failures),
            };
            let wait = PastEvent::new(EventKind::Wait, begin.unwrap_or(at));
            events.push(PastEvent { until, cause: Some(cause), text, ..wait });
        }
        State::Running => {
            let text = "running".to_owned();
            events.push(PastEvent { text, ..PastEvent::new(EventKind::Run, at) });
        }
        State::Parked => {
            let s = if row.failures == 1 { "" } else { "s" };
            let text = format!("parked after {} failure{s}", row.failures);
            events.push(PastEvent { text, ..PastEvent::new(EventKind::Other, at) });
        }
        State::Damaged | State::Idle => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(timeline: &Timeline) -> Vec<&str> {
        timeline.events.iter().map(|event| &*event.text).collect()
    }

    #[test]
    fn an_action_is_shown_at_its_key_only() {
        let long = "k".repeat(300);
        let cut = format!("{}…", "k".repeat(197));
        for (action, target, key, is_shown) in [
            ("cancel", Some("a"), "a", true),
            ("cancel", Some("a"), "b", false),
            ("group-pause", Some("a"), "a", false),
            ("rate", Some("7 per 1s"), "7 per 1s", false),
            ("cancel", Some(&*cut), &*long, true),
            ("cancel", Some(&*cut), "kk", false),
            ("cancel", Some("k…"), &*long, false),
            // The action is older than the first event, so it is not shown.
            ("pause", None, "a", false),
        ] {
            let (action, by) = (action.to_owned(), "ann".to_owned());
            let target = target.map(str::to_owned);
            let actions = [PastAction { ago: 1.0, action, by, target, note: None }];
            let timeline = Timeline::of_runs(None, &[], "").with_actions(key, None, &actions);
            assert_eq!(told(&timeline).len(), usize::from(is_shown), "{actions:?} of {key}");
            assert_eq!(timeline.last, None);
        }
    }

    #[test]
    fn a_paused_key_shows_the_pause_even_if_it_is_older() {
        let actions = [
            (1.0, "resume", None, None),
            (7.0, "pause", None, Some("upgrade")),
            (8.0, "group-pause", Some("acme"), Some("ticket 7")),
            (9.0, "pause", None, None),
            (9.5, "group-pause", Some("zeta"), None),
        ];
        let actions = actions.map(|(ago, action, target, note)| {
            let (target, note) = (target.map(str::to_owned), note.map(str::to_owned));
            PastAction { ago, action: action.to_owned(), by: "ann".to_owned(), target, note }
        });
        let row = Row { state: State::Ready, age: Some(2.0), ..Row::default() };
        for (cause, text) in [
            (WaitCause::QueuePaused, Some("queue paused by ann, note: upgrade")),
            (WaitCause::GroupPaused, Some("group paused by ann, note: ticket 7")),
            (WaitCause::Ready, None),
        ] {
            let timeline = Timeline::of_runs(Some((&row, cause)), &[], "");
            let timeline = timeline.with_actions("a", Some("acme"), &actions[1..]);
            let [pauses @ .., _] = &told(&timeline)[..] else { panic!("{timeline:?}") };
            assert_eq!(pauses, Vec::from_iter(text));
        }
    }

    #[test]
    fn a_summary_counts_adds_runs_and_the_most_frequent_reasons() {
        let mut totals = Totals { adds: 3, runs: 2, failed: 1, ..Totals::default() };
        assert_eq!(
            totals.to_string(),
            "all known events together: 3 adds, 2 completed runs, 1 of them failed or stopped"
        );
        totals.reasons = [("a", 1), ("b", 5)].into();
        let start = "all known events together: 3 adds";
        let end = ", 2 completed runs, 1 of them failed or stopped";
        assert_eq!(totals.to_string(), format!("{start} (5 for \"b\", 1 for \"a\"){end}"));
        totals.reasons.extend([("c", 4), ("d", 1), ("e", 2)]);
        let reasons = "5 for \"b\", 4 for \"c\", 2 for \"e\" and 2 more reasons";
        assert_eq!(totals.to_string(), format!("{start} ({reasons}){end}"));
    }

    fn failed(at: f64, attempt: u32) -> PastRun {
        PastRun {
            at,
            outcome: Outcome::Failed,
            attempt,
            took: Some(1.0),
            worker: None,
            exit_status: None,
            error: None,
            output: None,
        }
    }

    #[test]
    fn a_key_backs_off_only_between_the_attempts_of_one_run() {
        let now = unix_time();
        let runs = [failed(now - 10.0, 1), failed(now - 40.0, 2), failed(now - 60.0, 1)];
        let timeline = Timeline::of_runs(None, &KnownRun::of_runs(&runs), "");
        let expected = [
            "attempt 1 failed",
            "backing off after 1 failure",
            "attempt 2 failed",
            "attempt 1 failed",
        ];
        assert_eq!(told(&timeline), expected);
        assert_eq!(timeline.last.as_deref(), Some("attempt 1 failed"));
        // The text of the last event does not depend on the requested period.
        let none = timeline.since(Some(Duration::ZERO));
        assert_eq!((told(&none).len(), none.last.as_deref()), (0, Some("attempt 1 failed")));
    }

    #[test]
    fn a_jump_of_the_clock_is_shown_among_the_runs_of_each_key() {
        let jump = |ago| PastAction {
            ago,
            action: "clock-jump".to_owned(),
            by: "web-1".to_owned(),
            target: Some("+1h".to_owned()),
            note: None,
        };
        let runs = [failed(unix_time() - 10.0, 1)];
        let timeline = Timeline::of_runs(None, &KnownRun::of_runs(&runs), "");
        let timeline = timeline.with_actions("a", None, &[jump(5.0), jump(500.0)]);
        let expected =
            ["attempt 1 failed", "clock of the store jumped by +1h, or web-1 was suspended"];
        assert_eq!(told(&timeline), expected);
    }

    #[test]
    fn a_delay_that_is_only_rounded_is_no_wait() {
        for (cause, millis, is_shown) in [
            (WaitCause::Delay, 2.0, false),
            (WaitCause::Delay, 3.0, true),
            (WaitCause::Backoff, 0.0, false),
            (WaitCause::Backoff, 1.0, true),
        ] {
            let (mut events, at) = (Vec::new(), unix_time());
            push_wait(&mut events, at, at + millis / 1e3, cause, 1);
            assert_eq!(events.len(), usize::from(is_shown), "{cause:?} for {millis} ms");
        }
    }

    #[test]
    fn a_state_comes_after_the_last_run_even_if_its_age_was_read_earlier() {
        let runs = [failed(unix_time() - 5.0, 1)];
        for (state, text) in
            [(State::Parked, "parked after 1 failure"), (State::Running, "running")]
        {
            let row = Row { state, failures: 1, age: Some(60.0), ..Row::default() };
            let row = Some((&row, WaitCause::Ready));
            let timeline = Timeline::of_runs(row, &KnownRun::of_runs(&runs), "");
            let told = told(&timeline);
            assert_eq!((told[0], told[told.len() - 1]), ("attempt 1 failed", text));
        }
    }

    #[test]
    fn a_key_backs_off_also_if_its_runs_are_unknown() {
        let (state, failures) = (State::Waiting, 3);
        let (due_in, last_failure) = (Some(5.0), Some(2.0));
        let row = Row { state, failures, due_in, last_failure, ..Row::default() };
        let timeline = Timeline::of_runs(Some((&row, WaitCause::Backoff)), &[], "");
        assert_eq!(told(&timeline), ["backing off after 3 failures"]);
        let [wait] = &timeline.events[..] else { panic!("{timeline:?}") };
        let (at, until) = (timeline.now - wait.at, wait.until.map(|until| until - timeline.now));
        assert_eq!((at, until, wait.cause), (2.0, Some(5.0), Some(WaitCause::Backoff)));
    }

    #[test]
    fn an_unknown_kind_or_cause_is_read() {
        let event = r#"{"at":1,"until":null,"kind":"new","cause":"new","outcome":null,"text":""}"#;
        let event: PastEvent = serde_json::from_str(event).expect("it is read");
        assert_eq!((event.kind, event.cause), (EventKind::Other, Some(WaitCause::Unknown)));
    }
}

//! Recordings: the settings and the events of a queue, as text that a person can read.

mod anonymous;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::Config;
use super::event::{AddKind, Ended, Event, Transition};
use crate::memory::fold;
use crate::order::{CustomOrder, GroupId, Order};
use crate::types::{Added, CancelReason, InFlightPolicy, Merge, Pace, ReaddPolicy, Reason, Time};

/// The first line of a recording. The number at its end is the version of the format.
const HEADER: &str = "requeue-recording 1";

/// The settings and the events of a queue. `requeue replay` repeats the events, and compares the
/// results.
///
/// A recording contains the name of a key only if a caller has [inserted](Self::insert_name) it.
/// Otherwise, it contains only a hash of the key. Each queue has a different random seed for these
/// hashes.
///
/// # Text format
///
/// [`Display`](fmt::Display) writes a recording as text, and [`FromStr`] reads it. The first line
/// is `requeue-recording 1`, with the version of the format. Each further line contains a setting,
/// a name, a reason or an event. The reader ignores lines that are empty or begin with `#`. Times
/// and durations are in nanoseconds.
///
/// | line | meaning |
/// |---|---|
/// | `readd hold` | the re-add policy: `hold`, `replace` or `keep-both` |
/// | `restart 30000000000` | adds restart runs, for at most this number of nanoseconds |
/// | `order priority 10` | the order: `fifo`, `priority` with its `oldest_every`, or `custom` |
/// | `fair`, `groups`, `group-limit 3` | the settings of groups |
/// | `pace 2 60000000000` | the number of runs and the window of the pace |
/// | `track` | the queue tracks times |
/// | `lost 12` | the number of events before the first event of the recording |
/// | `name 1f3c22d0 default/web` | the name of the key with this hash |
/// | `reason 3 Pod applied` | the text of the reason with this number |
/// | `5000 1f3c22d0 added new due=5000` | an event: its time, the hash of the key or `-`, the kind, and the values |
///
/// # Examples
///
/// ```
/// use requeue_core::history::Recording;
/// use requeue_core::{Add, Config, GroupId, Queue, Time};
///
/// let mut queue = Queue::new(Config { recording: 64 * 1024, ..Config::default() });
/// let _ = queue.add("a", 1, Add::now(), GroupId::default(), Time::ZERO);
/// let recording = queue.recording().unwrap();
/// let loaded: Recording = recording.to_string().parse()?;
/// assert_eq!(loaded, recording);
/// assert!(loaded.replay().all(|step| step.is_ok()));
/// # Ok::<(), requeue_core::history::InvalidRecording>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    pub(super) rules: Rules,
    /// The number of events that were overwritten before the first event of this recording.
    pub(super) lost: u64,
    pub(super) events: Vec<Event>,
    names: BTreeMap<u32, String>,
    /// The text of each reason that has one.
    reasons: BTreeMap<Reason, String>,
}

/// The settings of a queue. They do not include the user's code for a custom order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    readd: ReaddPolicy,
    restart: Option<Duration>,
    pub(super) order: Ordering,
    fair: bool,
    group_limit: Option<u32>,
    groups: bool,
    pub(super) pace: Option<Pace>,
    track: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ordering {
    Fifo,
    Priority(u32),
    Custom,
}

/// A custom order that contains no keys. In a replay, the recording decides which key is next.
struct Unordered;

impl CustomOrder<u32> for Unordered {
    fn push(&mut self, _: u32) {}

    fn touch(&mut self, _: &u32) {}

    fn pop(&mut self) -> Option<u32> {
        None
    }

    fn len(&self) -> usize {
        0
    }
}

impl Rules {
    pub(super) fn of<K>(config: &Config<K>) -> Self {
        Self {
            readd: config.readd_policy,
            restart: match config.in_flight_policy {
                InFlightPolicy::After => None,
                InFlightPolicy::Restart { at_most } => Some(Duration::from_nanos(nanos(at_most))),
            },
            order: match config.order {
                Order::Fifo => Ordering::Fifo,
                Order::Priority { oldest_every } => Ordering::Priority(oldest_every),
                Order::Custom(_) => Ordering::Custom,
            },
            fair: config.fair,
            group_limit: config.group_limit,
            groups: config.groups,
            pace: config
                .pace
                .map(|pace| Pace::new(pace.runs(), Duration::from_nanos(nanos(pace.per())))),
            track: config.track,
        }
    }

    /// Returns the configuration of a queue that replays a recording. If `in_order` is false, the
    /// recording decides the order of deliveries, and the keys have no groups.
    pub(super) fn config(&self, in_order: bool, recording: usize) -> Config<u32> {
        Config {
            readd_policy: self.readd,
            in_flight_policy: match self.restart {
                None => InFlightPolicy::After,
                Some(at_most) => InFlightPolicy::Restart { at_most },
            },
            order: match self.order {
                Ordering::Fifo if in_order => Order::Fifo,
                Ordering::Priority(oldest_every) if in_order => Order::Priority { oldest_every },
                _ => Order::Custom(alloc::boxed::Box::new(Unordered)),
            },
            fair: self.fair && in_order,
            group_limit: self.group_limit.filter(|_| in_order),
            groups: self.groups && in_order,
            pace: self.pace,
            track: self.track,
            recording,
        }
    }
}

impl Recording {
    pub(super) const fn new(rules: Rules, lost: u64, events: Vec<Event>) -> Self {
        Self { rules, lost, events, names: BTreeMap::new(), reasons: BTreeMap::new() }
    }

    /// Returns the events, the oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of events that were overwritten before the first event of this recording.
    // Only the program and tests need this method.
    #[doc(hidden)]
    #[must_use]
    pub const fn lost_events(&self) -> u64 {
        self.lost
    }

    /// Returns the number of keys that have a name.
    // Only the program and tests need this method.
    #[doc(hidden)]
    #[must_use]
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Inserts the name of the key with this hash. Each control character becomes a space.
    // Users call `Queue::recording_with_names` of `requeue`.
    #[doc(hidden)]
    pub fn insert_name(&mut self, hash: u64, name: &str) {
        self.names.insert(fold(hash), clean(name));
    }

    /// Returns the name of the key with this hash. If the recording does not contain the name,
    /// returns the hash.
    // Only the program needs this method, which prints a recording.
    #[doc(hidden)]
    #[must_use]
    pub fn name_of(&self, key: u32) -> String {
        self.names.get(&key).filter(|name| !name.is_empty()).cloned().unwrap_or_else(|| hex(key))
    }

    /// Inserts the text of a reason. Each control character becomes a space.
    // `Queue::recording` of `requeue` calls this method.
    #[doc(hidden)]
    pub fn insert_reason(&mut self, reason: Reason, text: &str) {
        self.reasons.insert(reason, clean(text));
    }

    /// Returns the text of a reason, if the recording contains it.
    // Only the program needs this method, which prints a recording.
    #[doc(hidden)]
    #[must_use]
    pub fn reason_text(&self, reason: Reason) -> Option<&str> {
        self.reasons.get(&reason).map(String::as_str).filter(|text| !text.is_empty())
    }
}

/// Returns `name` without control characters and outer spaces. Such a name fits on one line, and
/// reading it back gives the same name.
fn clean(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    name.trim().to_owned()
}

fn hex(key: u32) -> String {
    format!("{key:08x}")
}

// --- Writing ------------------------------------------------------------------------------------

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        self.rules.fmt(f)?;
        writeln!(f, "lost {}", self.lost)?;
        for (&key, name) in &self.names {
            writeln!(f, "name {} {name}", hex(key))?;
        }
        for (reason, text) in &self.reasons {
            writeln!(f, "reason {} {text}", reason.number())?;
        }
        for event in &self.events {
            writeln!(f, "{}", Line(event))?;
        }
        Ok(())
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "readd {}", word_of(&READDS, &self.readd))?;
        if let Some(at_most) = self.restart {
            writeln!(f, "restart {}", nanos(at_most))?;
        }
        match self.order {
            Ordering::Fifo => writeln!(f, "order fifo")?,
            Ordering::Priority(oldest_every) => writeln!(f, "order priority {oldest_every}")?,
            Ordering::Custom => writeln!(f, "order custom")?,
        }
        for (is_set, word) in [(self.fair, "fair"), (self.groups, "groups"), (self.track, "track")]
        {
            if is_set {
                writeln!(f, "{word}")?;
            }
        }
        if let Some(limit) = self.group_limit {
            writeln!(f, "group-limit {limit}")?;
        }
        if let Some(pace) = self.pace {
            writeln!(f, "pace {} {}", pace.runs(), nanos(pace.per()))?;
        }
        Ok(())
    }
}

const READDS: [(&str, ReaddPolicy); 3] = [
    ("hold", ReaddPolicy::Hold),
    ("replace", ReaddPolicy::Replace),
    ("keep-both", ReaddPolicy::KeepBoth),
];
// A recorder stores the index in one of the following tables as the code of a value.
pub(super) const ADDS: [(&str, Added); 7] = [
    ("new", Added::New),
    ("coalesced", Added::Coalesced),
    ("dirty", Added::Dirty),
    ("backing-off", Added::BackingOff),
    ("refused", Added::Refused),
    ("revived", Added::Revived),
    ("parked", Added::Parked),
];
pub(super) const MERGES: [(&str, Merge); 3] =
    [("earliest", Merge::Earliest), ("latest", Merge::Latest), ("exactly", Merge::Exactly)];
pub(super) const ENDS: [(&str, Ended); 9] = [
    ("done", Ended::Done),
    ("succeeded", Ended::Succeeded),
    ("requeued", Ended::Requeued),
    ("retried", Ended::Retried),
    ("given-up", Ended::GivenUp),
    ("parked", Ended::Parked),
    ("released", Ended::Released),
    ("cancelled", Ended::Cancelled),
    ("restarted", Ended::Restarted),
];
pub(super) const BARE_EVENTS: [(&str, Transition); 12] = [
    ("due", Transition::Due),
    ("withdrawn", Transition::Withdrawn),
    ("forgotten", Transition::Forgotten),
    ("dropped", Transition::Dropped),
    ("sealed", Transition::Sealed),
    ("start-counted", Transition::StartCounted),
    ("start-uncounted", Transition::StartUncounted),
    ("pace-over", Transition::PaceOver),
    ("paused", Transition::Paused),
    ("resumed", Transition::Resumed),
    ("closed", Transition::Closed),
    ("shut-down", Transition::ShutDown),
];

fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, of)| of == value).map_or("?", |(word, _)| word)
}

fn value_of<T: Copy>(words: &[(&'static str, T)], word: &str) -> Option<T> {
    words.iter().find(|(of, _)| *of == word).map(|(_, value)| *value)
}

fn nanos(duration: Duration) -> u64 {
    (Time::ZERO + duration).as_nanos()
}

/// Formats an event as its line in a recording.
pub(super) struct Line<'e>(pub(super) &'e Event);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_event(f, self.0)
    }
}

fn write_event(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
    let key = if event.hash == 0 { "-".to_owned() } else { hex(event.hash) };
    write!(f, "{} {key} ", event.at.as_nanos())?;
    match event.transition {
        Transition::Added {
            added,
            due,
            flags,
            reason,
            priority,
            kind,
            merge,
            failed,
            is_new,
            group,
        } => {
            write!(f, "added {} due={}", word_of(&ADDS, &added), due.as_nanos())?;
            match kind {
                AddKind::Now => {}
                AddKind::Delayed => write!(f, " delayed=1")?,
                AddKind::Debounced { at_most } => write!(f, " debounced={}", nanos(at_most))?,
            }
            if flags != 0 {
                write!(f, " flags={flags}")?;
            }
            if let Some(reason) = reason {
                write!(f, " reason={}", reason.number())?;
            }
            if priority != 0 {
                write!(f, " priority={priority}")?;
            }
            if merge != Merge::Earliest {
                write!(f, " merge={}", word_of(&MERGES, &merge))?;
            }
            if failed {
                write!(f, " failed=1")?;
            }
            if is_new {
                write!(f, " new=1")?;
            }
            if let Some(group) = group {
                write!(f, " group={} weight={}", group.id, group.weight)?;
            }
        }
        Transition::Held { until } => write!(f, "held until={}", until.as_nanos())?,
        Transition::Paced { until } => write!(f, "paced until={}", until.as_nanos())?,
        Transition::Flushed { due } => write!(f, "flushed due={}", due.as_nanos())?,
        Transition::Delivered { number, adds } => {
            write!(f, "delivered number={number} adds={adds}")?;
        }
        Transition::Completed { number, how, failures, is_ready, due, delay } => {
            write!(f, "completed {} number={number}", word_of(&ENDS, &how))?;
            if failures != 0 {
                write!(f, " failures={failures}")?;
            }
            if is_ready {
                write!(f, " ready=1")?;
            }
            if let Some(due) = due {
                write!(f, " due={}", due.as_nanos())?;
            }
            if let Some(delay) = delay {
                write!(f, " delay={}", nanos(delay))?;
            }
        }
        Transition::Cancelled { number, reason } => {
            let by = if reason == CancelReason::Restarted { "add" } else { "name" };
            write!(f, "cancelled {by} number={number}")?;
        }
        Transition::GroupFilled(group) => write!(f, "group-filled group={group}")?,
        Transition::GroupFreed(group) => write!(f, "group-freed group={group}")?,
        Transition::GroupPaused(group) => write!(f, "group-paused group={group}")?,
        Transition::GroupResumed(group) => write!(f, "group-resumed group={group}")?,
        bare => f.write_str(word_of(&BARE_EVENTS, &bare))?,
    }
    Ok(())
}

// --- Reading ------------------------------------------------------------------------------------

/// The error of a text that is not a valid recording.
///
/// The message contains the number of the line and the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidRecording {
    line: usize,
    cause: String,
}

impl InvalidRecording {
    /// Returns the number of the invalid line, from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for InvalidRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

impl core::error::Error for InvalidRecording {}

impl FromStr for Recording {
    type Err = InvalidRecording;

    fn from_str(text: &str) -> Result<Self, InvalidRecording> {
        let rules = Rules::of(&Config::<u32>::default());
        let mut recording = Self::new(rules, 0, Vec::new());
        if text.lines().next() != Some(HEADER) {
            let cause = format!("a recording begins with the line `{HEADER}`");
            return Err(InvalidRecording { line: 1, cause });
        }
        for (index, line) in text.lines().enumerate().skip(1) {
            recording
                .read_line(line)
                .map_err(|cause| InvalidRecording { line: index + 1, cause })?;
        }
        Ok(recording)
    }
}

impl Recording {
    fn read_line(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rules = &mut self.rules;
        match word {
            "readd" => {
                rules.readd = value_of(&READDS, rest).ok_or_else(|| unknown("policy", rest))?;
            }
            "restart" => rules.restart = Some(Duration::from_nanos(number(rest)?)),
            "order" => {
                rules.order = match rest.split_once(' ') {
                    None if rest == "fifo" => Ordering::Fifo,
                    None if rest == "custom" => Ordering::Custom,
                    Some(("priority", every)) => Ordering::Priority(number(every)?),
                    _ => return Err(unknown("order", rest)),
                };
            }
            "fair" => rules.fair = true,
            "groups" => rules.groups = true,
            "track" => rules.track = true,
            "group-limit" => rules.group_limit = Some(number(rest)?),
            "pace" => {
                let (runs, per) = rest.split_once(' ').ok_or("a pace has two numbers")?;
                rules.pace = Some(Pace::new(number(runs)?, Duration::from_nanos(number(per)?)));
            }
            "lost" => self.lost = number(rest)?,
            "name" => {
                let (key, name) = rest.split_once(' ').unwrap_or((rest, ""));
                self.names.insert(hash(key)?, clean(name));
            }
            "reason" => {
                let (reason, text) = rest.split_once(' ').unwrap_or((rest, ""));
                self.reasons.insert(read_reason(reason)?, clean(text));
            }
            "" => {}
            _ if word.starts_with('#') => {}
            at => {
                let event = read_event(at, rest)?;
                self.events.push(event);
            }
        }
        Ok(())
    }
}

fn unknown(what: &str, word: &str) -> String {
    format!("unknown {what} `{word}`")
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in the range of its field"))
}

fn read_reason(text: &str) -> Result<Reason, String> {
    let reason = text.parse().ok().and_then(Reason::new);
    reason
        .ok_or_else(|| format!("`{text}` is not the number of a reason, from 1 to {}", Reason::MAX))
}

fn hash(text: &str) -> Result<u32, String> {
    let is_hash = text.len() == 8 && !text.starts_with('+');
    let hash = u32::from_str_radix(text, 16).ok().filter(|_| is_hash);
    hash.ok_or_else(|| format!("`{text}` is not the hash of a key, which has 8 hexadecimal digits"))
}

/// The values of an event, as pairs of a name and a text.
struct Values<'l>(Vec<(&'l str, &'l str)>);

impl<'l> Values<'l> {
    fn text(&mut self, name: &str) -> Option<&'l str> {
        let at = self.0.iter().position(|(of, _)| *of == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn maybe<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        self.text(name).map(number).transpose()
    }

    fn value<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
        self.maybe(name)?.ok_or_else(|| format!("the value `{name}=` is missing"))
    }

    fn time(&mut self, name: &str) -> Result<Time, String> {
        self.value(name).map(Time::from_nanos)
    }

    fn flag(&mut self, name: &str) -> Result<bool, String> {
        Ok(self.maybe::<u8>(name)?.is_some_and(|flag| flag != 0))
    }
}

fn read_event(at: &str, rest: &str) -> Result<Event, String> {
    let at = Time::from_nanos(at.parse().map_err(|_| unknown("setting or time", at))?);
    let mut words = rest.split_ascii_whitespace();
    let key = words.next().ok_or("the key of the event is missing")?;
    let hash = if key == "-" { 0 } else { hash(key)? };
    let kind = words.next().ok_or("the event is missing")?;
    let detail = match kind {
        "added" | "completed" | "cancelled" => words.next().unwrap_or_default(),
        _ => "",
    };
    let pairs: Option<Vec<_>> = words.map(|word| word.split_once('=')).collect();
    let mut values = Values(pairs.ok_or("a value has the form `name=value`")?);
    let transition = read_transition(kind, detail, &mut values)?;
    match values.0.first() {
        Some((name, _)) => Err(unknown("value", name)),
        None => Ok(Event { at, hash, transition }),
    }
}

fn read_transition(
    kind: &str,
    detail: &str,
    values: &mut Values<'_>,
) -> Result<Transition, String> {
    Ok(match kind {
        "added" => Transition::Added {
            added: value_of(&ADDS, detail).ok_or_else(|| unknown("result of an add", detail))?,
            due: values.time("due")?,
            flags: values.maybe("flags")?.unwrap_or_default(),
            reason: values.text("reason").map(read_reason).transpose()?,
            priority: values.maybe("priority")?.unwrap_or_default(),
            kind: match (values.maybe("debounced")?, values.flag("delayed")?) {
                (Some(at_most), _) => AddKind::Debounced { at_most: Duration::from_nanos(at_most) },
                (None, true) => AddKind::Delayed,
                (None, false) => AddKind::Now,
            },
            merge: match values.text("merge") {
                None => Merge::Earliest,
                Some(merge) => value_of(&MERGES, merge).ok_or_else(|| unknown("merge", merge))?,
            },
            failed: values.flag("failed")?,
            is_new: values.flag("new")?,
            group: match (values.maybe("group")?, values.maybe("weight")?) {
                (None, _) => None,
                (Some(id), weight) => Some(GroupId::new(id).weight(weight.unwrap_or(1))),
            },
        },
        "held" => Transition::Held { until: values.time("until")? },
        "paced" => Transition::Paced { until: values.time("until")? },
        "flushed" => Transition::Flushed { due: values.time("due")? },
        "delivered" => {
            Transition::Delivered { number: values.value("number")?, adds: values.value("adds")? }
        }
        "completed" => Transition::Completed {
            number: values.value("number")?,
            how: value_of(&ENDS, detail).ok_or_else(|| unknown("completion", detail))?,
            failures: values.maybe("failures")?.unwrap_or_default(),
            is_ready: values.flag("ready")?,
            due: values.maybe("due")?.map(Time::from_nanos),
            delay: values.maybe("delay")?.map(Duration::from_nanos),
        },
        "cancelled" => Transition::Cancelled {
            number: values.value("number")?,
            reason: match detail {
                "add" => CancelReason::Restarted,
                "name" => CancelReason::Cancelled,
                _ => return Err(unknown("reason of a cancellation", detail)),
            },
        },
        "group-filled" => Transition::GroupFilled(values.value("group")?),
        "group-freed" => Transition::GroupFreed(values.value("group")?),
        "group-paused" => Transition::GroupPaused(values.value("group")?),
        "group-resumed" => Transition::GroupResumed(values.value("group")?),
        bare => value_of(&BARE_EVENTS, bare).ok_or_else(|| unknown("event", bare))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_reason_out_of_range_is_refused() {
        for line in ["reason 0 a", "reason 8192 a", "0 00000001 added new due=0 reason=8192"] {
            let error = format!("{HEADER}\n{line}\n").parse::<Recording>().expect_err(line);
            assert!(error.to_string().ends_with("is not the number of a reason, from 1 to 8191"));
        }
    }

    #[test]
    fn a_name_that_was_read_does_not_change_when_it_is_written() {
        let names = "name 00000001  a\tb\r\r\nname 00000002 \u{1}\nreason 3 Pod\tcreated\n";
        let text = format!("{HEADER}\n{names}");
        let recording: Recording = text.parse().expect("a recording");
        assert_eq!(recording.name_of(1), "a b");
        assert_eq!(
            Reason::new(3).and_then(|reason| recording.reason_text(reason)),
            Some("Pod created")
        );
        assert_eq!(recording.to_string().parse().as_ref(), Ok(&recording));
    }
}

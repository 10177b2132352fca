//! Adds the keys of `requeue add` and `requeue run --store` to a queue. Each request contains many keys.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use regex::bytes::Regex;
use requeue_http::api::{
    Action, AddResult, AddResults, AddedKey, Adds, Change as Actions, Changed, Named, NamedKey,
};
use requeue_store::{Add, Added, GroupBy, Key, Merge, Priority, Queue};
use serde::Serialize;
use tokio::runtime::Handle;

use super::{QueueSettings, block_on, re_add};
use crate::args::groups::GroupSettings;
use crate::args::run::Summary;
use crate::args::store::{AddFlags, Place};
use crate::client::{Part as ServerPart, Server, WRONG_ANSWER, named_key};
use crate::duration::{Debounce, shown};
use crate::exit::{Ended, Exit, Refusal, complain, error_chain};
use crate::input::source::{FROM_TERMINAL, Input, Source};
use crate::input::{AddOptions, Bad, Change, ChangeSink, Format, Why, read_changes};
use crate::key::escaped;
use crate::output::log;
use crate::output::summary::counted;
use crate::process::signals::Level;
use crate::runner::Runner;
use crate::traces::{attach_own_context, trace_store};

/// The maximum number of keys in one request.
const PART: usize = 256;

/// Adds keys in parts: groups of adds that one request contains. `apply_pending` sends the current part, and waits
/// until all its keys are added or refused.
struct Adder {
    target: Target,
    /// The values for the fields that a record does not contain.
    unsaid: AddOptions,
    part: Vec<PendingAdd>,
    /// The keys of the part in the format of the API. Used only if a server adds the keys.
    named: ServerPart<AddedKey>,
    counts: Counts,
    /// The pattern of `--group-by`. `None` after a key has matched it.
    unmatched: Option<Regex>,
}

/// An add that waits until its part is sent.
#[derive(PartialEq)]
struct PendingAdd {
    key: Key,
    group: Option<Arc<str>>,
    add: Add,
}

/// The queue to which the keys are added.
enum Target {
    Store(Queue),
    /// A queue that does not exist yet. The first valid add creates it. If that add has a group, the queue takes
    /// groups from its adds.
    Missing(Place, QueueSettings),
    Server(Server),
}

/// The number of adds and cancels by result. The JSON summary uses the field names.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    /// The sum of the next six fields, which contain one number for each result of an add.
    adds: usize,
    new: usize,
    /// Adds of keys that were already pending.
    coalesced: usize,
    /// Adds of keys in flight, which will run once more.
    dirty: usize,
    /// Adds of keys that back off. The queue does not run them before the end of the backoff.
    backing_off: usize,
    revived: usize,
    /// Adds of parked keys that stay parked, because the queue's settings do not revive them.
    parked: usize,
    cancelled: usize,
    bad_input: usize,
}

impl Adder {
    fn new(target: Target, unsaid: AddOptions, pattern: Option<Regex>) -> Self {
        let (part, named) = (Vec::with_capacity(PART), ServerPart::new());
        Self { target, unsaid, part, named, counts: Counts::default(), unmatched: pattern }
    }

    /// Returns the warning that no key has matched the pattern of `--group-by`. Returns `None` if a key has matched
    /// it.
    fn unmatched_pattern(&self) -> Option<String> {
        let pattern = escaped(self.unmatched.as_ref()?.as_str().as_bytes());
        Some(format!(
            "--group-by {pattern}: no key matches, so all keys are in the group \"\"; if that is wrong, \
             use another queue and pattern"
        ))
    }

    /// Creates the queue if it does not exist. `named` is true if the add has a group.
    async fn create_missing(&mut self, named: bool) -> Result<(), String> {
        if let Target::Missing(place, settings) = &mut self.target {
            settings.groups.set_named(named);
            let how = |opening| trace_store(settings.apply_to(opening));
            let created = place.to_change(how).await;
            self.target = Target::Store(created.map_err(|refusal| refusal.message)?);
        }
        Ok(())
    }

    /// Checks that the queue accepts the key and the group of a change. Returns the reason if it does not.
    fn check_change(&self, change: &Change<'_>) -> Result<(), Why> {
        let (Change::Add(key, _) | Change::Cancel(key)) = change;
        let (bytes, most) = (key.len() as u64, Key::MAX_LENGTH);
        match (&self.target, change) {
            (Target::Server(_), _) => Ok(()),
            _ if key.len() > most => Err(Why::KeyTooLong { bytes, most }),
            (Target::Store(queue), Change::Add(key, options)) => {
                let group = options.group.as_deref().or(self.unsaid.group.as_deref());
                queue.check_add(&**key, group).map_err(|error| Why::Refused(error.to_string()))
            }
            (Target::Missing(_, settings), Change::Add(key, options)) => {
                settings.groups.check_add(key, options.group.as_deref()).map_err(Why::Refused)
            }
            (_, Change::Cancel(_)) => Ok(()),
        }
    }

    /// Takes a change that [`check_change`](Self::check_change) has accepted. A cancel is applied immediately. An add
    /// is applied by [`apply_pending`](Self::apply_pending).
    async fn take_change(&mut self, change: Change<'_>) -> Result<(), String> {
        match change {
            Change::Add(key, options) => {
                self.unmatched.take_if(|pattern| pattern.is_match(&key));
                self.create_missing(options.group.is_some()).await?;
                if let Target::Server(_) = self.target {
                    return self.take_for_server(&key, options).await;
                }
                let pending = self.pending_add(&key, options);
                // The order of the adds within a part is not defined. Two different adds of one key must therefore be
                // in different parts.
                let differs = |other: &PendingAdd| other.key == pending.key && *other != pending;
                if self.part.len() == PART || self.part.iter().any(differs) {
                    self.apply_pending().await?;
                }
                self.part.push(pending);
            }
            Change::Cancel(key) => {
                // The current part may contain an earlier add of the key, so it is sent before the cancel.
                self.apply_pending().await?;
                let cancelled = match &self.target {
                    Target::Store(queue) => {
                        let cancelled = queue.cancel(&*key).await;
                        cancelled.map_err(|error| error_chain(&error))?
                    }
                    Target::Server(server) => {
                        let body =
                            Actions { keys: Some(vec![named_key(&key)]), ..Actions::default() };
                        let answer = server.post(Action::Cancel.name(), &body).await;
                        let Changed { changed, .. } = answer.map_err(|refusal| refusal.message)?;
                        changed == 1
                    }
                    Target::Missing(..) => false,
                };
                self.counts.cancelled += usize::from(cancelled);
            }
        }
        Ok(())
    }

    async fn take_for_server(&mut self, key: &[u8], options: AddOptions) -> Result<(), String> {
        for (is_there, field) in [
            (options.merge != requeue::Merge::Earliest, "merge"),
            (options.debounce.is_some(), "debounce"),
        ] {
            if is_there {
                let why = format!("--server: an add with `{field}` needs --store");
                return Err(why);
            }
        }
        let AddOptions { after, priority, revive, group, .. } = self.with_defaults(options);
        let NamedKey { key, key_base64 } = named_key(key);
        let after = after.filter(|after| !after.is_zero()).map(|after| after.as_secs_f64());
        let revive = revive.unwrap_or_default();
        let group = group.map(|group| group.to_string());
        let added = AddedKey { key, key_base64, after, priority, revive, group };
        match self.named.push_key(added, PART) {
            Some(keys) => self.send_part(keys).await,
            None => Ok(()),
        }
    }

    /// Fills in the fields that a record does not contain. If a record has a due time, neither `--after` nor
    /// `--debounce` applies to it.
    fn with_defaults(&self, options: AddOptions) -> AddOptions {
        let unsaid = &self.unsaid;
        AddOptions {
            debounce: options.debounce.or(unsaid.debounce.filter(|_| options.after.is_none())),
            after: options.after.or(unsaid.after),
            priority: if options.priority == 0 { unsaid.priority } else { options.priority },
            revive: options.revive.or(unsaid.revive),
            group: options.group.or_else(|| unsaid.group.clone()),
            ..options
        }
    }

    fn pending_add(&self, key: &[u8], options: AddOptions) -> PendingAdd {
        // A store does not record the reason of an add.
        let AddOptions { after, debounce, merge, priority, reason: _, revive, group } =
            self.with_defaults(options);
        let merge = match merge {
            requeue::Merge::Latest => Merge::Latest,
            requeue::Merge::Exactly => Merge::Exactly,
            _ => Merge::Earliest,
        };
        let add = match debounce {
            Some(Debounce { quiet, most }) => Add::debounce(quiet).at_most(most),
            None => Add::after(after.unwrap_or_default()),
        };
        let add = add.merge(merge).priority(Priority::from(priority));
        let add = if revive == Some(true) { add.revive() } else { add };
        PendingAdd { key: Key::from(key), group, add }
    }

    /// Sends the adds of the current part, and waits until the queue has added or refused all of them.
    async fn apply_pending(&mut self) -> Result<(), String> {
        let part = std::mem::take(&mut self.part);
        let queue = match &self.target {
            Target::Store(queue) => queue,
            // The first valid add has created the queue, so a missing queue has no pending adds.
            Target::Missing(..) => return Ok(()),
            Target::Server(_) => {
                let keys = self.named.take_keys();
                return if keys.is_empty() { Ok(()) } else { self.send_part(keys).await };
            }
        };
        let adds = part.into_iter().map(async |PendingAdd { key, group, add }| match group {
            Some(group) => queue.group(group).add_with(key, add).await,
            None => queue.add_with(key, add).await,
        });
        let mut failed = None;
        // The adds run concurrently, so that the store combines them into one request.
        for added in join_all(adds).await {
            match added {
                Ok(added) => self.counts.count_added(added),
                Err(error) => failed = Some(error_chain(&error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Adds keys through the server.
    async fn send_part(&mut self, keys: Vec<AddedKey>) -> Result<(), String> {
        let Target::Server(server) = &self.target else { return Ok(()) };
        let count = keys.len();
        let answer = server.post("add", &Adds { keys }).await;
        let AddResults { results } = answer.map_err(|refusal| refusal.message)?;
        if results.len() != count {
            return Err(server.refusal(WRONG_ANSWER).message);
        }
        for result in results {
            self.counts.count_added(match result {
                AddResult::New => Added::New,
                AddResult::Dirty => Added::Dirty,
                AddResult::BackingOff => Added::BackingOff,
                AddResult::Revived => Added::Revived,
                AddResult::Parked => Added::Parked,
                AddResult::Refused => {
                    let why = "--server: the queue takes no more keys: it is closed";
                    return Err(why.to_owned());
                }
                AddResult::Coalesced | AddResult::Unknown => Added::Coalesced,
            });
        }
        Ok(())
    }
}

/// Adds the keys that `requeue run` reads to a queue in a store.
pub(crate) struct Reading {
    runner: Arc<Runner>,
    adder: Adder,
    runtime: Handle,
}

impl Reading {
    /// The caller must be inside a Tokio runtime.
    pub(crate) fn new(runner: &Arc<Runner>, queue: Queue, pattern: Option<Regex>) -> Self {
        // An add revives a parked key. A queue in memory also runs a key again that was given up and is then added.
        let unsaid = AddOptions { revive: Some(true), ..AddOptions::default() };
        let adder = Adder::new(Target::Store(queue), unsaid, pattern);
        Self { runner: Arc::clone(runner), adder, runtime: Handle::current() }
    }

    /// Moves the numbers of results to the summary, and stops the program if the store has failed. Returns false if
    /// the program is stopping.
    fn count_results(&mut self, done: Result<(), String>) -> bool {
        let tally = &self.runner.tally;
        let counts = std::mem::take(&mut self.adder.counts);
        tally.adds.accepted.add(counts.adds);
        tally.adds.coalesced.add(counts.coalesced + counts.backing_off);
        tally.adds.revived.add(counts.revived);
        tally.cancelled.add(counts.cancelled);
        if let Err(why) = done {
            tally.mark_failed();
            self.runner.output.say_blocking(&why);
            self.runner.stop(Level::Stopping);
        }
        !self.runner.is_stopping()
    }
}

impl ChangeSink for Reading {
    fn take_change(&mut self, change: Change<'_>) -> Result<bool, Why> {
        if self.runner.is_stopping() {
            return Ok(false);
        }
        self.adder.check_change(&change)?;
        let taken = self.runtime.block_on(self.adder.take_change(change));
        Ok(self.count_results(taken))
    }

    fn refuse_record(&mut self, bad: &Bad) {
        self.runner.complain_of(bad);
    }

    fn apply_pending(&mut self) -> bool {
        let settled = self.runtime.block_on(self.adder.apply_pending());
        self.count_results(settled)
    }

    fn end_input(&mut self) {
        if self.runner.tally.adds.accepted.get() > 0
            && let Some(warning) = self.adder.unmatched_pattern()
        {
            self.runner.output.say_blocking(&warning);
        }
    }
}

/// `requeue add`: adds keys from the arguments or the input to a queue.
pub(crate) fn add(flags: AddFlags) -> Result<Ended, Refusal> {
    let AddFlags { keys, place, after, debounce, priority, revive, re_add: when_early, .. } = flags;
    let AddFlags { parked_add, group, groups, read, summary, server, .. } = flags;
    let server = server.open_server(place.queue.as_deref())?;
    server.as_ref().map_or(Ok(()), Server::check_token)?;
    if server.is_some() && (parked_add.is_some() || when_early.is_some()) {
        return Err(Refusal::usage("--server: --parked-add and --re-add are settings of a store"));
    }
    if server.is_some() && debounce.is_some() {
        return Err(Refusal::usage("--server: --debounce needs --store"));
    }
    let groups = groups.settings(group.is_some())?;
    if let Some(group) = &group {
        let checked = GroupBy::Add.check_add(&Key::from(""), Some(group));
        checked.map_err(|why| Refusal::usage(format!("--group: {why}")))?;
    }
    if server.is_some() && groups != GroupSettings::of_adds(group.is_some()) {
        let why = "--server: --group-by and --group-limit need --store";
        return Err(Refusal::usage(why));
    }
    let started = Instant::now();
    let re_add = re_add(when_early)?;
    let (source, format) = read.source_and_format()?;
    let (priority, revive) = (priority.into(), Some(revive));
    let group = group.map(Arc::from);
    let unsaid = AddOptions { after, debounce, priority, revive, group, ..AddOptions::default() };
    let settings = QueueSettings { re_add, parked_add, groups, rate: None };
    block_on(async {
        let how = |opening| trace_store(settings.apply_to(opening));
        let target = match server {
            Some(server) => Target::Server(server),
            None => match place.to_change_existing(how).await? {
                Some(queue) => Target::Store(queue),
                None => Target::Missing(place, settings.clone()),
            },
        };
        log::show_events(complain);
        let adder = Adder::new(target, unsaid, settings.groups.pattern());
        let mut adding = Adding { adder, runtime: Handle::current(), failed: None };
        // This call blocks until the input ends. Only a signal that kills the process can interrupt it.
        let added = tokio::task::block_in_place(|| {
            let _context = attach_own_context();
            match keys.is_empty() {
                true => adding.add_read(&source, format),
                false => adding.add_named(&keys, format),
            }
        });
        let counts = adding.adder.counts;
        if let Some(warning) = adding.adder.unmatched_pattern().filter(|_| counts.adds > 0) {
            complain(&warning);
        }
        counts.print_summary(summary, started.elapsed());
        if let Target::Store(queue) = &adding.adder.target {
            // At the shutdown, this process writes the number of its adds to the store.
            queue.shut_down();
            queue.settled().await;
        }
        match added {
            Err(why) => Err(Refusal::failure(why)),
            Ok(()) if counts.bad_input > 0 => Ok(Ended::Exit(Exit::BadInput)),
            Ok(()) => Ok(Ended::Exit(Exit::Done)),
        }
    })
}

/// The state of `requeue add` while it adds keys.
struct Adding {
    adder: Adder,
    runtime: Handle,
    /// The error after which no more keys are added.
    failed: Option<String>,
}

impl Adding {
    fn add_named(&mut self, keys: &[OsString], format: Format) -> Result<(), String> {
        for key in keys {
            match format.parse_change(key.as_bytes()).and_then(|change| self.take_change(change)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => self.refuse_with(&format!("{}: {why}", escaped(key.as_bytes()))),
            }
        }
        self.finish_adds()
    }

    fn add_read(&mut self, source: &Source, format: Format) -> Result<(), String> {
        // Only a signal that kills the process stops the reading, so the handle that could stop it is not used.
        let (input, _stopper) = Input::open(source).map_err(|refusal| refusal.message)?;
        if input.is_terminal {
            complain(FROM_TERMINAL);
        }
        let read = read_changes(input, format, self);
        self.finish_adds()?;
        read.map(|_| ()).map_err(|error| format!("the input cannot be read: {error}"))
    }

    fn finish_adds(&mut self) -> Result<(), String> {
        // All records that were read are added, even after an invalid record or a read error.
        let applied = self.runtime.block_on(async {
            if self.failed.is_none() && self.adder.counts.bad_input == 0 {
                // The queue is also created if the input contains no key.
                self.adder.create_missing(false).await?;
            }
            self.adder.apply_pending().await
        });
        applied.and(self.failed.take().map_or(Ok(()), Err))
    }

    fn refuse_with(&mut self, message: &str) {
        self.adder.counts.bad_input += 1;
        complain(message);
    }
}

impl ChangeSink for Adding {
    fn take_change(&mut self, change: Change<'_>) -> Result<bool, Why> {
        self.adder.check_change(&change)?;
        self.failed = self.runtime.block_on(self.adder.take_change(change)).err();
        Ok(self.failed.is_none())
    }

    fn refuse_record(&mut self, bad: &Bad) {
        self.refuse_with(&bad.to_string());
    }

    fn apply_pending(&mut self) -> bool {
        if self.failed.is_none() {
            self.failed = self.runtime.block_on(self.adder.apply_pending()).err();
        }
        self.failed.is_none()
    }
}

impl Counts {
    fn count_added(&mut self, added: Added) {
        self.adds += 1;
        *match added {
            Added::New => &mut self.new,
            Added::Dirty => &mut self.dirty,
            Added::BackingOff => &mut self.backing_off,
            Added::Revived => &mut self.revived,
            Added::Parked => &mut self.parked,
            // A later version of the library may add results. They are counted as coalesced.
            _ => &mut self.coalesced,
        } += 1;
    }

    fn print_summary(&self, how: Summary, elapsed: Duration) {
        match how {
            Summary::Text => {
                let answers = [
                    (self.new, "new"),
                    (self.coalesced, "coalesced"),
                    (self.dirty, "to run once more"),
                    (self.backing_off, "backing off"),
                    (self.revived, "revived"),
                    (self.parked, "left parked (--revive revives them)"),
                ];
                let given = answers.iter().filter(|(count, _)| *count > 0);
                let listed: Vec<_> = given.map(|(count, what)| format!("{count} {what}")).collect();
                let mut text = counted(self.adds as u64, "add");
                if self.adds > 0 {
                    text += &format!(": {}", listed.join(", "));
                }
                if self.cancelled > 0 {
                    text += &format!(", {} cancelled", self.cancelled);
                }
                if self.bad_input > 0 {
                    text += &format!(", {}", counted(self.bad_input as u64, "bad record"));
                }
                complain(&format!("{text} in {}", shown(elapsed)));
            }
            Summary::Json => {
                // Numbers can always be serialized. If standard error cannot be written, the error cannot be reported
                // anywhere.
                let json = serde_json::to_string(self).unwrap_or_default();
                let _ = writeln!(std::io::stderr(), "{json}");
            }
            Summary::None => {}
        }
    }
}

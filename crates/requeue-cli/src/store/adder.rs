//! `requeue add`, and the adds of `requeue run --store`: adds many keys in one request.

use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use requeue_http::api::{
    Action, AddResult, AddResults, AddedKey, Adds, Change as Actions, Changed, Named, NamedKey,
};
use requeue_store::{Add, Added, Key, Merge, Priority, Queue};
use serde::Serialize;
use tokio::runtime::Handle;

use super::by_server::named;
use super::server::{Part as ServerPart, Server};
use super::{block_on, re_add, with_settings};
use crate::args::run::Summary;
use crate::args::store::{self as flags, AddFlags};
use crate::duration::{Debounce, shown};
use crate::exit::{Ended, Exit, Refusal, chain, complain};
use crate::input::source::{Input, Source};
use crate::input::{AddOptions, Bad, Change, Format, Records, Why};
use crate::key::escaped;
use crate::output::log;
use crate::output::summary::counted;
use crate::process::signals::Level;
use crate::runner::Runner;
use crate::runner::reader::KeySink;

/// The maximum number of keys that are added in one request.
const PART: usize = 256;

/// The values for records without these fields.
#[derive(Clone, Copy, Debug, Default)]
struct Unsaid {
    after: Duration,
    debounce: Option<Debounce>,
    priority: Priority,
    revives: bool,
}

/// Adds keys in parts. `settle` waits until all keys of the current part are added or refused.
struct Adder {
    target: Target,
    unsaid: Unsaid,
    part: Vec<(Key, Add)>,
    /// With a server, the keys of the part as it names them.
    named: ServerPart<AddedKey>,
    counts: Counts,
}

/// The queue that gets the keys.
enum Target {
    Store(Queue),
    Server(Server),
}

/// The outcomes of adds and cancels. The names are those of the JSON summary.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    /// The sum of the six counts below, one for each result of an add.
    adds: usize,
    new: usize,
    /// Already pending.
    coalesced: usize,
    /// In flight: runs once more.
    dirty: usize,
    /// Backing off, and the queue does not run it early.
    backing_off: usize,
    revived: usize,
    /// Left parked, as the queue's settings demand.
    parked: usize,
    cancelled: usize,
    bad_input: usize,
}

enum Refused {
    /// The record is not a valid key.
    NoKey(Why),
    /// The store refused or failed.
    Failed(String),
}

impl Adder {
    fn new(target: Target, unsaid: Unsaid) -> Self {
        let (part, named) = (Vec::with_capacity(PART), ServerPart::new());
        Self { target, unsaid, part, named, counts: Counts::default() }
    }

    async fn take(&mut self, change: Change<'_>) -> Result<(), Refused> {
        let (Change::Add(key, _) | Change::Cancel(key)) = &change;
        if key.len() > Key::MAX_LENGTH && matches!(self.target, Target::Store(_)) {
            let (bytes, most) = (key.len() as u64, Key::MAX_LENGTH);
            return Err(Refused::NoKey(Why::KeyTooLong { bytes, most }));
        }
        match change {
            Change::Add(key, options) => {
                if let Target::Server(_) = self.target {
                    return self.take_for_server(&key, options).await;
                }
                let (key, add) = (Key::from(&*key), self.add_of(options));
                // The adds of a part have no order.
                let differs = |other: &(Key, Add)| other.0 == key && other.1 != add;
                if self.part.len() == PART || self.part.iter().any(differs) {
                    self.settle().await?;
                }
                self.part.push((key, add));
            }
            Change::Cancel(key) => {
                self.settle().await?;
                let cancelled = match &self.target {
                    Target::Store(queue) => {
                        let cancelled = queue.cancel(&*key).await;
                        cancelled.map_err(|error| Refused::Failed(chain(&error)))?
                    }
                    Target::Server(server) => {
                        let body = Actions { keys: Some(vec![named(&key)]), ..Actions::default() };
                        let answer = server.post(Action::Cancel.name(), &body).await;
                        let Changed { changed, .. } = answer.map_err(failed)?;
                        changed == 1
                    }
                };
                self.counts.cancelled += usize::from(cancelled);
            }
        }
        Ok(())
    }

    async fn take_for_server(&mut self, key: &[u8], options: AddOptions) -> Result<(), Refused> {
        for (is_there, field) in [
            (options.merge != requeue::Merge::Earliest, "merge"),
            (options.debounce.is_some(), "debounce"),
        ] {
            if is_there {
                let why = format!("--server: an add with `{field}` needs --store");
                return Err(Refused::Failed(why));
            }
        }
        let priority = match options.priority {
            0 => self.unsaid.priority.into(),
            priority => priority,
        };
        let after = options.after.unwrap_or(self.unsaid.after);
        let NamedKey { key, key_base64 } = named(key);
        let after = (!after.is_zero()).then_some(after.as_secs_f64());
        let revive = options.revive.unwrap_or(self.unsaid.revives);
        match self.named.push(AddedKey { key, key_base64, after, priority, revive }, PART) {
            Some(keys) => self.send(keys).await,
            None => Ok(()),
        }
    }

    fn add_of(&self, options: AddOptions) -> Add {
        let merge = match options.merge {
            requeue::Merge::Latest => Merge::Latest,
            requeue::Merge::Exactly => Merge::Exactly,
            _ => Merge::Earliest,
        };
        let priority = if options.priority == 0 {
            self.unsaid.priority
        } else {
            Priority::from(options.priority)
        };
        // The due time of a record replaces both defaults.
        let debounce =
            options.debounce.or(self.unsaid.debounce.filter(|_| options.after.is_none()));
        let add = match debounce {
            Some(Debounce { quiet, most }) => Add::debounce(quiet).at_most(most),
            None => Add::after(options.after.unwrap_or(self.unsaid.after)),
        };
        let add = add.merge(merge);
        let add = add.priority(priority);
        if options.revive.unwrap_or(self.unsaid.revives) { add.revive() } else { add }
    }

    /// Waits until all keys that were taken are added.
    async fn settle(&mut self) -> Result<(), Refused> {
        let part = std::mem::take(&mut self.part);
        let queue = match &self.target {
            Target::Store(queue) => queue,
            Target::Server(_) => {
                let keys = self.named.take();
                return if keys.is_empty() { Ok(()) } else { self.send(keys).await };
            }
        };
        let adds = part.into_iter().map(|(key, add)| queue.add_with(key, add));
        let mut failed = None;
        for added in join_all(adds).await {
            match added {
                Ok(added) => self.counts.add(added),
                Err(error) => failed = Some(chain(&error)),
            }
        }
        failed.map_or(Ok(()), |why| Err(Refused::Failed(why)))
    }

    /// Adds keys by the server.
    async fn send(&mut self, keys: Vec<AddedKey>) -> Result<(), Refused> {
        let Target::Server(server) = &self.target else { return Ok(()) };
        let count = keys.len();
        let answer = server.post("add", &Adds { keys }).await;
        let AddResults { results } = answer.map_err(failed)?;
        if results.len() != count {
            let why = "--server: the answer is not that of this version of requeue; check the URL";
            return Err(Refused::Failed(why.to_owned()));
        }
        for result in results {
            self.counts.add(match result {
                AddResult::New => Added::New,
                AddResult::Dirty => Added::Dirty,
                AddResult::BackingOff => Added::BackingOff,
                AddResult::Revived => Added::Revived,
                AddResult::Parked => Added::Parked,
                AddResult::Refused => {
                    let why = "--server: the queue takes no more keys: it is closed";
                    return Err(Refused::Failed(why.to_owned()));
                }
                AddResult::Coalesced | AddResult::Unknown => Added::Coalesced,
            });
        }
        Ok(())
    }
}

/// Adds the keys that `requeue run` reads to a store.
pub(crate) struct Reading {
    runner: Arc<Runner>,
    adder: Adder,
    runtime: Handle,
}

impl Reading {
    /// Must be called in a runtime.
    pub(crate) fn new(runner: &Arc<Runner>, queue: Queue) -> Self {
        // In a queue in memory, too, an add of a key that was given up runs it again.
        let unsaid = Unsaid { revives: true, ..Unsaid::default() };
        let (runner, adder) = (Arc::clone(runner), Adder::new(Target::Store(queue), unsaid));
        Self { runner, adder, runtime: Handle::current() }
    }

    /// Counts the results, and stops the run if the store fails.
    fn count(&mut self, done: Result<(), Refused>) -> Result<(), Why> {
        let tally = self.runner.tally();
        let counts = std::mem::take(&mut self.adder.counts);
        tally.adds.add(counts.adds);
        tally.coalesced.add(counts.coalesced + counts.backing_off);
        tally.revived.add(counts.revived);
        tally.cancelled.add(counts.cancelled);
        match done {
            Ok(()) => Ok(()),
            Err(Refused::NoKey(why)) => Err(why),
            Err(Refused::Failed(why)) => {
                tally.fail();
                self.runner.output().say_blocking(&why);
                self.runner.stop(Level::Stopping);
                Ok(())
            }
        }
    }
}

impl KeySink for Reading {
    fn take(&mut self, change: Change<'_>) -> Result<bool, Why> {
        if self.runner.is_stopping() {
            self.settle();
            return Ok(false);
        }
        let taken = self.runtime.block_on(self.adder.take(change));
        self.count(taken)?;
        Ok(!self.runner.is_stopping())
    }

    fn settle(&mut self) {
        let settled = self.runtime.block_on(self.adder.settle());
        // `settle` returns no invalid key, because invalid keys were not taken.
        let _ = self.count(settled);
    }
}

/// `requeue add`.
pub(crate) fn add(flags: AddFlags) -> Result<Ended, Refusal> {
    let AddFlags { keys, place, after, debounce, priority, revive, re_add: when_early, .. } = flags;
    let AddFlags { parked_add, read, summary, server, .. } = flags;
    let server = server.open()?;
    server.as_ref().map_or(Ok(()), Server::check_token)?;
    if server.is_some() && (parked_add.is_some() || when_early.is_some()) {
        return Err(Refusal::usage("--server: --parked-add and --re-add are settings of a store"));
    }
    if server.is_some() && debounce.is_some() {
        return Err(Refusal::usage("--server: --debounce needs --store"));
    }
    let started = Instant::now();
    let re_add = re_add(when_early)?;
    let (source, format) = read.check()?;
    let unsaid = Unsaid {
        after: after.unwrap_or_default(),
        debounce,
        priority: priority.into(),
        revives: revive,
    };
    block_on(async {
        let how = |opening| with_settings(opening, re_add, parked_add);
        let target = match server {
            Some(server) => Target::Server(server),
            None => Target::Store(place.to_change(how).await?),
        };
        log::show(complain);
        let mut adder = Adder::new(target, unsaid);
        let added = match keys.is_empty() {
            true => adder.add_read(&source, format).await,
            false => adder.add_named(&keys, format).await,
        };
        adder.counts.say(summary, started.elapsed());
        match added {
            Err(why) => Err(Refusal::failure(why)),
            Ok(()) if adder.counts.bad_input > 0 => Ok(Ended::Exit(Exit::BadInput)),
            Ok(()) => Ok(Ended::Exit(Exit::Done)),
        }
    })
}

impl Adder {
    async fn add_named(&mut self, keys: &[OsString], format: Format) -> Result<(), String> {
        for key in keys {
            let change = format.parse(key.as_bytes());
            self.add(change, || escaped(key.as_bytes())).await?;
        }
        self.settle().await.map_err(Refused::why)
    }

    async fn add_read(&mut self, source: &Source, format: Format) -> Result<(), String> {
        // Reading is stopped only by a signal that ends the process.
        let (input, _stopper) = Input::open(source).map_err(|refusal| refusal.message)?;
        if input.is_terminal() {
            complain("reading keys from the terminal, one per line; Ctrl-D ends the input");
        }
        let mut records = Records::new(BufReader::with_capacity(64 << 10, input), format);
        let read = self.add_records(&mut records, format).await;
        // All records so far are added, even after a read error.
        self.settle().await.map_err(Refused::why)?;
        read
    }

    async fn add_records(
        &mut self,
        records: &mut Records<BufReader<Input>>,
        format: Format,
    ) -> Result<(), String> {
        loop {
            if !records.has_next() {
                self.settle().await.map_err(Refused::why)?;
            }
            let (number, change) = match records.next() {
                Ok(Some(Ok(_))) => (records.number(), format.parse(records.last())),
                Ok(Some(Err(Bad { number, why }))) => (number, Err(why)),
                Ok(None) => return Ok(()),
                Err(error) => return Err(format!("the input cannot be read: {error}")),
            };
            self.add(change, || format!("record {number}")).await?;
        }
    }

    async fn add(
        &mut self,
        change: Result<Change<'_>, Why>,
        which: impl FnOnce() -> String,
    ) -> Result<(), String> {
        let taken = match change {
            Ok(change) => self.take(change).await,
            Err(why) => Err(Refused::NoKey(why)),
        };
        match taken {
            Err(Refused::NoKey(why)) => {
                self.counts.bad_input += 1;
                complain(&format!("{}: {why}", which()));
                Ok(())
            }
            taken => taken.map_err(Refused::why),
        }
    }
}

/// Returns a refusal of the server.
fn failed(refusal: Refusal) -> Refused {
    Refused::Failed(refusal.message)
}

impl Refused {
    fn why(self) -> String {
        match self {
            Self::NoKey(why) => why.to_string(),
            Self::Failed(why) => why,
        }
    }
}

impl Counts {
    fn add(&mut self, added: Added) {
        self.adds += 1;
        *match added {
            Added::New => &mut self.new,
            Added::Dirty => &mut self.dirty,
            Added::BackingOff => &mut self.backing_off,
            Added::Revived => &mut self.revived,
            Added::Parked => &mut self.parked,
            // Results that later versions may add count as coalesced.
            _ => &mut self.coalesced,
        } += 1;
    }

    fn say(&self, how: Summary, elapsed: Duration) {
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
                let listed = |counts: &[(usize, &str)]| -> Vec<String> {
                    let counts = counts.iter().filter(|(count, _)| *count > 0);
                    counts.map(|(count, what)| format!("{count} {what}")).collect()
                };
                let mut text = counted(self.adds as u64, "add");
                if self.adds > 0 {
                    text += &format!(": {}", listed(&answers).join(", "));
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
                // Serializing numbers does not fail, and there is no other place to report errors of standard error.
                let json = serde_json::to_string(self).unwrap_or_default();
                let _ = writeln!(std::io::stderr(), "{json}");
            }
            Summary::None => {}
        }
    }
}

impl From<flags::Priority> for Priority {
    fn from(priority: flags::Priority) -> Self {
        match priority {
            flags::Priority::Low => Self::Low,
            flags::Priority::Normal => Self::Normal,
            flags::Priority::High => Self::High,
        }
    }
}

//! The run: keys come in, commands run, outcomes go back to the queue.

use std::hash::{BuildHasher, Hasher};
use std::io::PipeWriter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use requeue::Queue;
use requeue::metrics::Metrics;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::args;
use crate::config::Config;
use crate::exit::{Ended, Refusal};
use crate::files::{Identity, identity};
use crate::given::Things;
use crate::groups::Groups;
use crate::guardian::Guardian;
use crate::input::Key;
use crate::joblog::Joblog;
use crate::lent::{Job, Lender, Loans};
use crate::letters::{Letters, Rest};
use crate::output::{Closed, Output, Stream};
use crate::pace::Pace;
use crate::rate::Rate;
use crate::reader::{self, Here, Room};
use crate::retries::Failing;
use crate::serve::Listener;
use crate::signals::{Level, Signals};
use crate::source::{Input, Source};
use crate::standstill::Standstill;
use crate::summary::{Count, Tally};

/// Runs a command for each key that is read, to the end.
pub(crate) fn run(source: &Source, config: Config) -> Result<Ended, Refusal> {
    let (input, stopper) = Input::open(source, config.unfinished.is_some())?;
    let files = Files::open(&config, identity(input.metadata()))?;
    block_on(async {
        let listener = Listener::of(&config).await?;
        let stopper = Some(stopper);
        let parts = Parts { config, files, listener, stopper, things: None, lender: None };
        go(parts, |runner| reader::spawn(runner, input, Here::new(runner))).await
    })
}

/// Runs what `future` is on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Refusal::failure(format!("no runtime: {error}")))?;
    let ended = runtime.block_on(future);
    // A reader may be waiting for input that never comes.
    runtime.shutdown_background();
    ended
}

/// The files that are written, opened before anything is read.
#[derive(Debug)]
pub(crate) struct Files {
    letters: Letters,
    joblog: Option<Joblog>,
}

impl Files {
    /// None of them may be the input.
    pub(crate) fn open(config: &Config, input: Option<Identity>) -> Result<Self, Refusal> {
        let (dead, unfinished) = (config.dead_letter.as_deref(), config.unfinished.as_deref());
        let letters = Letters::open(config.format, dead, unfinished, input)?;
        let joblog = config.joblog.as_deref();
        let joblog = joblog.map(|path| Joblog::create(path, input, &letters)).transpose()?;
        Ok(Self { letters, joblog })
    }
}

/// What a run is made of.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) files: Files,
    /// Of the page.
    pub(crate) listener: Option<Listener>,
    /// Dropped when no more is to be read.
    pub(crate) stopper: Option<PipeWriter>,
    pub(crate) things: Option<Arc<dyn Things>>,
    pub(crate) lender: Option<Arc<dyn Lender>>,
}

/// What will be left of the input.
pub(crate) type Unread = oneshot::Receiver<Option<Rest>>;

/// Runs to the end. `feed` starts what adds the keys.
pub(crate) async fn go(
    mut parts: Parts,
    feed: impl FnOnce(&Arc<Runner>) -> Result<Unread, Refusal>,
) -> Result<Ended, Refusal> {
    let listener = parts.listener.take();
    let runner = Arc::new(Runner::new(parts, listener.as_ref().map(Listener::metrics))?);
    let signals = Signals::new()
        .map_err(|error| Refusal::failure(format!("signals can't be caught: {error}")))?;
    let page = match listener {
        Some(listener) => Some(listener.serve(&runner).await?),
        None => None,
    };
    let unread = feed(&runner)?;
    let ended = runner.run(unread, signals).await;
    if let Some(page) = page {
        page.end().await;
    }
    Ok(ended)
}

/// What the slots, the reader and the signals share.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) config: Config,
    pub(crate) queue: Queue<Key>,
    pub(crate) output: Output,
    pub(crate) tally: Tally,
    pub(crate) room: Room,
    pub(crate) failing: Failing,
    /// The commands that run.
    pub(crate) groups: Groups,
    /// What their time-outs go by.
    pub(crate) clock: Standstill,
    pub(crate) joblog: Option<Joblog>,
    pub(crate) letters: Letters,
    pub(crate) things: Option<Arc<dyn Things>>,
    pub(crate) loans: Option<Loans>,
    pub(crate) pace: Pace,
    pub(crate) rate: Option<Rate>,
    /// Runs that were about to start, a number for each.
    pub(crate) seq: Count,
    pub(crate) level: watch::Sender<Level>,
    /// The first signal, of which the program dies in the end.
    pub(crate) signal: OnceLock<i32>,
    /// Dropped when no more is to be read.
    pub(crate) stopper: Mutex<Option<PipeWriter>>,
    pub(crate) was_short: AtomicBool,
}

impl Runner {
    fn new(parts: Parts, metrics: Option<&Metrics>) -> Result<Self, Refusal> {
        let Parts { config, files, stopper, things, lender, .. } = parts;
        // A seed of this process's own.
        let seed = std::hash::RandomState::new().build_hasher().finish();
        let failing = Failing::new(config.retries, config.base_delay, config.max_delay, seed);
        // Of keys that are lent, it is their own queue that is shown.
        let metrics = metrics.filter(|_| lender.is_none());
        let queue = config.pacing.queue(config.name, config.early_add, metrics);
        let queue = queue.map_err(|error| Refusal::failure(error.to_string()))?;
        let guardian = (!config.dry_run).then(Guardian::new).transpose();
        let guardian = guardian.map_err(|error| Refusal::failure(error.to_string()))?;
        Ok(Self {
            pace: Pace::new(config.pacing.times, config.early_add, queue.clone()),
            rate: config.pacing.rate.map(|(every, burst)| Rate::new(every, burst)),
            queue,
            output: Output::start().map_err(|error| Refusal::failure(error.to_string()))?,
            tally: Tally::new(),
            room: Room::default(),
            groups: Groups::guarded(guardian),
            clock: Standstill::default(),
            joblog: files.joblog,
            failing,
            letters: files.letters,
            things,
            loans: lender.map(Loans::new),
            stopper: Mutex::new(stopper),
            seq: Count::default(),
            level: watch::Sender::default(),
            signal: OnceLock::new(),
            was_short: AtomicBool::new(false),
            config,
        })
    }

    async fn run(self: Arc<Self>, unread: Unread, signals: Signals) -> Ended {
        self.guard().await;
        tokio::spawn(Arc::clone(&self).heed(signals));
        let progress = tokio::spawn(Arc::clone(&self).show_progress());
        if Arc::clone(&self).start(1).await.is_err() {
            self.tally.failed.store(true, Ordering::Relaxed);
        }
        progress.abort();
        // It is over when it shows nothing more.
        let _ = progress.await;
        self.groups.guardian().iter().for_each(|guardian| guardian.end());
        self.say_goodbye(unread).await;
        match self.signal.get() {
            Some(&signal) => Ended::Signal(signal),
            None => Ended::Exit(self.tally.exit()),
        }
    }

    /// Has the commands killed if this process is killed, from now on or again.
    pub(crate) async fn guard(&self) {
        if let Some(Err(error)) = self.groups.guardian().map(Guardian::ensure) {
            let why = "commands will go on if this process is killed: the one that would kill them \
                       does not run";
            self.output.say(&format!("{why}: {error}")).await;
        }
    }

    /// Until the commands have been killed, and a second has passed: nobody may be reading or
    /// answering, and somebody wants this to end.
    pub(crate) async fn killed(&self) {
        let _ = self.level.subscribe().wait_for(|&level| level == Level::Killing).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    async fn say_goodbye(&self, unread: Unread) {
        let last_words = async {
            self.leave_the_rest(unread).await;
            self.output.clear_progress().await;
            self.output.flush().await;
            if let Some(Closed::Failed(error)) = self.output.is_closed() {
                self.tally.failed.store(true, Ordering::Relaxed);
                self.output.say(&format!("standard output: {error}")).await;
            }
            match self.config.summary {
                args::Summary::Text => self.output.say(&self.tally.text()).await,
                args::Summary::Json => {
                    let json = self.tally.json() + "\n";
                    self.output.write(Stream::Stderr, 0, json.into_bytes()).await;
                }
                args::Summary::None => {}
            }
            self.output.flush().await;
        };
        tokio::select! {
            () = last_words => {}
            () = self.killed() => {}
        }
    }

    /// Starts the slot with this number, from 1. The slots after it are started when all before
    /// are in use, and have ended when it has.
    fn start(self: Arc<Self>, slot: usize) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut next = None;
            let mut level = self.level.subscribe();
            loop {
                let job = tokio::select! {
                    biased;
                    _ = level.wait_for(|&level| level != Level::Running) => break,
                    job = self.next() => job,
                };
                let Some(job) = job else { break };
                if next.is_none() && slot < self.config.jobs {
                    next = Some(Arc::clone(&self).start(slot + 1));
                }
                self.attempt(job, slot).await;
                self.room.changed();
                self.rate.iter().for_each(Rate::changed);
            }
            if let Some(next) = next
                && next.await.is_err()
            {
                self.tally.failed.store(true, Ordering::Relaxed);
            }
        })
    }

    /// The next key that may start, when one may.
    async fn next(&self) -> Option<Job> {
        loop {
            // First the turn, then a key: what waits for its turn is in the queue, and coalesced.
            let turn = match &self.rate {
                Some(rate) => Some(rate.turn(&self.queue).await?),
                None => None,
            };
            if let Some(loans) = &self.loans {
                loans.borrow_into(&self.queue).await?;
            }
            let item = self.queue.get_owned().await?;
            if let Some(item) = self.pace.start(item) {
                let loan = self.loans.as_ref().and_then(|loans| loans.of(&item));
                if let Some(turn) = turn {
                    turn.take(self.queue.now());
                }
                return Some(Job { item, loan });
            }
        }
    }
}

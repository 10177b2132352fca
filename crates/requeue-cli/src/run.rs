//! The run: keys come in, commands run, outcomes go back to the queue.

use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use requeue::limiter::BackoffLimiter;
use requeue::{Item, Queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args;
use crate::command::escaped;
use crate::config::Config;
use crate::exit::{Ended, Refusal};
use crate::output::{Closed, Output, Stream};
use crate::patient::Patient;
use crate::reader::{self, Room};
use crate::retries::{Failing, Verdict};
use crate::signals::{self, Level, Signals};
use crate::spawn::{self, Run};
use crate::summary::{Count, Tally};

/// Runs to the end.
pub(crate) fn run(config: Config) -> Result<Ended, Refusal> {
    let input = reader::open(&config.input)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Refusal::failure(format!("no runtime: {error}")))?;
    let ended = runtime.block_on(async {
        let runner = Arc::new(Runner::new(config)?);
        let signals = Signals::new()
            .map_err(|error| Refusal::failure(format!("signals can't be caught: {error}")))?;
        runner.run(input, signals).await
    });
    // The reader may be waiting for input that never comes.
    runtime.shutdown_background();
    ended
}

/// What the slots, the reader and the signals share.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) config: Config,
    pub(crate) queue: Queue<Vec<u8>>,
    pub(crate) output: Output,
    pub(crate) tally: Tally,
    pub(crate) room: Room,
    failing: Failing,
    /// Runs that were about to start, a number for each.
    seq: Count,
    level: watch::Sender<Level>,
    /// The first signal, of which the program dies in the end.
    signal: OnceLock<i32>,
    dropping: Mutex<()>,
    was_short: AtomicBool,
}

/// How a run came out.
enum Outcome {
    Done,
    Failed {
        exit: i32,
        why: String,
    },
    /// It failed and always will.
    Hopeless {
        why: String,
    },
    /// Cut off by what ends the program: neither done nor failed.
    Unfinished,
}

impl Runner {
    fn new(config: Config) -> Result<Self, Refusal> {
        // A seed of this process's own.
        let seed = std::hash::RandomState::new().build_hasher().finish();
        let limiter = BackoffLimiter::new(seed).base(config.base_delay).cap(config.max_delay);
        let queue = Queue::builder().early_add(config.early_add).limiter(limiter).build();
        Ok(Self {
            queue: queue.map_err(|error| Refusal::failure(error.to_string()))?,
            output: Output::start().map_err(|error| Refusal::failure(error.to_string()))?,
            tally: Tally::new(),
            room: Room::default(),
            failing: Failing::new(config.retries),
            seq: Count::default(),
            level: watch::Sender::default(),
            signal: OnceLock::new(),
            dropping: Mutex::new(()),
            was_short: AtomicBool::new(false),
            config,
        })
    }

    async fn run(
        self: Arc<Self>,
        input: BufReader<Patient>,
        signals: Signals,
    ) -> Result<Ended, Refusal> {
        let this = Arc::clone(&self);
        std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || reader::read(&this, input))
            .map_err(|error| Refusal::failure(error.to_string()))?;
        tokio::spawn(Arc::clone(&self).watch(signals));
        if Arc::clone(&self).start(1).await.is_err() {
            self.tally.failed.store(true, Ordering::Relaxed);
        }
        self.drop_the_rest();
        self.say_goodbye().await;
        Ok(match self.signal.get() {
            Some(&signal) => Ended::Signal(signal),
            None => Ended::Exit(self.tally.exit()),
        })
    }

    async fn say_goodbye(&self) {
        let mut level = self.level.subscribe();
        let last_words = async {
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
            // Nobody may be reading, and somebody wants this to end.
            () = async {
                let _ = level.wait_for(|&level| level == Level::Killing).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            } => {}
        }
    }

    // --- Slots ----------------------------------------------------------------------------------

    /// Starts the slot with this number, from 1. The slots after it are started when all before
    /// are in use, and have ended when it has.
    fn start(self: Arc<Self>, slot: usize) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut next = None;
            while let Some(item) = self.queue.get_owned().await {
                if next.is_none() && slot < self.config.jobs {
                    next = Some(Arc::clone(&self).start(slot + 1));
                }
                self.attempt(item, slot).await;
                self.room.changed();
            }
            if let Some(next) = next
                && next.await.is_err()
            {
                self.tally.failed.store(true, Ordering::Relaxed);
            }
        })
    }

    async fn attempt(&self, item: Item<'static, Vec<u8>>, slot: usize) {
        let run = Run {
            key: &item,
            past: self.failing.past(&item),
            adds: item.adds(),
            slot,
            seq: self.seq.one_more(),
        };
        let mut level = self.level.subscribe();
        let outcome = match self.spawn(run, &mut level).await {
            None => Outcome::Unfinished,
            Some(Ok(child)) => {
                let ended = spawn::finish(child, run.seq, &self.output, &mut level).await;
                self.outcome(ended)
            }
            Some(Err(error)) if spawn::is_hopeless(&error) => {
                Outcome::Hopeless { why: error.to_string() }
            }
            Some(Err(error)) => {
                // The numbers a shell has for these.
                let exit = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                Outcome::Failed { exit, why: error.to_string() }
            }
        };
        self.end(item, outcome).await;
    }

    /// Starts the command; waits while there is no room for another process or file. `None` if no
    /// more are to be started.
    async fn spawn(
        &self,
        run: Run<'_>,
        level: &mut watch::Receiver<Level>,
    ) -> Option<io::Result<Child>> {
        let mut command = spawn::command(&self.config.template, run, self.config.output);
        let mut pause = Duration::from_millis(10);
        loop {
            if *level.borrow_and_update() != Level::Running {
                return None;
            }
            match command.spawn() {
                Err(error) if spawn::is_shortage(&error) => {
                    if !self.was_short.swap(true, Ordering::Relaxed) {
                        let why = "no further command can be started for now";
                        self.output.say(&format!("{why}: {error}")).await;
                    }
                    let _ = tokio::time::timeout(pause, level.changed()).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                child => {
                    self.tally.runs.one_more();
                    return Some(child);
                }
            }
        }
    }

    fn outcome(&self, ended: io::Result<ExitStatus>) -> Outcome {
        let status = match ended {
            Ok(status) if status.success() => return Outcome::Done,
            Ok(status) => status,
            Err(error) => return Outcome::Failed { exit: 125, why: error.to_string() },
        };
        let signal = status.signal();
        let exit = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(125);
        if exit == 128 + Signal::PIPE.as_raw() && self.finds_stdout_closed() {
            return Outcome::Unfinished;
        }
        let level = *self.level.borrow();
        let of_our_signal = self.signal.get().is_some_and(|&signal| exit == 128 + signal);
        if level >= Level::Terminating || (level == Level::Stopping && of_our_signal) {
            return Outcome::Unfinished;
        }
        Outcome::Failed { exit, why: status.to_string() }
    }

    async fn end(&self, item: Item<'static, Vec<u8>>, outcome: Outcome) {
        if matches!(outcome, Outcome::Failed { .. } | Outcome::Hopeless { .. }) {
            self.tally.failures.one_more();
        }
        let (item, attempts, why) = match outcome {
            Outcome::Done => {
                self.failing.forget(&item);
                item.succeed();
                return;
            }
            Outcome::Unfinished => {
                item.put_back();
                return;
            }
            Outcome::Hopeless { why } => {
                let attempts = self.failing.past(&item).attempt;
                self.failing.forget(&item);
                (item, attempts, why)
            }
            Outcome::Failed { exit, why } => {
                match self.failing.fail(item, exit, self.queue.now()) {
                    Verdict::Retried => return,
                    Verdict::GivenUp { item, attempts } => (item, attempts, why),
                }
            }
        };
        self.tally.given_up.one_more();
        let key = escaped(&item);
        // Its failures are forgotten: if it was added meanwhile, it runs afresh.
        item.succeed();
        let s = if attempts == 1 { "" } else { "s" };
        self.output.say(&format!("{key}: given up after {attempts} attempt{s}: {why}")).await;
    }

    // --- Ending ---------------------------------------------------------------------------------

    pub(crate) fn is_stopping(&self) -> bool {
        *self.level.borrow() != Level::Running
    }

    /// Acts on signals and on the end of standard output, as long as the program runs.
    async fn watch(self: Arc<Self>, mut signals: Signals) {
        let mut level = Level::Running;
        let mut is_open = true;
        loop {
            tokio::select! {
                signal = signals.next() => {
                    self.signal.get_or_init(|| signal);
                    level = level.next();
                    self.stop(level);
                    let running = self.queue.processing();
                    if level == Level::Stopping && running > 0 {
                        let name = signals::name(signal);
                        self.output.hint(&format!(
                            "{name}: nothing more is started; once more ends what runs ({running})"
                        ));
                    }
                }
                () = self.output.closed(), if is_open => {
                    is_open = false;
                    self.stop(Level::Stopping);
                }
            }
            self.drop_the_rest();
        }
    }

    /// No more is read or started from here on.
    fn stop(&self, level: Level) {
        // A paused queue that is shut down hands out nothing.
        self.queue.pause();
        self.level.send_if_modified(|now| {
            let rises = level > *now;
            *now = level.max(*now);
            rises
        });
        self.room.changed();
    }

    /// Ends the queue, and counts the keys it still had: once this returns, all of them. Takes a
    /// second where there are a million.
    fn drop_the_rest(&self) {
        let _one_at_a_time = self.dropping.lock().unwrap_or_else(PoisonError::into_inner);
        self.tally.unfinished.add(self.queue.shut_down().len());
        self.tally.unfinished.add(self.queue.take_dropped().len());
    }

    /// Whether a command that died of SIGPIPE did so because nobody reads what we write.
    fn finds_stdout_closed(&self) -> bool {
        let inherits = self.config.output == args::Output::Inherit;
        let closed = self.output.is_closed().is_some() || (inherits && is_broken(&io::stdout()));
        if closed {
            self.stop(Level::Stopping);
            self.drop_the_rest();
        }
        closed
    }
}

/// Whether this is a pipe that nobody reads.
fn is_broken(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

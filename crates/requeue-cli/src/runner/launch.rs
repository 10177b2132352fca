//! Starts a run, and waits for its end.

use std::io::{self, PipeWriter};
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;
use tokio::sync::{SetOnce, oneshot};
use tokio::task::JoinHandle;

use crate::args::config::Config;
use crate::args::run::Summary;
use crate::exit::{Ended, Exit, Refusal};
use crate::input::source::{Input, Source};
use crate::output::dead_letters::DeadLetters;
use crate::output::files::{Identity, identity};
use crate::output::joblog::Joblog;
use crate::output::summary::Tally;
use crate::output::{Closed, Output, Stream};
use crate::process::groups::Groups;
use crate::process::guardian::Guardian;
use crate::process::signals::{Level, Signals};
use crate::runner::hooks::Hooks;
use crate::runner::keys::Keys;
use crate::runner::reader::{self, LocalSink};
use crate::runner::remote::{ExpiredKeys, Remote};
use crate::runner::retry_reports::RetryReports;
use crate::runner::stop::Stop;
use crate::runner::{Commands, Files, Runner};
use crate::serve::{History, Listener, Metrics};
use crate::traces::Export;

/// `requeue run`: runs a command for each key of the input.
pub(crate) fn run(source: &Source, config: Config) -> Result<Ended, Refusal> {
    // The input is opened first, so that `open_files` can refuse an output file that is the input.
    let (input, stopper) = Input::open(source)?;
    let files = Files::open_files(&config, identity(&input.metadata))?;
    block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let parts = Parts { stopper: Some(stopper), ..Parts::new(config, files, listener) };
        run_parts(parts, |runner| reader::spawn_reader(runner, input, LocalSink::new(runner))).await
    })
}

/// Runs `future` on a separate runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Refusal::failure(format!("the runtime cannot be started: {error}")))?;
    let ended = runtime.block_on(future);
    // The runtime does not wait for its threads, because a reader may wait forever for input.
    runtime.shutdown_background();
    ended
}

impl Files {
    /// Opens the files before any input is read. No output file may be the input.
    pub(crate) fn open_files(config: &Config, input: Option<Identity>) -> Result<Self, Refusal> {
        let dead_letter = config.dead_letter.as_deref();
        let dead_letters = DeadLetters::open(config.input.format, dead_letter, input)?;
        let joblog = config.joblog.as_deref();
        let joblog = joblog.map(|path| Joblog::create(path, input, &dead_letters)).transpose()?;
        Ok(Self { dead_letters, joblog })
    }
}

/// The parts of a run.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) files: Files,
    /// The socket of the dashboard.
    pub(crate) listener: Option<Listener>,
    /// Stops the reading of the input when it is dropped.
    pub(crate) stopper: Option<PipeWriter>,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    /// The queue from which keys are taken, unless it is in this process.
    pub(crate) remote: Option<Remote>,
    /// The keys that claims park.
    pub(crate) expired: Option<ExpiredKeys>,
}

impl Parts {
    /// Returns the parts of a run on a queue in memory.
    pub(crate) const fn new(config: Config, files: Files, listener: Option<Listener>) -> Self {
        let (stopper, hooks, remote, expired) = (None, None, None, None);
        Self { config, files, listener, stopper, hooks, remote, expired }
    }
}

/// A channel that is ready when the reader has stopped.
pub(crate) type ReaderEnd = oneshot::Receiver<()>;

/// Runs to the end. `feed` starts the tasks or threads that add keys.
pub(crate) async fn run_parts(
    mut parts: Parts,
    feed: impl FnOnce(&Arc<Runner>) -> Result<ReaderEnd, Refusal>,
) -> Result<Ended, Refusal> {
    let export = Export::start();
    let listener = parts.listener.take();
    let expired = parts.expired.take();
    let metrics = listener.as_ref().map(|listener| &listener.metrics);
    let runner = Arc::new(Runner::new(parts, metrics)?);
    // Signals are caught before any key is read, because an uncaught signal would kill this process but not its
    // commands.
    let signals = Signals::new()
        .map_err(|error| Refusal::failure(format!("signals cannot be caught: {error}")))?;
    let page = match listener {
        Some(listener) => Some(runner.serve_page(listener).await?),
        None => None,
    };
    let reader_end = feed(&runner)?;
    let ended = runner.run_to_end(reader_end, signals, expired).await;
    if let Some(page) = page {
        page.shutdown().await;
    }
    export.finish().await;
    Ok(ended)
}

impl Runner {
    fn new(parts: Parts, metrics: Option<&Metrics>) -> Result<Self, Refusal> {
        let Parts { config, files, stopper, hooks, remote, .. } = parts;
        let keys = Keys::new(&config, metrics, remote)?;
        // A dry run starts no processes that the guardian would have to kill.
        let guardian = (!config.commands.dry_run).then(Guardian::new).transpose();
        let guardian = guardian.map_err(|error| Refusal::failure(error.to_string()))?;
        let commands = Commands { groups: Groups::with_guardian(guardian), ..Commands::default() };
        let output = Output::start().map_err(|error| Refusal::failure(error.to_string()))?;
        Ok(Self {
            started: Instant::now(),
            config,
            keys,
            commands,
            hooks,
            stop: Stop::new(stopper),
            output,
            reports: RetryReports::default(),
            tally: Tally::default(),
            files,
            history: metrics.map(|_| History::new()),
            has_record: SetOnce::new(),
        })
    }

    async fn run_to_end(
        self: Arc<Self>,
        reader_end: ReaderEnd,
        signals: Signals,
        expired: Option<ExpiredKeys>,
    ) -> Ended {
        let (done, is_done) = oneshot::channel();
        let reports =
            expired.map(|expired| tokio::spawn(Arc::clone(&self).report_expired(expired, is_done)));
        tokio::spawn(Arc::clone(&self).signal_loop(signals));
        let progress = tokio::spawn(Arc::clone(&self).show_progress());
        let omitted = tokio::spawn(Arc::clone(&self).report_omitted());
        self.start_guardian().await;
        if Arc::clone(&self).start_slot(1).await.is_err() {
            self.tally.mark_failed();
        }
        // From this point, a closed standard output does not interrupt the run.
        self.stop.mark_over();
        for task in [progress, omitted] {
            task.abort();
            // The task is awaited, because it may still write until it has stopped.
            let _ = task.await;
        }
        // No command is left, so the guardian can stop before this process.
        self.commands.groups.guardian.iter().for_each(|guardian| guardian.end_if_idle());
        let reported = async {
            // The drop of the sender ends the reports.
            drop(done);
            if let Some(reports) = reports {
                // At this point, every key that a claim has parked is reported.
                let _ = reports.await;
            }
        };
        self.finish_output(reader_end, reported).await;
        let exit = match self.tally.exit_code() {
            // A failure of this program is more serious than a missing command.
            Exit::Failure => Exit::Failure,
            exit => self.stop.no_program.get().copied().unwrap_or(exit),
        };
        let is_serious =
            matches!(exit, Exit::Failure | Exit::NotExecutable | Exit::NotFound | Exit::Halted);
        match self.stop.signal.get() {
            Some(&signal) => Ended::Signal(signal),
            None if is_serious => Ended::Exit(exit),
            // SIGPIPE kills the program, as it kills other programs in a pipe.
            None if self.is_cut_off() => Ended::Signal(Signal::PIPE.as_raw()),
            None => Ended::Exit(exit),
        }
    }

    /// Starts the guardian after the first record of the input, and before the first delivery. During the start, the
    /// reader adds the records that it has read together with the first one, so that their keys coalesce. Keys of a
    /// store or of events do not wait for this start.
    async fn start_guardian(&self) {
        if self.hooks.is_some() || self.keys.leases.is_some() {
            return;
        }
        // With a dashboard, the start does not wait for a record, because clients can add keys before the first one.
        if self.config.serve.is_none() {
            let has_record = tokio::select! {
                has_record = self.has_record.wait() => *has_record,
                () = self.stop.wait_for_level(Level::Stopping) => false,
            };
            if !has_record {
                return;
            }
        }
        self.ensure_guardian(Guardian::start_once).await;
    }

    /// Writes the last messages and the summary.
    async fn finish_output(&self, reader_end: ReaderEnd, reported: impl Future<Output = ()>) {
        let last_words = async {
            self.say_omitted().await;
            if let Some(order) = &self.keys.order {
                self.report_unwritten(order.release_all(&self.output).await).await;
            }
            self.count_unfinished(reader_end).await;
            reported.await;
            self.output.clear_progress().await;
            self.output.flush().await;
            // The check follows the flush, because only after the flush is all output written.
            if let Some(Closed::Failed(error)) = self.output.is_closed() {
                self.report_failed(&format!("standard output: {error}")).await;
            } else if self.is_cut_off() {
                self.report_cut_off().await;
            } else {
                self.report_unfinished().await;
            }
            if self.keys.leases.is_none() {
                self.tally.take_adds(&self.keys.queue.totals());
            }
            let elapsed = self.started.elapsed();
            match self.config.summary {
                Summary::Text => self.output.say(&self.tally.text_summary(elapsed)).await,
                Summary::Json => {
                    let json = self.tally.json_summary(elapsed) + "\n";
                    self.output.write(Stream::Stderr, 0, json.into_bytes()).await;
                }
                Summary::None => {}
            }
            self.output.flush().await;
        };
        tokio::select! {
            // If the reader of the output does not read, the killed program must still exit.
            () = last_words => {}
            () = self.wait_after_kill() => {}
        }
    }

    async fn report_unwritten(&self, written: io::Result<()>) {
        if let Err(error) = written {
            self.report_failed(&format!("--keep-order: output lost: {error}")).await;
        }
    }

    /// Writes the output that waited for the end of a run, and wakes those that wait for the place of its key.
    pub(super) async fn note_run_end(&self) {
        if let Some(order) = &self.keys.order {
            // A paused reader of the output must not delay the end of the run.
            tokio::select! {
                released = order.release_due(&self.output) => self.report_unwritten(released).await,
                () = self.stop.wait_for_level(Level::Killing) => {}
            }
        }
        self.keys.notify_changed();
    }

    /// Starts the slot with this number. The first number is 1. A slot starts the next slot when it takes its first
    /// key, and waits for the end of the next slot before it stops.
    fn start_slot(self: Arc<Self>, slot: usize) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut next = None;
            let mut level = self.stop.subscribe();
            loop {
                let job = tokio::select! {
                    // A slot takes no key after the run has begun to stop.
                    biased;
                    _ = level.wait_for(|&level| level != Level::Running) => break,
                    job = self.keys.next_job() => job,
                };
                let Some(job) = job else { break };
                // Slots start one by one, so a run of few keys creates few tasks.
                if next.is_none() && slot < self.config.commands.jobs {
                    next = Some(Arc::clone(&self).start_slot(slot + 1));
                }
                self.run_attempt(job, slot).await;
                self.note_run_end().await;
            }
            if let Some(next) = next
                && next.await.is_err()
            {
                self.tally.mark_failed();
            }
        })
    }
}

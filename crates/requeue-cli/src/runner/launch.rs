//! Starts the work loop of the program, and waits for its end.

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
    // The input is opened first, so that `open_files` can refuse an output file that is also the input.
    let (input, stopper) = Input::open(source)?;
    let files = Files::open_files(&config, identity(&input.metadata))?;
    block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let parts = Parts { stopper: Some(stopper), ..Parts::new(config, files, listener) };
        run_parts(parts, |runner| reader::spawn_reader(runner, input, LocalSink::new(runner))).await
    })
}

/// Runs `future` on a new runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Refusal::failure(format!("the runtime cannot be started: {error}")))?;
    let ended = runtime.block_on(future);
    // The runtime does not wait for its threads, because a reader thread may wait for input forever.
    runtime.shutdown_background();
    ended
}

impl Files {
    /// Opens the output files before any input is read. `input` identifies the input, and a file with this identity is
    /// refused.
    pub(crate) fn open_files(config: &Config, input: Option<Identity>) -> Result<Self, Refusal> {
        let dead_letter = config.dead_letter.as_deref();
        let dead_letters = DeadLetters::open(config.input.format, dead_letter, input)?;
        let joblog = config.joblog.as_deref();
        let joblog = joblog.map(|path| Joblog::create(path, input, &dead_letters)).transpose()?;
        Ok(Self { dead_letters, joblog })
    }
}

/// All that a program needs to run commands, apart from the tasks that add keys.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) files: Files,
    /// The socket on which the dashboard is served.
    pub(crate) listener: Option<Listener>,
    /// The write end of a pipe. When it is dropped, the reader thread stops reading the input.
    pub(crate) stopper: Option<PipeWriter>,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    /// The queue in a store or at a server from which keys are leased. `None` for a queue in memory.
    pub(crate) remote: Option<Remote>,
    /// The channel of the keys that claims park.
    pub(crate) expired: Option<ExpiredKeys>,
}

impl Parts {
    /// Returns the parts for a queue in memory.
    pub(crate) const fn new(config: Config, files: Files, listener: Option<Listener>) -> Self {
        let (stopper, hooks, remote, expired) = (None, None, None, None);
        Self { config, files, listener, stopper, hooks, remote, expired }
    }
}

/// A channel that is notified when the reader thread has stopped.
pub(crate) type ReaderEnd = oneshot::Receiver<()>;

/// Runs commands until no key is left or the program is stopped. `feed` starts the tasks or threads that add keys.
pub(crate) async fn run_parts(
    mut parts: Parts,
    feed: impl FnOnce(&Arc<Runner>) -> Result<ReaderEnd, Refusal>,
) -> Result<Ended, Refusal> {
    let export = Export::start();
    let listener = parts.listener.take();
    let expired = parts.expired.take();
    let metrics = listener.as_ref().map(|listener| &listener.metrics);
    let runner = Arc::new(Runner::new(parts, metrics)?);
    // Signals are caught before any key is read. A signal that is not caught would kill this process but not its
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
        // A dry run starts no commands, so it needs no guardian.
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
        // From this point, a closed standard output no longer interrupts the work.
        self.stop.mark_over();
        for task in [progress, omitted] {
            task.abort();
            // An aborted task may still write until it has stopped, so the program waits for it.
            let _ = task.await;
        }
        // No command is left, so the guardian can exit before this process does.
        self.commands.groups.guardian.iter().for_each(|guardian| guardian.end_if_idle());
        let reported = async {
            // The drop of the sender ends `report_expired`.
            drop(done);
            if let Some(reports) = reports {
                // When this task has ended, it has reported every key that a claim has parked.
                let _ = reports.await;
            }
        };
        self.finish_output(reader_end, reported).await;
        let exit = match self.tally.exit_code() {
            // A failure of requeue itself is more serious than a command that does not exist.
            Exit::Failure => Exit::Failure,
            exit => self.stop.no_program.get().copied().unwrap_or(exit),
        };
        let is_serious =
            matches!(exit, Exit::Failure | Exit::NotExecutable | Exit::NotFound | Exit::Halted);
        match self.stop.signal.get() {
            Some(&signal) => Ended::Signal(signal),
            None if is_serious => Ended::Exit(exit),
            // The program kills itself with SIGPIPE, which also kills other programs in a pipe.
            None if self.is_cut_off() => Ended::Signal(Signal::PIPE.as_raw()),
            None => Ended::Exit(exit),
        }
    }

    /// Starts the guardian after the first record of the input and before the first delivery. The start takes time, in
    /// which the reader thread adds the other records that it has read with the first one, so that their keys
    /// coalesce. Keys of a store or of events do not wait for the guardian.
    async fn start_guardian(&self) {
        if self.hooks.is_some() || self.keys.leases.is_some() {
            return;
        }
        // With a dashboard, clients can add keys before the first record. The guardian then starts without waiting for
        // a record.
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
            // The check for a closed output follows the flush, because the flush writes the rest of the output and may
            // find it closed.
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
            // If no process reads the output, a killed program must still exit.
            () = last_words => {}
            () = self.wait_after_kill() => {}
        }
    }

    async fn report_unwritten(&self, written: io::Result<()>) {
        if let Err(error) = written {
            self.report_failed(&format!("--keep-order: output lost: {error}")).await;
        }
    }

    /// After a run has completed, writes the held output that no longer has to wait for it. Then wakes the tasks that
    /// wait for space or for the rate.
    pub(super) async fn note_run_end(&self) {
        if let Some(order) = &self.keys.order {
            // A reader of the output that has stopped reading must not delay the end of the run after the kill.
            tokio::select! {
                released = order.release_due(&self.output) => self.report_unwritten(released).await,
                () = self.stop.wait_for_level(Level::Killing) => {}
            }
        }
        self.keys.notify_changed();
    }

    /// Starts the slot with this number. The first slot has number 1. A slot starts the next slot when it takes its
    /// first key, and waits for the end of the next slot before it stops.
    fn start_slot(self: Arc<Self>, slot: usize) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut next = None;
            let mut level = self.stop.subscribe();
            loop {
                let job = tokio::select! {
                    // The level is polled first, so that a slot takes no key after the program has begun to stop.
                    biased;
                    _ = level.wait_for(|&level| level != Level::Running) => break,
                    job = self.keys.next_job() => job,
                };
                let Some(job) = job else { break };
                // Each slot is started by the slot before it, so a program with few keys creates few tasks.
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
